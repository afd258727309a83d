"""bfloat16: products are narrow; sums over many numbers, parameters and rewards stay float32."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from rltok_rl.envs import ByteBoundaryEnv
from torch import Tensor

from rltok_rl.models import UNet, preset
from rltok_rl.models.attention import attend
from rltok_rl.models.layers import RMSNorm, TransformerLayer
from rltok_rl.objectives import make_estimator

from .processes import PROSE, make


def narrow(enabled: bool = True) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=enabled)


def test_statistics_of_a_norm():
    """A bfloat16 vector is normalised as float32 does it, and rounded once, under autocast too."""
    norm, x = RMSNorm(512, 1e-6), torch.randn(4, 512).bfloat16()
    with torch.no_grad():
        norm.weight.copy_(0.3 * torch.randn(512))
        expected = F.rms_norm(x.double(), (512,), 1 + norm.weight.double(), 1e-6)
        for enabled in (False, True):
            with narrow(enabled):
                normed = norm(x)
            assert normed.dtype == torch.bfloat16
            torch.testing.assert_close(normed.double(), expected, rtol=2**-8, atol=0)  # rounded once


def test_softmax_of_capped_attention(monkeypatch):
    """Its weights add up to 1 in float32: summed in bfloat16, 2,000 equal ones would not."""
    query, key = torch.zeros(1, 1, 1, 8).bfloat16(), torch.zeros(1, 1, 2000, 8).bfloat16()
    value, weights, softmax = torch.ones(1, 1, 2000, 8).bfloat16(), [], Tensor.softmax
    assert attend(query, key, value, None, 50.0).float().sub(1).abs().max() < 2e-2
    monkeypatch.setattr(Tensor, "softmax", lambda *a, **k: weights.append(softmax(*a, **k)) or weights[-1])
    with narrow():
        attend(query, key, value, None, 50.0)
    assert [one.dtype for one in weights] == [torch.float32]


def test_types_in_an_update():
    """Parameters, residual stream, likelihoods, boundary logits and returns are float32; products are not."""
    model = UNet(preset("tiny", width=16))
    env = ByteBoundaryEnv(model, PROSE, num_steps=40, batch_size=(2,), seed=0)
    wide: list[Tensor] = []
    products: list[Tensor] = []
    for layer in [m for m in model.modules() if isinstance(m, TransformerLayer)]:
        layer.register_forward_hook(lambda _, inputs, out: wide.extend((inputs[0], out)))
        for part in (layer.attention.query_key_value, layer.mlp.down):
            part.register_forward_hook(lambda _, inputs, out: products.append(out))
    model.boundary_head.register_forward_hook(lambda _, inputs, out: wide.extend(out))
    with narrow():
        rollout = env.parallel_rollout(generator=torch.Generator().manual_seed(0))
    rollout = make_estimator("discounted_return", gamma=0.9, baseline="batch_mean")(rollout)
    wide += [rollout[key] for key in ("logits", "action_log_prob", "entropy", "encoder_state", "advantage")]
    wide += [rollout["value_target"], *(rollout["next", key] for key in ("final_log_prob", "early_log_prob", "reward"))]
    trainer = make(updates=1, precision="bfloat16", ppo=True, policy_epochs=2, micro_batches=2)
    passes: list[Tensor] = []
    trainer.model.encoder[0].mlp.down.register_forward_hook(lambda _, inputs, out: passes.append(out))
    trainer.update()
    assert len(passes) > 2 * 2, "further epochs run the encoder again"
    products += passes
    parameters = list(trainer.model.parameters())
    wide += [*parameters, *(p.grad for p in parameters if p.grad is not None)]
    assert {x.dtype for x in wide} == {torch.float32} and {x.dtype for x in products} == {torch.bfloat16}


@torch.no_grad()
def test_likelihood_is_summed_in_float32():
    """Of logits in bfloat16: the value is that of the rounded logits to float32's precision."""
    model = UNet(preset("tiny", width=16))
    states, targets = torch.randn(2, 30, 16), torch.randint(256, (2, 30))
    with narrow():
        logits = model.final_logits(states)
        expected = logits.double().log_softmax(-1).gather(-1, targets[..., None])[..., 0]
        for chunk in (None, 8):
            value = model.final_log_prob(states, targets, chunk=chunk)
            assert logits.dtype == torch.bfloat16 and value.dtype == torch.float32
            torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=1e-6)


def test_boundary_logits_are_products_of_float32():
    """All boundaries depend on nine products per byte; those of byte logits are narrow."""
    model, states = UNet(preset("tiny", boundary_bias=True)), torch.randn(2, 30, 64)
    wide = model.boundary_terms(states)
    with narrow():
        terms, logits = model.boundary_terms(states), model.early_logits(states)
    assert all(torch.equal(a, b) for a, b in zip(terms, wide, strict=True))
    assert logits.dtype == torch.bfloat16

"""bfloat16: products are narrow; sums over many numbers, parameters and rewards stay float32."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from rltok_rl.envs import ByteBoundaryEnv
from torch import Tensor

from rltok_rl.models import UNet, preset
from rltok_rl.models.attention import attend
from rltok_rl.models.layers import RMSNorm, TransformerLayer
from rltok_rl.objectives import make_estimator

from .processes import make


def exact(x: Tensor) -> Tensor:
    return x.double()


def test_statistics_of_a_norm():
    """A bfloat16 vector is normalised as float32 does it, and rounded once, under autocast too."""
    norm, x = RMSNorm(512, 1e-6), torch.randn(4, 512).bfloat16()
    with torch.no_grad():
        norm.weight.copy_(0.3 * torch.randn(512))
        expected = F.rms_norm(exact(x), (512,), 1 + exact(norm.weight), 1e-6)
        for enabled in (False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                normed = norm(x)
            assert normed.dtype == torch.bfloat16
            torch.testing.assert_close(exact(normed), expected, rtol=2**-8, atol=0)  # rounded once


def test_softmax_of_capped_attention():
    """Its weights add up to 1 in float32: summed in bfloat16, 2,000 equal ones would not."""
    query, key = torch.zeros(1, 1, 1, 8).bfloat16(), torch.zeros(1, 1, 2000, 8).bfloat16()
    value = torch.ones(1, 1, 2000, 8).bfloat16()
    assert attend(query, key, value, None, 50.0).float().sub(1).abs().max() < 2e-2
    sizes = []
    softmax = Tensor.softmax
    with pytest.MonkeyPatch.context() as patched, torch.autocast("cpu", torch.bfloat16):
        patched.setattr(Tensor, "softmax", lambda *a, **k: sizes.append(softmax(*a, **k)) or sizes[-1])
        attend(query, key, value, None, 50.0)
    assert [one.dtype for one in sizes] == [torch.float32]


def test_an_update_in_bfloat16():
    """Parameters, residual stream, likelihoods, boundary logits and returns are float32; products are not."""
    torch.manual_seed(0)
    model = UNet(preset("tiny", width=16))
    env = ByteBoundaryEnv(model, "all happy families are alike. " * 20, num_steps=40, batch_size=(2,), seed=0)
    dtypes: dict[str, set[torch.dtype]] = {}

    def note(name: str, *tensors: Tensor) -> None:
        dtypes.setdefault(name, set()).update(x.dtype for x in tensors)

    for layer in [m for m in model.modules() if isinstance(m, TransformerLayer)]:
        layer.register_forward_hook(lambda _, inputs, out: note("stream", inputs[0], out))
        layer.attention.query_key_value.register_forward_hook(lambda _, inputs, out: note("products", out))
        layer.mlp.down.register_forward_hook(lambda _, inputs, out: note("products", out))
    model.boundary_head.register_forward_hook(lambda _, given, out: note("boundary terms", *out))
    with torch.autocast("cpu", torch.bfloat16):
        rollout = env.parallel_rollout(generator=torch.Generator().manual_seed(0))
    rollout = make_estimator("discounted_return", gamma=0.9, baseline="batch_mean")(rollout)
    for key in ("logits", "action_log_prob", "entropy", "encoder_state", "advantage", "value_target"):
        note(key, rollout[key])
    for key in ("final_log_prob", "early_log_prob", "reward"):
        note(key, rollout["next", key])
    products = dtypes.pop("products")
    assert products == {torch.bfloat16} and all(kinds == {torch.float32} for kinds in dtypes.values()), dtypes
    trainer = make(updates=1, precision="bfloat16")
    trainer.update()
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
    assert {p.grad.dtype for p in trainer.model.parameters() if p.grad is not None} == {torch.float32}


def test_a_likelihood_is_summed_in_float32():
    """Of logits in bfloat16: the value is that of the rounded logits to float32's precision."""
    torch.manual_seed(0)
    model = UNet(preset("tiny", width=16))
    states, targets = torch.randn(2, 30, 16), torch.randint(256, (2, 30))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        logits = model.final_logits(states)
        for chunk in (None, 8):
            value = model.final_log_prob(states, targets, chunk=chunk)
            expected = exact(logits).log_softmax(-1).gather(-1, targets[..., None])[..., 0]
            assert logits.dtype == torch.bfloat16 and value.dtype == torch.float32
            torch.testing.assert_close(exact(value), expected, rtol=1e-6, atol=1e-6)


def test_boundary_logits_are_products_of_float32():
    """All boundaries hang on nine products per byte; those of byte logits are in the narrow type."""
    torch.manual_seed(0)
    model = UNet(preset("tiny", boundary_bias=True))
    states = torch.randn(2, 30, 64)
    wide = model.boundary_terms(states)
    with torch.autocast("cpu", torch.bfloat16):
        terms, logits = model.boundary_terms(states), model.early_logits(states)
    assert all(torch.equal(a, b) for a, b in zip(terms, wide, strict=True))
    assert logits.dtype == torch.bfloat16

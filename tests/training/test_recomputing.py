"""Less memory, the same results: layers that run again in the backward pass, and predictions in parts."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.experiments.runs.build import make_trainer
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rltok_rl.functional.likelihood import byte_log_prob, byte_log_prob_in_parts
from rltok_rl.functional.policy import soft_cap
from rltok_rl.fused import fused
from rltok_rl.models import UNet, preset
from rltok_rl.training.options import compile_layers, recompute_layers

from ..each import each
from ..experiments.configured import QUICK, configured
from .processes import PROSE, ROWS, make, metrics_of

MODELS = {
    "plain": {},
    "capped": {"attention_cap": 5.0, "pooling": "mean", "upsampling": "deviation"},
    "attention": {"pooling": "attention", "upsampling": "attention"},
    "two levels": {"second_level": "routing", "num_token_layers": 2},
}


def gradients(model: UNet, layout: str = "padded") -> list[Tensor]:
    byte_ids = torch.randint(256, (2, 70), generator=torch.Generator().manual_seed(1))
    out = model(byte_ids, generator=torch.Generator().manual_seed(2), layout=layout)
    loss = byte_log_prob(out.final_logits[:, :-1], byte_ids[:, 1:]).mean() + out.boundary_logits.square().mean()
    model.zero_grad()
    loss.backward()
    return [torch.zeros(()) if p.grad is None else p.grad.clone() for p in model.parameters()]


def assert_equal(ours: list[Tensor], expected: list[Tensor]) -> None:
    assert all(torch.equal(one, other) for one, other in zip(ours, expected, strict=True))


@each(name=MODELS, layout_and_narrow=[("padded", False), ("packed", False), ("padded", True)])
def test_gradients_are_equal_to_the_last_bit(name, layout_and_narrow):
    """Of padded and packed tokens, in float32 and bfloat16."""
    layout, narrow = layout_and_narrow
    model = UNet(preset("tiny", width=16, window=16, **MODELS[name]))
    with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
        recompute_layers(model, "none")
        kept = gradients(model, layout)
        recompute_layers(model)
        assert_equal(gradients(model, layout), kept)


@each(modes=[{}, {"micro_batches": 2}, {"ppo": True, "policy_epochs": 2}])
def test_runs_are_equal_to_the_last_bit(modes):
    assert metrics_of(make(updates=2, recompute="layers", **modes)) == metrics_of(make(updates=2, **modes))


@each(epochs=[1, 2])
def test_critic_reads_the_rows_of_a_micro_batch_at_a_time(epochs):
    """For advantages and for its loss; gradients are those of all rows at once."""
    trained = []
    for whole in (False, True):
        trainer = make(estimator="critic_advantage", micro_batches=3, policy_epochs=epochs)
        policy, rows = trainer.loss.terms["policy"], []
        if whole:
            policy.rows_per_pass = policy._value_estimator.rows_per_pass = None
        policy.critic_network.register_forward_pre_hook(lambda _, inputs, rows=rows: rows.append(len(inputs[0])))
        for _ in range(2):
            trainer.update()
        assert set(rows) == {3 * ROWS if whole else ROWS}
        trained.append([parameter.detach().clone() for parameter in trainer.loss.parameters()])
    for one, other in zip(*trained, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@each(fusing=[False, True])
def test_layer_keeps_its_input_alone(fusing):
    """Bytes of the tensors that autograd keeps for the backward pass, each piece of memory once."""
    model = UNet(preset("tiny", num_encoder_layers=4, num_token_layers=4, num_decoder_layers=4))
    byte_ids, sizes = torch.randint(256, (2, 512)), []
    for what in ("none", "layers"):
        recompute_layers(model, what)
        kept: dict[int, int] = {}

        def keep(tensor: Tensor, kept: dict[int, int] = kept) -> Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x), fused(fusing):
            states = model.encode(byte_ids)
        sizes.append(sum(kept.values()))
        del states
    inputs = 4 * 2 * 512 * 64 * 4  # four layers, in float32
    assert sizes[0] > (8 if fusing else 15) * inputs and sizes[1] < 4 * inputs, sizes


def test_cache_is_written_once():
    """Attention that writes into a cache does not run again: its entries may have been overwritten."""
    model = UNet(preset("tiny", width=16))
    recompute_layers(model)
    cache = model.new_cache(2)
    states = model.encode(torch.randint(256, (2, 40)), cache=cache)
    before = cache.encoder.keys.clone()
    cache.encoder.keys.zero_()
    states.sum().backward()
    assert before.abs().sum() > 0 and cache.encoder.keys.abs().sum() == 0


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler reads it
def test_compiled_layers_run_again_too():
    trainer, _ = make_trainer(configured(*QUICK, "model=tiny", "compute.recompute=layers", "compute.compile=true"))
    assert trainer.model.encoder[0].backend == "inductor"
    assert trainer.model.encoder.recompute and trainer.model.token_layers.recompute
    model = UNet(preset("tiny", width=16))
    with fused(False):  # compiled layers are not
        kept = gradients(model)
        compile_layers(model, backend="eager")  # graphs are captured, and no code is generated
        recompute_layers(model)
        assert_equal(gradients(model), kept)


def test_misuse_is_refused():
    for option, message in (
        ("compute.recompute=all", r"compute.recompute must be one of \['none', 'layers'\], got 'all'"),
        ("compute.likelihood_chunk=0", "likelihood_chunk must be an integer of at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            make_trainer(configured(*QUICK, option))


class Largest(TorchDispatchMode):
    """Elements of the largest tensor of byte predictions."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(x, Tensor) and x.dim() and x.shape[-1] == 256:
                self.elements = max(self.elements, x.numel())
        return out


@each(cap=[None, 3.0])
def test_parts_are_the_whole(cap):
    """Values and gradients in float64, which differ in the order of sums alone."""
    states, weight = torch.randn(2, 20, 8, dtype=torch.float64), torch.randn(256, 8, dtype=torch.float64)
    targets, scale = torch.randint(256, (2, 20)), torch.randn(2, 20, dtype=torch.float64)
    inputs = [states.requires_grad_(), weight.requires_grad_()]

    def head(x: Tensor) -> Tensor:
        return x @ weight.T if cap is None else soft_cap(x @ weight.T, cap)

    def results(log_probs: Tensor) -> list[Tensor]:
        return [log_probs.detach(), *torch.autograd.grad((log_probs * scale).sum(), inputs)]

    whole = results(byte_log_prob(head(states), targets))
    for chunk in (1, 7, 40, 41):
        parts = results(byte_log_prob_in_parts(head, states, targets, chunk))
        torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)


def test_rollout_in_parts_is_the_rollout_and_holds_no_more_than_a_part():
    """No tensor, forward or backward, has more predictions than a part; without parts, some have all."""
    model, largest, rollouts = UNet(preset("tiny", width=16)), [], []
    for chunk in (None, 16):
        rows = {"num_steps": 64, "batch_size": (2,), "likelihood_chunk": chunk, "seed": 0}
        for reward in ("entropy_relative", "early_exit"):
            env = ByteBoundaryEnv(model, PROSE, reward=reward, **rows)
            with Largest() as seen:
                rollout = env.parallel_rollout(generator=torch.Generator().manual_seed(0))
                (rollout["next", "final_log_prob"].mean() + rollout["next", "early_log_prob"].mean()).backward()
            rollouts.append(rollout.detach())
        largest.append(seen.elements)
    assert largest == [2 * 64 * 256, 16 * 256]
    for whole, parts in zip(rollouts[:2], rollouts[2:], strict=True):
        for key in whole.keys(True, True):
            torch.testing.assert_close(parts[key], whole[key], rtol=1e-5, atol=1e-6)

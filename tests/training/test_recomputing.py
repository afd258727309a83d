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
from rltok_rl.models import UNet, preset
from rltok_rl.training.options import compile_layers, recompute_layers

from ..experiments.configured import QUICK, configured
from .processes import make, metrics_of

MODELS = {
    "plain": {},
    "capped": {"attention_cap": 5.0, "pooling": "mean", "upsampling": "deviation"},
    "attention": {"pooling": "attention", "upsampling": "attention"},
    "two levels": {"second_level": "routing", "num_token_layers": 2},
}


def gradients(model: UNet, layout: str = "padded") -> list[Tensor | None]:
    byte_ids = torch.randint(256, (2, 70), generator=torch.Generator().manual_seed(1))
    out = model(byte_ids, generator=torch.Generator().manual_seed(2), layout=layout)
    loss = byte_log_prob(out.final_logits[:, :-1], byte_ids[:, 1:]).mean() + out.boundary_logits.square().mean()
    model.zero_grad()
    loss.backward()
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_equal_to_the_last_bit(name):
    """Of padded and packed tokens, in float32 and bfloat16."""
    torch.manual_seed(0)
    model = UNet(preset("tiny", width=16, window=16, **MODELS[name]))
    for layout, narrow in (("padded", False), ("packed", False), ("padded", True)):
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            recompute_layers(model, "none")
            assert not any(getattr(module, "recompute", False) for module in model.modules())
            kept = gradients(model, layout)
            recompute_layers(model)
            for one, other in zip(kept, gradients(model, layout), strict=True):
                assert one is None and other is None or torch.equal(one, other)


@pytest.mark.parametrize("modes", [{}, {"micro_batches": 2}, {"policy_epochs": 2}], ids=str)
def test_trainings_are_equal_to_the_last_bit(modes):
    assert metrics_of(make(updates=2, recompute="layers", **modes)) == metrics_of(make(updates=2, **modes))


class Kept:
    """Bytes of the tensors that autograd keeps for the backward pass, each piece of memory once."""

    def __init__(self) -> None:
        self.pieces: dict[int, int] = {}

    def __call__(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self.pieces[storage.data_ptr()] = storage.nbytes()
        return tensor


def test_a_layer_keeps_its_input_alone():
    torch.manual_seed(0)
    model = UNet(preset("tiny", num_encoder_layers=4, num_token_layers=4, num_decoder_layers=4))
    byte_ids, found = torch.randint(256, (2, 512)), []
    for what in ("none", "layers"):
        recompute_layers(model, what)
        kept = Kept()
        with torch.autograd.graph.saved_tensors_hooks(kept, lambda x: x):
            states = model.encode(byte_ids)
        found.append(sum(kept.pieces.values()))
        del states
    inputs = 4 * 2 * 512 * 64 * 4  # four layers, in float32
    assert found[0] > 15 * inputs and found[1] < 4 * inputs, found


def test_a_cache_is_written_once():
    """Attention that writes into a cache does not run again: its entries may have been overwritten."""
    torch.manual_seed(0)
    model = UNet(preset("tiny", width=16))
    recompute_layers(model)
    cache = model.new_cache(2)
    states = model.encode(torch.randint(256, (2, 40)), cache=cache)
    before = cache.encoder.keys.clone()
    cache.encoder.keys.zero_()
    states.sum().backward()
    assert before.abs().sum() > 0 and cache.encoder.keys.abs().sum() == 0


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler looks at it
def test_compiled_layers_run_again_too():
    trainer, _ = make_trainer(configured(*QUICK, "model=tiny", "compute.recompute=layers", "compute.compile=true"))
    assert trainer.model.encoder[0].backend == "inductor"
    assert trainer.model.encoder.recompute and trainer.model.token_layers.recompute
    torch.manual_seed(0)
    model = UNet(preset("tiny", width=16))
    kept = gradients(model)
    compile_layers(model, backend="eager")  # without code being generated: what matters is that calls are caught
    recompute_layers(model)
    for one, other in zip(kept, gradients(model), strict=True):
        assert one is None or torch.equal(one, other)


def test_misuse_is_refused():
    with pytest.raises(ValueError, match=r"recompute must be one of \['none', 'layers'\], got 'all'"):
        recompute_layers(UNet(preset("tiny", width=16)), "all")
    with pytest.raises(ValueError, match=r"compute.recompute must be one of \['none', 'layers'\], got 'all'"):
        make_trainer(configured(*QUICK, "compute.recompute=all"))
    with pytest.raises(ValueError, match="likelihood_chunk must be an integer of at least 1, got 0"):
        make_trainer(configured(*QUICK, "compute.likelihood_chunk=0"))
    with pytest.raises(ValueError, match="chunk must be at least 1, got 0"):
        byte_log_prob_in_parts(lambda x: x, torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64), 0)


class Largest(TorchDispatchMode):
    """Elements of the largest tensor of byte predictions."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(x, Tensor) and x.dim() and x.shape[-1] == 256:
                self.elements = max(self.elements, x.numel())
        return out


@pytest.mark.parametrize("cap", [None, 3.0])
def test_parts_are_the_whole(cap):
    """Values and gradients in float64, which differ in the order of sums alone."""
    torch.manual_seed(0)
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
        for part, expected in zip(parts, whole, strict=True):
            torch.testing.assert_close(part, expected, rtol=1e-12, atol=1e-12)


def test_a_rollout_in_parts_is_the_rollout_and_holds_no_more_than_a_part():
    """No tensor, forward or backward, has more predictions than a part; without parts, some have all."""
    torch.manual_seed(0)
    model, largest, rollouts = UNet(preset("tiny", width=16)), [], []
    for chunk in (None, 16):
        rows = {"num_steps": 64, "batch_size": (2,), "likelihood_chunk": chunk, "seed": 0}
        for reward in ("entropy_relative", "early_exit"):
            env = ByteBoundaryEnv(model, "all happy families are alike. " * 20, reward=reward, **rows)
            with Largest() as seen:
                rollout = env.parallel_rollout(generator=torch.Generator().manual_seed(0))
                (rollout["next", "final_log_prob"].mean() + rollout["next", "early_log_prob"].mean()).backward()
            rollouts.append(rollout.detach())
        largest.append(seen.elements)
    assert largest == [2 * 64 * 256, 16 * 256]
    for whole, parts in zip(rollouts[:2], rollouts[2:], strict=True):
        for key in whole.keys(True, True):
            torch.testing.assert_close(parts[key], whole[key], rtol=1e-5, atol=1e-6)

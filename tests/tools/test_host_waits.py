"""An update synchronises with the host only to log: shown on a simulated device."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from rltok_rl.experiments.runs.build import make_trainer
from rltok_rl.experiments.texts import Texts, read_texts

from rltok_rl.training import Trainer
from rltok_rl.training.distributed import Processes

from ..cuda_waits import cuda_waits
from ..experiments.configured import QUICK, configured
from .host_waits import PretendedTensor, host_waits

OVERRIDES = "model.overrides.width=16 model.overrides.num_heads=2 model.overrides.num_lags=2 data.num_steps=24"
SMALL = ["model=tiny", *OVERRIDES.split(), *QUICK[:3]]
LAYOUT = {"token_layout"}  # how many tokens there are decides a shape: the one wait of every step
SYSTEMS: dict[str, tuple[list[str], set[str]]] = {
    "paper": ([], LAYOUT),
    "micro-batches": (["compute.micro_batches=2", "rate=price", "loss.entropy=0.01"], LAYOUT),
    "ppo": (["loss=ppo", "loss.policy_epochs=3", "baseline=leave_one_out"], LAYOUT),
    "flips": (["estimator=local_flips", "baseline=none"], LAYOUT),
    "less memory": (["compute.recompute=layers", "compute.likelihood_chunk=7", "actor=warm_start"], LAYOUT),
    "hnet": (["segmenter=hnet"], LAYOUT),
    "gumbel": (["segmenter=gumbel"], LAYOUT),
    "entropy-threshold": (["segmenter=entropy-threshold"], LAYOUT),
    # Those that wait, and why.
    "flips on a budget": (["estimator=budgeted_flips"], {*LAYOUT, "entropy"}),  # which decides about trials
    "random": (["segmenter=random"], {*LAYOUT, "_window"}),  # drawn on the host
    "magnet": (["segmenter=magnet"], {*LAYOUT, "_logits"}),  # gathers the bytes of each script
}
"""Options, and the functions of ours that may wait in an update."""


@cache
def texts() -> Texts:
    return read_texts(configured(*SMALL).data, seed=0)


def trainer_on(device: torch.device, options: list[str]) -> Trainer:
    trainer, _ = make_trainer(configured(*SMALL, *options), Processes(device=device), texts())
    trainer.model.train()
    return trainer


@pytest.mark.parametrize("name", SYSTEMS)
def test_an_update_waits_for_nothing_but_its_tokens(name):
    """An update after the first; a threshold of entropies is set anew after the second, too."""
    options, allowed = SYSTEMS[name]
    texts()  # read before, on the host
    with host_waits() as seen:
        trainer = trainer_on(seen.device, options)
        before = 2 if name == "entropy-threshold" else 1
        for _ in range(before):
            trainer.advance()
        seen.clear()
        trainer.advance()
        assert {wait.function for wait in seen.found} == allowed, seen.table()
        assert name != "paper" or len(seen.found) == 1, seen.table()
        seen.clear()
        assert [one.update for one in trainer.fetch_metrics()] == list(range(1, before + 2))
        assert len(seen.found) == 1 and seen.found[0].operation == "copy to cpu", seen.table()


FLIPS = ["estimator=local_flips", "baseline=none", "compute.micro_batches=2"]


@pytest.mark.parametrize("options", [[], ["compute.micro_batches=2"], ["loss=ppo", "loss.policy_epochs=3"], FLIPS])
def test_with_room_for_tokens_an_update_waits_for_nothing(options, monkeypatch):
    """Kernels for packed rows are a GPU's; values stand in for what they make, which are as long."""
    monkeypatch.setattr("rltok_rl.models.tokens.packed_attention", lambda *_, **__: lambda q, k, v: v + 0 * (q + k))
    texts()
    with host_waits() as seen:
        trainer = trainer_on(seen.device, ["compute.tokens=packed", "compute.token_room=3.0", *options])
        trainer.advance()
        seen.clear()
        trainer.advance()
        assert not seen.found, seen.table()
        assert len(trainer.fetch_metrics()) == 2


def test_a_training_on_the_device_is_one_on_the_cpu():
    """What is pretended is the device alone: figures are those of the CPU, to the rounding of other kernels."""
    with host_waits() as seen:
        trainer = trainer_on(seen.device, ["loss=ppo", "loss.policy_epochs=2", "baseline=leave_one_out"])
        assert isinstance(trainer.model.embedding.weight, PretendedTensor)
        there = [trainer.update() for _ in range(3)]
    trainer = trainer_on(torch.device("cpu"), ["loss=ppo", "loss.policy_epochs=2", "baseline=leave_one_out"])
    for one, other in zip([trainer.update() for _ in range(3)], there, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-5)


WAITING = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.sum() > 0),
    "float": lambda x: float(x[0]),
    "list": lambda x: x.tolist(),
    "nonzero": lambda x: x.nonzero(),
    "a mask": lambda x: x[x > 1],
    "values under a mask": lambda x: x.clone().__setitem__(x > 1, x[2:]),
    "masked_select": lambda x: x.masked_select(x > 1),
    "unique": lambda x: x.unique(),
    "repeats": lambda x: x.repeat_interleave(x.long()),
    "to the host": lambda x: x.cpu(),
    "to the host, converted": lambda x: x.to("cpu", torch.float64),
    "numpy": lambda x: x.numpy(force=True),
    "to the device": lambda x: torch.ones(3).to(x.device),
    "a list to the device": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "into a tensor of the device": lambda x: x.copy_(torch.ones(4)),
    "equality": lambda x: torch.equal(x, x),
}
GOING_ON = {
    "arithmetic": lambda x: (x.sigmoid() * 2 - x.mean()).softmax(-1),
    "where": lambda x: torch.where(x > 1, x, 0.0),
    "masked_fill": lambda x: x.masked_fill(x > 1, float("-inf")),
    "a column": lambda x: x.clone()[..., :1].fill_(2.0),
    "one value under a mask": lambda x: x.clone().__setitem__(x > 1, 0.0),
    "an index of the device": lambda x: x[x.long()],
    "repeats of one number": lambda x: x.repeat_interleave(3),
    "an assertion": lambda x: torch._assert_async((x >= 0).all()),
    "not blocking": lambda x: torch.ones(3).to(x.device, non_blocking=True),
    "made there": lambda x: torch.full((3,), 2.0, device=x.device) + x.new_zeros(3),
    "another precision": lambda x: x.to(torch.float64).to(x.device),
    "on the host": lambda x: torch.arange(3.0).sum().item(),
}


@pytest.mark.parametrize("name", [*WAITING, *GOING_ON])
def test_what_waits(name):
    with host_waits() as seen:
        x = torch.arange(4, device=seen.device, dtype=torch.float32)
        result = {**WAITING, **GOING_ON}[name](x)
        assert bool(seen.found) == (name in WAITING), seen.table()
        if name in WAITING:
            assert {wait.function for wait in seen.found} == {"<lambda>"}, seen.table()
            assert {wait.file for wait in seen.found} == {__file__}
            assert "<lambda>  (test_host_waits.py:" in seen.table()
        elif isinstance(result, torch.Tensor):
            assert result.device == seen.device


def test_values_and_gradients_are_real():
    with host_waits() as seen:
        x = torch.arange(1.0, 4.0).to(seen.device).requires_grad_()
        (x**3).sum().backward()
        x.grad[x > 2] += 1.0
        assert x.grad.tolist() == [3.0, 12.0, 28.0] and x.grad.device == seen.device
        model = torch.nn.Linear(2, 3).to(seen.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
        before = model.weight.detach().cpu().clone()
        model(torch.ones(1, 2, device=seen.device)).sum().backward()
        optimizer.step()
        assert (model.weight.detach().cpu() - before).abs().max() == pytest.approx(0.1, rel=0.1)
    with pytest.raises(RuntimeError, match=r"was asked of a tensor of host_waits\(\) outside its block"):
        x + 1
    assert torch.Generator("cpu").device.type == "cpu" and not isinstance(torch.ones(1) + 1, PretendedTensor)


@pytest.mark.gpu
def test_a_gpu_agrees():
    """Torch's own detector finds what is found here, on the device itself."""
    trainer = trainer_on(torch.device("cuda:0"), [])
    trainer.advance()
    with pytest.warns(UserWarning, match="synchronizing CUDA operation") as said, cuda_waits("warn"):
        trainer.advance()
    assert {warning.filename.rpartition("/")[2] for warning in said} <= {"tokens.py"}

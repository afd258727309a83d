"""Two processes train as one does: losses, figures, parameters; and what one saves, any number goes on from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import DTensor

from rltok_rl.training.checkpoint import load_checkpoint, same, save_checkpoint

from .processes import figures, make, spawn

CASES = {
    "leave one out": {},
    "batch mean, ratio": {"estimator": "batch_centred", "control": "ratio"},
    "siblings, hinge": {"estimator": "group_centred", "control": "hinge"},
    "what remembers": {"estimator": "running_mean", "control": "pi"},
    "normalised, price": {"estimator": "z_normalised", "control": "price"},
    "micro-batches": {"estimator": "z_normalised", "micro_batches": 2},
    "texts that end": {"short": True},
}


def train(processes, folder: Path, strategy: str) -> None:
    """Every case; then the figures of this process, and the whole state."""
    for name, options in CASES.items():
        trainer = make(processes, strategy, **options)
        assert isinstance(trainer.model.embedding.weight, DTensor) == (strategy == "fsdp")
        found = {"figures": figures(trainer), "state": trainer.state_dict()}
        torch.save(found, folder / f"{name}-{processes.rank}.pt")


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def trained(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    spawn(train, folder, request.param)
    return folder


@pytest.mark.parametrize("name", list(CASES))
def test_two_processes_are_one(trained, name):
    alone = make(**CASES[name])
    expected = figures(alone)
    first, second = (torch.load(trained / f"{name}-{rank}.pt") for rank in (0, 1))
    assert first["figures"] == second["figures"]
    assert len(expected) == len(first["figures"]) == 4
    for one, two in zip(expected, first["figures"], strict=True):
        assert two == pytest.approx(one, rel=1e-5, abs=1e-5)
    assert same(first["state"], second["state"])
    assert first["state"]["updates"] == 4 and first["state"]["bytes_done"] == alone.bytes_done
    for key, value in alone.state_dict()["model"].items():
        torch.testing.assert_close(first["state"]["model"][key], value, rtol=1e-5, atol=1e-5)

"""What two processes send is what was calculated: gradients or pieces, and the batch's mean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from rltok_rl.training.parallel import Processes
from rltok_rl.training.traffic import CountTraffic, Traffic, update_traffic

from .processes import STEPS, make, spawn

STRATEGIES = ("ddp", "fsdp")
BESIDES = 400
"""Bytes of figures, rates and means that are one number each."""


def count(processes: Processes, folder: Path) -> None:
    """An update of each strategy, counted in all processes."""
    for strategy in STRATEGIES:
        trainer = make(processes, strategy, baseline="batch_mean")
        trainer.model.train()
        trainer.update()
        with CountTraffic() as counted:
            trainer.update()
        (folder / f"{strategy} {processes.rank}.json").write_text(json.dumps(vars(counted.traffic)))


@pytest.fixture(scope="module")
def counted(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("traffic")
    spawn(count, folder)
    return folder


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_counted_is_what_is_calculated(counted, strategy):
    model = make().model
    planned = update_traffic(model, STEPS, strategy=strategy)
    for rank in range(2):
        found = Traffic(**json.loads((counted / f"{strategy} {rank}.json").read_text()))
        assert planned.reduced <= found.reduced <= planned.reduced + BESIDES
        if strategy == "ddp":
            assert found.gathered == found.scattered == 0
            continue
        # Pieces are as large as the largest of them, and norms that two heads read are gathered for both.
        norms = 4 * 4 * model.config.width
        padding = 4 * sum(p.numel() // len(p) for p in model.parameters() if len(p) % 2)
        assert planned.gathered <= found.gathered <= planned.gathered + 2 * padding + norms
        assert planned.scattered <= found.scattered <= planned.scattered + padding


def test_a_ring_sends_a_sum_twice_and_a_piece_once():
    """Of W processes, each passes on W - 1 of W pieces; a sum for everyone is scattered, then gathered."""
    assert Traffic(reduced=8.0).sent(4) == 12.0
    assert Traffic(gathered=8.0).sent(4) == Traffic(scattered=8.0).sent(4) == 6.0


def test_plans_are_those_of_a_model_without_memory():
    with torch.device("meta"):
        layer = nn.Linear(10, 10, bias=False)
    assert update_traffic(layer, 5) == Traffic(reduced=440.0)
    assert update_traffic(layer, 5, strategy="fsdp") == Traffic(reduced=40.0, gathered=800.0, scattered=400.0)
    with pytest.raises(ValueError, match="strategy must be 'ddp' or 'fsdp', got 'none'"):
        update_traffic(layer, 5, strategy="none")

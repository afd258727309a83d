"""Losses of a fixed training, written down: what is made faster or moved about must leave them as they are.

On a CPU in float32, from fixed seeds. The tolerance is that of other processors, which add in another order; a change
that shifts a figure by more has changed what is computed. Who means to do that writes the new figures down, with three
seeds before and after in the commit that does it:

    python -m tests.training.test_golden
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from rltok_rl.envs import ByteBoundaryEnv

from rltok_rl.data import TextSource
from rltok_rl.models import UNet, preset
from rltok_rl.objectives import JointLoss, LocalFlips
from rltok_rl.training import LoopOptions, Trainer

CURVES = Path(__file__).with_name("golden_curves.json")
FIGURES = ("loss", "loss_language_model", "loss_early_exit", "loss_policy", "loss_rate", "rate", "entropy", "grad_norm")
KINDS = {
    "paper": {},
    "leave_one_out": {"baseline": "leave_one_out", "gamma": 0.9},
    "flips": {},
    "capped": {"attention_cap": 50.0, "pooling": "mean", "upsampling": "deviation"},
    "micro_batches": {"micro_batches": 2},
}
"""Trainings: the paper's, and one for each way of computing that has code of its own."""
UPDATES = 8


def text() -> bytes:
    """Letters with words in them, the same on every machine and for ever."""
    numbers = torch.Generator().manual_seed(7)
    words = ["".join(chr(97 + int(c)) for c in torch.randint(26, (n,), generator=numbers)) for n in (3, 5, 2, 7, 4, 6)]
    return " ".join(words[int(i)] for i in torch.randint(6, (2000,), generator=numbers)).encode()


def curve(kind: str) -> list[dict[str, float]]:
    """Figures of every update."""
    given = KINDS[kind]
    sizes = {key: value for key, value in given.items() if key in ("attention_cap", "pooling", "upsampling")}
    torch.manual_seed(0)
    model = UNet(preset("tiny", target_rate=0.3, boundary_scale=0.5, **sizes))
    env = ByteBoundaryEnv(model, TextSource(text()), num_steps=64, batch_size=(4,), seed=0)
    chosen = {key: value for key, value in given.items() if key in ("baseline", "gamma")}
    if kind == "flips":
        chosen = {"estimator": LocalFlips(model, gamma=0.9, num_flips=2, span=8)}
    options = LoopOptions(total_bytes=10**6, lr=3e-3, micro_batches=given.get("micro_batches", 1))
    trainer = Trainer(model, env, JointLoss.paper(target_rate=0.3, **chosen), options, seed=0)
    model.train()
    found = [trainer.update() for _ in range(UPDATES)]
    return [{name: figures[name] for name in FIGURES} for figures in found]


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_as_they_were(kind):
    kept = json.loads(CURVES.read_text())[kind]
    assert len(kept) == UPDATES
    for number, (was, now) in enumerate(zip(kept, curve(kind), strict=True), 1):
        for name in FIGURES:
            assert now[name] == pytest.approx(was[name], rel=2e-3, abs=2e-5), f"{name} of update {number}"


if __name__ == "__main__":
    CURVES.write_text(json.dumps({kind: curve(kind) for kind in KINDS}, indent=1) + "\n")
    print(f"wrote {CURVES}")

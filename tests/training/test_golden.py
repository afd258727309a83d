"""Stored losses of short runs from fixed seeds, which no refactoring may change.

On a CPU in float32; the tolerance is that of other processors, which add in another order. To change what is computed,
store new losses, and give three seeds before and after in the commit:

    python -m tests.training.test_golden
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rltok_rl.envs import ByteBoundaryEnv

from rltok_rl.data import TextSource
from rltok_rl.fused import fused
from rltok_rl.models import UNet, preset
from rltok_rl.objectives import JointLoss, LocalFlips
from rltok_rl.training import LoopOptions, Trainer

from ..each import each

CURVES = Path(__file__).with_name("golden_curves.json")
METRICS = ("loss", "loss_language_model", "loss_early_exit", "loss_policy", "loss_rate", "rate", "entropy", "grad_norm")
KINDS: dict[str, dict[str, Any]] = {
    "paper": {},
    "leave_one_out": {"loss": {"baseline": "leave_one_out", "gamma": 0.9}},
    "flips": {"flips": True},
    "capped": {"model": {"attention_cap": 50.0, "pooling": "mean", "upsampling": "deviation"}},
    "micro_batches": {"micro_batches": 2},
}
"""The paper's training, and one for each path of computation with separate code."""
UPDATES = 8


def text() -> bytes:
    """Letters with words in them, the same on every machine."""
    numbers = torch.Generator().manual_seed(7)
    words = ["".join(chr(97 + int(c)) for c in torch.randint(26, (n,), generator=numbers)) for n in (3, 5, 2, 7, 4, 6)]
    return " ".join(words[int(i)] for i in torch.randint(6, (2000,), generator=numbers)).encode()


def curve(*, model: Any = (), loss: Any = (), flips: bool = False, micro_batches: int = 1) -> list[dict[str, float]]:
    """Metrics of every update."""
    torch.manual_seed(0)
    unet = UNet(preset("tiny", target_rate=0.3, boundary_scale=0.5, **dict(model)))
    env = ByteBoundaryEnv(unet, TextSource(text()), num_steps=64, batch_size=(4,), seed=0)
    options = {"estimator": LocalFlips(unet, gamma=0.9, num_flips=2, span=8)} if flips else dict(loss)
    loop = LoopOptions(total_bytes=10**6, lr=3e-3, micro_batches=micro_batches)
    trainer = Trainer(unet, env, JointLoss.paper(target_rate=0.3, **options), loop, seed=0)
    unet.train()
    updates = [trainer.update() for _ in range(UPDATES)]
    return [{name: update[name] for name in METRICS} for update in updates]


@each(kind=KINDS, fusing=[True, False])
def test_losses_are_the_stored_ones(kind, fusing):
    stored = json.loads(CURVES.read_text())[kind]
    with fused(fusing):
        now_all = curve(**KINDS[kind])
    for number, (before, now) in enumerate(zip(stored, now_all, strict=True), 1):
        assert now == pytest.approx(before, rel=2e-3, abs=2e-5), f"update {number}"


if __name__ == "__main__":
    curves = json.dumps({kind: curve(**options) for kind, options in KINDS.items()})
    CURVES.write_text(curves.replace("}, {", "},\n{") + "\n")
    print(f"wrote {CURVES}")

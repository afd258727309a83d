"""Training on a GPU: learns, resumes, and agrees with the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from rltok_rl.envs import ByteBoundaryEnv

from rltok_rl.models import UNet, preset
from rltok_rl.objectives import JointLoss
from rltok_rl.training import LoopOptions, Trainer
from rltok_rl.training.options import compile_layers

TEXT = "the cat sat on the mat, and the dog sat on the log. " * 40
pytestmark = pytest.mark.gpu


def make(device: str, *, total_bytes: int = 20 * 8 * 64, **options) -> Trainer:
    torch.manual_seed(0)
    model = UNet(preset("tiny")).to(device)
    env = ByteBoundaryEnv(model, TEXT, num_steps=64, batch_size=(8,), seed=0)
    loss = JointLoss.paper(target_rate=0.2, baseline="leave_one_out", gamma=0.9).to(device)
    return Trainer(model, env, loss, LoopOptions(total_bytes=total_bytes, lr=4e-3, **options))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_it_learns(precision):
    trainer, costs = make("cuda", precision=precision), []
    trainer.run(lambda figures: costs.append(figures["bits_per_byte"]))
    assert costs[-1] < 0.7 * costs[0]


def test_resumed_is_uninterrupted():
    """Within one process: the kernels of a step add up in one order."""
    whole, first, second = make("cuda"), make("cuda"), make("cuda")
    expected = [whole.update() for _ in range(5)]
    for _ in range(3):
        first.update()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for figures, wanted in zip([second.update() for _ in range(2)], expected[3:], strict=True):
        assert figures["loss"] == pytest.approx(wanted["loss"], rel=1e-5)


def test_losses_agree_with_those_of_the_cpu():
    """Losses of a first update, its boundaries given by equal weights and texts on both devices."""
    actions = (torch.rand(8, 64, generator=torch.Generator().manual_seed(0)) < 0.2).long()
    found = []
    for device in ("cpu", "cuda"):
        trainer = make(device)
        rollout = trainer.env.parallel_rollout(trainer.policy, actions=actions.to(device))
        found.append({name: float(value) for name, value in trainer.loss(rollout).items() if name.startswith("loss")})
    assert found[0] == pytest.approx(found[1], rel=1e-3, abs=1e-5)


def test_compiled_layers_train():
    trainer = make("cuda", precision="bfloat16")
    compile_layers(trainer.model)
    first, *_, last = [trainer.update()["bits_per_byte"] for _ in range(10)]
    assert last < first

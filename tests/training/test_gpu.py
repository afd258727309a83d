"""Training on a GPU: learns, resumes, and agrees with the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from rltok_rl.envs import ByteBoundaryEnv

from rltok_rl.models import UNet, preset
from rltok_rl.models.tokens import Layout, Packing
from rltok_rl.objectives import JointLoss
from rltok_rl.training import LoopOptions, Trainer
from rltok_rl.training.options import compile_layers

TEXT = "the cat sat on the mat, and the dog sat on the log. " * 40
pytestmark = pytest.mark.gpu
tracer = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
"""Of torch: its tracer looks at tensors that are not leaves."""


def make(device: str = "cuda", layout: Layout = "padded", **options) -> Trainer:
    torch.manual_seed(0)
    model = UNet(preset("tiny")).to(device)
    env = ByteBoundaryEnv(model, TEXT, num_steps=64, batch_size=(8,), layout=layout, seed=0)
    loss = JointLoss.paper(target_rate=0.2, baseline="leave_one_out", gamma=0.9).to(device)
    return Trainer(model, env, loss, LoopOptions(total_bytes=20 * 8 * 64, lr=4e-3, **options))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_it_learns(precision):
    trainer, costs = make(precision=precision), []
    trainer.run(lambda metrics: costs.append(metrics["bits_per_byte"]))
    assert costs[-1] < 0.7 * costs[0]


def test_resumed_is_uninterrupted():
    """Within one process: the kernels of a step add up in one order."""
    whole, first, second = make(), make(), make()
    expected = [whole.update()["loss"] for _ in range(5)]
    for _ in range(3):
        first.update()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert [second.update()["loss"] for _ in range(2)] == pytest.approx(expected[3:], rel=1e-5)


def test_losses_agree_with_those_of_the_cpu():
    """Losses of a first update with the same boundaries, weights and texts on both devices."""
    actions = (torch.rand(8, 64, generator=torch.Generator().manual_seed(0)) < 0.2).long()
    losses = []
    for device in ("cpu", "cuda"):
        trainer = make(device)
        rollout = trainer.env.parallel_rollout(trainer.policy, actions=actions.to(device))
        with torch.no_grad():
            computed = trainer.loss(rollout)
        losses.append({name: float(value) for name, value in computed.items() if name.startswith("loss")})
    assert losses[0] == pytest.approx(losses[1], rel=1e-3, abs=1e-5)


@tracer
def test_compiled_layers_train():
    trainer = make(precision="bfloat16")
    compile_layers(trainer.model)
    first, *_, last = [trainer.update()["bits_per_byte"] for _ in range(10)]
    assert last < first


@tracer
def test_room_for_tokens_grows():
    """Metrics are fetched four at a time: later updates are skipped on the device, and all are repeated."""
    trainer, metrics = make(layout=Packing(tokens=0.05), precision="bfloat16", figures_every=4), []
    trainer.run(metrics.append)
    assert trainer.env.layout.tokens > 0.1 and len(metrics) == trainer.updates == 20
    assert metrics[-1]["bits_per_byte"] < 0.8 * metrics[0]["bits_per_byte"]
    assert all(one["bytes_per_second"] > 0 for one in metrics)

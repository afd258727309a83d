"""Room for tokens that does not suffice: the update is repeated with more, and nothing else changes."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torchrl.envs import RewardScaling, TransformedEnv

from rltok_rl.models.tokens import Packing, token_layout, watch_room
from rltok_rl.training import Trainer
from rltok_rl.training.distributed import Processes
from rltok_rl.training.metrics import Pending
from rltok_rl.training.token_room import TokenRoom, largest_need

from ..each import each
from ..tools.host_waits import PRETENDED, host_waits
from .processes import UPDATE, make, metrics_of, spawn

SMALL = 0.05  # tokens per byte that fit, where 0.3 are drawn
PADDING = ("padded_rate", "padded_flops", "padded_second_rate")
CASES = {
    "pi control, running mean": {"control": "pi", "baseline": "running_mean"},
    "flips, micro-batches": {"estimator": "local_flips", "micro_batches": 2},
    "epochs, short texts": {"ppo": True, "policy_epochs": 2, "short": True},
    "critic": {"estimator": "critic_advantage"},
    "second level": {"second_level": True},
    "fetched together": {"figures_every": 3},
    "total FLOPs": {"total_flops": 3e8},
}


def assert_equal(ours: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    for one, two in zip(ours, expected, strict=True):
        assert {k: v for k, v in one.items() if k not in PADDING} == pytest.approx(
            {k: v for k, v in two.items() if k not in PADDING}, rel=1e-4, abs=1e-5
        )


@each(name=CASES)
def test_run_with_too_little_room_is_one_with_enough(name):
    """To rounding of padded tokens; bit for bit the run that begins with the room that it grew to."""
    trainer, warnings = make(room=SMALL, **CASES[name]), []
    ours: list[dict[str, float]] = []

    def after(metrics: dict[str, float]) -> bool:
        warnings.extend(trainer.warnings)
        return bool(ours.append(metrics))

    trainer.run(after)
    assert "token_need" not in ours[0] and len(warnings) >= 1
    assert "times the tokens that compute.token_room plans with: repeated with room for" in warnings[0]
    assert_equal(ours, metrics_of(make(**CASES[name])))
    if len(warnings) == 1:  # at the first update
        assert ours == metrics_of(make(room=trainer.env.layout.tokens, **CASES[name]))


def test_resumed_run_keeps_its_room():
    """To the last bit, padding included."""
    whole, first, second = (make(room=SMALL, updates=6, control="pi") for _ in range(3))
    expected = metrics_of(whole)
    before = metrics_of(first, 3)
    assert first.env.layout.tokens > 0.2, "it has grown"
    second.load_state_dict(first.state_dict())
    assert second.env.layout == first.env.layout
    assert before + metrics_of(second) == expected


def test_every_room_grows_with_its_margin_and_comes_back():
    """Tokens and tokens of tokens, of rollouts and of flips; buffers and warnings too."""
    case: dict[str, Any] = {"room": 0.1, "estimator": "local_flips", "second_level": True, "control": "pi"}
    trainer, other = make(**case), make(**case, seed=5)
    for one in (trainer, other):
        for part in one.room._parts:
            part.layout = replace(part.layout, second=0.02)
        one.room = TokenRoom(one.env, one.step)
        assert len(one.room._parts) == 2
    state = trainer.room.state_to_repeat(trainer.progress_state)
    buffers = [buffer.clone() for buffer in trainer.step.buffers()]
    assert any(buffer.is_floating_point() for buffer in buffers)
    for buffer in trainer.step.buffers():
        buffer.add_(1)
    update = Pending(1, UPDATE, 0.1, state_to_repeat=state, warnings=["earlier"])
    assert trainer.room.repeat(update, 2.0)["updates"] == 0
    assert all(torch.equal(*pair) for pair in zip(trainer.step.buffers(), buffers, strict=True))
    for part in trainer.room._parts:
        assert (part.layout.tokens, part.layout.second) == pytest.approx((0.1 * 2.5, 0.02 * 2.5))
    first, second = trainer.room.warnings
    assert first == "earlier" and second.startswith("2 times the tokens") and "room for 0.25 tokens" in second
    other.room.load(copy.deepcopy(trainer.room.state()))
    assert [part.layout for part in other.room._parts] == [part.layout for part in trainer.room._parts]
    assert other.room.warnings == trainer.room.warnings
    for factor in (0.0, -1.0, float("inf"), "2"):
        with pytest.raises((ValueError, TypeError), match="grown"):
            other.room.load({"grown": [factor, 1.0], "notes": []})
    other.room.load({"grown": [1.0, 1.0], "notes": []})
    assert [(part.layout.tokens, part.layout.second) for part in other.room._parts] == [(0.1, 0.02)] * 2
    other.room.load({"grown": [2.5], "notes": ["noted"]})  # of a run without flips
    assert [part.layout.tokens for part in other.room._parts] == [0.25, 0.1] and other.room.warnings == ["noted"]
    for need in (4.0, 1.0, 4.0):  # more than a token per byte does not end it while tokens of tokens lack room
        trainer.room.grow(need)
    assert all(part.layout.tokens >= 1 and part.layout.second >= 1 for part in trainer.room._parts)
    with pytest.raises(RuntimeError, match="room for a token per byte must suffice, got 3 times as many"):
        trainer.room.grow(3.0)
    wrapped = TransformedEnv(other.env, RewardScaling(0.0, 2.0))
    for one in other.room._parts:
        one.layout = replace(one.layout, tokens=0.1)
    TokenRoom(wrapped, other.step).grow(2.0)
    assert other.env.layout.tokens == pytest.approx(0.25), "the environment inside of transforms reads it"
    needs = [torch.tensor(0.0), torch.tensor(2.5), torch.tensor(1.5)]
    assert float(largest_need(needs, None)) == 2.5


def shrink(trainer: Trainer, tokens: float) -> None:
    """A room that does not suffice later in a run."""
    trainer.env.layout = replace(trainer.env.layout, tokens=tokens)


def on_device(monkeypatch) -> None:
    """Move the models of trainers to the simulated device."""
    from . import processes

    build = processes.UNet
    monkeypatch.setattr(processes, "UNet", lambda config: build(config).to(PRETENDED))


def test_device_finds_out_when_metrics_are_fetched():
    """The second of three updates lacks room; the third is made before anyone notices, and leaves no trace."""
    flips = {"estimator": "local_flips", "second_level": True, "rates": (0.2, 0.5)}
    case: dict[str, Any] = {"room": 1.0, "updates": 3, **flips}
    expected = metrics_of(make(**case))
    with pytest.MonkeyPatch.context() as monkeypatch, host_waits():
        on_device(monkeypatch)
        trainer = make(figures_every=8, **case)
        trainer.model.train()
        trainer.advance()
        shrink(trainer, SMALL)
        weights = [p.detach().cpu().clone() for p in trainer.model.parameters()]
        for _ in range(2):
            trainer.advance()
        assert all(torch.equal(p.detach().cpu(), w) for p, w in zip(trainer.model.parameters(), weights, strict=True))
        first = trainer.fetch_metrics()
        assert [one.update for one in first] == [1] and trainer.updates == 1 and trainer.env.layout.tokens > 0.2
        for _ in range(2):
            trainer.advance()
        rest = trainer.fetch_metrics()
        assert [len(one.warnings) for one in rest] == [1, 0] and trainer.done
        ours = [one.metrics for one in (*first, *rest)]
    for one, two in zip(ours, expected, strict=True):
        assert {k: v for k, v in one.items() if k not in PADDING} == pytest.approx(
            {k: v for k, v in two.items() if k not in PADDING}, rel=1e-3, abs=1e-4
        )


def test_room_is_an_error_unless_somebody_watches():
    boundaries = torch.ones(2, 40, dtype=torch.bool)
    with pytest.raises(ValueError, match="80 of 80 places closed one, room for 16"):
        token_layout(boundaries, Packing(tokens=0.1))
    with watch_room() as needs:
        layout = token_layout(boundaries, Packing(tokens=0.1))
        token_layout(boundaries, Packing(tokens=0.9))
    assert [float(need) for need in needs] == [10.0, 0.0] and layout.shape == (80,)
    with pytest.raises(ValueError, match="room for 16"):
        token_layout(boundaries, Packing(tokens=0.1))


def lack_room_in_one(processes: Processes, folder: Path) -> None:
    for strategy in ("ddp", "fsdp"):
        trainer = make(processes, strategy, room=SMALL if processes.rank else 0.6)
        torch.save(metrics_of(trainer), folder / f"{strategy} {processes.rank}.pt")
        assert trainer.env.layout.tokens > (0.2 if processes.rank else 0.6)


def test_processes_repeat_an_update_together(tmp_path):
    spawn(lack_room_in_one, tmp_path)
    expected = metrics_of(make())
    for strategy in ("ddp", "fsdp"):
        first, second = (torch.load(tmp_path / f"{strategy} {rank}.pt") for rank in (0, 1))
        assert first == second
        assert_equal(first, expected)

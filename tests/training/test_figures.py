"""Figures that are fetched late are those that are fetched at once; nothing that a checkpoint follows is lost."""

from __future__ import annotations

import copy

import pytest
import torch
from rltok_rl.experiments import train

from rltok_rl.training import TrainingFailed

from ..experiments.configured import QUICK, configured
from ..experiments.killed import killed_at
from .processes import figures, make

OPTIONS = {
    "paper": {},
    "epochs": {"policy_epochs": 2, "baseline": "running_mean", "control": "pi"},
    "micro-batches": {"micro_batches": 2, "short": True},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_late_figures_are_the_same(name):
    at_once = figures(make(updates=5, **OPTIONS[name]))
    told = []
    trainer = make(updates=5, figures_every=2, **OPTIONS[name])
    trainer.run(lambda found: told.append((trainer.updates, trainer.told.update, trainer.told.bytes_done, found)))
    assert [found for *_, found in told] == at_once
    assert [made for made, *_ in told] == [2, 2, 4, 4, 5]
    assert [number for _, number, *_ in told] == [1, 2, 3, 4, 5]
    assert [done for *_, done, _ in told] == [trainer.bytes_per_update * n for n in range(1, 6)]
    assert trainer.flops_done == at_once[-1]["flops"]


def test_a_state_taken_between_holds_all_and_nothing_is_told_twice():
    at_once = figures(make(updates=5))
    first = make(updates=5, figures_every=100)
    for _ in range(3):
        first.advance()
    state = copy.deepcopy(first.state_dict())
    assert state["flops_done"] == at_once[2]["flops"]
    assert [one.figures for one in first.tell()] == at_once[:3] and first.tell() == []
    second = make(updates=5, figures_every=100, seed=5)
    second.advance()  # of another training: forgotten
    second.load_state_dict(state)
    assert figures(second) == at_once[3:]


@pytest.mark.parametrize("every", [1, 2, 4])
def test_a_gradient_that_is_no_number_ends_the_training_where_it_was(every):
    """Whenever it is noticed: the weights and moments are those of the update before, and those before are told of."""
    reference = make(updates=8)
    for _ in range(2):
        reference.update()
    trainer, told, calls = make(updates=8, figures_every=every), [], []

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return gradient * (float("nan") if len(calls) == 3 else 1.0)

    trainer.model.final_head.projection.weight.register_hook(spoil)
    with pytest.raises(TrainingFailed, match="grad_norm is nan at update 3"):
        trainer.run(told.append)
    assert len(told) == 2 and trainer.updates == (4 if every > 1 else 3)
    for going_on in (trainer.advance, trainer.tell, trainer.state_dict):  # a state would be one of updates not made
        with pytest.raises(TrainingFailed, match="grad_norm is nan at update 3"):
            going_on()
    for p, q in zip(trainer.model.parameters(), reference.model.parameters(), strict=True):
        assert torch.equal(p, q)
    for p, q in zip(
        trainer.optimizer.state_dict()["state"].values(),
        reference.optimizer.state_dict()["state"].values(),
        strict=True,
    ):
        assert all(torch.equal(p[name], q[name]) for name in q)


def test_what_led_to_an_error_is_told(monkeypatch):
    trainer, told = make(updates=8, figures_every=4), []
    drawn, rollout = [], trainer.env.parallel_rollout

    def third_fails(*given, **options):
        drawn.append(1)
        if len(drawn) == 3:
            raise ValueError("no room")
        return rollout(*given, **options)

    monkeypatch.setattr(trainer.env, "parallel_rollout", third_fails)
    with pytest.raises(ValueError, match="no room"):
        trainer.run(told.append)
    assert len(told) == 2


def test_a_run_leaves_the_same_folder_and_loses_nothing_when_it_is_killed(tmp_path, monkeypatch):
    """A line per update, all of them before a checkpoint is written; a run that resumes goes on as if nothing was."""
    monkeypatch.setattr(train, "write_report", lambda out: out / "report.md")
    options = [*QUICK, "optim.total_bytes=1_152", "model=tiny", "model.overrides.width=16", "checkpoint_every=4"]
    options += ["snapshots.count=1", "snapshots.batches=1", "snapshots.num_bytes=30"]  # nine updates

    def run(name: str, every: int) -> None:
        given = [f"out={tmp_path / name}", f"compute.figures_every={every}", "resume=true"]
        train.run(configured(*options, *given), "")

    run("at once", 1)
    with killed_at(6):  # fetched with the eighth, before its checkpoint
        run("late", 5)
    assert len((tmp_path / "late" / "metrics.csv").read_text().splitlines()) == 1 + 6
    run("late", 5)
    for name in ("metrics.csv", "samples.jsonl"):
        assert (tmp_path / "late" / name).read_bytes() == (tmp_path / "at once" / name).read_bytes()


@pytest.mark.parametrize("every", [None, 1, 7])
def test_the_cpu_is_told_at_once_and_accelerators_now_and_then(every):
    from rltok_rl.experiments.runs.build import loop_options

    config = configured(*QUICK)
    config.compute.figures_every = every
    assert loop_options(config).figures_every == (1 if every is None else every)
    config.compute.device = "cuda"
    assert loop_options(config).figures_every == (16 if every is None else every)

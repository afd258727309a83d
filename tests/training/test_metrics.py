"""Metrics fetched late are those fetched at once, and files of metrics lose and repeat nothing."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from rltok_rl.experiments import train

from rltok_rl.training import TrainingFailed
from rltok_rl.training.metrics import MetricsTable, UpdateLog, read_lines, read_table

from ..experiments.configured import QUICK, configured
from ..experiments.killed import killed_at
from .processes import make, metrics_of

OPTIONS = {
    "paper": {},
    "epochs": {"policy_epochs": 2, "baseline": "running_mean", "control": "pi"},
    "micro-batches": {"micro_batches": 2, "short": True},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_late_metrics_are_the_same(name):
    at_once, late = metrics_of(make(updates=5, **OPTIONS[name])), []
    trainer = make(updates=5, figures_every=2, **OPTIONS[name])
    trainer.run(lambda metrics: late.append((trainer.updates, trainer.last_update, metrics)))
    assert [metrics for *_, metrics in late] == at_once
    assert [updates for updates, *_ in late] == [2, 2, 4, 4, 5]
    assert [last.update for _, last, _ in late] == [1, 2, 3, 4, 5]
    assert [last.bytes_done for _, last, _ in late] == [trainer.bytes_per_update * n for n in range(1, 6)]
    assert trainer.flops_done == at_once[-1]["flops"]


def test_a_state_taken_between_is_complete_and_nothing_is_fetched_twice():
    at_once = metrics_of(make(updates=5))
    first = make(updates=5, figures_every=100)
    for _ in range(3):
        first.advance()
    state = copy.deepcopy(first.state_dict())
    assert state["flops_done"] == at_once[2]["flops"]
    with pytest.warns(DeprecationWarning, match="Trainer.tell is now fetch_metrics"):
        assert [update.metrics for update in first.tell()] == at_once[:3]
    assert first.fetch_metrics() == []
    second = make(updates=5, figures_every=100, seed=5)
    second.advance()  # of another run, and forgotten
    second.load_state_dict(state)
    assert metrics_of(second) == at_once[3:]


@pytest.mark.parametrize("every", [1, 4])
def test_a_gradient_that_is_not_finite_changes_nothing_and_ends_the_run(every):
    """Whenever it is noticed: weights and moments are those of the update before, and earlier updates are reported."""
    reference = make(updates=8)
    for _ in range(2):
        reference.update()
    trainer, reported, calls = make(updates=8, figures_every=every), [], []

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return gradient * (float("nan") if len(calls) == 3 else 1.0)

    trainer.model.final_head.projection.weight.register_hook(spoil)
    message = "grad_norm is nan at update 3: lower the learning rate"
    with pytest.raises(TrainingFailed, match=message):
        trainer.run(reported.append)
    assert len(reported) == 2 and trainer.updates == (4 if every > 1 else 3)
    for method in (trainer.advance, trainer.fetch_metrics, trainer.state_dict):
        with pytest.raises(TrainingFailed, match=message):
            method()
    for p, q in zip(trainer.model.parameters(), reference.model.parameters(), strict=True):
        assert torch.equal(p, q)
    moments = [one.optimizer.state_dict()["state"].values() for one in (trainer, reference)]
    for p, q in zip(*moments, strict=True):
        assert all(torch.equal(p[name], q[name]) for name in q)


def test_updates_before_an_error_are_reported(monkeypatch):
    trainer, reported = make(updates=8, figures_every=4), []
    drawn, rollout = [], trainer.env.parallel_rollout

    def third_fails(*arguments, **options):
        drawn.append(1)
        if len(drawn) == 3:
            raise ValueError("no room")
        return rollout(*arguments, **options)

    monkeypatch.setattr(trainer.env, "parallel_rollout", third_fails)
    with pytest.raises(ValueError, match="no room"):
        trainer.run(reported.append)
    assert len(reported) == 2


def test_a_killed_run_resumes_to_the_same_files(tmp_path, monkeypatch):
    """A line per update, all of them written before a checkpoint."""
    monkeypatch.setattr(train, "write_report", lambda out: out / "report.md")
    options = [*QUICK, "optim.total_bytes=1_152", "model=tiny", "model.overrides.width=16", "checkpoint_every=4"]
    options += ["snapshots.count=1", "snapshots.batches=1", "snapshots.num_bytes=30"]  # nine updates

    def run(name: str, every: int) -> None:
        train.run(configured(*options, f"out={tmp_path / name}", f"compute.figures_every={every}", "resume=true"), "")

    run("at once", 1)
    with killed_at(6):  # fetched with the eighth, before its checkpoint
        run("late", 5)
    assert len((tmp_path / "late" / "metrics.csv").read_text().splitlines()) == 1 + 6
    run("late", 5)
    for name in ("metrics.csv", "samples.jsonl"):
        assert (tmp_path / "late" / name).read_bytes() == (tmp_path / "at once" / name).read_bytes()


def test_metrics_are_fetched_after_every_update_on_cpus_and_every_16th_on_gpus():
    from rltok_rl.experiments.runs.build import loop_options

    for every in (None, 1, 7):
        config = configured(*QUICK)
        config.compute.figures_every = every
        assert loop_options(config).figures_every == (1 if every is None else every)
        config.compute.device = "cuda"
        assert loop_options(config).figures_every == (16 if every is None else every)


def test_tables_are_cut_back_to_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.csv"
    assert read_table(path) == {}
    table = MetricsTable(path)
    for update in range(1, 6):
        table.add(update, 10 * update, {"loss": 1 / 3 / update, "rate": 0.2})
    with pytest.raises(FileExistsError, match="holds another run; resume it, or choose another folder"):
        MetricsTable(path)
    resumed = MetricsTable(path, resume_after=3)
    resumed.add(4, 40, {"loss": 7.0, "rate": 0.1})
    columns = resumed.read()
    assert columns["update"] == [1, 2, 3, 4] and columns["bytes"] == [10, 20, 30, 40]
    assert columns["loss"] == [1 / 3, 1 / 6, 1 / 9, 7.0]  # to the last bit
    with pytest.raises(ValueError, match=r"metrics must be \['loss', 'rate'\], got \['loss'\]"):
        resumed.add(5, 50, {"loss": 1.0})
    for half in ("5", "3"):  # the start of a fifth line, or of the 53rd, by a process that was killed
        with path.open("a") as file:
            file.write(half)
        assert MetricsTable(path, resume_after=4).read()["update"] == [1, 2, 3, 4]
    resumed.add(7, 70, {"loss": 7.0, "rate": 0.1})  # a gap: a machine that went down may lose lines
    assert MetricsTable(path, resume_after=8).read()["update"] == [1, 2, 3, 4, 7]
    assert MetricsTable(path, resume_after=0).read() == {}


def test_lines_are_cut_back_to_the_checkpoint(tmp_path):
    path = tmp_path / "samples.jsonl"
    log = UpdateLog(path)
    for update in (0, 2, 4, 4, 8):
        log.add(update, value=1 / 3)
    with pytest.raises(FileExistsError, match="holds another run; resume it, or choose another folder"):
        UpdateLog(path)
    resumed = UpdateLog(path, resume_after=4)
    assert resumed.updates == [0, 2, 4, 4]
    resumed.add(5, value=2.0)
    assert [line["value"] for line in resumed.read()] == [1 / 3] * 4 + [2.0]
    assert UpdateLog(path, resume_after=-1).read() == [] and not path.exists()
    assert UpdateLog(path, resume_after=3).read() == []  # there may be no file yet


def cut_everywhere(path: Path, line: int):
    """Cut the end of a file within its last line, at every byte."""
    whole = path.read_bytes()
    for cut in range(2, line):
        path.write_bytes(whole[:-cut])
        yield cut


def test_half_written_lines_are_not_read(tmp_path):
    log, table = UpdateLog(tmp_path / "samples.jsonl"), MetricsTable(tmp_path / "metrics.csv")
    for update in (1, 12345):
        log.add(update)
        table.add(update, 20, {"loss": 1.25})
    for _ in cut_everywhere(log.path, len('{"update": 12345}\n')):
        assert [line["update"] for line in read_lines(log.path)] == [1]
    for _ in cut_everywhere(table.path, len("12345,20,1.25\r\n")):
        assert read_table(table.path)["update"] == [1.0]
    resumed = UpdateLog(log.path, resume_after=99999)
    resumed.add(2)
    assert resumed.updates == [1, 2]
    table.path.write_bytes(b"update,by")
    assert read_table(table.path) == {}

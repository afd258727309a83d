"""Metrics fetched late are those fetched at once, and files of metrics lose and repeat nothing."""

from __future__ import annotations

import copy

import pytest
import torch
from rltok_rl.experiments.runs.build import loop_options
from rltok_rl.experiments.runs.run import run

from rltok_rl.training import TrainingFailed
from rltok_rl.training.metrics import MetricsTable, UpdateLog, read_lines, read_table

from ..each import each
from ..experiments.configured import QUICK, configured
from ..experiments.killed import killed_at
from .processes import UPDATE, make, metrics_of

OPTIONS = {
    "paper": {},
    "epochs": {"ppo": True, "policy_epochs": 2, "baseline": "running_mean", "control": "pi"},
    "micro-batches": {"micro_batches": 2, "short": True},
}


@each(name=OPTIONS)
def test_late_metrics_are_the_same(name):
    at_once, late = metrics_of(make(updates=5, **OPTIONS[name])), []
    trainer = make(updates=5, figures_every=2, **OPTIONS[name])
    trainer.run(lambda metrics: late.append((trainer.updates, trainer.last_update, metrics)))
    assert [metrics for *_, metrics in late] == at_once
    assert [updates for updates, *_ in late] == [2, 2, 4, 4, 5]
    assert [last.update for _, last, _ in late] == [1, 2, 3, 4, 5]
    assert [last.bytes_done for _, last, _ in late] == [trainer.bytes_per_update * n for n in range(1, 6)]
    assert trainer.flops_done == at_once[-1]["flops"]


def test_state_taken_between_is_complete_and_nothing_is_fetched_twice():
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
    second.advance()  # of another run, and dropped
    second.load_state_dict(state)
    assert metrics_of(second) == at_once[3:]


@each(every=[1, 4])
def test_gradient_that_is_not_finite_changes_nothing_and_ends_the_run(every):
    """Weights and moments stay those of the update before, and earlier updates are reported."""
    reference = make(updates=8)
    for _ in range(2):
        reference.update()
    trainer, reported, calls = make(updates=8, figures_every=every), [], []

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return gradient * (float("nan") if len(calls) == 3 else 1.0)

    trainer.model.final_head.projection.weight.register_hook(spoil)
    for call in (lambda: trainer.run(reported.append), trainer.advance, trainer.fetch_metrics, trainer.state_dict):
        with pytest.raises(TrainingFailed, match="grad_norm is nan at update 3: lower the learning rate"):
            call()
    assert len(reported) == 2 and trainer.updates == (4 if every > 1 else 3)
    moments = [one.optimizer.state_dict()["state"].values() for one in (trainer, reference)]
    pairs = list(zip(trainer.model.parameters(), reference.model.parameters(), strict=True))
    pairs += [(p[name], q[name]) for p, q in zip(*moments, strict=True) for name in q]
    assert all(torch.equal(p, q) for p, q in pairs)


def test_updates_before_an_error_are_reported(monkeypatch):
    trainer, reported, drawn = make(updates=8, figures_every=4), [], []
    rollout = trainer.env.parallel_rollout

    def third_fails(*arguments, **options):
        drawn.append(1)
        if len(drawn) == 3:
            raise ValueError("no room")
        return rollout(*arguments, **options)

    monkeypatch.setattr(trainer.env, "parallel_rollout", third_fails)
    with pytest.raises(ValueError, match="no room"):
        trainer.run(reported.append)
    assert len(reported) == 2


def test_killed_run_resumes_to_the_same_files(tmp_path):
    """A line per update, all of them written before a checkpoint."""
    options = [*QUICK, "optim.total_bytes=1_152", "model=tiny", "model.overrides.width=16", "checkpoint_every=4"]
    options += ["snapshots.count=1", "snapshots.batches=1", "snapshots.num_bytes=30"]  # nine updates

    def train(name: str, every: int) -> None:
        run(configured(*options, f"out={tmp_path / name}", f"compute.figures_every={every}", "resume=true"), "")

    train("at once", 1)
    with killed_at(6):  # fetched with the eighth, before its checkpoint
        train("late", 5)
    assert len((tmp_path / "late" / "metrics.csv").read_text().splitlines()) == 1 + 6
    train("late", 5)
    for name in ("metrics.csv", "samples.jsonl"):
        assert (tmp_path / "late" / name).read_bytes() == (tmp_path / "at once" / name).read_bytes()


def test_metrics_are_fetched_after_every_update_on_cpus_and_every_16th_on_gpus():
    for device, default in (("cpu", 1), ("cuda", 16)):
        for every in (None, 1, 7):
            config = configured(*QUICK)
            config.compute.figures_every, config.compute.device = every, device
            assert loop_options(config).figures_every == (default if every is None else every)


def test_files_are_cut_back_to_the_checkpoint(tmp_path):
    path, lines = tmp_path / "metrics.csv", tmp_path / "samples.jsonl"
    assert read_table(path) == {} and read_lines(lines) == []
    table, log = MetricsTable(path), UpdateLog(lines)
    for update in range(1, 6):
        table.add(update, UPDATE * update, {"loss": 1 / 3 / update, "rate": 0.2})
    for update in (0, 2, 4, 4, 8):
        log.add(update, value=1 / 3)
    for kind, file in ((MetricsTable, path), (UpdateLog, lines)):
        with pytest.raises(FileExistsError, match="holds another run; resume it, or choose another folder"):
            kind(file)
    table, log = MetricsTable(path, resume_after=3), UpdateLog(lines, resume_after=4)
    table.add(4, 4 * UPDATE, {"loss": 7.0, "rate": 0.1})
    columns = read_table(path)
    assert columns["update"] == [1, 2, 3, 4] and columns["bytes"] == [UPDATE * n for n in (1, 2, 3, 4)]
    assert columns["loss"] == [1 / 3, 1 / 6, 1 / 9, 7.0]  # to the last bit
    with pytest.raises(ValueError, match=r"metrics must be \['loss', 'rate'\], got \['loss'\]"):
        table.add(5, 5 * UPDATE, {"loss": 1.0})
    log.add(5, value=2.0)
    assert [line["update"] for line in read_lines(lines)] == [0, 2, 4, 4, 5]
    assert [line["value"] for line in read_lines(lines)] == [1 / 3] * 4 + [2.0]
    table.add(7, 7 * UPDATE, {"loss": 7.0, "rate": 0.1})  # a gap: a machine that went down may lose lines
    MetricsTable(path, resume_after=8)
    assert read_table(path)["update"] == [1, 2, 3, 4, 7]
    MetricsTable(path, resume_after=0), UpdateLog(lines, resume_after=-1)
    assert not path.exists() and not lines.exists()


def test_half_written_lines_are_dropped(tmp_path):
    """Files cut at every byte of their last line, as a kill may leave them."""
    log, table = UpdateLog(tmp_path / "samples.jsonl"), MetricsTable(tmp_path / "metrics.csv")
    for update in (1, 12345):
        log.add(update)
        table.add(update, 20, {"loss": 1.25})
    for path, kind, last in (
        (log.path, UpdateLog, '{"update": 12345}\n'),
        (table.path, MetricsTable, "12345,20,1.25\r\n"),
    ):
        whole = path.read_bytes()
        for cut in range(1, len(last)):
            path.write_bytes(whole[:-cut])
            updates = [line["update"] for line in read_lines(path)] if kind is UpdateLog else read_table(path)["update"]
            assert updates == [1]
        kind(path, resume_after=99999)
        assert path.read_bytes() == whole[: -len(last)]
    table.path.write_bytes(b"update,by")
    assert read_table(table.path) == {}

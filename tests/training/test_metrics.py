"""Metrics fetched late are those fetched at once, and files of metrics lose and repeat nothing."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from rltok_rl.agents.segmenters import make_segmenter
from rltok_rl.experiments.runs.build import loop_options
from rltok_rl.experiments.runs.run import run

from rltok_rl.models.flops import decoding_flops, scoring_flops, update_flops
from rltok_rl.training import Alarms, TrainingFailed
from rltok_rl.training.distributed import Processes
from rltok_rl.training.metrics import (
    MetricsTable,
    Pending,
    UpdateFlops,
    UpdateLog,
    fetch,
    is_broken,
    read_lines,
    read_table,
)

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


def test_any_update_of_a_group_may_end_the_run():
    """Call the listener for every update first; without an answer the run continues."""
    for stop in (1, 2, 3, 5, None):
        trainer, seen = make(updates=7, figures_every=3), []
        trainer.run(lambda metrics: seen.append(trainer.last_update.update) or seen[-1] == stop)  # noqa: B023
        last = 7 if stop is None else 3 * -(-stop // 3)
        assert seen == [*range(1, last + 1)] and trainer.updates == last, stop


def test_metrics_are_fetched_at_once_when_asked():
    trainer, seen, asked = make(updates=6, figures_every=100), [], []

    def is_due() -> bool:
        asked.append(trainer.updates)
        return trainer.updates in (2, 3)

    trainer.run(lambda metrics: seen.append((trainer.updates, trainer.last_update.update)) and None, fetch_when=is_due)
    assert seen == [(2, 1), (2, 2), (3, 3), (6, 4), (6, 5), (6, 6)] and asked == [1, 2, 3, 4, 5]


def numbers(**values: float) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(value) for name, value in values.items()}


def pending(*epochs: dict[str, torch.Tensor], **options) -> Pending:
    update = Pending(7, 70, 0.5, **options)
    for metrics in epochs:
        update.add(metrics)
    update.row_sums = [{"reward": torch.tensor([[2.0, 1.0], [4.0, 1.0]])}, {"reward": torch.tensor([[9.0, 1.0]])}]
    return update


def test_metrics_of_an_update_with_epochs():
    """Those of the first step, how far the policy has moved after the last, and returns over all rows."""
    first = numbers(loss=2.0, rate=0.9, grad_norm=1.0, ESS=1.0, kl_approx=0.0, clip_fraction=0.0)
    second = numbers(loss=3.0, grad_norm=4.0, ESS=0.9, kl_approx=0.1, clip_fraction=0.2)
    third = numbers(loss=4.0, grad_norm=5.0, ESS=0.8, kl_approx=0.2, clip_fraction=0.3)
    alarms = Alarms(patience=1)
    (update,) = fetch([pending(first, second, third, warnings=["more room"])], Processes(), alarms)
    assert (update.update, update.bytes_done) == (7, 70)
    assert update.warnings[0] == "more room" and len(update.warnings) == 1
    expected = {"loss": 2.0, "rate": 0.9, "grad_norm": 1.0, "ESS": 0.8, "kl_approx": 0.2, "clip_fraction": 0.3}
    expected |= {"reward": 5.0, "reward_standard_error": 13**0.5 / 3**0.5, "lr": 0.5}
    assert update.metrics == pytest.approx(expected, rel=1e-6)
    (bound,) = fetch([pending(numbers(rate=0.96), second)], Processes(), Alarms(patience=1))
    assert len(bound.warnings) == 1 and "nearly every byte" in bound.warnings[0]
    again = second | numbers(rate=0.99, entropy=0.0)  # alarms count a batch once
    (update,) = fetch([pending(numbers(rate=0.5, entropy=1.0), again)], Processes(), Alarms(patience=1))
    assert update.warnings == [] and update.metrics["rate"] == 0.5
    for name in ("loss", "grad_norm"):
        for epochs in ((first | numbers(**{name: float("nan")}),), (first, second | numbers(**{name: float("inf")}))):
            with pytest.raises(TrainingFailed, match=f"{name} is (nan|inf) at update 7"):
                list(fetch([pending(*epochs)], Processes(), Alarms()))
    needy = pending(first | numbers(token_need=2.0))
    assert [one.metrics["token_need"] for one in fetch([needy, needy], Processes(), Alarms())] == [2.0]
    enough = pending(first | numbers(token_need=0.0))
    assert len(list(fetch([enough, enough], Processes(), Alarms()))) == 2


def test_a_step_is_broken_by_any_number_that_is_not_finite_or_a_lack_of_room():
    good = numbers(loss=1.0, grad_norm=2.0, rate=float("nan"))  # a rate that is none breaks nothing
    for metrics, before, expected in (
        (good, None, 0.0),
        (good, 0.0, 0.0),
        (good, 1.0, 1.0),
        (good | numbers(loss=float("nan")), None, 1.0),
        (good | numbers(loss=float("-inf")), 0.0, 1.0),
        (good | numbers(grad_norm=float("inf")), 0.0, 1.0),
        (good | numbers(token_need=0.0), None, 0.0),
        (good | numbers(token_need=1.5), None, 1.0),
        (good | numbers(token_need=0.0, loss=float("nan")), None, 1.0),
        (numbers(grad_norm=float("nan")), None, 1.0),
    ):
        flag = is_broken(metrics, None if before is None else torch.tensor(before))
        assert float(flag) == expected and flag.dtype == torch.float32 and flag.dim() == 0, metrics


def test_flops_of_an_update_count_each_level_for_passes_trials_and_reference():
    for second_level in (False, True):
        trainer = make(estimator="local_flips", second_level=second_level)
        estimator = trainer.loss.terms["policy"]._value_estimator
        flops = UpdateFlops.of(trainer.model, trainer.loss, reference=True)
        for num_bytes, rate, second in ((100, 0.25, 0.5), (40, 1.0, 0.0)):
            tokens = rate * num_bytes
            for costs, count in (
                (flops.passes, partial(update_flops, trainer.model)),
                (flops.trials, estimator.flops),
                (flops.reference, partial(decoding_flops, trainer.model)),
            ):
                total = flops.total(costs, num_bytes, rate, second)
                assert total == pytest.approx(count(num_bytes, tokens, num_second=second * tokens)) and total > 0
        assert (flops.trials[2] > 0) == (flops.passes[2] > 0) == second_level
        assert UpdateFlops.of(trainer.model, trainer.loss).reference == (0.0, 0.0, 0.0)


def test_flops_of_critics_further_epochs_and_segmenters():
    """A critic reads each state twice for advantages, and once per epoch with a backward pass, twice as long."""
    for epochs in (1, 3):
        trainer = make(estimator="critic_advantage", policy_epochs=epochs)
        model, critic = trainer.model, trainer.loss.terms["policy"].critic_network
        entries = sum(weight.numel() for weight in critic.parameters() if weight.dim() == 2)
        learning = 2 * entries * (2 + 3 * epochs) + 3 * (epochs - 1) * scoring_flops(model, 1)
        flops = UpdateFlops.of(model, trainer.loss, policy_epochs=epochs)
        assert flops.learning == pytest.approx((learning, 0.0, 0.0))
        update = trainer.update()
        assert update["total_flops"] - update["flops"] == pytest.approx(UPDATE * learning)
    trainer = make(estimator="control_variate")
    trainer.loss.policy_estimator.regressor_keys = ("encoder_state",)
    fit = trainer.loss.policy_estimator.fit_flops(model.config.width)
    assert UpdateFlops.of(model, trainer.loss).learning == (fit, 0.0, 0.0) and fit > 0
    segmenter = make_segmenter("gumbel", model, hidden=8)
    entries = sum(weight.numel() for weight in segmenter.parameters() if weight.dim() == 2)
    more = UpdateFlops.of(model, trainer.loss, segmenter).passes
    assert more == pytest.approx((flops.passes[0] + 6 * entries, *flops.passes[1:])) and entries > 0


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
    with pytest.raises(ValueError, match=r"metrics must be \['loss', 'rate'\], got \['loss', 'rate', 'more'\]"):
        table.add(5, 5 * UPDATE, {"loss": 1.0, "rate": 0.1, "more": 1.0})
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


def test_files_are_cut_at_once_and_foreign_ones_refused(tmp_path):
    path = tmp_path / "samples.jsonl"
    for update in (1, 2):
        UpdateLog(path, resume_after=9).add(update)
    inode = path.stat().st_ino
    UpdateLog(path, resume_after=2)
    assert path.stat().st_ino == inode, "nothing was cut"
    UpdateLog(path, resume_after=1)
    assert path.stat().st_ino != inode, "a kill leaves the old file or the new one"
    for kind, content in (
        *((UpdateLog, text) for text in ("[]", "{}", "x", '{"update": null}', "3")),
        (MetricsTable, "update,loss\nx,1"),
    ):
        path.write_text(f"{content}\n")
        with pytest.raises(ValueError, match="must hold lines with the number of an update; restore it, or choose"):
            kind(path, resume_after=5)
        assert path.read_text() == f"{content}\n"

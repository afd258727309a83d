"""Comparisons of a few seconds: equal FLOPs, one table, killed and gone on, two at once."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from rltok_rl.experiments import train
from rltok_rl.experiments.compare import train_systems as compare
from rltok_rl.experiments.compare.systems import budget, check_system, system_config, system_names
from rltok_rl.experiments.compare.train_systems import EVALUATION, done
from rltok_rl.experiments.reports import run_report as report
from rltok_rl.experiments.reports.systems_page import best, page, read_evaluation, system_figures, write_page
from rltok_rl.experiments.runs.folder import read_run

from rltok_rl.models import UNet, preset
from rltok_rl.models.flops import update_flops
from rltok_rl.training.atomic_files import claim_folder
from rltok_rl.training.metrics import MetricsTable

from ..forked import CONTEXT
from .configured import configured

QUICK = [
    "experiment=compare",
    "data=python-docs",
    "data.num_rows=4",
    "data.num_steps=64",
    "model.overrides.width=16",
    "optim.total_bytes=1_280",
    "optim.warm_up_bytes=256",
    "compare.windows=20",
    "compare.apart=false",
    "snapshots.count=2",
    "snapshots.batches=1",
    "snapshots.num_bytes=64",
    "checkpoint_every=2",
]


@pytest.fixture(scope="module", autouse=True)
def _no_reports():
    """The page of each run is tested with runs; drawing it takes longer than these trainings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "write_report", lambda out: out / "report.md")
        yield


def small(out: Path, systems: str):
    return configured(*QUICK, f"compare.systems=[{systems}]", f"out={out}")


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> Path:
    """Three systems, of which one is an oracle."""
    out = tmp_path_factory.mktemp("compare") / "three"
    config = small(out, "uniform,bpe,learned")
    config.compare.options = {"bpe": {"vocabulary": 300, "num_bytes": 20_000}}
    compare.run(config, "the command")
    return out


def test_all_spend_the_same_and_are_judged_on_the_same_documents(compared):
    content = json.loads((compared / "compare.json").read_text())
    rows = {row["system"]: row for row in content["systems"]}
    assert list(rows) == ["learned", "bpe", "uniform"] and content["command"] == "the command"
    allowed = budget(small(compared, "uniform"))
    for row in rows.values():
        total = row["flops"] + row["tried_flops"]  # what the estimator tries is part of the budget
        assert allowed <= total < allowed + 1.2 * total / row["updates"] and row["padded_flops"] >= row["flops"]
        assert row["predicted"] == 20 * 64 and 4 < row["bits_per_byte"] < 8.5
    assert rows["learned"]["tried_flops"] > 0 and rows["uniform"]["tried_flops"] == 0
    assert rows["learned"]["bytes"] < rows["uniform"]["bytes"]  # trials leave less for training
    assert rows["bpe"]["bytes"] < rows["uniform"]["bytes"]  # more tokens, fewer bytes
    page = (compared / "compare.md").read_text()
    assert "| bpe * |" in page and "looks at bytes to come" in page and (compared / "compare.png").stat().st_size > 9000


def test_figures_are_named_by_their_mean_and_older_names_are_read(compared, tmp_path):
    """Judged before there were two means, a system has the corpus' figures under plain names."""
    judged = json.loads((compared / "uniform" / EVALUATION).read_text())
    row = {row["system"]: row for row in json.loads((compared / "compare.json").read_text())["systems"]}["uniform"]
    assert judged["corpus_bits_per_byte"] == row["bits_per_byte"]
    # Of the single held-out document here both means are equal up to rounding: the names have to tell them apart.
    judged |= {name: -1.0 for name in judged if "document_" in name}
    before = {
        name.removeprefix("early_corpus_").removeprefix("corpus_"): value
        for name, value in judged.items()
        if "document_" not in name and "early_corpus_s" not in name
    }
    before["early_bits_per_byte"] = judged["early_corpus_bits_per_byte"]
    before["bits_per_byte"] = judged["corpus_bits_per_byte"]
    assert not any("corpus" in name for name in before)
    (tmp_path / EVALUATION).write_text(json.dumps(before))
    again = read_evaluation(tmp_path / EVALUATION)
    for name in ("corpus_bits_per_byte", "corpus_standard_error", "early_corpus_bits_per_byte"):
        assert again[name] == judged[name]


def test_what_is_done_is_not_trained_again(compared, monkeypatch, capsys):
    before = (compared / "compare.md").read_text()
    monkeypatch.setattr(train, "run", lambda *_: pytest.fail("trained again"))
    config = small(compared, "uniform,learned")
    compare.run(config, "the command")
    assert (compared / "compare.md").read_text() == before
    assert capsys.readouterr().err.count("is trained") == 2
    other = small(compared, "uniform")
    other.optim.lr = 0.5
    with pytest.raises(ValueError, match="is of a run with another configuration"):
        compare.run(other, "the command")


def test_rltok_report_writes_the_page_anew(compared, capsys):
    before = (compared / "compare.md").read_text()
    (compared / "compare.md").unlink()
    assert report.main([str(compared)]) == 0
    assert capsys.readouterr().out.strip() == str(compared / "compare.md")
    assert (compared / "compare.md").read_text() == before


def test_a_row_is_the_run_that_the_same_options_make(compared):
    """A system's folder is a run like any other: its configuration makes it again, to the last bit."""
    config = system_config(small(compared, "uniform"), "uniform")
    again = replace(config, out=str(compared.parent / "again"))
    summary = train.run(again, "")
    theirs = json.loads((compared / "uniform" / "summary.json").read_text())
    assert summary["held_out_bits_per_byte"] == theirs["held_out_bits_per_byte"]


def test_stopped_and_gone_on_a_comparison_is_uninterrupted(compared, tmp_path, monkeypatch):
    """SIGTERM in the middle of the second system; the same command trains the rest, to the same figures."""
    config = small(tmp_path / "two", "uniform,learned")
    add, total = MetricsTable.add, [0]

    def add_and_stop(self, update, *rest):
        add(self, update, *rest)
        total[0] += 1
        if total[0] == 8:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(MetricsTable, "add", add_and_stop)
    compare.run(config, "the command")
    assert done(tmp_path / "two" / "uniform") and not done(tmp_path / "two" / "learned")
    assert "Not done yet: learned (" in (tmp_path / "two" / "compare.md").read_text()
    monkeypatch.setattr(MetricsTable, "add", add)
    compare.run(config, "the command")
    for system in ("uniform", "learned"):
        for name in ("metrics.csv", EVALUATION):
            assert (tmp_path / "two" / system / name).read_text() == (compared / system / name).read_text()


def test_another_process_is_left_its_system(tmp_path, capsys):
    with claim_folder(tmp_path / "out" / "uniform"):
        assert compare.run(small(tmp_path / "out", "uniform"), "") is None
    assert "is under way in another process" in capsys.readouterr().err


def test_a_system_in_a_process_of_its_own_makes_the_same(compared, tmp_path):
    config = small(tmp_path / "out", "uniform")
    config.compare.apart = True
    compare.run(config, "the command")
    theirs = compared / "uniform" / EVALUATION
    assert (tmp_path / "out" / "uniform" / EVALUATION).read_text() == theirs.read_text()


def test_what_a_process_cannot_train_is_told_to_the_one_that_started_it(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "setsid", lambda: None)
    monkeypatch.setattr(compare, "_end_with", lambda parent: None)
    config = system_config(small(tmp_path / "out", "gumbel"), "gumbel")
    config.segmenter.options["variant"] = "no"
    answers: list[object] = []
    send = SimpleNamespace(send=answers.append)
    compare._child(OmegaConf.to_container(OmegaConf.structured(config)), "", 20, os.getppid(), send)
    assert isinstance(answers[0], ValueError) and "variant must be one of" in str(answers[0])


def train_all(options: list[str]) -> None:
    fork = multiprocessing.get_context("fork")  # everything is imported already
    multiprocessing.get_context = lambda method: fork
    compare.run(configured(*options), "")


def test_killed_without_warning_a_comparison_leaves_no_process_behind(tmp_path):
    """SIGKILL while a system is trained: its process ends too, and leaves the folder free."""
    out = tmp_path / "out"
    options = [*QUICK, "compare.systems=[uniform]", "compare.apart=true", "compare.flops=1e15", f"out={out}"]
    parent = CONTEXT.Process(target=train_all, args=(options,))
    parent.start()
    try:
        metrics = out / "uniform" / "metrics.csv"
        wait(lambda: (metrics.exists() and metrics.read_text().count("\n") > 2) or not parent.is_alive())
        child = int(Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text())
        with pytest.raises(BlockingIOError), claim_folder(out / "uniform"):
            pass
    finally:
        parent.kill()
        parent.join()
    wait(lambda: ended(child))
    with claim_folder(out / "uniform"):
        pass


def ended(process: int) -> bool:
    """Whether nothing of it runs: one whose first thread has ended holds its files until the last has."""
    about = Path(f"/proc/{process}")
    try:
        return "\nState:\tZ" in (about / "status").read_text() and len([*(about / "task").iterdir()]) == 1
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait(until: Callable[[], bool], *, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("systems", "options", "message"),
    [
        (
            "unifrom",
            [],
            r"compare.systems must be among \['bernoulli', 'bpe', .* got 'unifrom'; did you mean 'uniform'",
        ),
        ("", [], "compare.systems must name at least one system, got none"),
        ("uniform,uniform", [], r"compare.systems must name each system once, got \['uniform', 'uniform'\]"),
        ("uniform", ["segmenter=hnet"], "actor and segmenter must be left out of a comparison, .* segmenter='hnet'"),
        ("uniform", ["actor=random"], "actor and segmenter must be left out of a comparison, .* actor='random'"),
        ("gumbel", ["compare.options.gumbel.hiden=3"], r"options of 'gumbel' must be among .* got \['hiden'\]"),
        ("gumbel", ["compare.options.gumbal.hidden=3"], r"compare.options must be by system, .* got \['gumbal'\]"),
        ("uniform,gumbel", ["compare.options.gumbel.variant=no"], "system 'gumbel' cannot be trained: variant must be"),
        ("uniform,unigram", ["compare.options.unigram.predictor=no"], "system 'unigram' .*: predictor must be one of"),
        ("uniform,hnet-2stage", ["model.overrides.num_token_layers=1"], "system 'hnet-2stage' .*num_token_layers=2 at"),
        ("uniform,learned", ["estimator.options.num_flips=0"], "system 'learned' cannot be trained: num_flips must be"),
        (
            "uniform",
            ["optim.warm_up_bytes=2_000"],
            r"optim.warm_up_bytes must lie in \[0, optim.total_bytes=1280\), got 2000",
        ),
        ("uniform,grouped", ["data.num_rows=6"], "data.num_rows must be a multiple of segmenter.options.group_size, 4"),
        ("uniform", ["data.source=none"], "data.source must be one of .*, a file or a folder, got 'none'"),
        ("uniform", ["compare.flops=0"], "compare.flops must be positive, got 0"),
        ("uniform", ["compare.windows=0"], "compare.windows must be at least 1, got 0"),
    ],
)
def test_mistakes_are_refused_before_anything_is_trained(systems, options, message, tmp_path):
    config = configured(*QUICK, f"compare.systems=[{systems}]", f"out={tmp_path}/out", *options)
    with pytest.raises((ValueError, OSError), match=message):
        compare.run(config, "")
    assert not (tmp_path / "out").exists()


def test_what_a_row_aims_at_is_said_as_it_is(compared):
    """Rates by script, texts that several rows read, and attempts that the budget does not hold."""
    folders = {name: read_run(compared / name) for name in ("learned", "uniform")}
    rows = [system_figures(name, run) for name, run in folders.items()]
    for row in rows:
        row["difference"], row["difference_error"] = None, None
    plain = page(rows, folders, compared, "")
    assert "% trials)" in plain and "by script" not in plain and "side by side" not in plain
    rows[0] |= {"tried_flops": 2 * rows[0]["flops"]}
    above = page(rows, folders, compared, "").partition("\n")[0]
    assert " of training, learned with " in above and above.endswith("of trials on top (`local_flips`, gamma 0.9)")
    rows[1] |= {"target_rate": None, "target_rates": {"latin": 0.2, "other": 0.25}, "rows_per_text": 4}
    told = page(rows, folders, compared, "")
    assert "(by script)" in told and "uniform aims at a rate by script: latin 0.2, other 0.25." in told
    assert "uniform reads every text in 4 rows side by side" in told
    rows[0] |= {"tried_flops": 0, "flops": rows[1]["flops"]}
    assert re.match(r"# Systems at [0-9.]+ MFLOPs in total\n", page(rows, folders, compared, ""))
    assert "% trials)" not in page(rows, folders, compared, "")


def test_the_budget_is_what_the_bytes_cost_at_the_models_rate(tmp_path):
    config = small(tmp_path, "uniform")
    config.model.overrides["target_rate"] = 0.35
    model = UNet(preset(config.model.preset, **config.model.overrides))
    assert budget(config) == pytest.approx(update_flops(model, 1_280, 448))
    assert system_config(config, "uniform").optim.total_flops == budget(config)
    config.compare.flops = 7e9
    assert budget(config) == 7e9


def test_the_papers_estimator_is_a_system_of_its_own(tmp_path):
    config = system_config(small(tmp_path, "learned"), "learned-paper")
    assert (config.estimator.name, config.estimator.gamma, config.estimator.options) == ("discounted_return", 0.99, {})
    assert (config.baseline.name, config.loss.policy, config.rate.coefficient) == ("batch_mean", 0.01, 0.01)
    plain = system_config(small(tmp_path, "learned"), "learned")
    assert plain.estimator.name == "local_flips" and plain.optim.total_flops == config.optim.total_flops


def test_bold_is_what_a_paired_test_cannot_tell_from_the_best():
    """Documents differ by far more than systems do, so that unpaired errors would tell nothing apart."""
    counts, nats = [100, 300, 200, 100], [150.0, 820.0, 150.0, 300.0]
    jitter = [3.0, -3.0, 3.0, -3.0]
    rows = [
        {"system": "best", "nats": nats, "bits_per_byte": 2.0, "oracle": False},
        {"system": "near", "nats": [n + j for n, j in zip(nats, jitter, strict=True)], "bits_per_byte": 2.001},
        {
            "system": "far",
            "nats": [1.02 * n + j / 10 for n, j in zip(nats, jitter, strict=True)],
            "bits_per_byte": 2.04,
        },
        {"system": "oracle", "nats": nats, "bits_per_byte": 1.0, "oracle": True},
    ]
    spent = {"flops": 1e12, "tried_flops": 0.0}
    rows = [{"counts": counts, "standard_error": 0.3, "oracle": False, **spent, **row} for row in rows]
    assert best(rows) == {"best", "near"}


def test_a_folder_without_systems_has_no_page(tmp_path):
    assert write_page(tmp_path) is None


@pytest.mark.parametrize("system", system_names())
def test_what_can_be_trained_is_not_refused(system, tmp_path):
    """Every word, in a model whose tokens have a layer before and after a second level."""
    config = small(tmp_path, "uniform")
    config.model.overrides["num_token_layers"] = 2
    check_system(system_config(config, system), system)

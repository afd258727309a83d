"""Comparisons of a few seconds: equal FLOPs, one table, resumed after a stop, two processes at once."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from rltok_rl.experiments.commands import report
from rltok_rl.experiments.commands.schema import CONF
from rltok_rl.experiments.compare import train_systems as compare
from rltok_rl.experiments.compare.systems import budget, check_system, system_config, system_names
from rltok_rl.experiments.reports.systems_page import page, system_rows, write_page
from rltok_rl.experiments.reports.table import best_systems
from rltok_rl.experiments.runs.folder import EVALUATION, read_run
from rltok_rl.experiments.runs.run import run
from rltok_rl.experiments.runs.segmenters import learned

from rltok_rl.data.disk import claim_folder
from rltok_rl.models import UNet, preset
from rltok_rl.models.flops import update_flops
from rltok_rl.training.metrics import MetricsTable

from ..forked import CONTEXT
from .configured import configured
from .conftest import COMPARE
from .custom import EVERY
from .results import rewrite


@pytest.fixture(autouse=True)
def _no_reports(monkeypatch):
    """Skip the page of each run."""
    monkeypatch.setattr(compare, "write_report", lambda folder: folder / "report.md")


def small(out: Path, systems: str, *options: str):
    return configured(*COMPARE, f"compare.systems=[{systems}]", f"out={out}", *options)


def test_systems_spend_the_same_and_are_evaluated_on_the_same_documents(compared):
    content = json.loads((compared / "compare.json").read_text())
    rows = {row["system"]: row for row in content["systems"]}
    assert list(rows) == ["learned", "bpe", "uniform"] and content["command"] == "the command"
    allowed = budget(small(compared, "uniform"))
    for row in rows.values():
        total = row["flops"] + row["tried_flops"]  # an estimator's trials are part of the budget
        assert allowed <= total < allowed + 1.2 * total / row["updates"] and row["padded_flops"] >= row["flops"]
        assert row["predicted"] == 20 * 64 and 4 < row["bits_per_byte"] < 8.5
        evaluation = json.loads((compared / row["system"] / EVALUATION).read_text())
        assert evaluation["corpus_bits_per_byte"] == row["bits_per_byte"]
    assert rows["learned"]["tried_flops"] > 0 and rows["uniform"]["tried_flops"] == 0
    assert rows["learned"]["bytes"] < rows["uniform"]["bytes"]  # trials leave less for training
    assert rows["bpe"]["bytes"] < rows["uniform"]["bytes"]  # more tokens, fewer bytes
    text = (compared / "compare.md").read_text()
    assert "| bpe * |" in text and "looks at later bytes" in text and (compared / "compare.png").stat().st_size > 2_500


def test_trained_systems_are_not_trained_again(compared, monkeypatch, tmp_path, capsys):
    before = (compared / "compare.md").read_text()
    monkeypatch.setattr(compare, "run_training", lambda *_, **__: pytest.fail("trained again"))
    compare.run(small(compared, "uniform,learned"), "the command")
    assert (compared / "compare.md").read_text() == before and capsys.readouterr().err.count("already trained") == 2
    with pytest.raises(ValueError, match="is of a run with another configuration"):
        compare.run(small(compared, "uniform", "optim.lr=0.5"), "the command")
    copy = Path(shutil.copytree(compared, tmp_path / "copy"))
    (copy / "compare.md").unlink()
    assert report.main([str(copy)]) == 0
    assert capsys.readouterr().out.strip().endswith(str(copy / "compare.md"))
    assert (copy / "compare.md").read_text() == before


def test_systems_off_their_target_rate_are_named(compared, tmp_path, monkeypatch, capsys):
    def train_again(rate: float) -> list[str]:
        rewrite(out / "uniform" / EVALUATION, rate=rate, target_rate=0.2)
        compare.run(small(out, "uniform"), "the command")
        return [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]

    out = Path(shutil.copytree(compared, tmp_path / "copy", ignore=shutil.ignore_patterns("bpe", "learned")))
    (line,) = train_again(0.205)
    assert line.startswith(
        "warning: uniform: boundaries per byte on held-out text must be within 2 % of the target 0.2"
    )
    assert "got 0.2050 (+2.5 %)" in line and train_again(0.2039) == [] and len(train_again(0.1)) == 1
    rewrite(out / "uniform" / EVALUATION, target_rates={"latin": 0.3})
    assert train_again(0.1) == []
    monkeypatch.setattr(compare, "done", lambda folder: False)  # as after training
    monkeypatch.setattr(compare, "_train", lambda *_, **__: False)
    rewrite(out / "uniform" / EVALUATION, target_rates=None)
    assert len(train_again(0.1)) == 1


def test_a_dot_in_the_name_of_a_variant_is_explained():
    split, whole = "+compare.variants.flips-0.5={recipe: tuned}", "compare.variants={flips-0.5: {recipe: tuned}}"
    with pytest.raises(ValueError, match=r"got 'flips-0.5'; a dot .* write 'compare.variants={flips-0.5: ...}'"):
        system_config(configured("experiment=compare", "data.source=books", split), "flips-0.5")
    assert system_config(configured("experiment=compare", "data.source=books", whole), "flips-0.5").loss.policy == 0.1


def test_system_is_a_run_like_any_other(compared, tmp_path):
    """Its configuration trains it again, to the last bit; a child process, in other memory, up to rounding."""
    config = system_config(small(compared, "uniform"), "uniform")
    summary = run(replace(config, out=str(tmp_path / "again")), "")
    theirs = json.loads((compared / "uniform" / "summary.json").read_text())
    assert summary["held_out_bits_per_byte"] == theirs["held_out_bits_per_byte"]
    compare.run(small(tmp_path / "out", "uniform", "compare.apart=true"), "the command")
    files = [folder / "uniform" / EVALUATION for folder in (compared, tmp_path / "out")]
    ours, child = ([float(x) for x in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", file.read_text())] for file in files)
    assert len(ours) > 20 and child == pytest.approx(ours, rel=1e-6, abs=1e-6)


def test_stopped_comparison_resumes_with_equal_metrics(compared, tmp_path, monkeypatch):
    """SIGTERM in the middle of the second system; the same command trains the rest."""
    out, add, total = tmp_path / "two", MetricsTable.add, [0]

    def add_and_stop(self, update, *rest):
        add(self, update, *rest)
        total[0] += 1
        if total[0] == 8:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(MetricsTable, "add", add_and_stop)
        with pytest.raises(SystemExit) as ended:
            compare.run(small(out, "uniform,learned"), "the command")
    assert ended.value.code == 128 + signal.SIGTERM
    assert compare.done(out / "uniform") and not compare.done(out / "learned")
    assert "Not done yet: learned (" in (out / "compare.md").read_text()
    compare.run(small(out, "uniform,learned"), "the command")
    for system in ("uniform", "learned"):
        for name in ("metrics.csv", EVALUATION):
            assert (out / system / name).read_text() == (compared / system / name).read_text()


def test_a_system_of_another_process_is_skipped_and_errors_of_a_child_are_raised(tmp_path, capsys, monkeypatch):
    with claim_folder(tmp_path / "out" / "uniform"):
        assert compare.run(small(tmp_path / "out", "uniform"), "") is None
    assert "already training in another process; skipped" in capsys.readouterr().err
    monkeypatch.setattr(os, "setsid", lambda: None)
    monkeypatch.setattr(compare, "_exit_with", lambda parent: None)
    config = system_config(small(tmp_path / "out", "gumbel"), "gumbel")
    config.segmenter.options["variant"] = "no"
    answers: list[object] = []
    send = SimpleNamespace(send=answers.append)
    compare._child(OmegaConf.to_container(OmegaConf.structured(config)), "", 20, os.getppid(), send)
    assert isinstance(answers[0], ValueError) and "variant must be one of" in str(answers[0])


def _train_forked(options: list[str]) -> None:
    fork = multiprocessing.get_context("fork")  # everything is imported already
    multiprocessing.get_context = lambda method: fork
    compare.run(configured(*options), "")


def test_killed_comparison_leaves_no_process_behind(tmp_path):
    """SIGKILL while a system is trained: its child process ends too, and releases the folder."""
    out = tmp_path / "out"
    options = [*COMPARE, "compare.systems=[uniform]", "compare.apart=true", "compare.flops=1e15", f"out={out}"]
    parent = CONTEXT.Process(target=_train_forked, args=(options,))
    parent.start()
    try:
        metrics = out / "uniform" / "metrics.csv"
        _wait(lambda: (metrics.exists() and metrics.read_text().count("\n") > 2) or not parent.is_alive())
        child = int(Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text())
        with pytest.raises(BlockingIOError), claim_folder(out / "uniform"):
            pass
    finally:
        parent.kill()
        parent.join()
    _wait(lambda: _ended(child))
    with claim_folder(out / "uniform"):
        pass


def _ended(process: int) -> bool:
    """Whether all threads have ended, and so released the files."""
    about = Path(f"/proc/{process}")
    try:
        return "\nState:\tZ" in (about / "status").read_text() and len([*(about / "task").iterdir()]) == 1
    except (FileNotFoundError, ProcessLookupError):
        return True


def _wait(until: Callable[[], bool], *, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def test_mistakes_are_refused_before_training(tmp_path):
    names = r"compare.systems must be among \['bernoulli', 'bpe', .* got 'unifrom'; did you mean 'uniform'"
    for systems, options, message in (
        ("unifrom", [], names),
        ("", [], "compare.systems must name at least one system, got none"),
        ("uniform,uniform", [], r"compare.systems must name each system once, got \['uniform', 'uniform'\]"),
        ("uniform", ["segmenter=hnet"], "actor and segmenter must be left out of a comparison, .* segmenter='hnet'"),
        ("uniform", ["actor=random"], "actor and segmenter must be left out of a comparison, .* actor='random'"),
        ("gumbel", ["compare.options.gumbel.hiden=3"], r"options of 'gumbel' must be among .* got \['hiden'\]"),
        ("gumbel", ["compare.options.gumbal.hidden=3"], r"compare.options must be by system, .* got \['gumbal'\]"),
        (
            "uniform,gumbel",
            ["compare.options.gumbel.variant=no"],
            "'gumbel' cannot be trained: .*options.variant must be",
        ),
        ("uniform,unigram", ["compare.options.unigram.predictor=no"], "system 'unigram' .*predictor must be one of"),
        ("uniform,hnet-2stage", ["model.overrides.num_token_layers=1"], "system 'hnet-2stage' .*num_token_layers=2 at"),
        (
            "uniform,learned",
            ["estimator.options.num_flips=0"],
            "'learned' cannot be trained: .*options.num_flips must be",
        ),
        ("uniform", ["optim.warm_up_bytes=2_000"], r"optim.warm_up_bytes must lie in \[0, .*total_bytes=1280\), got 2"),
        ("uniform,grouped", ["data.num_rows=6"], "data.num_rows must be a multiple of segmenter.options.group_size, 4"),
        ("uniform", ["data.source=none"], "data.source must be one of .*, a file or a folder, got 'none'"),
        ("uniform", ["compare.flops=0"], "compare.flops must be positive and finite, or None, got 0"),
        ("uniform", ["compare.windows=0"], "compare.windows must be an integer of at least 1 and at most 1e9, got 0"),
    ):
        with pytest.raises((ValueError, OSError), match=message):
            compare.run(small(tmp_path / "out", systems, *options), "")
        assert not (tmp_path / "out").exists(), message


def test_systems_share_a_budget_and_can_be_trained(tmp_path):
    """In a model whose tokens have a layer before and after a second level."""
    config = small(tmp_path, "uniform", "model.overrides.num_token_layers=2")
    for system in system_names():
        check_system(system_config(config, system), system)
    config = small(tmp_path, "uniform", "model.overrides.target_rate=0.35")
    model = UNet(preset(config.model.preset, **config.model.overrides))
    assert budget(config) == pytest.approx(update_flops(model, 1_280, 448))  # the bytes at the target rate
    assert system_config(config, "uniform").optim.total_flops == budget(config)
    assert budget(small(tmp_path, "uniform", "compare.flops=7e9")) == 7e9
    paper, plain = (system_config(small(tmp_path, "learned"), system) for system in ("learned-paper", "learned"))
    assert (paper.estimator.name, paper.estimator.gamma, paper.estimator.options) == ("discounted_return", 0.99, {})
    assert (paper.baseline.name, paper.loss.policy, paper.rate.coefficient) == ("batch_mean", 0.01, 0.01)
    assert plain.estimator.name == "local_flips" and plain.optim.total_flops == paper.optim.total_flops


def test_a_variant_may_be_a_segmenter_with_options_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "every_seventh.py").write_text(EVERY)
    monkeypatch.syspath_prepend(tmp_path)
    own, far = "{name: 'every_seventh:Every', options: {every: 7}}", "{name: spacebyte, options: {offset: 2}}"
    chosen = f"compare.variants={{own: {{segmenter: {own}}}, far: {{segmenter: {far}}}}}"
    config = small(tmp_path, "own,far,spacebyte", chosen, "compare.flops=2e7")
    assert system_config(config, "far").segmenter.options == {"offset": 2}
    assert system_config(config, "spacebyte").segmenter.options == {}
    compare.run(config, "the command")
    rows = {row["system"]: row for row in json.loads((tmp_path / "compare.json").read_text())["systems"]}
    assert rows["own"]["rate"] == 10 / 64  # of windows of 64 bytes
    assert rows["far"]["bits_per_byte"] != rows["spacebyte"]["bits_per_byte"]
    for wrong, message in (
        (
            "{options: {offset: 2}}",
            "compare.variants.far.segmenter must hold a name and perhaps options, such as {name: ",
        ),
        ("{name: spacebyte, offset: 2}", "compare.variants.far.segmenter must hold a name and perhaps options, "),
        ("spacebyte", "far.segmenter must hold a name and perhaps options, such as {name: spacebyte}, got 'spacebyte'"),
        ("{name: 'nosuch:Every'}", "system 'far' cannot be trained: .*nosuch"),
        ("{name: spacebite}", "far.segmenter.name must be one of .* got 'spacebite'; did you mean 'spacebyte'"),
        ("{name: spacebyte, options: 2}", "far.segmenter.options must hold options by name, got 2"),
        ("{name: spacebyte, options: {ofset: 2}}", r"options of 'spacebyte' must be among .* got \['ofset'\]"),
    ):
        config = small(tmp_path / "out", "far", f"compare.variants={{far: {{segmenter: {wrong}}}}}")
        with pytest.raises(ValueError, match=message):
            compare.run(config, "")
    for option, name in (("estimator: {gamma: 0.9}", "estimator.gamma"), ("recipe: ours", "recipe")):
        refused = f"compare.variants={{far: {{segmenter: {far}, {option}}}}}"
        with pytest.raises(
            ValueError, match=f"must leave '{name}' out, which belongs to a policy that is learned, got"
        ):
            compare.run(small(tmp_path / "out", "far", refused), "")


def test_custom_code_is_executed_only_if_the_command_names_it(tmp_path, monkeypatch):
    (tmp_path / "every_fifth.py").write_text(EVERY)
    (tmp_path / "foreign.py").write_text("raise RuntimeError('executed')")
    monkeypatch.syspath_prepend(tmp_path)
    chosen = "compare.variants={own: {segmenter: {name: 'every_fifth:Every', options: {every: 5}}}}"
    config = small(tmp_path, "own", chosen, "compare.flops=1e7")
    compare.run(config, "the command")
    (tmp_path / "own" / EVALUATION).unlink()
    compare.run(config, "the command")  # evaluates again
    rewrite(tmp_path / "own" / "model" / "segmenter.json", name="foreign:Every")
    (tmp_path / "own" / EVALUATION).unlink()
    with pytest.raises(ValueError, match="names custom code, 'foreign:Every', which would be executed"):
        compare.run(config, "the command")


def test_systems_of_every_comparison_can_be_trained():
    """Those of compare-main that learn from rewards hold their rate alike, but for unscaled, normed and ours."""
    for file in sorted((CONF / "experiment").glob("compare*.yaml")):
        config = configured(f"experiment={file.stem}", "data.source=books")
        systems = {name: system_config(config, name) for name in config.compare.systems}
        for name, changed in systems.items():
            check_system(changed, name)
        if file.stem == "compare-main":
            controls = {name: changed.rate for name, changed in systems.items() if learned(changed)}
            assert {controls.pop(name).control for name in ("unscaled", "normed", "ours", "standard-init")} == {
                "binomial"
            }
            assert len(systems) == 21 and len(controls) == 9 and "released" in controls
            assert {(rate.control, rate.coefficient, rate.options["integral"]) for rate in controls.values()} == {
                ("pi", 0.1, 0.01)
            }
            changes = systems["released"].changes
            assert changes == ["rate.control", "rate.coefficient", "rate.options"], "each is named once"


def test_page_shows_targets_by_script_rows_per_text_and_trials(compared):
    runs = {name: read_run(compared / name) for name in ("learned", "uniform")}
    rows = [{**row, "difference": None, "difference_error": None} for row in system_rows(runs)]

    def text() -> str:
        return page(rows, runs["learned"], [], "")

    plain = text()
    assert "% trials)" in plain and "by script" not in plain and "side by side" not in plain
    rows[0] |= {"tried_flops": 2 * rows[0]["flops"]}
    heading = text().partition("\n")[0]
    assert " of training, learned with " in heading and heading.endswith("of trials on top (`local_flips`, gamma 0.9)")
    rows[1] |= {"target_rate": None, "target_rates": {"latin": 0.2, "other": 0.25}, "rows_per_text": 4}
    several = text()
    assert "(by script)" in several and "uniform has a target rate by script: latin 0.2, other 0.25." in several
    assert "uniform reads every text in 4 rows side by side" in several
    rows[0] |= {"tried_flops": 0, "flops": rows[1]["flops"]}
    assert re.match(r"# Systems at [0-9.]+ MFLOPs in total\n", text()) and "% trials)" not in text()


def test_bold_is_decided_by_a_paired_test_over_documents(tmp_path):
    """Documents differ by far more than systems: unpaired errors would tell nothing apart."""
    nats, jitter = [150.0, 820.0, 150.0, 300.0], [3.0, -3.0, 3.0, -3.0]
    near = [n + j for n, j in zip(nats, jitter, strict=True)]
    far = [1.02 * n + j / 10 for n, j in zip(nats, jitter, strict=True)]
    losses = {"best": (nats, 2.0), "near": (near, 2.001), "far": (far, 2.04), "oracle": (nats, 1.0)}
    shared = {"counts": [100, 300, 200, 100], "flops": 1e12, "tried_flops": 0.0}
    rows = [{**shared, "nats": n, "bits_per_byte": loss, "oracle": s == "oracle"} for s, (n, loss) in losses.items()]
    assert best_systems(rows) == {0, 1}
    assert best_systems([*rows, {**rows[0], "flops": 2e12}]) == set()
    assert write_page(tmp_path) is None


def test_a_model_of_several_rates_is_evaluated_at_each(tmp_path):
    config = small(tmp_path, "any,uniform", "compare.flops=2e7")
    config.compare.variants = {
        "any": {"actor": {"rates": [0.1, 0.4]}, "model": {"overrides": {"rate_embedding": True}}},
    }
    compare.run(config, "the command")
    rows = {row["system"]: row for row in json.loads((tmp_path / "compare.json").read_text())["systems"]}
    given = [at["target_rate"] for at in rows["any"]["at_rates"]]
    assert given == pytest.approx([0.1, 0.1414, 0.2, 0.2828, 0.4], abs=1e-4) and rows["uniform"]["at_rates"] == []
    drawn = [at["rate"] for at in rows["any"]["at_rates"]]
    assert sorted(drawn) == drawn and drawn[-1] > drawn[0] + 0.1
    assert rows["any"]["at_rates"][2]["bits_per_byte"] == rows["any"]["bits_per_byte"]  # the model's own rate
    text = (tmp_path / "compare.md").read_text()
    assert "| any | 0.14 |" in text and "(rates.png)" in text and (tmp_path / "rates.png").stat().st_size > 2_500

"""The command credit: its tables are the measurements, and mistakes are refused."""

from __future__ import annotations

import json
import shutil

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from omegaconf import OmegaConf
from rltok_rl.experiments.studies import credit, credit_page
from rltok_rl.experiments.studies.credit_page import decisions_table, draw_credit, estimators_table

from rltok_rl.objectives import ReturnEstimator
from rltok_rl.sampling.sampler import NotFiniteError

from .conftest import save_ruled

QUICK = ["--draws", 3, "--rows", 4]


def test_tables_and_figure_show_the_measurements(folder, tmp_path, output, monkeypatch):
    text, out = "to be, é\n|or", tmp_path / "new" / "out"
    names = ["early", "paper", "group_mean_2@0.5", "rltok_rl.objectives:ReturnEstimator@0.5"]
    shown = output(credit, folder, "--text", text, "--estimators", *names, *QUICK, "--out", out, "--gamma", 0.5)
    content = json.loads((out / "credit.json").read_text(), parse_constant=pytest.fail)  # no NaN
    rows = {row["name"]: row for row in content["estimators"]}
    assert list(rows) == names and content["gamma"] == 0.5 and content["draws"] == 3
    decisions = content["decisions"]
    assert [one["byte"] for one in decisions] == list(range(1, len(text.encode()) - 1))
    size = (sum(one["truth"] ** 2 for one in decisions) / len(decisions)) ** 0.5
    assert rows["early"]["bias"] < 1e-4 and rows["paper"]["bias"] == pytest.approx(size / 4, rel=0.3)
    for one in decisions:
        assert one["estimators"]["early"]["difference"] == pytest.approx(one["truth"], abs=1e-4)
    assert (out / "credit.png").stat().st_size > 2_500
    page = (out / "credit.md").read_text()
    assert estimators_table(content).splitlines()[-3] in page and decisions_table(content) in page
    assert "The 8 decisions that matter most" in shown and "| < 0.0010 |" in shown and "\\|o" in page
    monkeypatch.setattr(credit_page, "save_figure", lambda figure, *_, **__: figure)
    figure = draw_credit(content, out)
    FigureCanvasAgg(figure).draw()
    right = {text.get_text(): text.get_window_extent().x1 for text in figure.axes[0].texts}
    assert max(right.values()) <= figure.bbox.x1, right  # a short text leaves room for the explanation


def test_a_run_brings_its_text_and_its_discount(learned_run, tmp_path, metrics_of):
    options = ["--bytes", 8, "--estimators", "paper", *QUICK, "--out", tmp_path]
    content = metrics_of(credit, learned_run, *options)
    assert content["gamma"] == 0.5 and len(content["text"]) == 8 and content["source"].startswith("held out of")
    again = metrics_of(credit, learned_run, *options)
    other = metrics_of(credit, learned_run, *options, "--seed", 1)
    assert again["decisions"] == content["decisions"] and other["text"] != content["text"]


def test_the_reward_of_a_run_must_have_the_truth_that_is_measured(learned_run, tmp_path, metrics_of, refused):
    options = ["--bytes", 8, "--estimators", "paper", *QUICK, "--out", tmp_path]
    expected = metrics_of(credit, learned_run, *options)["decisions"]
    run = shutil.copytree(learned_run, tmp_path / "run")
    config = OmegaConf.load(learned_run / "config.yaml")

    def rewarded(**estimator):
        OmegaConf.save(OmegaConf.merge(config, {"estimator": estimator}), run / "config.yaml")
        return run

    # No decision changes what a reference earns.
    assert metrics_of(credit, rewarded(reward="relative"), *options)["decisions"] == expected
    message = "argument MODEL: must have rewards of log-likelihoods alone, whose truth this measures, got estimator."
    assert message in refused(credit, rewarded(reward="my_rewards:mine"), *options)


def test_the_price_of_a_run_counts_in_the_truth_and_in_the_estimates(learned_run, tmp_path, metrics_of):
    options = ["--bytes", 8, "--estimators", "early", "local_flips", *QUICK, "--out", tmp_path, "--gamma", 0]
    free = metrics_of(credit, learned_run, *options)["decisions"]
    run = shutil.copytree(learned_run, tmp_path / "run")
    config = OmegaConf.load(run / "config.yaml")
    OmegaConf.save(OmegaConf.merge(config, {"estimator": {"price": 5.0}}), run / "config.yaml")
    charged = metrics_of(credit, run, *options)
    assert charged["price"] == 5.0 and "gamma 0, 5 nats per boundary" in (tmp_path / "credit.md").read_text()
    flips = []
    for before, after in zip(free, charged["decisions"], strict=True):
        assert after["truth"] == pytest.approx(before["truth"] - 5, abs=1e-4)
        assert after["estimators"]["early"]["difference"] == pytest.approx(after["truth"], abs=1e-4)
        flips.append(after["estimators"]["local_flips"]["difference"])
    assert min(flips) < -2, flips  # of the decisions that it tried


class Shapes(ReturnEstimator):
    """A custom estimator that refuses every rollout."""

    def forward(self, tensordict, **options):
        raise ValueError("shapes must agree")


def test_error_of_an_estimator_is_not_blamed_on_the_rows(folder, tmp_path, refused):
    options = ["--text", "to be", "--estimators", f"{__name__}:Shapes", *QUICK, "--out", tmp_path]
    assert "argument --estimators: shapes must agree" in refused(credit, folder, *options)


def test_weights_that_overflow_are_named(folder, tmp_path, refused, monkeypatch):
    def overflow(*_, **options):
        raise NotFiniteError("logits must be finite, got nan")

    monkeypatch.setattr(credit, "measure_credit", overflow)
    message = refused(credit, folder, "--text", "to be", "--estimators", "paper", *QUICK, "--out", tmp_path)
    assert f"the weights of {folder} are too large" in message and "argument --rows" not in message


def test_mistakes_are_refused(folder, model, tmp_path, file, refused, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ruled = save_ruled(tmp_path / "ruled", model, "uniform", rate=0.2)
    text = ["--text", "to be"]
    for arguments, message in (
        ([folder], f"the following arguments are required: --text or --file ({folder} is not the folder of a run)"),
        (["nope"], "argument MODEL: must be a folder of save_pretrained, a run's folder"),
        ([folder, "--text", "to"], "argument --text: must have 3 to 512 bytes, got 2"),
        ([folder, *text, "--bytes", 5], "argument --bytes: not allowed with --text"),
        ([folder, "--file", file, "--bytes", 1], "argument --bytes: must be an integer of at least 3, got '1'"),
        ([folder, "--file", "nowhere"], "nowhere cannot be read"),
        ([folder, *text, "--estimators", "papr"], "must be an estimator, or module:Class, got 'papr'; did you mean"),
        ([folder, *text, "--estimators", "paper@2"], "must be a number in [0, 1], got '2'"),
        ([folder, *text, "--estimators", "paper", "paper"], "--estimators: must all be different, got"),
        ([folder, *text, "--estimators", "nowhere:Nothing"], "argument --estimators: "),
        ([folder, *text, "--rows", 9], "argument --rows: must be a multiple of [1, 2, 4, 8], the candidates'"),
        ([ruled, *text], "argument MODEL: must have a learned policy, got boundaries of ActorSegmenter"),
        (["nowhere/at/all", *text], "argument MODEL: "),
    ):
        assert message in refused(credit, *arguments), arguments
    assert not (tmp_path / "runs").exists()

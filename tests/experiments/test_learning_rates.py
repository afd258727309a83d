"""Peak learning rates of a comparison: the page that chooses one per system, and the option that applies it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rltok_rl.experiments.commands import report
from rltok_rl.experiments.commands.overrides import read_command_line
from rltok_rl.experiments.compare import train_systems
from rltok_rl.experiments.compare.systems import system_config
from rltok_rl.experiments.reports import learning_rates_page
from rltok_rl.experiments.reports.learning_rates_page import has_learning_rates

from .conftest import COMPARE, configured
from .results import copy_run, rewrite

LOSSES = {
    "uniform": {0.0025: 2.32, 0.005: 2.3, 0.01: 2.29},
    "spacebyte": {0.0025: 2.28, 0.005: 2.25, 0.01: 2.26},
    "learned": {0.0025: 2.2, 0.005: 2.27, 0.01: 2.28},
}
"""The lowest of the policy is off its target, which is why it is not chosen."""


@pytest.fixture
def folder(tmp_path) -> Path:
    """Comparisons of one seed with three learning rates."""
    for system, losses in LOSSES.items():
        for lr, loss in losses.items():
            run = copy_run(system, tmp_path / "lr" / str(lr) / system, "metrics.csv")
            config = (run / "config.yaml").read_text()
            (run / "config.yaml").write_text(re.sub(r"\n  lr: .*", f"\n  lr: {lr}", config))
            rewrite(run / "evaluation.json", corpus_bits_per_byte=loss, rate=0.21 if lr == 0.0025 else 0.2)
    return tmp_path / "lr"


def test_page_shows_every_loss_and_the_best_of_each_system(folder, capsys):
    assert has_learning_rates(folder) and report.main([str(folder)]) == 0
    page = folder / "compare-lr.md"
    assert capsys.readouterr().out.strip() == str(page) and (folder / "compare-lr.png").stat().st_size > 2_500
    text = page.read_text()
    assert "| system | `optim.lr=0.0025` | `optim.lr=0.005` | `optim.lr=0.01` |" in text
    assert "| uniform | 2.320 (0.210 †) | 2.300 (0.200) | **2.290** (0.200) |" in text
    assert "| spacebyte | 2.280 (0.210) | **2.250** (0.200) | 2.260 (0.200) |" in text, "it has no target rate"
    assert "| learned | 2.200 (0.210 †) | **2.270** (0.200) | 2.280 (0.200) |" in text
    chosen = re.search(r"`'compare\.learning_rates=\{(.*)\}'`", text)
    assert chosen is not None and set(chosen[1].split(", ")) == {"uniform: 0.01", "spacebyte: 0.005", "learned: 0.005"}
    edge = re.search(r"the smallest or the largest value tried.*: (.*)\.", text)
    assert edge is not None and edge[1] == "uniform"
    content = json.loads((folder / "compare-lr.json").read_text())
    assert learning_rates_page.learning_rates_page(content) == text, "the page needs nothing but its JSON"


def test_a_system_that_is_always_off_its_target_has_a_choice_too(folder):
    for lr in LOSSES["learned"]:
        rewrite(folder / str(lr) / "learned" / "evaluation.json", rate=0.21)
    (folder / "0.01" / "spacebyte").rename(folder / "0.01" / "once")
    text = learning_rates_page.write_learning_rates_page(folder).read_text()
    assert "| learned | **2.200** (0.210 †) | 2.270 (0.210 †) | 2.280 (0.210 †) |" in text
    assert "| once | - | - | **2.260** (0.200) |" in text


def test_seeds_are_no_learning_rates(folder):
    for lr, seed in ((0.0025, 1), (0.01, 2)):
        for run in (folder / str(lr)).iterdir():
            config = (run / "config.yaml").read_text()
            (run / "config.yaml").write_text(re.sub(r"\nseed: \d+", f"\nseed: {seed}", config))
    assert not has_learning_rates(folder)


def test_systems_train_with_their_own_learning_rates(tmp_path):
    config = configured(*COMPARE, f"out={tmp_path}", "optim.lr=0.004")
    config.compare.variants = {"slow": {"optim": {"lr": 0.001}}, "other": {"recipe": "ours"}}
    config.compare.learning_rates = {"uniform": 0.008, "other": 0.002}
    systems = {"uniform": 0.008, "learned": 0.004, "slow": 0.001, "other": 0.002}
    for system, lr in systems.items():
        assert system_config(config, system).optim.lr == lr
        assert system_config(config, system).compare.learning_rates == {}


def test_a_variant_with_its_own_learning_rate_gets_no_other(tmp_path):
    config = configured(*COMPARE, f"out={tmp_path}")
    config.compare.variants, config.compare.learning_rates = {"slow": {"optim": {"lr": 0.001}}}, {"slow": 0.002}
    with pytest.raises(ValueError, match="must leave 'slow' out, whose variant has optim.lr=0.001, got 0.002"):
        system_config(config, "slow")


def test_three_learning_rates_have_three_folders():
    line = read_command_line("train", ["--multirun", "experiment=compare-lr", "data.source=x"])
    runs = [(config.seed, config.optim.lr, config.out) for config in line.configs]
    assert runs == [(5, lr, f"runs/compare-lr/{lr}") for lr in (0.0025, 0.005, 0.01)]
    line = read_command_line("train", ["experiment=compare-lr", "data.source=x", "compare.learning_rates.hnet=1e-3"])
    assert line.configs[0].compare.learning_rates == {"hnet": 0.001}


@pytest.mark.parametrize(
    ("lr", "message"),
    [
        ({"unifrom": 0.1}, r"compare.learning_rates must be by system, among .* got \['unifrom'\]"),
        ({"uniform": -1.0}, r"system 'uniform' cannot be trained: optim.lr must lie in \(0, 10\], got -1"),
    ],
)
def test_wrong_learning_rates_are_refused_before_training(tmp_path, lr, message):
    config = configured(*COMPARE, "compare.systems=[uniform]", f"out={tmp_path}")
    config.compare.learning_rates = lr
    with pytest.raises(ValueError, match=message):
        train_systems.run(config, "the command")
    assert not (tmp_path / "uniform").exists()

"""The glossary tells every figure that is logged, and figures are found where they are made."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from dataclasses import replace

import pytest
import torch
from rltok_rl.agents.segmenters import Segmenter
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.experiments.run_config import TrainConfig
from rltok_rl.experiments.runs import build, run
from rltok_rl.experiments.runs import record as recording

from rltok_rl.data import TextSource, local_prose
from rltok_rl.data.languages import Recall
from rltok_rl.evaluation import read_text, summarise
from rltok_rl.models import UNet, preset
from rltok_rl.training import LoopOptions, Trainer
from rltok_rl.training.snapshots import Snapshots

from .layout import ROOT

TABLE_ROW = re.compile(r"^\| (`[^|]*`) \|", flags=re.M)


def told() -> set[str]:
    """Figures of the glossary: the first column of its tables."""
    rows = TABLE_ROW.findall((ROOT / "docs" / "glossary.md").read_text())
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def configurations() -> dict[str, TrainConfig]:
    """Trainings that log different figures."""
    plain = TrainConfig()
    plain.model.preset, plain.data.num_steps, plain.optim.total_bytes = "tiny", 16, 128
    plain.estimator.name, plain.rate.control, plain.loss.entropy = "discounted_return", "price", 0.01
    ppo = replace(plain, loss=replace(plain.loss, objective="ppo"))
    critic = replace(plain.estimator, name="critic_advantage")
    return {
        "plain": plain,
        "importance": replace(plain, loss=replace(plain.loss, objective="importance")),
        "ppo": ppo,
        "critic": replace(ppo, estimator=critic),
        "flips": replace(plain, estimator=replace(plain.estimator, name="local_flips")),
        "routing": replace(plain, model=replace(plain.model, overrides={"second_level": "routing"})),
        "rule": replace(plain, actor=replace(plain.actor, name="uniform")),
    }


def segmenter_losses() -> set[str]:
    """Losses of all segmenters."""
    found, left = set(), [Segmenter]
    while left:
        one = left.pop()
        # None of those that other tests define.
        left += [other for other in one.__subclasses__() if other.__module__.startswith("rltok_rl.")]
        found |= {f"loss_{name}" for name in one.coefficients} if isinstance(one.coefficients, dict) else set()
    return found


@pytest.mark.parametrize("name", configurations())
def test_figures_of_losses_are_told(name):
    config = configurations()[name]
    overrides = {"num_token_layers": 2, **config.model.overrides}
    model = UNet(preset("tiny", **overrides))
    loss = build.make_loss(config, model)
    assert not set(loss.out_keys) - told(), f"docs/glossary.md does not tell {sorted(set(loss.out_keys) - told())}"


def test_figures_of_segmenters_are_told():
    found = segmenter_losses()
    assert {"loss_ratio", "loss_binomial"} <= found
    assert not found - told(), f"docs/glossary.md does not tell {sorted(found - told())}"


@pytest.mark.parametrize("name", ["plain", "ppo", "routing"])
def test_figures_of_updates_are_told(name):
    """Those that a real update returns: figures that the loop adds are among them."""
    config = configurations()[name]
    model = UNet(preset("tiny", num_token_layers=2, **config.model.overrides))
    env = ByteBoundaryEnv(model, TextSource(b"to be or not to be " * 20), num_steps=16, batch_size=(4,), seed=0)
    options = LoopOptions(total_bytes=64, policy_epochs=2 if name == "ppo" else 1)
    figures = Trainer(model, env, build.make_loss(config, model), options).update()
    assert {"padded_rate", "grad_norm"} <= set(figures)
    assert not set(figures) - told(), f"docs/glossary.md does not tell {sorted(set(figures) - told())}"


def test_columns_of_metrics_are_told():
    columns = {"update", "bytes", *recording.NOTED}
    for path in (ROOT / "experiments" / "results").rglob("metrics.csv"):
        with path.open() as file:
            columns |= set(file.readline().strip().split(","))
    assert not columns - told(), f"docs/glossary.md does not tell {sorted(columns - told())}"


def test_figures_of_looks_are_told():
    language = Recall()
    model = UNet(preset("tiny"))
    look = Snapshots(held=language, language=language, num_rows=2, num_steps=32, batches=2, num_bytes=16).take(model)
    assert "held_out_share" in look
    given = called_with(recording.Recorder.take_snapshot, "add")
    assert {"bytes", "flops", "padded_flops"} <= given
    assert not {*look, *given} - told(), f"docs/glossary.md does not tell {sorted({*look, *given} - told())}"


def test_figures_of_summaries_are_told():
    found = dict_keys(run._train)
    for path in (ROOT / "experiments" / "results").rglob("summary.json"):
        found |= set(json.loads(path.read_text()))
    assert {"tried_flops", "peak_memory"} <= found
    assert not found - told(), f"docs/glossary.md does not tell {sorted(found - told())}"


def test_figures_of_evaluations_are_told():
    text = local_prose(300)
    torch.manual_seed(0)
    found = summarise(read_text(UNet(preset("tiny")), [text], context=32))
    keys = {*found, *found["word_edges"], *found["word_edges"]["any"]} - {"last_letter", "space", "first_letter", "any"}
    assert "corpus_standard_error" in keys
    assert not keys - told(), f"docs/glossary.md does not tell {sorted(keys - told())}"


def called_with(function, name: str) -> set[str]:
    """Figures that a function hands to calls of a name: keywords, and keys of dicts."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == name]
    return {keyword.arg for call in calls for keyword in call.keywords if keyword.arg != "update" and keyword.arg} | (
        dict_keys(function)
    )


def dict_keys(function) -> set[str]:
    """Keys of all dicts that a function writes out."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    dicts = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    return {key.value for one in dicts for key in one.keys if isinstance(key, ast.Constant)}

"""The glossary explains every metric that is logged."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from dataclasses import replace

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

RESULTS = ROOT / "experiments" / "results"


def unexplained(metrics: set[str]) -> list[str]:
    """Metrics that are not in the first column of the glossary's tables."""
    rows = re.findall(r"^\| (`[^|]*`) \|", (ROOT / "docs" / "glossary.md").read_text(), flags=re.M)
    return sorted(metrics - {name for row in rows for name in re.findall(r"`([^`]+)`", row)})


def configurations() -> dict[str, TrainConfig]:
    """Configurations whose runs log different metrics."""
    plain = TrainConfig()
    plain.model.preset, plain.data.num_steps, plain.optim.total_bytes = "tiny", 16, 128
    plain.estimator.name, plain.rate.control, plain.loss.entropy = "discounted_return", "price", 0.01
    ppo = replace(plain, loss=replace(plain.loss, objective="ppo"))
    return {
        "plain": plain,
        "importance": replace(plain, loss=replace(plain.loss, objective="importance")),
        "ppo": ppo,
        "critic": replace(ppo, estimator=replace(plain.estimator, name="critic_advantage")),
        "flips": replace(plain, estimator=replace(plain.estimator, name="local_flips")),
        "routing": replace(plain, model=replace(plain.model, overrides={"second_level": "routing"})),
        "rule": replace(plain, actor=replace(plain.actor, name="uniform")),
    }


def test_losses_and_updates():
    """Updates really run, as the loop adds metrics to those of the losses."""
    for name, config in configurations().items():
        model = UNet(preset("tiny", **{"num_token_layers": 2, **config.model.overrides}))
        loss = build.make_loss(config, model)
        assert not unexplained(set(loss.out_keys)), name
        if name in ("plain", "ppo", "routing"):
            env = ByteBoundaryEnv(model, TextSource(b"to be or not to be " * 20), num_steps=16, batch_size=(4,), seed=0)
            options = LoopOptions(total_bytes=64, policy_epochs=2 if name == "ppo" else 1)
            metrics = set(Trainer(model, env, loss, options).update())
            assert {"padded_rate", "grad_norm"} <= metrics and not unexplained(metrics), name


def test_segmenters():
    losses, classes = set(), [Segmenter]
    while classes:
        kind = classes.pop()
        classes += [other for other in kind.__subclasses__() if other.__module__.startswith("rltok_rl.")]
        losses |= {f"loss_{name}" for name in kind.coefficients} if isinstance(kind.coefficients, dict) else set()
    assert {"loss_ratio", "loss_binomial"} <= losses and not unexplained(losses)


def test_files_of_runs():
    columns = {"update", "bytes", *recording.NOTED, *recording.FURTHER}
    columns |= {name for path in RESULTS.rglob("metrics.csv") for name in path.read_text().split("\n")[0].split(",")}
    assert not unexplained(columns)
    summary = dict_keys(run._train)
    summary |= {name for path in RESULTS.rglob("summary.json") for name in json.loads(path.read_text())}
    assert {"tried_flops", "peak_memory"} <= summary and not unexplained(summary)


def test_snapshots():
    language, model = Recall(), UNet(preset("tiny"))
    sizes = {"num_rows": 2, "num_steps": 32, "batches": 2, "num_bytes": 16}
    snapshot = set(Snapshots(held=language, language=language, **sizes).take(model))
    tree = ast.parse(textwrap.dedent(inspect.getsource(recording.Recorder.take_snapshot)))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add"]
    added = {keyword.arg for call in calls for keyword in call.keywords if keyword.arg not in (None, "update")}
    added |= dict_keys(recording.Recorder.take_snapshot)
    assert "held_out_share" in snapshot and {"bytes", "flops", "padded_flops"} <= added
    assert not unexplained(snapshot | added)


def test_evaluations():
    torch.manual_seed(0)
    metrics = summarise(read_text(UNet(preset("tiny")), [local_prose(300)], context=32))
    keys = {*metrics, *metrics["word_edges"], *metrics["word_edges"]["any"]}
    assert "corpus_standard_error" in keys
    assert not unexplained(keys - {"last_letter", "space", "first_letter", "any"})


def dict_keys(function) -> set[str]:
    """Keys of all dicts that a function writes out."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    dicts = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    return {key.value for found in dicts for key in found.keys if isinstance(key, ast.Constant)}

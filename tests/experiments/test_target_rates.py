"""One model at several target rates, from the configuration and in the commands."""

from __future__ import annotations

import json
import re

import pytest
import torch
from rltok_rl.experiments.commands import boundaries, evaluate, generate, segment, tasks, view
from rltok_rl.experiments.runs.build import make_trainer

from rltok_rl import UNet, preset
from rltok_rl.evaluation.tasks import choice_metrics, read_task, score_examples

from .configured import QUICK, configured

CONDITIONED = "model.overrides.rate_embedding=true"
RATES = "actor.rates=[0.1,0.4]"
TEXT = "to be or not to be, that is the question. " * 5


def test_training_reads_texts_at_several_rates():
    """Also in micro-batches and in further epochs, which encode stored windows again."""
    for more in ([], ["compute.micro_batches=2"], ["loss=ppo", "loss.policy_epochs=2"]):
        trainer, _ = make_trainer(configured(*QUICK, CONDITIONED, RATES, *more))
        assert trainer.env.target_rates == (0.1, 0.4) and trainer.alarms.target_rate is None
        before = trainer.model.rate_embedding.weight.clone()
        for _ in range(2):
            metrics = trainer.update()
            assert all(torch.isfinite(torch.tensor(value)) for value in metrics.values()), more
        assert (trainer.model.rate_embedding.weight != before).any(), more


def test_options_that_cannot_follow_rates_are_refused():
    for options, message in (
        ([RATES], r"target_rates must be None where the model has one rate .*got \(0.1, 0.4\)"),
        ([CONDITIONED, "actor.rates=[0.4,0.1]"], r"target_rates must be \(low, high\) with 0 < low <= high < 1"),
        ([CONDITIONED, "actor.rates=[0.1]"], r"actor.rates must be \[low, high\] .*got \[0.1\]"),
        ([CONDITIONED, RATES, "actor=random"], "actor.rates belongs to the learned policy, got .* with 'random'"),
        ([CONDITIONED, RATES, "segmenter=whitespace"], "actor.rates belongs to the learned policy, got .*'whitespace'"),
        ([CONDITIONED, RATES, "rate.control=ratio"], "rate.control must be 'logit_pressure' with actor.rates, got 'ra"),
    ):
        with pytest.raises(ValueError, match=message):
            make_trainer(configured(*QUICK, *options))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    model = UNet(preset("tiny", rate_embedding=True))
    return str(model.save_pretrained(tmp_path_factory.mktemp("models") / "rates"))


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("texts") / "text.txt"
    path.write_text(TEXT)
    return str(path)


def test_commands_draw_boundaries_at_a_rate(folder, file, capsys):
    """A fresh model reaches the rate in three commands."""
    for rate in ("0.05", "0.7"):
        segment.main(["--file", file, "--model", folder, "--rate", rate, "--colour", "never"])
        evaluate.main([folder, file, "--rate", rate, "--json"])
        generate.main([TEXT, "--model", folder, "--rate", rate, "--bytes", "200", "--show-boundaries", "--seed", "3"])
        shown = capsys.readouterr().out
        lines, rest = shown.split("\n", 1)
        figures, end = json.JSONDecoder().raw_decode(rest)
        assert figures["target_rate"] == float(rate)
        drawn = (lines.count("|") / len(TEXT), figures["rate"], rest[end:].count("|") / (len(TEXT) + 200))
        assert drawn == pytest.approx([float(rate)] * 3, abs=0.1)


def test_evaluating_commands_use_a_rate(folder, file, tmp_path, capsys):
    """Boundary metrics, the viewer, and the costs of answers."""
    model, rate = UNet.from_pretrained(folder), 0.7
    (tmp_path / "piqa.jsonl").write_text(json.dumps({"goal": TEXT, "sol1": "Be.", "sol2": "Be not.", "label": 0}))
    page = tmp_path / "page.html"
    boundaries.main([folder, "--text", file, "--rate", str(rate), "--json"])
    metrics = json.loads(capsys.readouterr().out)["models"][folder]
    assert metrics["rate"] == pytest.approx(rate, abs=0.1)
    assert view.main([folder, file, "--rate", str(rate), "--out", str(page)]) == 0
    (drawn,) = re.findall(r'"figures":\{[^}]*"rate":([0-9.]+)', page.read_text())
    assert float(drawn) == pytest.approx(rate, abs=0.1)
    capsys.readouterr()
    tasks.main([folder, "piqa", "--data", str(tmp_path), "--rate", str(rate), "--json"])
    bits = json.loads(capsys.readouterr().out)["tasks"]["piqa"]["bits_per_byte"]
    scores = score_examples(model, read_task("piqa", tmp_path), context_bytes=256, target_rate=rate)
    assert bits == choice_metrics(read_task("piqa", tmp_path), scores)["bits_per_byte"]
    other = score_examples(model, read_task("piqa", tmp_path), context_bytes=256)
    assert not torch.equal(scores.log_likelihood, other.log_likelihood)


def test_wrong_rates_are_refused(folder, file, capsys, tmp_path):
    plain = str(UNet(preset("tiny")).save_pretrained(tmp_path / "plain"))
    for command in (segment, evaluate, generate):
        for model, rate, message in (
            (folder, "1.5", "argument --rate: must be a number between 0 and 1, got '1.5'"),
            (plain, "0.3", "argument --rate: needs a model with rate_embedding, got one of a single rate, 0."),
        ):
            with pytest.raises(SystemExit) as ended:
                command.main([*([model, file] if command is evaluate else [TEXT, "--model", model]), "--rate", rate])
            assert ended.value.code == 2 and message in capsys.readouterr().err

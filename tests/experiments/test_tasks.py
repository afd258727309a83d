"""The command tasks: what it writes, and what it refuses."""

from __future__ import annotations

import json

import pytest
import torch
from rltok_rl.agents.segmenters import make_segmenter, save_segmenter
from rltok_rl.experiments.commands import tasks

from rltok_rl.evaluation.tasks import choice_metrics, read_task, score_examples
from rltok_rl.models import UNet, preset

ROWS = {
    "piqa": [
        {"goal": "Open a jar", "sol1": "Twist the lid.", "sol2": "Twist it.", "label": 1},
        {"goal": "Boil water", "sol1": "In a pot.", "sol2": "In a sock.", "label": 0},
        {"goal": "Sit", "sol1": "Down.", "sol2": "Up.", "label": 0},
    ],
    "lambada_openai": [{"text": "to be or not to be"}, {"text": "all that glitters is not gold"}],
}


@pytest.fixture(scope="module")
def model() -> UNet:
    torch.manual_seed(0)
    return UNet(preset("tiny", boundary_scale=1.0, target_rate=0.3)).eval()


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("questions")
    model.save_pretrained(folder / "model")
    for name, rows in ROWS.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def run(folder, *arguments) -> int:
    return tasks.main([str(folder / "model"), *arguments, "--data", str(folder)])


def refused(arguments, capsys) -> str:
    with pytest.raises(SystemExit) as ended:
        tasks.main([str(argument) for argument in arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_figures_are_those_of_the_functions(model, folder, capsys):
    assert run(folder, "piqa", "lambada_openai", "--samples", "2", "--seed", "3", "--context", "20", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["context"], told["samples"], told["seed"]) == (20, 2, 3)
    assert told["boundaries"] == "drawn from the policy" and list(told["tasks"]) == ["piqa", "lambada_openai"]
    for name, figures in told["tasks"].items():
        examples = read_task(name, folder)
        own = choice_metrics(examples, score_examples(model, examples, samples=2, seed=3, context_bytes=20))
        assert {key: value if value is None else pytest.approx(value) for key, value in own.items()} == figures


def test_the_table_has_errors_and_says_what_was_cut(folder, capsys):
    assert run(folder, "piqa", "lambada_openai", "--greedy", "--context", "20") == 0
    shown = capsys.readouterr()
    header, piqa, lambada, *rest = shown.out.splitlines()
    assert "bits per byte" in header and "likeliest bytes" in header
    assert piqa.startswith("piqa") and piqa.count("±") == 4 and piqa.endswith("0.500")
    assert lambada.split()[:2] == ["lambada_openai", "2"] and lambada.count("±") == 2 and lambada.endswith("-")
    assert "boundaries: greedy, draws: 1, bytes read at most: 20" in rest
    assert "piqa: contexts of 3 of 3 examples were cut; --context reads more" in rest
    assert "piqa: 3 examples" in shown.err and "100%" in shown.err and "left" in shown.err


def test_a_limit_takes_the_first(model, folder, capsys):
    assert run(folder, "piqa", "--limit", "2", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    examples = read_task("piqa", folder)
    all_scores = score_examples(model, examples, context_bytes=told["context"])
    bits = -all_scores.log_likelihood / all_scores.num_bytes / torch.log(torch.tensor(2.0, dtype=torch.float64))
    assert told["tasks"]["piqa"]["examples"] == 2 and told["context"] == 256
    # The third example changes nothing about the first two.
    assert told["tasks"]["piqa"]["bits_per_byte"] == pytest.approx(float(bits[torch.tensor([1, 2])].mean()), abs=1e-5)


def test_a_rule_beside_the_model_draws(model, folder, tmp_path, capsys):
    segmenter = make_segmenter("uniform", model, rate=0.5)
    model.save_pretrained(tmp_path / "ruled")
    save_segmenter(tmp_path / "ruled", segmenter, model, name="uniform", options={"rate": 0.5})
    assert tasks.main([str(tmp_path / "ruled"), "piqa", "--data", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    own = score_examples(model, read_task("piqa", folder), segmenter=segmenter.eval(), context_bytes=256)
    figures = choice_metrics(read_task("piqa", folder), own)
    assert told["tasks"]["piqa"]["bits_per_byte"] == pytest.approx(figures["bits_per_byte"], abs=1e-6)
    assert told["boundaries"] == "ActorSegmenter"
    shown = refused([tmp_path / "ruled", "piqa", "--data", folder, "--samples", 2], capsys)
    assert "argument --samples: belongs to random boundaries, got ActorSegmenter" in shown


def test_what_is_wrong_is_said_in_a_line(folder, tmp_path, capsys):
    model = folder / "model"
    assert "invalid choice: 'mmlu'" in refused([model, "mmlu"], capsys)
    assert "--samples: not allowed with argument --greedy" in refused(
        [model, "piqa", "--greedy", "--samples", 2], capsys
    )
    assert "argument --data: must be an existing folder" in refused([model, "piqa", "--data", tmp_path / "no"], capsys)
    assert "argument --data: must hold one of hellaswag" in refused([model, "hellaswag", "--data", folder], capsys)
    assert "argument --limit: must be an integer of at least 1" in refused([model, "piqa", "--limit", 0], capsys)
    assert "argument --rate" in refused([model, "piqa", "--data", folder, "--rate", 0.2], capsys)

"""The command view: what its page holds, and what it refuses."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from rltok_rl.agents.segmenters import make_segmenter, save_segmenter
from rltok_rl.experiments import train
from rltok_rl.experiments.commands import view
from rltok_rl.experiments.commands.views import sample_views
from rltok_rl.experiments.runs.folder import load_checkpointed, read_run

from rltok_rl import UNet, preset
from rltok_rl.evaluation import read_text, summarise
from rltok_rl.evaluation.detail import read_detail
from rltok_rl.viz.viewer.content import unpack_numbers

from .configured import QUICK, configured

TEXT = "To be, or not to be,\nthat is the question: é €"
NUMBERS = {"probability", "early_bits", "final_bits", "reward", "return", "advantage"}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A learned policy, a rule beside a model, and a model with another vocabulary."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    UNet(preset("tiny", boundary_scale=1.0, target_rate=0.3)).save_pretrained(folder / "learned")
    ruled = UNet(preset("tiny"))
    ruled.save_pretrained(folder / "spacebyte")
    save_segmenter(folder / "spacebyte", make_segmenter("spacebyte", ruled), ruled, name="spacebyte", options={})
    UNet(preset("tiny", num_special=64)).save_pretrained(folder / "special")
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run of eight updates, with looks and a checkpoint half-way."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    options = ["optim.total_bytes=1024", "snapshots.num_bytes=100", "snapshots.batches=1", "checkpoint_every=4"]
    train.run(configured(*QUICK, *options, "estimator.gamma=0.5", f"out={folder}"), "rltok train")
    return folder


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def shown(*arguments, out: Path) -> dict:
    """What the page holds that the command writes."""
    assert view.main([*map(str, arguments), "--out", str(out)]) == 0
    (held,) = re.findall(r'id="content">(.*?)</script>', out.read_text(), re.DOTALL)
    return json.loads(held)


def refused(capsys, *arguments) -> str:
    with pytest.raises(SystemExit) as ended:
        view.main([str(argument) for argument in arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_a_page_holds_the_figures_of_a_reading(models, file, tmp_path, capsys):
    content = shown(
        *(models / "learned", file, "--seed", 4, "--context", 16, "--gamma", 0.5, "--draws", 3),
        out=tmp_path / "a/page.html",
    )
    assert re.match(r".*page.html: 0\.0\d MB, 1 text, .* s; open it in any browser", capsys.readouterr().out)
    (text,) = content["texts"]
    assert text["name"] == "text.txt" and base64.b64decode(text["data"]) == TEXT.encode()
    (learned,) = text["segmenters"]
    (look,) = learned["looks"]
    model = UNet.from_pretrained(models / "learned")
    detail = read_detail(model, TEXT, context=16, gamma=0.5, draws=3, generator=torch.Generator().manual_seed(4))
    assert set(look["numbers"]) == NUMBERS
    for name, expected in (
        ("probability", detail.probabilities),
        ("early_bits", detail.early_bits),
        ("final_bits", detail.final_bits),
        ("reward", detail.rewards),
        ("return", detail.returns),
        ("advantage", detail.advantages),
    ):
        np.testing.assert_allclose(unpack_numbers(look["numbers"][name]), expected.numpy(), atol=1e-3, err_msg=name)
    figures = summarise(read_text(model, TEXT, context=16, generator=torch.Generator().manual_seed(4)))
    of_one_text = {name.replace("corpus_", ""): figures[name] for name in figures}
    assert look["figures"] == {name: pytest.approx(of_one_text[name]) for name in look["figures"]}
    assert learned["about"] == (
        "The learned policy draws boundaries (seed 4) in windows of 16 bytes. Reward: early_exit; return: gamma 0.5; "
        "baseline: leave_one_out over 3 draws."
    )


def test_several_models_are_shown_on_one_text(models, file, tmp_path):
    """Also those whose vocabularies differ: all of them read bytes."""
    names = ["learned", "spacebyte", "special", "learned"]
    content = shown(*(models / name for name in names), file, out=tmp_path / "page.html")
    (text,) = content["texts"]
    assert [one["name"] for one in text["segmenters"]] == ["learned", "spacebyte", "special", "learned (2)"]
    held = [set(one["looks"][0]["numbers"]) for one in text["segmenters"]]
    assert held == [NUMBERS, NUMBERS - {"probability", "advantage"}, NUMBERS, NUMBERS]
    assert "SpaceByte sets boundaries by a rule" in text["segmenters"][1]["about"]


def test_texts_come_from_the_command_line_and_from_standard_input(models, tmp_path, monkeypatch):
    out = tmp_path / "page.html"
    content = shown(models / "learned", "--text", "to be", "--draws", 2, out=out)
    assert base64.b64decode(content["texts"][0]["data"]) == b"to be"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\x00</script>")))
    content = shown(models / "learned", "-", "--greedy", "--baseline", "none", out=out)
    assert base64.b64decode(content["texts"][0]["data"]) == b"\xff\x00</script>"
    content = shown(models / "learned", "python-docs", "--bytes", 40, out=out)
    assert content["texts"][0]["size"] == 40


def test_a_run_without_a_text_shows_its_sample_over_training(run, tmp_path):
    content = shown(run, out=tmp_path / "page.html")
    (text,) = content["texts"]
    (one,) = text["segmenters"]
    looks = read_run(run).snapshots
    assert text["name"] == "held-out sample" and one["name"] == "mine"
    assert base64.b64decode(text["data"]).decode("latin-1") == looks[0]["text"]
    assert [look["label"] for look in one["looks"]][::3] == ["before training", "update 4, after 0.00 MB"]
    for look, line in zip(one["looks"], looks, strict=True):
        found = unpack_numbers(look["numbers"]["probability"])
        np.testing.assert_allclose(found[1:], line["probabilities"][1:], atol=1e-4)
        assert look["figures"]["bits_per_byte"] == line["held_out_bits_per_byte"]
        assert look["figures"]["tokens"] == line["boundaries"].count("1")


def test_a_run_with_a_text_shows_both_and_judges_as_it_was_trained(run, file, tmp_path):
    content = shown(run, file, out=tmp_path / "page.html")
    assert [text["name"] for text in content["texts"]] == ["text.txt", "held-out sample"]
    assert "windows of 32 bytes. Reward: early_exit; return: gamma 0.5" in content["texts"][0]["segmenters"][0]["about"]
    content = shown(run, "held-out", "--bytes", 64, out=tmp_path / "page.html")
    assert content["texts"][0]["name"] == "held out of python-docs" and content["texts"][0]["size"] == 64


def test_runs_that_looked_at_one_text_share_it(run, tmp_path):
    other = Path(shutil.copytree(run, tmp_path / "other"))
    third = Path(shutil.copytree(run, tmp_path / "third"))
    lines = (third / "samples.jsonl").read_text().splitlines()
    changed = [json.dumps({**json.loads(line), "text": "x" * 100, "boundaries": "10" * 50}) for line in lines]
    (third / "samples.jsonl").write_text("\n".join(changed) + "\n")
    lines = [json.loads(line) for line in (other / "samples.jsonl").read_text().splitlines()]
    cut = [{**line, **{name: line[name][:-1] for name in ("text", "boundaries", "probabilities")}} for line in lines]
    (other / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in cut))  # as of a rule
    views = sample_views([(path.name, read_run(path)) for path in (run, other, third)])
    assert [[one.name for one in text.segmenters] for text in views] == [["mine", "other"], ["third"]]
    assert [len(text.text) for text in views] == [99, 100]
    first, second = (one.snapshots[-1] for one in views[0].segmenters)
    assert list(first.boundaries) == list(second.boundaries) and first.metrics == second.metrics
    assert [text.name for text in views] == ["held-out sample of mine, other", "held-out sample of third"]


def test_checkpoints_are_models_too(run, file, tmp_path):
    checkpoints = sorted((run / "checkpoints").glob("update-*"))
    assert [path.name for path in checkpoints] == ["update-00000004", "update-00000008"]
    content = shown(*checkpoints, run, file, out=tmp_path / "page.html")
    halfway, last, saved = (one["looks"][0] for one in content["texts"][0]["segmenters"])
    assert last == saved and halfway["numbers"] != saved["numbers"]
    assert [one["name"] for one in content["texts"][0]["segmenters"]] == [path.name for path in (*checkpoints, run)]


def test_all_models_read_in_the_shortest_windows_of_any(run, file, tmp_path):
    other = Path(shutil.copytree(run, tmp_path / "other"))
    config = other / "config.yaml"
    config.write_text(config.read_text().replace("num_steps: 32", "num_steps: 24"))
    content = shown(run, other, file, "--draws", 2, out=tmp_path / "page.html")
    assert all("in windows of 24 bytes" in one["about"] for one in content["texts"][0]["segmenters"])


def test_a_checkpoint_brings_its_segmenter(tmp_path):
    options = ["optim.total_bytes=256", "snapshots.count=1", "snapshots.batches=1"]
    folder = tmp_path / "gumbel"
    train.run(configured(*QUICK, *options, "segmenter=gumbel", f"out={folder}"), "rltok train")
    model, segmenter = load_checkpointed(folder / "checkpoints" / "update-00000002", torch.device("cpu"))
    assert type(segmenter).__name__.startswith("Gumbel") and not segmenter.training
    kept = UNet.from_pretrained(folder).state_dict()
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())


def test_what_is_refused(models, run, file, tmp_path, capsys):
    learned, out = models / "learned", tmp_path / "page.html"
    assert "required: MODEL" in refused(capsys, file)
    assert "required: TEXT" in refused(capsys, learned)
    (tmp_path / "broken.jsonl").write_text('{"text": "to be"}\nno JSON\n')
    assert "one JSON object per line" in refused(capsys, learned, tmp_path / "broken.jsonl")
    assert "not allowed with a TEXT" in refused(capsys, learned, file, "--text", "to be")
    assert "got 1" in refused(capsys, learned, "--text", "a")
    (tmp_path / "empty").touch()
    assert "at least 2 bytes, got 0" in refused(capsys, learned, tmp_path / "empty")
    assert "no such folder" in refused(capsys, learned, tmp_path / "nowhere.txt", "--out", out)
    assert "none of" in refused(capsys, learned, "held-out")
    assert "must be a number in [0, 1], got '2'" in refused(capsys, learned, file, "--gamma", 2)
    assert "argument --rate" in refused(capsys, learned, file, "--rate", 0.3)
    assert not out.exists()
    shutil.copytree(run, tmp_path / "broken")
    checkpoint = tmp_path / "broken" / "checkpoints" / "update-00000008"
    (checkpoint / "tensors.safetensors").write_bytes(b"")
    assert "tensors.safetensors" in refused(capsys, checkpoint, file)


def test_long_texts_are_shown_if_their_length_was_asked_for(models, tmp_path, capsys):
    path = tmp_path / "long.txt"
    path.write_bytes(b"to be " * 1_700_000)
    message = refused(capsys, models / "learned", path)
    assert (
        "long.txt has 10,200,000 bytes, and a page of more than 1,000,000 is slow" in message and "--bytes" in message
    )
    content = shown(models / "learned", path, "--bytes", 1000, "--draws", 2, out=tmp_path / "page.html")
    assert content["texts"][0]["size"] == 1000


def test_only_pages_are_replaced(models, tmp_path, capsys):
    out = tmp_path / "page.html"
    first = shown(models / "learned", "--text", "to be", out=out)
    second = shown(models / "learned", "--text", "or not to be", out=out)
    assert first != second
    out.write_text("<p>Dear diary")
    message = refused(capsys, models / "learned", "--text", "to be", "--out", out)
    assert "is there and no page of this command" in message
    assert out.read_text() == "<p>Dear diary"
    assert "must be a file, got the folder" in refused(capsys, models / "learned", "--text", "ab", "--out", tmp_path)

"""The command view: its page holds the metrics of a reading, and mistakes are refused."""

from __future__ import annotations

import base64
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from rltok_rl.experiments.commands import view
from rltok_rl.experiments.commands.views import sample_views
from rltok_rl.experiments.runs.folder import load_checkpointed, read_run

from rltok_rl import UNet, preset
from rltok_rl.evaluation import read_text, summarise
from rltok_rl.evaluation.detail import read_detail

from ..viz.test_viewer import unpack_numbers
from .conftest import save_ruled

TEXT = "To be, or not to be,\nthat is the question: é €"
NUMBERS = {"probability", "early_bits", "final_bits", "reward", "return", "advantage"}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A learned policy, a rule, and a model with another vocabulary."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    UNet(preset("tiny", boundary_scale=1.0, target_rate=0.3)).save_pretrained(folder / "learned")
    save_ruled(folder / "spacebyte", UNet(preset("tiny")), "spacebyte")
    UNet(preset("tiny", num_special=64)).save_pretrained(folder / "special")
    return folder


@pytest.fixture
def shown(tmp_path, output):
    """Run the command; return the content of its page."""

    def run(*arguments) -> dict:
        page = tmp_path / "a" / "page.html"
        message = output(view, *arguments, "--out", page)
        assert re.match(r".*page.html: 0\.\d\d MB, \d texts?, .* s; open it in any browser", message)
        (content,) = re.findall(r'id="content">(.*?)</script>', page.read_text(), re.DOTALL)
        return json.loads(content)

    return run


def test_page_holds_the_metrics_of_a_reading(models, file, shown):
    content = shown(models / "learned", file, "--seed", 4, "--context", 16, "--gamma", 0.5, "--draws", 3)
    (text,) = content["texts"]
    assert text["name"] == "text.txt" and base64.b64decode(text["data"]) == TEXT.encode()
    (learned,) = text["segmenters"]
    (snapshot,) = learned["looks"]
    model = UNet.from_pretrained(models / "learned")
    detail = read_detail(model, TEXT, context=16, gamma=0.5, draws=3, generator=torch.Generator().manual_seed(4))
    assert set(snapshot["numbers"]) == NUMBERS
    attributes = {"probability": "probabilities", "reward": "rewards", "return": "returns", "advantage": "advantages"}
    for name, packed in snapshot["numbers"].items():
        expected = getattr(detail, attributes.get(name, name)).numpy()
        np.testing.assert_allclose(unpack_numbers(packed), expected, atol=1e-3, err_msg=name)
    metrics = summarise(read_text(model, TEXT, context=16, generator=torch.Generator().manual_seed(4)))
    of_one_text = {name.replace("corpus_", ""): value for name, value in metrics.items()}
    assert snapshot["figures"] == {name: pytest.approx(of_one_text[name]) for name in snapshot["figures"]}
    assert learned["about"] == (
        "The learned policy draws boundaries (seed 4) in windows of 16 bytes. Reward: early_exit; return: gamma 0.5; "
        "baseline: leave_one_out over 3 draws."
    )


def test_several_models_are_shown_on_one_text(models, file, shown):
    """Also if their vocabularies differ: all of them read bytes."""
    names = ["learned", "spacebyte", "special", "learned"]
    (text,) = shown(*(models / name for name in names), file)["texts"]
    assert [one["name"] for one in text["segmenters"]] == ["learned", "spacebyte", "special", "learned (2)"]
    held = [set(one["looks"][0]["numbers"]) for one in text["segmenters"]]
    assert held == [NUMBERS, NUMBERS - {"probability", "advantage"}, NUMBERS, NUMBERS]
    assert "SpaceByte sets boundaries by a rule" in text["segmenters"][1]["about"]


def test_texts_come_from_the_command_line_files_and_standard_input(models, shown, stdin):
    learned = models / "learned"
    stdin(b"\xff\x00</script>")
    for arguments, expected in (
        (["--text", "to be", "--draws", 2], b"to be"),
        (["-", "--greedy", "--baseline", "none"], b"\xff\x00</script>"),
    ):
        assert base64.b64decode(shown(learned, *arguments)["texts"][0]["data"]) == expected
    assert shown(learned, "python-docs", "--bytes", 40)["texts"][0]["size"] == 40


def test_a_run_shows_its_sample_over_training_and_reads_texts_as_it_was_trained(learned_run, file, shown):
    (text,) = shown(learned_run)["texts"]
    (segmenter,) = text["segmenters"]
    lines = read_run(learned_run).snapshots
    assert text["name"] == "held-out sample" and segmenter["name"] == "learned"
    assert base64.b64decode(text["data"]).decode("latin-1") == lines[0]["text"]
    assert [look["label"] for look in segmenter["looks"]][::3] == ["before training", "update 4, after 0.00 MB"]
    for look, line in zip(segmenter["looks"], lines, strict=True):
        found = unpack_numbers(look["numbers"]["probability"])
        np.testing.assert_allclose(found[1:], line["probabilities"][1:], atol=1e-4)
        assert look["figures"]["bits_per_byte"] == line["held_out_bits_per_byte"]
        assert look["figures"]["tokens"] == line["boundaries"].count("1")
    content = shown(learned_run, file)
    assert [text["name"] for text in content["texts"]] == ["text.txt", "held-out sample"]
    assert "windows of 32 bytes. Reward: early_exit; return: gamma 0.5" in content["texts"][0]["segmenters"][0]["about"]
    (held_out, _) = shown(learned_run, "held-out", "--bytes", 64)["texts"]
    assert held_out["name"] == "held out of python-docs" and held_out["size"] == 64


def test_runs_with_one_sample_share_it(learned_run, tmp_path):
    other, third = (Path(shutil.copytree(learned_run, tmp_path / name)) for name in ("other", "third"))
    lines = [json.loads(line) for line in (learned_run / "samples.jsonl").read_text().splitlines()]
    size = len(lines[0]["text"])
    changed = [{**line, "text": "x" * size, "boundaries": "10" * (size // 2)} for line in lines]
    cut = [{**line, **{name: line[name][:-1] for name in ("text", "boundaries", "probabilities")}} for line in lines]
    for folder, samples in ((third, changed), (other, cut)):  # the second as of a rule
        (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in samples))
    views = sample_views([(path.name, read_run(path)) for path in (learned_run, other, third)])
    assert [[one.name for one in text.segmenters] for text in views] == [["learned", "other"], ["third"]]
    assert [len(text.text) for text in views] == [size - 1, size]
    first, second = (one.snapshots[-1] for one in views[0].segmenters)
    assert list(first.boundaries) == list(second.boundaries) and first.metrics == second.metrics
    assert [text.name for text in views] == ["held-out sample of learned, other", "held-out sample of third"]


def test_checkpoints_are_models_too(learned_run, gumbel_run, file, shown):
    checkpoints = sorted((learned_run / "checkpoints").glob("update-*"))
    assert [path.name for path in checkpoints] == ["update-00000004", "update-00000008"]
    segmenters = shown(*checkpoints, learned_run, file)["texts"][0]["segmenters"]
    halfway, last, saved = (one["looks"][0] for one in segmenters)
    assert last == saved and halfway["numbers"] != saved["numbers"]
    assert [one["name"] for one in segmenters] == [path.name for path in (*checkpoints, learned_run)]
    model, segmenter = load_checkpointed(gumbel_run / "checkpoints" / "update-00000004", torch.device("cpu"))
    assert type(segmenter).__name__.startswith("Gumbel") and not segmenter.training
    kept = UNet.from_pretrained(gumbel_run).state_dict()
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())


def test_all_models_read_in_the_shortest_windows_of_any(learned_run, file, tmp_path, shown):
    other = Path(shutil.copytree(learned_run, tmp_path / "other"))
    config = other / "config.yaml"
    config.write_text(config.read_text().replace("num_steps: 32", "num_steps: 24"))
    content = shown(learned_run, other, file, "--draws", 2)
    assert all("in windows of 24 bytes" in one["about"] for one in content["texts"][0]["segmenters"])


def test_only_pages_are_replaced_and_long_texts_need_a_length(models, tmp_path, shown, refused):
    learned, page, long = models / "learned", tmp_path / "a" / "page.html", tmp_path / "long.txt"
    assert shown(learned, "--text", "to be") != shown(learned, "--text", "or not to be")
    page.write_text("<p>Dear diary")
    message = refused(view, learned, "--text", "to be", "--out", page)
    assert "is there and no page of this command" in message and page.read_text() == "<p>Dear diary"
    page.unlink()
    long.write_bytes(b"to be " * 1_700_000)
    message = refused(view, learned, long)
    assert "long.txt has 10,200,000 bytes, and a page of more than 1,000,000 is slow" in message
    assert "--bytes" in message and shown(learned, long, "--bytes", 1000, "--draws", 2)["texts"][0]["size"] == 1000


def test_mistakes_are_refused(models, learned_run, file, tmp_path, refused):
    learned, page = models / "learned", tmp_path / "page.html"
    (tmp_path / "broken.jsonl").write_text('{"text": "to be"}\nno JSON\n')
    (tmp_path / "empty").touch()
    shutil.copytree(learned_run, tmp_path / "broken")
    checkpoint = tmp_path / "broken" / "checkpoints" / "update-00000008"
    (checkpoint / "tensors.safetensors").write_bytes(b"")
    for arguments, message in (
        ([file], "required: MODEL"),
        ([learned], "required: TEXT"),
        ([learned, tmp_path / "broken.jsonl"], "one JSON object per line"),
        ([learned, file, "--text", "to be"], "not allowed with a TEXT"),
        ([learned, "--text", "a"], "got 1"),
        ([learned, "--text", "ab", "--out", tmp_path], "must be a file, got the folder"),
        ([learned, tmp_path / "empty"], "at least 2 bytes, got 0"),
        ([learned, tmp_path / "nowhere.txt", "--out", page], "no such folder"),
        ([learned, "held-out"], "none of"),
        ([learned, file, "--gamma", 2], "must be a number in [0, 1], got '2'"),
        ([learned, file, "--rate", 0.3], "argument --rate"),
        ([checkpoint, file], "tensors.safetensors"),
    ):
        assert message in refused(view, *arguments), message
    assert not page.exists()

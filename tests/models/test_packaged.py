"""The model that comes with the package is small and has learned English."""

from __future__ import annotations

from rltok_rl.experiments.commands import generate, segment

from rltok_rl import UNet, preset
from rltok_rl.evaluation import read_text, summarise
from rltok_rl.models.pretrained import PACKAGED, model_folder

from .conftest import seeded

TEXT = (
    "The old house stood at the end of the lane, and nobody had lived in it for years. In the evening, when the wind "
    "came up from the river, the children said that they could hear somebody walking about in the empty rooms; but "
    "their mother told them that it was only the shutters, and sent them to bed."
)
"""English that no book has, so that it cannot have been trained on."""


def test_it_is_small_and_has_learned_english():
    assert (PACKAGED["pocket"] / "model.safetensors").stat().st_size <= 12_000_000
    model = UNet.from_pretrained("pocket")
    assert model.config == preset("pocket", boundary_scale=1.0)  # as recipe=normed
    metrics = summarise(read_text(model, TEXT, context=512, generator=seeded(0)))
    assert metrics["corpus_bits_per_byte"] < 2.0  # 8 without training; about 4.5 for the frequencies of letters
    assert metrics["corpus_bits_per_byte"] < metrics["early_corpus_bits_per_byte"] - 0.2  # tokens are worth something
    assert metrics["word_edges"]["space"]["covered"] > 0.9 and abs(metrics["rate"] - 0.2) < 0.05


def test_commands_take_it_where_no_other_is_named(capsys):
    assert segment.main([TEXT, "--colour", "never"]) == 0
    shown = capsys.readouterr().out.rstrip("\n")
    assert shown.replace("|", "") == TEXT and shown.count(" |") > 0.9 * TEXT.count(" ")
    assert generate.main(["The old house ", "--bytes", "12", "--temperature", "0"]) == 0
    assert capsys.readouterr().out.startswith("The old house ")


def test_a_folder_of_its_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert model_folder("pocket") == PACKAGED["pocket"]
    other = UNet(preset("tiny")).save_pretrained(tmp_path / "pocket")
    assert model_folder("pocket") == other.relative_to(tmp_path)

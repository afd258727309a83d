"""Files of segmenters beside their model: which there are, what is read from them, what a failure leaves."""

from __future__ import annotations

import json

import pytest
import torch
from rltok_rl.agents.segmenters import load_segmenter, make_segmenter, own_parameters, save_segmenter
from rltok_rl.agents.segmenters.tokenizers import TokenizerSplit

from rltok_rl.models import UNet, preset

from .definition import BPE, PIECES, TEXT


@pytest.fixture
def model() -> UNet:
    return UNet(preset("tiny", width=16))


def test_a_folder_has_the_files_of_its_segmenter_alone(model, tmp_path):
    trained = {"predictor": "trained", "hidden": 8}
    for name, options, tokens, files in (
        ("unigram", trained, {"tokenizer": PIECES}, {"segmenter.json", "segmenter.safetensors", "tokenizer.json"}),
        ("hnet", {}, {}, {"segmenter.json", "segmenter.safetensors"}),
        ("bpe", {}, {"tokenizer": BPE}, {"segmenter.json", "tokenizer.json"}),
        ("uniform", {"rate": 0.5}, {}, {"segmenter.json"}),
    ):
        segmenter = make_segmenter(name, model, **options, **tokens)
        save_segmenter(tmp_path, segmenter, model, name=name, options=options)
        assert {path.name for path in tmp_path.iterdir()} == files, name
        assert type(load_segmenter(tmp_path, model)) is type(segmenter)


def test_a_run_has_the_segmenter_of_its_model(model, tmp_path):
    folder, segmenter = model.save_pretrained(tmp_path / "model"), make_segmenter("uniform", model, rate=0.5)
    save_segmenter(folder, segmenter, model, name="uniform", options={"rate": 0.5})
    assert [load_segmenter(place, model).target_rate for place in (tmp_path, folder, str(tmp_path))] == [0.5] * 3


def test_files_that_do_not_name_a_kind_of_split_hold_pieces(model, tmp_path):
    save_segmenter(tmp_path, make_segmenter("bpe", model, tokenizer=BPE), model, name="bpe", options={})
    content = json.loads((tmp_path / "segmenter.json").read_text())
    assert content.pop("split") == "pieces"
    (tmp_path / "segmenter.json").write_text(json.dumps(content))
    split = load_segmenter(tmp_path, model).split
    assert type(split) is TokenizerSplit and split(TEXT.encode()) == BPE(TEXT.encode())


def test_a_save_that_fails_leaves_the_files_as_they_were(model, tmp_path):
    save_segmenter(tmp_path, make_segmenter("hnet", model), model, name="hnet", options={})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    segmenter = make_segmenter("hnet", model)
    torch.nn.init.ones_(segmenter.query.weight)
    with pytest.raises(TypeError, match="not JSON serializable"):
        save_segmenter(tmp_path, segmenter, model, name="hnet", options={"rate": torch.ones(())})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_parameters_of_the_model_are_not_the_segmenters(model):
    early = make_segmenter("entropy-threshold", model, predictor="early_exit")
    assert own_parameters(early, model) == [] != [*early.parameters()]
    own = make_segmenter("hnet", model)
    assert [id(p) for p in own_parameters(own, model)] == [id(p) for p in own.parameters()]

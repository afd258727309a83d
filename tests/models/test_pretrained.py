"""Saved models come back to the last bit, and files that do not fit are refused by name."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file

from rltok_rl.models import UNet, UNetConfig, preset, pretrained, weights
from rltok_rl.models.pretrained import PACKAGED, model_folder

from ..each import each
from .conftest import LEVELS, mixed_boundaries, refused

KINDS = {
    **{str(dtype): ({}, dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64)},
    "rates": ({"rate_embedding": True, "num_special": 3, "boundary_bias": True, "head_bias": True}, torch.float32),
    "every option": (LEVELS["every option"], torch.float32),
    "wide levels": (LEVELS["wide levels"], torch.float32),
}


@pytest.fixture
def saved(build, tmp_path) -> Path:
    return build(boundary_bias=True).save_pretrained(tmp_path / "saved")


def change_config(folder: Path, **changes) -> None:
    values = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in values.items() if v != "gone"}))


def equal(one: UNet, two: UNet) -> bool:
    pairs = zip(one.state_dict().items(), two.state_dict().items(), strict=True)
    return all(m == n and a.dtype == b.dtype and torch.equal(a, b) for (m, a), (n, b) in pairs)


@each(kind=KINDS)
@torch.no_grad()
def test_saved_models_load_to_the_last_bit(kind, build, text, tmp_path):
    options, dtype = KINDS[kind]
    model = build(**options).to(dtype)
    before, (byte_ids, boundaries) = torch.get_rng_state(), (text(1, 12), mixed_boundaries(1, 12))
    for again in (UNet.from_pretrained(model.save_pretrained(tmp_path / "m")), pickle.loads(pickle.dumps(model))):
        assert equal(model, again) and again.config == model.config and not again.training
        ours, theirs = (m(byte_ids, boundaries).final_logits for m in (model, again))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)  # places in memory change the order of sums
    assert torch.equal(before, torch.get_rng_state())  # loading draws no random numbers


def test_weights_of_any_kind_are_saved(build, tmp_path):
    """Of several dtypes; tied ones, written once and tied again; and views of one block, which safetensors refuses."""
    mixed = build()
    mixed.token_layers.bfloat16()
    assert equal(mixed, UNet.from_pretrained(mixed.save_pretrained(tmp_path / "mixed")))
    tied = build()
    tied.early_head.projection.weight = tied.final_head.projection.weight
    names = set(load_file(tied.save_pretrained(tmp_path / "tied") / "model.safetensors"))
    assert "early_head.projection.weight" in names and "final_head.projection.weight" not in names
    again = UNet.from_pretrained(tmp_path / "tied")
    assert again.early_head.projection.weight is again.final_head.projection.weight and equal(tied, again)
    assert mixed.early_head.projection.weight is not mixed.final_head.projection.weight
    views = build()
    with torch.no_grad():
        block = torch.cat([p.flatten() for p in views.parameters()])
        for p, piece in zip(views.parameters(), block.split([p.numel() for p in views.parameters()]), strict=True):
            p.data = piece.view(p.shape)
        embedding = views.embedding.weight
        embedding.data = embedding.t().contiguous().t()  # not contiguous
    assert equal(views, UNet.from_pretrained(views.save_pretrained(tmp_path / "views")))


def test_loaded_models_train_and_leave_the_file_alone(saved, text):
    was = (saved / "model.safetensors").read_bytes()
    model = UNet.from_pretrained(saved).train()
    assert all(p.requires_grad and p.device.type == "cpu" for p in model.parameters())
    model(text(2, 9), torch.ones(2, 9, dtype=torch.bool)).final_logits.square().mean().backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    assert not equal(model, UNet.from_pretrained(saved))
    assert (saved / "model.safetensors").read_bytes() == was


def test_saving_again_replaces_the_model_and_keeps_the_card(build, saved, monkeypatch):
    (saved / "README.md").write_text("mine")
    other = build(width=32)
    other.save_pretrained(saved)
    assert equal(other, UNet.from_pretrained(saved)) and (saved / "README.md").read_text() == "mine"
    assert sorted(p.name for p in saved.iterdir()) == ["README.md", "config.json", "model.safetensors"]

    def full(content, path=None, **_):
        if path is not None:
            Path(path).write_bytes(b"half")
        raise OSError("no space left on device")

    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    for module, name in ((weights, "save_file"), (json, "dumps")):  # of the weights, of the configuration
        with monkeypatch.context() as patch, pytest.raises(OSError, match="saved could not be written: no space left"):
            patch.setattr(module, name, full)
            build(num_lags=2).save_pretrained(saved)
        assert {path.name: path.read_bytes() for path in saved.iterdir()} == before


def test_equal_models_write_equal_files(build, tmp_path):
    model = build()
    model.early_head.projection.weight = model.final_head.projection.weight
    for number in range(8):
        model.save_pretrained(tmp_path / str(number))
    files = ("model.safetensors", "config.json")
    assert len({tuple((folder / file).read_bytes() for file in files) for folder in tmp_path.iterdir()}) == 1


def test_config_and_card_can_be_read_and_the_code_of_the_card_runs(saved):
    values = json.loads((saved / "config.json").read_text())
    assert (values.pop("model_type"), values.pop("format")) == ("rltok_rl-unet", 1)
    assert values.pop("rltok_rl_version") and UNetConfig(**values) == preset("tiny", boundary_bias=True)
    card = huggingface_hub.ModelCard.load(saved / "README.md")
    assert card.data.library_name == "rltok_rl" and card.data.pipeline_tag == "text-generation"
    assert {"byte-level", "tokenization", "reinforcement-learning"} <= set(card.data.tags)
    code = card.content.split("```python\n")[1].split("```")[0]
    exec(code.replace("this folder, or its id on the hub", str(saved)), {})


def test_runs_subclasses_and_older_models_load(saved, tmp_path):
    class Mine(UNet):
        pass

    assert type(Mine.from_pretrained(saved)) is Mine
    shutil.copytree(saved, tmp_path / "run" / "model")
    model = UNet.from_pretrained(tmp_path / "run")
    change_config(saved, **dict.fromkeys(("ngram_sizes", "ngram_buckets", "smoothing", "tokens_read"), "gone"))
    assert equal(model, UNet.from_pretrained(str(saved)))


def test_folders_without_a_model_are_refused(saved, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (saved / "config.json").unlink()
    load, expected = UNet.from_pretrained, "must hold config.json (as save_pretrained writes it) or model/config.json"
    unfinished = "got ['checkpoints']; a training run writes model/ at its end"
    refused(
        [
            (lambda: load(tmp_path / "empty"), FileNotFoundError, f"empty {expected} (a run), got nothing"),
            (lambda: load(saved), FileNotFoundError, "got ['README.md', 'model.safetensors']"),
            (lambda: load(tmp_path / "run"), FileNotFoundError, unfinished),
            (lambda: load(saved / "model.safetensors"), NotADirectoryError, "a folder or a hub id, got the file"),
        ]
    )


def test_configurations_that_do_not_fit_are_refused(saved):
    path = saved / "config.json"
    whole = path.read_text()
    for changes, words in (
        ({"depth": 3}, "unknown keys ['depth'] for UNetConfig; allowed are ["),
        ({"width": "gone"}, "missing 1 required keyword-only argument: 'width'"),
        ({"width": 63}, "): width must be a multiple of 2 * num_heads"),
        ({"target_rate": "often"}, "target_rate must be a number, got 'often'"),
        ({"model_type": "gemma2"}, "must be of model_type 'rltok_rl-unet', got 'gemma2'"),
        ({"model_type": "gone"}, "must be of model_type 'rltok_rl-unet', got None"),
        ({"format": 2, "rltok_rl_version": "9.0"}, "must be of format 1, got 2 (written by rltok_rl 9.0; this is "),
    ):
        change_config(saved, **changes)
        refused([(lambda: UNet.from_pretrained(saved), (ValueError, TypeError), words)])
        path.write_text(whole)
    for content, words in (
        ("{", "must be JSON"),
        ("[1]", "must hold an object with the fields of UNetConfig, got [1]"),
    ):
        path.write_text(content)
        refused([(lambda: UNet.from_pretrained(saved), ValueError, words)])


def test_weights_that_do_not_fit_or_are_cut_off_are_refused(saved):
    path = saved / "model.safetensors"
    whole, held = path.read_bytes(), load_file(path)
    narrow = {**held, "embedding.weight": torch.ones(255, 64)}
    without = {name: weight for name, weight in held.items() if name != "final_head.projection.weight"}
    for tensors, words in (
        (narrow, "size mismatch for embedding.weight"),
        (without, 'Missing key(s) in state_dict: "final_head.projection.weight"'),
        ({**held, "extra": torch.ones(1)}, 'Unexpected key(s) in state_dict: "extra"'),
        ({**held, "encoder_norm.weight": torch.ones(64, dtype=torch.int8)}, '"encoder_norm.weight"'),
    ):
        save_file(tensors, path)
        refused([(lambda: UNet.from_pretrained(saved), ValueError, words)])
    for cut in (0, 5, 200, len(whole) - 1):
        path.write_bytes(whole[:cut])
        refused([(lambda: UNet.from_pretrained(saved), ValueError, "must be a whole safetensors file, got one that")])
    path.unlink()
    refused([(lambda: UNet.from_pretrained(saved), FileNotFoundError, "model.safetensors is missing; save_pretrain")])


def test_hub_ids_are_downloaded_or_come_from_its_cache(saved, tmp_path, monkeypatch):
    kept, asked = tmp_path / "cache" / "models--somebody--a-model", []
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("0" * 40)
    shutil.copytree(saved, kept / "snapshots" / ("0" * 40))  # as huggingface_hub keeps downloads
    model = UNet.from_pretrained("somebody/a-model", cache_dir=tmp_path / "cache", local_files_only=True)
    assert equal(model, UNet.from_pretrained(saved))

    def download(repo_id, filename, **options):
        asked.append((repo_id, filename, options.get("revision"), options.get("local_files_only")))
        return str(saved / filename)

    monkeypatch.setattr(pretrained, "hf_hub_download", download)
    assert equal(UNet.from_pretrained("somebody/a-model", revision="v2", local_files_only=True), model)
    assert asked == [("somebody/a-model", f, "v2", True) for f in ("config.json", "model.safetensors")]
    (saved / "config.json").write_text("{")
    words = "config.json of somebody/a-model must be JSON"
    refused([(lambda: UNet.from_pretrained("somebody/a-model"), ValueError, words)])
    with pytest.raises(TypeError, match=r"unknown options \['revison'\] of from_pretrained"):
        UNet.from_pretrained(saved, revison="v2")


@each(name=["somebody/not-there", "no/such/folder", "/no/such/folder", "mine", "runs/mine", "./mine", "../mine"])
def test_missing_sources_are_refused_and_paths_are_not_looked_up_on_the_hub(name, tmp_path):
    words = f"a hub id (user/name) or one of {[*PACKAGED]}, got '{name}': there is no such"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        Path("runs").mkdir(exist_ok=True)
        offline = {"cache_dir": tmp_path, "local_files_only": True}
        refused([(lambda: UNet.from_pretrained(name, **offline), FileNotFoundError, words)])
        if name == "somebody/not-there":
            assert model_folder(name) is None
        else:
            refused([(lambda: model_folder(name), FileNotFoundError, f"got '{name}': there is no such folder")])


def test_push_to_hub_uploads_what_save_pretrained_writes(build, monkeypatch, tmp_path):
    model, pushed = build(), {}

    class Api:
        def __init__(self, token=None):
            pushed["token"] = token

        def create_repo(self, repo_id, private, exist_ok):
            pushed["private"] = private
            return type("Made", (), {"repo_id": repo_id})

        def upload_folder(self, *, repo_id, folder_path, commit_message, revision, **_):
            shutil.copytree(folder_path, tmp_path / "there")
            return f"{repo_id}@{revision}: {commit_message}"

    monkeypatch.setattr(huggingface_hub.hub_mixin, "HfApi", Api)
    address = model.push_to_hub("me/mine", private=True, token="t", branch="b", commit_message="Add it")
    assert (address, pushed) == ("me/mine@b: Add it", {"token": "t", "private": True})
    assert equal(model, UNet.from_pretrained(tmp_path / "there"))
    assert 'UNet.from_pretrained("me/mine")' in (tmp_path / "there" / "README.md").read_text()

"""Saved models come back to the last bit, and what does not fit is refused by name."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file

import rltok_rl.models.pretrained as hub
from rltok_rl.models import UNet, UNetConfig, preset
from rltok_rl.models.pretrained import model_folder


@pytest.fixture
def saved(build, tmp_path) -> Path:
    return build(boundary_bias=True).save_pretrained(tmp_path / "saved")


def change_config(folder: Path, **changes) -> None:
    values = json.loads((folder / "config.json").read_text())
    values.update(changes)
    (folder / "config.json").write_text(json.dumps({k: v for k, v in values.items() if v != "gone"}))


def equal(one: UNet, two: UNet) -> bool:
    pairs = zip(one.state_dict().items(), two.state_dict().items(), strict=True)
    return all(m == n and a.dtype == b.dtype and torch.equal(a, b) for (m, a), (n, b) in pairs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_saved_models_load_to_the_last_bit(build, text, tmp_path, dtype):
    model = build(pooling="mean", num_special=3, attention_cap=None, boundary_bias=True).to(dtype)
    again = UNet.from_pretrained(model.save_pretrained(tmp_path / "m"))
    assert equal(model, again) and again.config == model.config and not again.training
    boundaries = torch.arange(12) % 3 == 0
    outs = [m(text(1, 12), boundaries[None]) for m in (model, again)]
    assert torch.equal(outs[0].final_logits, outs[1].final_logits)
    assert torch.equal(outs[0].boundary_logits, outs[1].boundary_logits)


def test_dtypes_of_single_weights_are_kept(build, tmp_path):
    model = build()
    model.token_layers.bfloat16()
    assert equal(model, UNet.from_pretrained(model.save_pretrained(tmp_path)))


def test_tied_weights_are_written_once_and_tied_again(build, tmp_path):
    model = build()
    model.early_head.projection.weight = model.final_head.projection.weight
    folder = model.save_pretrained(tmp_path)
    names = set(load_file(folder / "model.safetensors"))
    assert "early_head.projection.weight" in names and "final_head.projection.weight" not in names
    again = UNet.from_pretrained(folder)
    assert again.early_head.projection.weight is again.final_head.projection.weight
    assert equal(model, again)
    untied = UNet.from_pretrained(build().save_pretrained(tmp_path / "untied"))
    assert untied.early_head.projection.weight is not untied.final_head.projection.weight


def test_weights_that_are_views_of_others_are_saved(build, tmp_path):
    """Optimizers and shared memory lay weights side by side in one block; safetensors refuses that as it is."""
    model = build()
    with torch.no_grad():
        block = torch.cat([p.flatten() for p in model.parameters()])
        for p, piece in zip(model.parameters(), block.split([p.numel() for p in model.parameters()]), strict=True):
            p.data = piece.view(p.shape)
        embedding = model.embedding.weight
        embedding.data = embedding.t().contiguous().t()  # not contiguous
    assert equal(model, UNet.from_pretrained(model.save_pretrained(tmp_path)))


def test_loading_draws_no_random_numbers(saved):
    before = torch.get_rng_state()
    UNet.from_pretrained(saved)
    assert torch.equal(before, torch.get_rng_state())


def test_loaded_models_train_and_leave_the_file_alone(saved, text):
    was = (saved / "model.safetensors").read_bytes()
    model = UNet.from_pretrained(saved).train()
    assert all(p.requires_grad and p.device.type == "cpu" for p in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(text(2, 9), torch.ones(2, 9, dtype=torch.bool)).final_logits.square().mean().backward()
    optimizer.step()
    assert not equal(model, UNet.from_pretrained(saved))
    assert (saved / "model.safetensors").read_bytes() == was


def test_saving_again_replaces_the_model_and_keeps_the_card(build, saved):
    (saved / "README.md").write_text("mine")
    other = build(width=32)
    other.save_pretrained(saved)
    assert equal(other, UNet.from_pretrained(saved))
    assert (saved / "README.md").read_text() == "mine"
    assert sorted(p.name for p in saved.iterdir()) == ["README.md", "config.json", "model.safetensors"]


def test_a_write_that_fails_leaves_the_old_weights(build, saved, monkeypatch):
    was = load_file(saved / "model.safetensors")

    def full(tensors, path, **_):
        Path(path).write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr("rltok_rl.models.pretrained.save_file", full)
    with pytest.raises(OSError, match="no space left"):
        build(num_lags=2).save_pretrained(saved)
    assert all(torch.equal(a, was[name]) for name, a in load_file(saved / "model.safetensors").items())


def test_config_has_plain_keys_and_says_who_wrote_it(saved):
    values = json.loads((saved / "config.json").read_text())
    assert (values.pop("model_type"), values.pop("format")) == ("rltok_rl-unet", 1)
    assert values.pop("rltok_rl_version")
    assert UNetConfig(**values) == preset("tiny", boundary_bias=True)


def test_the_card_can_be_read_and_its_code_runs(saved, monkeypatch):
    card = huggingface_hub.ModelCard.load(saved / "README.md")
    assert card.data.library_name == "rltok_rl" and card.data.pipeline_tag == "text-generation"
    assert {"byte-level", "tokenization", "reinforcement-learning"} <= set(card.data.tags)
    code = card.content.split("```python\n")[1].split("```")[0]
    exec(code.replace("this folder, or its id on the hub", str(saved)), {})


def test_a_subclass_loads_as_itself(saved):
    class Mine(UNet):
        pass

    assert type(Mine.from_pretrained(saved)) is Mine


def test_the_folder_of_a_run_is_enough(saved, tmp_path):
    (tmp_path / "run").mkdir()
    shutil.copytree(saved, tmp_path / "run" / "model")
    assert equal(UNet.from_pretrained(tmp_path / "run"), UNet.from_pretrained(str(saved)))


def test_folders_without_a_model_are_refused(saved, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        FileNotFoundError, match=r"empty must hold config.json .* or model/config.json .*, got nothing$"
    ):
        model_folder(tmp_path / "empty")
    (saved / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"got \['README.md', 'model.safetensors'\]$"):
        UNet.from_pretrained(saved)
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"got \['checkpoints'\]; a training run writes model/ at its end"):
        UNet.from_pretrained(tmp_path / "run")
    with pytest.raises(NotADirectoryError, match="source must be a folder or a hub id, got the file"):
        UNet.from_pretrained(saved / "model.safetensors")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depth": 3}, r"unknown keys \['depth'\] for UNetConfig; allowed are \["),
        ({"width": "gone"}, r".written by rltok_rl .* missing 1 required keyword-only argument: 'width'"),
        ({"width": 63}, r"config.json of .* .written by rltok_rl .*: width must be a multiple of 2 \* num_heads"),
        ({"target_rate": "often"}, "target_rate must be a number, got 'often'"),
        ({"model_type": "gemma2"}, "must be of model_type 'rltok_rl-unet', got 'gemma2'"),
        ({"model_type": "gone"}, "must be of model_type 'rltok_rl-unet', got None"),
        ({"format": 2, "rltok_rl_version": "9.0"}, r"must be of format 1, got 2 .written by rltok_rl 9.0; this is "),
    ],
)
def test_configurations_that_are_not_ours_are_refused(saved, changes, message):
    change_config(saved, **changes)
    with pytest.raises((ValueError, TypeError), match=message):
        UNet.from_pretrained(saved)


@pytest.mark.parametrize(("content", "message"), [("{", "must be JSON"), ("[1]", r"must hold an object .*, got \[1\]")])
def test_configurations_that_are_no_objects_are_refused(saved, content, message):
    (saved / "config.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        UNet.from_pretrained(saved)


def test_weights_that_do_not_fit_are_named(saved):
    path = saved / "model.safetensors"
    weights = load_file(path)
    change_config(saved, num_special=2)
    with pytest.raises(
        ValueError, match=r"got embedding.weight of shape \[256, 64\] instead of \[258, 64\] .1 of \d+ do"
    ):
        UNet.from_pretrained(saved)
    change_config(saved, num_special=0)
    save_file({k: v for k, v in weights.items() if k != "final_head.projection.weight"}, path)
    with pytest.raises(ValueError, match="got no final_head.projection.weight .1 of"):
        UNet.from_pretrained(saved)
    save_file({**weights, "extra": torch.ones(1)}, path)
    with pytest.raises(ValueError, match="got extra, which is not a weight of the model"):
        UNet.from_pretrained(saved)
    save_file({**weights, "encoder_norm.weight": torch.ones(64, dtype=torch.int8)}, path)
    with pytest.raises(ValueError, match="got encoder_norm.weight of dtype torch.int8 instead of a floating-point one"):
        UNet.from_pretrained(saved)
    save_file(weights, path)
    UNet.from_pretrained(saved)


def test_weights_that_are_cut_off_or_missing_are_refused(saved):
    path = saved / "model.safetensors"
    whole = path.read_bytes()
    for cut in (0, 5, 200, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match="must be a whole safetensors file, got one that cannot be read"):
            UNet.from_pretrained(saved)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="model.safetensors is missing; save_pretrained writes it"):
        UNet.from_pretrained(saved)


def test_hub_ids_are_downloaded(saved, monkeypatch):
    asked = []

    def download(repo_id, filename, **options):
        asked.append((repo_id, filename, options["revision"], options["local_files_only"]))
        return str(saved / filename)

    monkeypatch.setattr(hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub.hub_mixin, "hf_hub_download", lambda **o: download(o.pop("repo_id"), **o))
    model = UNet.from_pretrained("somebody/a-model", revision="v2", local_files_only=True)
    assert equal(model, UNet.from_pretrained(saved))
    assert asked == [("somebody/a-model", f, "v2", True) for f in ("config.json", "model.safetensors")]
    (saved / "config.json").write_text("{")
    with pytest.raises(ValueError, match="config.json of somebody/a-model must be JSON"):
        UNet.from_pretrained("somebody/a-model")


def test_the_cache_of_the_hub_serves_without_a_network(saved, tmp_path):
    """Files laid out as huggingface_hub keeps what it has downloaded."""
    kept = tmp_path / "cache" / "models--somebody--a-model"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("0" * 40)
    shutil.copytree(saved, kept / "snapshots" / ("0" * 40))
    model = UNet.from_pretrained("somebody/a-model", cache_dir=tmp_path / "cache", local_files_only=True)
    assert equal(model, UNet.from_pretrained(saved))


@pytest.mark.parametrize("name", ["somebody/not-there", "no/such/folder", "/no/such/folder", "mine", "runs/mine"])
def test_missing_sources_are_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    expected = re.escape(f"a hub id (user/name) or one of ['pocket'], got '{name}': there is no such")
    with pytest.raises(FileNotFoundError, match=expected):
        UNet.from_pretrained(name, cache_dir=tmp_path, local_files_only=True)


def test_paths_are_not_looked_up_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert model_folder("somebody/a-model") is None
    for name in ("mine", "runs/mine", "./mine", "/mine", "../mine", "a/b/c"):
        with pytest.raises(FileNotFoundError, match=f"got '{name}': there is no such folder$"):
            model_folder(name)


def test_push_to_hub_uploads_what_save_pretrained_writes(build, monkeypatch, tmp_path):
    model = build()
    pushed = {}

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

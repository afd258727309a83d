"""Arguments of ``gymnasium.make``: names of models, documents, options."""

from __future__ import annotations

import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from rltok_rl.envs import ByteBoundaryVectorEnv
from rltok_rl.envs.gym_options import OPTIONS, read_model, read_source

import rltok_rl  # noqa: F401 - registers the ids
from rltok_rl.data import TextSource
from rltok_rl.data.windows import given_windows
from rltok_rl.models import UNet, preset

ID = "rltok_rl/ByteBoundary-v0"
MAKERS = [gymnasium.make, gymnasium.make_vec]
LONG = "a text that is long enough for a window"


def same(first: UNet, other: UNet) -> bool:
    """Whether two models have equal configurations and weights."""
    pairs = zip(first.state_dict().values(), other.state_dict().values(), strict=True)
    return first.config == other.config and all(torch.equal(*pair) for pair in pairs)


# Models


def test_pocket_is_the_trained_model():
    for make in MAKERS:
        model = make(ID, model="pocket", num_steps=8).unwrapped.env.model
        assert same(model, UNet.from_pretrained("pocket")) and not model.training
        assert not same(model, read_model(preset("pocket")))


def test_names_of_presets_and_configurations_are_untrained_and_always_the_same():
    state = torch.get_rng_state()
    first, again, other = read_model("tiny"), read_model(preset("tiny")), read_model("tiny", {"num_lags": 2})
    assert same(first, again) and other.config.num_lags == 2 and not first.training
    assert torch.equal(torch.get_rng_state(), state)
    mine = UNet(preset("tiny"))
    assert read_model(mine) is mine


def test_folders_and_runs_are_trained_models(tmp_path, monkeypatch):
    trained = UNet(preset("tiny", width=32))
    trained.save_pretrained(tmp_path / "runs" / "mine" / "model")
    monkeypatch.chdir(tmp_path)
    for given in ("runs/mine", "runs/mine/model", Path("runs/mine"), tmp_path / "runs" / "mine"):
        assert same(read_model(given), trained)
    monkeypatch.chdir("runs")
    assert same(read_model("mine"), trained)


def test_a_preset_warns_of_a_folder_with_its_name(tmp_path, monkeypatch):
    trained = UNet(preset("tiny", width=32))
    trained.save_pretrained(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match=r"model='tiny' is the untrained preset; .* is './tiny'"):
        assert read_model("tiny").config.width == 64
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(read_model("./tiny"), trained) and same(read_model(Path("tiny")), trained)


def test_refused_models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    untrained = r"got {'width': 32} and 'pocket'; preset\('pocket', ...\) is an untrained"
    for options, error, message in [
        ({"model": "tinny"}, ValueError, "model must be a folder .*'tiny'.* got 'tinny'; did you mean 'tiny'"),
        ({"model": "poket"}, ValueError, "model must be a folder .*'tiny'.* got 'poket'; did you mean 'pocket'"),
        ({"model": "runs/mine2"}, FileNotFoundError, "model='runs/mine2' cannot be read: .* no such folder"),
        ({"model": "runs"}, FileNotFoundError, "runs must hold config.json"),
        ({"model": 3}, TypeError, "model must be a name, a folder, a UNetConfig or a UNet, got int"),
        ({"model": "pocket", "overrides": {"width": 32}}, ValueError, untrained),
    ]:
        with pytest.raises(error, match=message):
            gymnasium.make(ID, **options)


# Texts


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Three documents in the working folder, one of them empty."""
    texts = tmp_path / "my_texts"
    texts.mkdir()
    for name, text in (("a.txt", LONG), ("b.txt", "short"), ("c.txt", "")):
        (texts / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return Path("my_texts")


def test_paths_are_read(folder):
    assert list(read_source(folder / "a.txt").documents()) == [LONG.encode()]
    with pytest.warns(UserWarning, match="kept 2 of 3 documents .*dropped 1 with fewer than 2 bytes"):
        assert list(read_source(folder).documents()) == [LONG.encode(), b"short"]
    both = [folder / "b.txt", "beside it"]
    assert list(read_source(both).documents()) == [b"short", b"beside it"]
    env = gymnasium.make(ID, text=folder / "a.txt", num_steps=len(LONG) - 1)
    env.reset(seed=0)
    assert bytes([LONG.encode()[0], *(env.step(0)[4]["byte"] for _ in LONG[1:])]) == LONG.encode()


def test_names_of_files_are_refused_as_texts(folder):
    for make in MAKERS:
        for text in ("my_texts", "my_texts/a.txt", ["my_texts/a.txt", "my_texts/b.txt"]):
            first = text if isinstance(text, str) else text[0]
            with pytest.raises(ValueError, match=rf"the text itself, got '{first}', .*: Path\('{first}'\) reads it"):
                make(ID, text=text, num_steps=4)
    assert list(read_source(b"my_texts").documents()) == [b"my_texts"]
    assert read_source(["my_texts", LONG]).num_documents == 2, "not all of them name files"
    env = gymnasium.make(ID, num_steps=4).unwrapped
    with pytest.raises(ValueError, match="text is the text itself, got 'my_texts'"):
        env.reset(options={"text": "my_texts"})
    with pytest.raises(TypeError, match="text must be one text or one per row .* read_text"):
        env.reset(options={"text": folder})


def test_paths_are_refused_where_only_texts_are_taken():
    with pytest.raises(TypeError, match=r"documents must be texts, got PosixPath\('a'\); read_documents\(path\)"):
        TextSource(Path("a"))
    with pytest.raises(TypeError, match=r"text must be one text or one per row that starts, got PosixPath\('a'\)"):
        given_windows(Path("a"), 1, 8)


def test_short_documents():
    short = ["abc", "de"]
    with pytest.raises(ValueError, match=r"short_documents='whole' \(of the source, or of gymnasium.make\)"):
        gymnasium.make(ID, text=short, num_steps=8)
    env = gymnasium.make_vec(ID, num_envs=8, text=short, short_documents="whole", num_steps=8).unwrapped
    observation, _ = env.reset(seed=0)
    assert set(observation["byte"].tolist()) == {ord("a"), ord("d")}
    terminated, truncated = env.step(np.zeros(8, dtype=int))[2:4]
    assert terminated.tolist() == [byte == ord("d") for byte in observation["byte"]] and not truncated.any()
    with pytest.raises(ValueError, match="short_documents belongs to documents, got 'whole' and a TextSource"):
        gymnasium.make(ID, text=TextSource(LONG), short_documents="whole")
    with pytest.raises(ValueError, match="short_documents must be one of"):
        gymnasium.make(ID, text=LONG, short_documents="half")


# Options


def test_unknown_options():
    for make in MAKERS:
        with pytest.raises(TypeError, match=r"'nsteps'; allowed are .*'short_documents'.*did you mean 'num_steps'"):
            make(ID, nsteps=8)
        with pytest.raises(TypeError, match=r"argument 'foo'; allowed are \['"):
            make(ID, foo=8)
    with pytest.raises(TypeError, match="'max_episode_steps'; .*; did you mean 'num_steps'"):
        gymnasium.make_vec(ID, num_envs=4, max_episode_steps=4)
    assert gymnasium.make(ID, max_episode_steps=4).spec.max_episode_steps == 4  # gymnasium's own wrapper


def test_every_option_of_the_environment_is_known():
    assert {"reward", "price", "observe_entropy", "target_rates"} < set(OPTIONS)
    env = ByteBoundaryVectorEnv(2, num_steps=4, price=0.5, reward="log_likelihood", observe_entropy=True)
    assert (env.env.price, env.env.reward_name, env.env.observe_entropy) == (0.5, "log_likelihood", True)

"""Arguments of ``gymnasium.make``: names of models, documents, options, languages."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from rltok_rl.envs import (
    ByteBoundaryEnv,
    ByteBoundaryVectorEnv,
    LexiconVectorEnv,
    RecallGym,
    RecallVectorEnv,
    SB3VecEnv,
)
from rltok_rl.envs.gym_options import OPTIONS, read_model, read_source

import rltok_rl  # noqa: F401 - registers the ids
from rltok_rl.data import TextSource
from rltok_rl.data.languages import Lexicon, Recall
from rltok_rl.models import UNet, preset

from ..each import each, refused

ID = "rltok_rl/ByteBoundary-v0"
LANGUAGES = ["rltok_rl/Recall-v0", "rltok_rl/Lexicon-v0"]
MAKERS = [gymnasium.make, gymnasium.make_vec]
LONG = "a text that is long enough for a window"


def same(first: UNet, other: UNet) -> bool:
    """Whether two models have equal configurations and weights."""
    pairs = zip(first.state_dict().values(), other.state_dict().values(), strict=True)
    return first.config == other.config and all(torch.equal(*pair) for pair in pairs)


# Models


def test_names_of_models(tmp_path, monkeypatch):
    for make in MAKERS:
        model = make(ID, model="pocket", num_steps=8).unwrapped.env.model
        assert same(model, UNet.from_pretrained("pocket")) and not model.training
        assert not same(model, read_model(preset("pocket")))
    state = torch.get_rng_state()  # presets and configurations are untrained and always the same
    first, again, other = read_model("tiny"), read_model(preset("tiny")), read_model("tiny", {"num_lags": 2})
    assert same(first, again) and other.config.num_lags == 2 and not first.training
    assert torch.equal(torch.get_rng_state(), state)
    trained = UNet(preset("tiny", width=32))
    assert read_model(trained) is trained
    for folder in ("runs/mine/model", "tiny"):
        trained.save_pretrained(tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    for given in ("runs/mine", "runs/mine/model", Path("runs/mine"), tmp_path / "runs" / "mine"):
        assert same(read_model(given), trained)
    with pytest.warns(UserWarning, match=r"model='tiny' is the untrained preset; .* is './tiny'"):
        assert read_model("tiny").config.width == 64
    trained.save_pretrained(tmp_path / "small" / "model")  # a run
    with pytest.warns(UserWarning, match=r"model='small' is the untrained preset; .* is './small'"):
        read_model("small", {"width": 16})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_model(trained, {}) is trained
        assert same(read_model("./tiny"), trained) and same(read_model(Path("tiny")), trained)
    untrained = r"got {'width': 32} and 'pocket'; preset\('pocket', ...\) is an untrained"
    for options, error, words in [
        ({"model": "tinny"}, ValueError, "model must be a folder .*'tiny'.* got 'tinny'; did you mean 'tiny'"),
        ({"model": "poket"}, ValueError, "model must be a folder .*'tiny'.* got 'poket'; did you mean 'pocket'"),
        ({"model": "runs/mine2"}, FileNotFoundError, "model='runs/mine2' cannot be read: .* no such folder"),
        ({"model": "runs"}, FileNotFoundError, "runs must hold config.json"),
        ({"model": 3}, TypeError, "model must be a name, a folder, a UNetConfig or a UNet, got int"),
        ({"model": "pocket", "overrides": {"width": 32}}, ValueError, untrained),
    ]:
        refused((lambda options=options: gymnasium.make(ID, **options), error, words))
    monkeypatch.chdir("runs")
    assert same(read_model("mine"), trained)


# Texts


def test_paths_are_read_and_names_of_files_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path("my_texts")
    folder.mkdir()
    for name, text in (("a.txt", LONG), ("b.txt", "short"), ("c.txt", "")):
        (folder / name).write_text(text)
    assert list(read_source(folder / "a.txt").documents()) == [LONG.encode()]
    with pytest.warns(UserWarning, match="kept 2 of 3 documents .*dropped 1 with fewer than 2 bytes"):
        assert list(read_source(folder).documents()) == [LONG.encode(), b"short"]
    assert list(read_source([folder / "b.txt", "beside it"]).documents()) == [b"short", b"beside it"]
    for content, kept in (("x", False), ("xy", True)):  # two bytes: one to read, one to predict
        (folder / "c.txt").write_text(content)
        expected = [LONG.encode(), b"short", *([content.encode()] if kept else [])]
        with nullcontext() if kept else pytest.warns(UserWarning, match="kept 2 of 3"):
            assert list(read_source(folder).documents()) == expected
    env = gymnasium.make(ID, text=folder / "a.txt", num_steps=len(LONG) - 1)
    env.reset(seed=0)
    assert bytes([LONG.encode()[0], *(env.step(0)[4]["byte"] for _ in LONG[1:])]) == LONG.encode()
    assert list(read_source(b"my_texts").documents()) == [b"my_texts"]
    assert read_source(["my_texts", LONG]).num_documents == 2, "not all of them name files"
    refused(
        (lambda: read_source(("my_texts",)), ValueError, "text is the text itself, got 'my_texts'"),
        (lambda: read_source(5), TypeError, "text must be a text, a Path, several of these, or a source .* got int"),
        (lambda: read_source([]), ValueError, "documents must hold at least one text, got none"),
    )
    for text in ("my_texts", "my_texts/a.txt", ["my_texts/a.txt", "my_texts/b.txt"]):
        first = text if isinstance(text, str) else text[0]
        words = rf"the text itself, got '{first}', .*: Path\('{first}'\) reads it"
        refused(*((lambda m=make, t=text: m(ID, text=t, num_steps=4), ValueError, words) for make in MAKERS))
    env = gymnasium.make(ID, num_steps=4).unwrapped
    one = "text must be one text or one per row .* read_text"
    refused(
        (lambda: env.reset(options={"text": "my_texts"}), ValueError, "text is the text itself, got 'my_texts'"),
        (lambda: env.reset(options={"text": folder}), TypeError, one),
    )


def test_short_documents():
    short, source = ["abc", "de"], TextSource(LONG)
    belongs = "short_documents belongs to documents, got 'whole' and a TextSource"
    whole = r"short_documents='whole' \(of the source, or of gymnasium.make\)"
    refused(
        (lambda: gymnasium.make(ID, text=short, num_steps=8), ValueError, whole),
        (lambda: gymnasium.make(ID, text=source, short_documents="whole"), ValueError, belongs),
        (lambda: gymnasium.make(ID, text=LONG, short_documents="half"), ValueError, "short_documents must be one of"),
    )
    env = gymnasium.make_vec(ID, num_envs=8, text=short, short_documents="whole", num_steps=8).unwrapped
    observation, _ = env.reset(seed=0)
    assert set(observation["byte"].tolist()) == {ord("a"), ord("d")}
    terminated, truncated = env.step(np.zeros(8, dtype=int))[2:4]
    assert terminated.tolist() == [byte == ord("d") for byte in observation["byte"]] and not truncated.any()


# Options


def test_options():
    assert {"reward", "price", "observe_entropy", "target_rates"} < set(OPTIONS)
    env = ByteBoundaryVectorEnv(2, num_steps=4, price=0.5, reward="log_likelihood", observe_entropy=True)
    assert (env.env.price, env.env.reward_name, env.env.observe_entropy) == (0.5, "log_likelihood", True)
    assert gymnasium.make(ID, max_episode_steps=4).spec.max_episode_steps == 4  # gymnasium's own wrapper
    episode_steps = "'max_episode_steps'; .*; did you mean 'num_steps'"
    refused((lambda: gymnasium.make_vec(ID, num_envs=4, max_episode_steps=4), TypeError, episode_steps))
    steps = r"'nsteps'; allowed are .*'short_documents'.*did you mean 'num_steps'"
    for make in MAKERS:
        refused(
            (lambda make=make: make(ID, nsteps=8), TypeError, steps),
            (lambda make=make: make(ID, foo=8), TypeError, r"argument 'foo'; allowed are \['"),
            (lambda make=make: make(ID, options={}), TypeError, r"argument 'options'; allowed are \['"),
        )


# Languages


@each(name=LANGUAGES)
def test_episodes_are_texts_of_the_language(name):
    """The same for the same seed; the default model sees seven bytes, too few without tokens."""
    env, vector = gymnasium.make(name, num_steps=40), gymnasium.make_vec(name, num_envs=3, num_steps=40)
    language, config = env.unwrapped.language, env.unwrapped.env.model.config
    assert (config.window, language.window) == (4, 4)
    hidden = language.floor_rate(window=7) - language.entropy_rate
    assert hidden > 0.5 * language.optimal_return_per_byte > 0
    episodes = []
    for _ in range(2):
        observation, _ = env.reset(seed=4)
        read = [observation["byte"]] + [env.step(0)[0]["byte"] for _ in range(40)]
        episodes.append(torch.tensor(np.array(read)))
    assert torch.equal(*episodes) and language.ideal_log_prob(episodes[0]).isfinite().all()
    observation, _ = vector.reset(seed=4)
    rows = [observation["byte"]] + [vector.step(np.zeros(3, int))[0]["byte"] for _ in range(40)]
    byte_ids = torch.tensor(np.stack(rows, 1))
    assert vector.unwrapped.language.ideal_log_prob(byte_ids).isfinite().all()
    assert len({tuple(row) for row in byte_ids.tolist()}) == 3
    sb3, single = SB3VecEnv(2, env_id=name, num_steps=6), gymnasium.make_vec(name, num_envs=2, num_steps=6)
    sb3.seed(3)
    assert type(sb3.vector) is type(single.unwrapped)
    assert sb3.reset()["byte"].tolist() == single.reset(seed=3)[0]["byte"].tolist()
    for _ in range(6):
        done, infos = sb3.step(np.array([1, 0]))[2:]
    assert done.all() and [info["num_tokens"] for info in infos] == [6, 1]


def test_options_of_languages(tmp_path):
    env = gymnasium.make(LANGUAGES[0], language={"values": "xy", "window": 2}).unwrapped
    assert (env.language.values, env.language.window) == ("xy", 2)
    mine = Lexicon(words=["to", "be", "or", "not"], lag=4)
    assert LexiconVectorEnv(2, language=mine).language is mine
    model = UNet(preset("tiny", window=3, num_encoder_layers=2))
    assert RecallVectorEnv(2, model=model).language.window == 5  # what two layers of three bytes see
    single = RecallGym(model=model, render_mode="ansi")
    single.reset(options={"text": "#0"})
    assert RecallVectorEnv(2, model=model).env.num_steps == single.env.num_steps == 128 and single.render() == "#"
    model.save_pretrained(tmp_path / "run")
    env = RecallVectorEnv(2, model=tmp_path / "run", num_steps=8)
    assert env.language.window == 5 and same(env.env.model, model)
    assert RecallGym(overrides={"window": 6}, language={"window": 6}).env.model.config.window == 6
    waiting = RecallVectorEnv(2, model=model, num_steps=2)
    assert waiting.autoreset_mode.value == "NextStep"
    assert RecallVectorEnv(model=model, autoreset_mode="Disabled").metadata["autoreset_mode"].value == "Disabled"
    env = RecallGym(overrides={"width": 32})
    assert (env.env.model.config.width, env.env.model.config.window, env.language.window) == (32, 4, 4)
    overrides = "overrides are for an untrained preset .*, got {'window': 6} and a UNet"
    text, an_id = (
        r"argument 'text'; allowed are \['model', 'lang",
        "num_envs must be an integer, .* given as env_id='rltok",
    )
    refused(
        (lambda: gymnasium.make(LANGUAGES[0], text="to be"), TypeError, text),
        (lambda: RecallGym(language=Lexicon()), TypeError, "language must be a Recall, got Lexicon"),
        (lambda: RecallVectorEnv(language=Lexicon()), TypeError, "language must be a Recall, got Lexicon"),
        (lambda: LexiconVectorEnv(render_mode="ansi"), ValueError, "render_mode must be None for many texts"),
        (lambda: RecallGym(model=model, overrides={"window": 6}), ValueError, overrides),
        (lambda: RecallGym(language={"valeus": "01"}), TypeError, "unexpected keyword argument 'valeus'"),
        (lambda: SB3VecEnv("rltok_rl/Recall-v0"), TypeError, an_id),
        (lambda: SB3VecEnv(2, env_id="CartPole-v1"), ValueError, "one of .*'rltok_rl/Recall-v0'.*; got 'CartPole-v1'"),
        (lambda: SB3VecEnv(2, env_id="rltok_rl/Delay-5-v1"), ValueError, "such as 'rltok_rl/RecallTight-1-v1'; got "),
        (lambda: SB3VecEnv(2, autoreset_mode="NextStep"), ValueError, "autoreset_mode is SameStep for Stable-Base"),
    )


def test_a_rollout_lines_up_with_the_language():
    """Log-probabilities under ``next`` belong to bytes 1 .. T, as the documentation of languages says."""
    language = Recall()
    env = ByteBoundaryEnv(UNet(preset("tiny", window=4)), language, num_steps=30, batch_size=(4,), seed=0)
    rollout = env.parallel_rollout(exclude=("encoder_state",))
    byte_ids = torch.cat((rollout["byte"], rollout["next", "byte"][:, -1:]), 1)
    assert language.ideal_log_prob(byte_ids).isfinite().all() and int(byte_ids[0, 0]) == ord("#")
    share = language.share_captured(byte_ids, rollout["next", "final_log_prob"].squeeze(-1))
    assert share < 0  # an untrained model is worse than the floor
    assert not rollout["next", "terminated"].any() and rollout["next", "truncated"][:, -1].all()

"""The languages as gymnasium environments."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from rltok_rl.envs import ByteBoundaryEnv, LexiconVectorEnv, RecallGym, RecallVectorEnv

import rltok_rl  # noqa: F401 - registers the ids
from rltok_rl.data.languages import Lexicon, Recall
from rltok_rl.models import UNet, preset
from rltok_rl.text import text_to_ids

IDS = ["rltok_rl/Recall-v0", "rltok_rl/Lexicon-v0"]


@pytest.mark.parametrize("name", IDS)
def test_episodes_are_texts_of_the_language(name):
    """Single and vector environment write text of the language that they name, the same for the same seed."""
    env, vector = gymnasium.make(name, num_steps=40), gymnasium.make_vec(name, num_envs=3, num_steps=40)
    language = env.unwrapped.language
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


@pytest.mark.parametrize("name", IDS)
def test_the_default_model_cannot_see_the_answer_without_tokens(name):
    """It sees seven bytes: the gap between that floor and the ideal must be closed through tokens."""
    env = gymnasium.make(name).unwrapped
    config, language = env.env.model.config, env.language
    assert (config.window, language.window) == (4, 4)
    hidden = language.floor_rate(window=7) - language.entropy_rate
    assert hidden > 0.5 * language.optimal_return_per_byte > 0


def test_options_reach_the_language():
    env = gymnasium.make(IDS[0], language={"values": "xy", "window": 2}).unwrapped
    assert (env.language.values, env.language.window) == ("xy", 2)
    mine = Lexicon(words=["to", "be", "or", "not"], lag=4)
    assert LexiconVectorEnv(2, language=mine).language is mine
    model = UNet(preset("tiny", window=3, num_encoder_layers=2))
    assert RecallVectorEnv(2, model=model).language.window == 5  # what two layers of three bytes see
    assert RecallGym(overrides={"window": 6}, language={"window": 6}).env.model.config.window == 6
    env = RecallGym(overrides={"width": 32})
    assert (env.env.model.config.width, env.env.model.config.window, env.language.window) == (32, 4, 4)


def test_a_folder_is_a_trained_model_whose_language_it_sees(tmp_path):
    trained = UNet(preset("tiny", window=3, width=32))
    trained.save_pretrained(tmp_path / "run")
    env = RecallVectorEnv(2, model=tmp_path / "run", num_steps=8)
    assert env.language.window == 3
    assert all(torch.equal(*pair) for pair in zip(env.env.model.parameters(), trained.parameters(), strict=True))


@pytest.mark.parametrize("name", IDS)
def test_stable_baselines_has_the_languages_too(name):
    from rltok_rl.envs import SB3VecEnv

    env, single = SB3VecEnv(2, env_id=name, num_steps=6), gymnasium.make_vec(name, num_envs=2, num_steps=6)
    env.seed(3)
    observation = env.reset()
    assert type(env.vector) is type(single.unwrapped)
    assert observation["byte"].tolist() == single.reset(seed=3)[0]["byte"].tolist()
    for _ in range(6):
        done, infos = env.step(np.array([1, 0]))[2:]
    assert done.all() and [info["num_tokens"] for info in infos] == [6, 1]
    with pytest.raises(TypeError, match="num_envs must be an integer, .* given as env_id='rltok_rl/Recall-v0'"):
        SB3VecEnv("rltok_rl/Recall-v0")
    with pytest.raises(ValueError, match="env_id must be one of .*'rltok_rl/Recall-v0'.*, got 'CartPole-v1'"):
        SB3VecEnv(2, env_id="CartPole-v1")
    with pytest.raises(ValueError, match="autoreset_mode is SameStep for Stable-Baselines3, got 'NextStep'"):
        SB3VecEnv(2, autoreset_mode="NextStep")


def test_refusals():
    model = UNet(preset("tiny"))
    window = "overrides are for an untrained preset .*, got {'window': 6} and a UNet"
    for call, error, message in [
        (
            lambda: gymnasium.make(IDS[0], text="to be"),
            TypeError,
            r"argument 'text'; allowed are \['model', 'lang",
        ),
        (lambda: RecallGym(language=Lexicon()), TypeError, "language must be a Recall, got Lexicon"),
        (lambda: RecallGym(model=model, overrides={"window": 6}), ValueError, window),
        (lambda: RecallGym(language={"valeus": "01"}), TypeError, "unexpected keyword argument 'valeus'"),
    ]:
        with pytest.raises(error, match=message):
            call()


def test_a_rollout_lines_up_with_the_language():
    """Log-probabilities under ``next`` belong to bytes 1 .. T, as the documentation of languages says."""
    language = Recall()
    env = ByteBoundaryEnv(UNet(preset("tiny", window=4)), language, num_steps=30, batch_size=(4,), seed=0)
    rollout = env.parallel_rollout(exclude=("encoder_state",))
    byte_ids = torch.cat((rollout["byte"], rollout["next", "byte"][:, -1:]), 1)
    assert language.ideal_log_prob(byte_ids).isfinite().all()
    share = language.share_captured(byte_ids, rollout["next", "final_log_prob"].squeeze(-1))
    assert share < 0  # an untrained model is worse than the floor
    assert not rollout["next", "terminated"].any() and rollout["next", "truncated"][:, -1].all()
    assert torch.equal(byte_ids[0, :1], text_to_ids("#"))

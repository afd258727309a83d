"""Environments of version 1: packaged models and text, and worlds whose scores the docstrings state."""

from __future__ import annotations

import re

import gymnasium
import numpy as np
import pytest
import torch
from rltok_rl.agents import RuleActor
from rltok_rl.envs import ByteBoundaryEnv, SB3VecEnv
from rltok_rl.envs.registration import ENVIRONMENTS
from rltok_rl.experiments.studies import worlds
from rltok_rl.experiments.studies.worlds import mixed_boundaries, scores, simple_policies

import rltok_rl  # noqa: F401 - registers the ids
from rltok_rl.data import packaged_novel
from rltok_rl.data.languages import Recall
from rltok_rl.evaluation import evaluate_policy
from rltok_rl.models import UNet
from rltok_rl.models.pretrained import PACKAGED

from ..each import each

WORLDS = ["rltok_rl/Recall-v1", "rltok_rl/Lexicon-v1"]


def table(name: str) -> dict[str, float]:
    """The scores in the docstring of an environment."""
    doc = type(gymnasium.make(name).unwrapped).__doc__
    return {policy: float(score) for policy, score in re.findall(r"\| ([a-z\d' ]+) \| (-?\d+\.\d) \|", doc)}


@each(name=WORLDS)
def test_docstrings_state_the_scores_of_simple_policies(name):
    stated, language = table(name), gymnasium.make(name).unwrapped.language
    measured = scores(name, simple_policies(language), 48, seed=7)
    assert set(measured) == set(stated) >= {"optimum", "always", "random", "never"}
    for policy, (mean, error) in measured.items():
        assert mean == pytest.approx(stated[policy], abs=4 * error + 0.2), policy
    threshold, (best, *others) = gymnasium.spec(name).reward_threshold, sorted(stated.values(), reverse=True)
    assert stated["optimum"] == best > threshold > max(others) and threshold == ENVIRONMENTS[name]["reward_threshold"]
    assert 0.85 < (threshold - stated["never"]) / (best - stated["never"]) < 0.96
    doc, price = type(gymnasium.make(name).unwrapped).__doc__, ENVIRONMENTS[name]["kwargs"]["price"]
    assert f"at a\n    mean return of {threshold} over" in doc and f"a price of {price} nats per boundary" in doc


@each(name=WORLDS)
def test_stepping_earns_what_the_scores_say(name):
    """Read texts once, then again with their best boundaries."""
    vector = gymnasium.make_vec(name, num_envs=4, num_steps=48)
    language, world = vector.unwrapped.language, vector.unwrapped.env

    def read(boundaries: np.ndarray) -> tuple[torch.Tensor, np.ndarray]:
        observation, _ = vector.reset(seed=3)
        read, earned = [observation["byte"]], np.zeros(4)
        for actions in boundaries.T:
            observation, reward, *_ = vector.step(actions)
            read.append(observation["byte"])
            earned += reward
        return torch.tensor(np.stack(read, 1)), earned

    byte_ids, never = read(np.zeros((4, 48), dtype=int))
    best = language.optimal_boundaries(byte_ids[:, :48])
    _, earned = read(best.int().numpy())
    env = ByteBoundaryEnv(world.model, language, num_steps=48, batch_size=(4,), price=world.price)
    env.set_seed(3)
    parallel = env.parallel_rollout(RuleActor(language.optimal_boundaries, ["byte"]))["next", "reward"]
    np.testing.assert_allclose(earned, parallel.detach().sum((1, 2)).numpy(), atol=1e-3)
    assert earned.mean() > never.mean() + 2


def test_byte_boundary_reads_the_novel_with_the_packaged_model():
    env = gymnasium.make("rltok_rl/ByteBoundary-v1", num_steps=64)
    observation, _ = env.reset(seed=0)
    text = bytes([observation["byte"], *(env.step(0)[4]["byte"] for _ in range(64))])
    assert text in packaged_novel() and env.unwrapped.env.model.config.width == 192
    assert SB3VecEnv(2, "rltok_rl/ByteBoundary-v1", num_steps=4).vector.env.price == 0
    spec = gymnasium.spec("rltok_rl/ByteBoundary-v1")
    assert spec.to_json() and spec.kwargs == {"model": "pocket", "text": "novel"}
    assert len(packaged_novel()) == 115_294 and len(packaged_novel(100)) == 100


@each(row=["the model's own policy", "always", "never"])
def test_the_table_of_byte_boundary_is_that_of_the_packaged_model(row):
    stated = table("rltok_rl/ByteBoundary-v1")[row]
    policy = {"the model's own policy": "learned"}.get(row, row)
    returns = torch.as_tensor(evaluate_policy(policy, 32, num_steps=256).policy.returns, dtype=torch.float64)
    assert abs(returns.mean() - stated) < 4 * returns.std() / 32**0.5 + 0.1


@each(name=["recall-world", "lexicon-world"])
def test_packaged_worlds_are_small(name):
    model = UNet.from_pretrained(name)
    assert sum(file.stat().st_size for file in PACKAGED[name].iterdir()) < 1_000_000
    assert sum(weight.numel() for weight in model.parameters()) < 250_000 and model.config.window == 4


def test_texts_of_a_batch_have_boundaries_of_every_kind():
    language = Recall()
    byte_ids = language.draw(4000, 64).byte_ids
    best, drawn = language.optimal_boundaries(byte_ids), mixed_boundaries(byte_ids, language=language)
    assert drawn.dtype == torch.bool and 0.2 < (drawn == best).all(1).float().mean() < 0.35
    free = drawn[:, 1:].float().mean(1)
    assert (free == 0).float().mean() > 0.01 and (free == 1).float().mean() > 0.03
    late = best.roll(2, 1)
    late[:, :2] = False
    assert (drawn[:, 2:] == late[:, 2:]).all(1).float().mean() > 0.005


def test_a_world_is_trained_and_written(tmp_path):
    card = worlds.write_world("recall", tmp_path, updates=2, num_texts=4)
    model = UNet.from_pretrained(tmp_path / "recall-world")
    assert f"{sum(weight.numel() for weight in model.parameters()):,} parameters" in card
    assert (tmp_path / "recall-world" / "README.md").read_text() == card
    with pytest.raises(SystemExit):
        worlds.main(["toy"])

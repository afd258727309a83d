"""The frozen track of the boundary suite: its reader by definition, its optimum by brute force, its environments."""

from __future__ import annotations

import itertools
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from rltok_rl.envs import SB3VecEnv, TaskGym, TaskVectorEnv
from rltok_rl.envs.registration import TASK_ENVIRONMENTS
from stable_baselines3 import PPO
from torch import Tensor

import rltok_rl  # noqa: F401 - registers the ids
from rltok_rl.data.languages import TASKS, Automaton, suite_tasks
from rltok_rl.data.languages.reader import read_texts

from ..data.languages.test_suite_tasks import SMALL, all_texts
from ..each import each, refused
from ..tools import task_worlds


@pytest.fixture
def small(monkeypatch):
    """Make small languages of tasks, whose texts can be enumerated."""
    for constant, value in {"VALUES": b"01", "FILLERS": b"a", "SHORTEST": 2, "MEAN": 2.5}.items():
        monkeypatch.setattr(suite_tasks, constant, value)
    return lambda name: TASKS[name].make(SMALL[name][0], window=2)


def read_by_definition(language: Automaton, byte_ids: Tensor, chance: Tensor, boundaries: Tensor) -> Tensor:
    """Log p [n, T - 1]: the chance of all texts that agree with what a reader knows, and with the next byte."""
    places = language._place[language._follow(language._symbols(byte_ids))[0][:, 1:]]
    log_prob = []
    for t in range(byte_ids.shape[1] - 1):
        ends = boundaries[:, : t + 1].clone()
        ends[:, -1] = True  # the present
        kept = torch.stack([ends[:, s : s + language.window].any(1) for s in range(t + 1)], 1)
        same = (byte_ids[:, None, : t + 1] == byte_ids[None, :, : t + 1]) | ~kept[:, None]
        same &= places[:, None, : t + 1] == places[None, :, : t + 1]
        agree = same.all(2) * chance  # [n, n]
        following = byte_ids[:, None, t + 1] == byte_ids[None, :, t + 1]
        log_prob.append(((agree * following).sum(1) / agree.sum(1)).log())
    return torch.stack(log_prob, 1)


STEPS = {"noise": 8, "knapsack": 6, "clock": 6}
"""Decisions of small languages, all of whose texts and boundaries are tried; others have 9."""


@each(name=SMALL)
def test_readers_know_what_agrees_with_the_bytes_they_kept(small, name):
    language = small(name)
    byte_ids, chance = all_texts(language, {"noise": 8, "knapsack": 7, "clock": 8}.get(name, 11))
    for boundaries in (torch.rand(byte_ids.shape) < 0.3, torch.zeros_like(byte_ids) > 0):
        expected = read_by_definition(language, byte_ids, chance, boundaries)
        torch.testing.assert_close(read_texts(language, byte_ids, boundaries), expected, atol=1e-9, rtol=0)
    best, ideal = language.optimal_boundaries(byte_ids), language.ideal_log_prob(byte_ids)[:, 1:]
    torch.testing.assert_close(read_texts(language, byte_ids, byte_ids > 0), ideal, atol=1e-9, rtol=0)
    if name != "knapsack":
        torch.testing.assert_close(read_texts(language, byte_ids, best), ideal, atol=1e-9, rtol=0)


@each(name=SMALL)
def test_no_policy_earns_more_than_the_optimum(small, name):
    """Backward induction over all texts and all boundaries of each."""
    language, price, steps = small(name), 0.02 if name == "pair" else 0.2, STEPS.get(name, 9)
    byte_ids, chance = all_texts(language, steps + 1)
    strings = torch.tensor([*itertools.product((False, True), repeat=steps)])
    rows = byte_ids.repeat_interleave(len(strings), 0)
    boundaries = strings.repeat(len(byte_ids), 1)
    rewards = read_texts(language, rows, torch.nn.functional.pad(boundaries, (0, 1))) - price * boundaries.double()
    rewards = rewards.view(len(byte_ids), *[2] * steps, steps)
    value = torch.zeros(rewards.shape[:-1], dtype=torch.float64)
    for t in reversed(range(steps)):
        _, prefix = byte_ids[:, : t + 1].unique(dim=0, return_inverse=True)
        weight = (prefix[:, None] == prefix) * chance
        value = torch.tensordot(weight / weight.sum(1, keepdim=True), rewards[..., t] + value, dims=1)
        value = value.amax(t + 1, keepdim=True).expand_as(value)
    best = float((chance * value.flatten(1)[:, 0]).sum())
    found = task_worlds.mean_return(task_worlds.read_graph(language), torch.maximum, num_steps=steps, price=price)
    assert found == pytest.approx(best, abs=1e-9)
    assert best > float(chance @ rewards[(slice(None), *[0] * steps)].sum(-1)) + 0.01, "boundaries must gain something"


def test_a_value_of_a_pair_earns_nothing_without_the_other(small):
    """So that single decisions cannot be judged by changing one of them."""
    language = small("pair")
    byte_ids, chance = all_texts(language, 11)
    best, nothing = language.optimal_boundaries(byte_ids), torch.zeros(byte_ids.shape, dtype=torch.bool)
    place = best.long().cumsum(1) * best  # 1 is the forced one, values of pairs are 2 and 3, ...
    rewards = [
        read_texts(language, byte_ids, drawn) for drawn in (nothing, best & (place % 2 == 0), best & (place > 1))
    ]
    second = read_texts(language, byte_ids, best & (place > 1) & (place % 2 == 1))
    assert torch.equal(rewards[1], rewards[0]) and torch.equal(second, rewards[0])
    assert float((chance[:, None] * (rewards[2] - rewards[0])).sum()) > 0.5


def lines_of_table() -> list[list[str]]:
    """Cells of the table of returns in the docstring."""
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in TaskGym.__doc__.splitlines()]
    return [row for row in rows if len(row) == 5 and row[0] != "task" and not row[0].startswith("-")]


def test_the_docstring_and_thresholds_state_exact_scores():
    lines = [line.strip() for line in task_worlds.score_table([*TASKS]).splitlines()]
    assert {*lines} <= {line.strip() for line in (TaskGym.__doc__ or "").splitlines()}
    table = {}
    for line in lines_of_table():
        task, *columns = ([float(x) for x in cell.split(",")] if i else cell for i, cell in enumerate(line))
        table[task] = [column * (4 // len(column)) for column in columns]  # one number is that of all grades
    assert {*table} == {*TASKS} == {options["kwargs"]["task"] for options in TASK_ENVIRONMENTS.values()}
    for name, options in TASK_ENVIRONMENTS.items():
        task, grade = options["kwargs"]["task"], options["kwargs"]["grade"]
        price, optimum, drawn, _ = (column[grade - 1] for column in table[task])
        assert options["kwargs"]["price"] == price and name == f"rltok_rl/{task.title().replace('-', '')}-{grade}-v1"
        # Nine tenths of the best boundaries, which earn at most 1.4 less than the optimum.
        threshold = options["reward_threshold"]
        assert drawn < threshold and 0.9 * (optimum - 1.45) - 0.05 <= threshold <= 0.9 * optimum + 0.1, name
        spec = gymnasium.spec(name)
        assert spec.reward_threshold == threshold and spec.kwargs == options["kwargs"]
    for options in TASK_ENVIRONMENTS.values():
        best = task_worlds.scores(**options["kwargs"])["best boundaries"]
        assert options["reward_threshold"] == round(0.9 * best, 1)
    vector = gymnasium.make_vec("rltok_rl/Delay-1-v1", num_envs=400)
    vector.reset(seed=0)
    best = vector.unwrapped.language.optimal_boundaries(vector.unwrapped.world.byte_ids)[:, :-1]
    returns = sum(vector.step(actions)[1] for actions in best.int().numpy().T)
    exact = task_worlds.scores("delay", 1, 0.25)["best boundaries"] - 0.25  # the first byte's
    assert returns.mean() == pytest.approx(exact, abs=4 * returns.std() / 20)


def test_checkers_pass_without_a_warning():
    assert len(TASK_ENVIRONMENTS) == 40
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in TASK_ENVIRONMENTS:
            check_env(gymnasium.make(gymnasium.spec(name), num_steps=3).unwrapped)


def assert_begins(row: np.ndarray, values: np.ndarray) -> None:
    """A row that begins with values [n, k], and is 0 after them."""
    np.testing.assert_array_equal(row[:, : values.shape[1]], values)
    assert not row[:, values.shape[1] :].any()


def again(vector, seed: int, actions: np.ndarray) -> np.ndarray:
    """The second texts after a seed."""
    vector.reset(seed=seed)
    for drawn in (*actions, actions[0]):
        vector.step(drawn)
    return vector.unwrapped.world.byte_ids.numpy()


@each(name=["rltok_rl/Delay-1-v1", "rltok_rl/Nest-1-v1"])
def test_steps_earn_what_whole_texts_say_alone_and_together(name):
    vector, single = gymnasium.make_vec(name, num_envs=3, num_steps=20), gymnasium.make(name, num_steps=20)
    observation, _ = vector.reset(seed=1)
    world, actions = vector.unwrapped.world, np.random.default_rng(0).integers(0, 2, (20, 3))
    boundaries = torch.nn.functional.pad(torch.from_numpy(actions.T == 1), (0, 1))
    no = read_texts(world.language, world.byte_ids, torch.zeros_like(boundaries))
    gain = read_texts(world.language, world.byte_ids, boundaries) - no - world.price * boundaries[:, :-1]
    texts = world.byte_ids.numpy()
    for t, drawn in enumerate(actions):
        assert_begins(observation["bytes"], texts[:, max(0, t - 3) : t + 1][:, ::-1])
        assert_begins(observation["recent"], actions[max(0, t - 16) : t][::-1].T)
        assert (observation["position"] == t).all()
        observation, reward, terminated, truncated, info = vector.step(drawn)
        np.testing.assert_array_equal(reward, gain[:, t].numpy())
        np.testing.assert_array_equal(info["byte"], texts[:, t + 1])
        np.testing.assert_array_equal(info["num_tokens"], actions[: t + 1].sum(0))
        assert (truncated == (t == 19)).all() and not terminated.any()
    observation, reward, terminated, truncated, info = vector.step(actions[0])  # starts new texts
    assert (reward == 0).all() and world.position == 0 and not (terminated | truncated).any()
    assert not observation["recent"].any() and not info["num_tokens"].any()
    begun = [texts, world.byte_ids.numpy(), *(again(vector, 1, actions) for _ in range(2))]
    assert (again(vector, 2, actions) != begun[1]).any()
    assert (begun[0] != begun[1]).any() and all((begun[1] == texts).all() for texts in begun[2:])

    def episode(seed: int) -> list:
        return [single.reset(seed=seed), *(single.step(int(action)) for action in actions[:, 0])]

    np.testing.assert_equal(episode(4), episode(4))
    one = gymnasium.make_vec(name, num_envs=1, num_steps=20)
    rows = [one.reset(seed=4), *(one.step(action[:1]) for action in actions)]
    for alone, together in zip(episode(4), rows, strict=True):
        for part, row in zip(alone, together, strict=True):
            pairs = [(part[key], row[key][0]) for key in part] if isinstance(part, dict) else [(part, row[0])]
            for mine, theirs in pairs:
                np.testing.assert_array_equal(mine, theirs)
    assert episode(5)[-1][3] and not episode(5)[-2][3]


def test_texts_that_ended_restart_in_every_mode():
    drawn = np.random.default_rng(0).integers(0, 2, (4, 2))
    waiting, at_once, never = (
        gymnasium.make_vec("rltok_rl/Pair-1-v1", num_envs=2, num_steps=3, autoreset_mode=mode)
        for mode in ("NextStep", AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)
    )
    assert at_once.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    for vector in (waiting, at_once, never):
        vector.reset(seed=0)
    for actions in drawn[:3]:
        last, ended, alone = (vector.step(actions) for vector in (waiting, at_once, never))
    first = waiting.step(drawn[3])
    for name, values in last[0].items():
        np.testing.assert_array_equal(np.stack([row[name] for row in ended[4]["final_obs"]]), values)
        np.testing.assert_array_equal(alone[0][name], values)
        np.testing.assert_array_equal(ended[0][name], first[0][name])
    np.testing.assert_array_equal(ended[4]["final_info"]["num_tokens"], last[4]["num_tokens"])
    assert ended[3].all() and ended[4]["_final_obs"].all() and not first[3].any()
    with pytest.raises(RuntimeError, match="after the end of the episode; call reset"):
        never.step(drawn[3])
    with pytest.raises(ValueError, match="reset_mask must be true for all texts, which end together"):
        never.reset(options={"reset_mask": np.array([True, False])})
    again, _ = never.reset(options={"reset_mask": np.array([True, True])})
    np.testing.assert_array_equal(again["bytes"], first[0]["bytes"])


def test_stable_baselines_reads_tasks():
    """Every step is that of gymnasium's vector environment; the end of a text has its last observation and return."""
    name = "rltok_rl/Delay-1-v1"
    ours, theirs = SB3VecEnv(3, env_id=name, num_steps=4), gymnasium.make_vec(name, num_envs=3, num_steps=4)
    ours.seed(5)
    seen, (expected, _) = ours.reset(), theirs.reset(seed=5)
    assert all((seen[key] == expected[key]).all() for key in expected)
    returns = np.zeros(3)
    for actions in np.random.default_rng(0).integers(0, 2, (4, 3)):
        _, rewards, over, infos = ours.step(actions)
        expected, expected_rewards, _, truncated, info = theirs.step(actions)
        returns += expected_rewards
        np.testing.assert_allclose(rewards, expected_rewards, rtol=1e-6)
        assert (over == truncated).all() and [row["byte"] for row in infos] == info["byte"].tolist()
    assert over.all()
    for row, told in enumerate(infos):
        assert told["episode"]["r"] == pytest.approx(returns[row]) and told["TimeLimit.truncated"]
        assert (told["terminal_observation"]["bytes"] == expected["bytes"][row]).all()
    agent = PPO("MultiInputPolicy", ours, n_steps=8, batch_size=24, seed=0).learn(24)
    assert [episode["l"] for episode in agent.ep_info_buffer] == [4] * 6


def test_defaults_are_those_of_the_task_and_grade():
    for default in (TaskGym("delay"), TaskVectorEnv()):
        assert (default.world.price, default.world.num_steps) == (0.25, 128) and TASKS["delay"].num_steps[0] == 128
    worlds = [TaskVectorEnv(2, grade=2, **task) for task in ({}, {"task": "delay"}, {"task": "noise"})]
    _, drawn = zip(*[(vector.reset(seed=3), vector.world.byte_ids) for vector in worlds], strict=True)
    assert [torch.equal(rows, drawn[0]) for rows in drawn] == [True, True, False]
    longer = {(task, grade): TaskGym(task, grade).world.num_steps for task in TASKS for grade in (1, 4)}
    assert longer == {key: TASKS[key[0]].num_steps[key[1] - 1] for key in longer} and len({*longer.values()}) > 1
    assert TaskVectorEnv(2, num_steps=5, price=0.0).observation_space["position"].high.tolist() == [[5], [5]]
    dear = TaskVectorEnv(2, price=200)  # a whole number, beyond those of 8 bits
    dear.reset(seed=0)
    assert (dear.step(np.array([0, 1]))[1] < [1.0, -199.0]).all()
    assert TaskGym("delay", 3).language.entropy_rate != TaskGym("delay", 1).language.entropy_rate


def test_switch_has_its_first_language_and_mistakes_are_named():
    first = gymnasium.make("rltok_rl/Switch-2-v1", before=True).unwrapped
    assert (ord("$") in first.language.alphabet) and ord("$") not in TaskGym("switch", 2).language.alphabet
    vector = TaskVectorEnv(2, num_steps=4)
    vector.reset(seed=0)
    env = TaskGym("delay", num_steps=4)
    env.reset(seed=0)
    refused(
        (lambda: TaskGym("recall"), ValueError, "task must be one of"),
        (lambda: TaskGym("delay", 5), ValueError, r"grade must be one of \[1, 2, 3, 4\], got 5"),
        *(
            (lambda p=p: TaskGym("delay", price=p), ValueError, f"price must be at least 0 and finite, got {p}")
            for p in (-1, float("inf"), float("nan"))
        ),
        (lambda: TaskGym("delay", num_steps=0), ValueError, "num_steps must be"),
        (lambda: TaskGym("delay", before=True), TypeError, "before"),
        (lambda: TaskGym("delay", render_mode="ansi"), ValueError, "render_mode must be None, got 'ansi'"),
        (lambda: TaskVectorEnv(2, render_mode="ansi"), ValueError, "render_mode must be None, got 'ansi'"),
        (lambda: TaskVectorEnv(2, autoreset_mode="Never"), ValueError, "autoreset_mode must be one of .* got 'Never'"),
        (lambda: TaskVectorEnv(0), ValueError, "num_envs must be an integer of at least 1, got 0"),
        *(
            (lambda a=actions: vector.step(np.array(a)), ValueError, r"actions must be 0 or 1, of shape \[2\]")
            for actions in ([0, 2], [-1, 0], [0, 0, 1], [[0], [1]], 1)
        ),
        (lambda: env.step(2), ValueError, r"actions must be 0 or 1, of shape \[1\]"),
        (lambda: [env.step(0) for _ in range(5)], RuntimeError, "step was called after the end of the episode"),
        (lambda: env.reset(options={"text": "abc"}), ValueError, r"options may hold \[\], got \['text'\]"),
        (lambda: TaskGym("delay").step(0), RuntimeError, "step was called before reset"),
    )

"""gymnasium, its wrappers, Stable-Baselines3 and TorchRL find the environment and get the same episodes from it."""

from __future__ import annotations

import math
import subprocess
import sys
import types
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from rltok_rl.envs import ByteBoundaryGym, ByteBoundaryVectorEnv, gym_env, registration
from rltok_rl.envs.gym_options import build_env
from rltok_rl.envs.registration import ENVIRONMENTS
from torchrl.envs import GymEnv, GymWrapper
from torchrl.envs.utils import check_env_specs

import rltok_rl  # registers the ids
from rltok_rl.models import UNet, preset

from ..each import each, refused

ID = "rltok_rl/ByteBoundary-v0"
ENTROPY = {"observe_entropy": True, "reward": "entropy_relative"}
DOCUMENTS = ["a text that is long enough for a window", "another text, as long as it has to be"]


def episode(env, seed: int, actions) -> list:
    return [env.reset(seed=seed), *(env.step(int(action)) for action in actions)]


def test_checkers_pass_without_a_warning():
    from stable_baselines3.common.env_checker import check_env as check_sb3

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, options in [*((name, {}) for name in ENVIRONMENTS), (ID, ENTROPY)]:
            check_env(gymnasium.make(gymnasium.spec(name), num_steps=16, **options).unwrapped)
        check_sb3(gymnasium.make(gymnasium.spec(ID), num_steps=16).unwrapped)


def run_python(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code, *ENVIRONMENTS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_imports_are_lazy_and_ids_registered():
    """``import rltok_rl`` loads neither torch nor gymnasium, and models load no torchrl."""
    lines = run_python(
        "import multiprocessing, importlib.resources, sys, rltok_rl; rltok_rl.envs\n"
        "loaded = lambda *names: print(*(name in sys.modules for name in names))\n"
        "loaded('torch', 'gymnasium'); import gymnasium\n"
        "print(all(name in gymnasium.registry for name in sys.argv[1:])); loaded('torch')\n"
        "print(importlib.resources.files('gymnasium').is_dir(), rltok_rl.UNet.__name__); import rltok_rl.models\n"
        "loaded('torch', 'torchrl', 'matplotlib'); print(multiprocessing.get_start_method(allow_none=True))"
    )
    assert lines == ["False", "False", "True", "False", "True", "UNet", "True", "False", "False", "None"]


def test_ids_are_registered_once_and_not_before_gymnasium_is_there(monkeypatch):
    """What a program has registered itself stays."""
    specs = {name: gymnasium.spec(name) for name in ENVIRONMENTS}
    others = [finder for finder in sys.meta_path if finder is not registration._AfterGymnasium]
    monkeypatch.setattr(sys, "meta_path", [*others])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        registration.register_on_import()
        assert all(gymnasium.spec(name) is spec for name, spec in specs.items())
        monkeypatch.setitem(sys.modules, "gymnasium", types.ModuleType("gymnasium"))  # its import has just begun
        registration.register_on_import()
        assert sys.meta_path == others
        monkeypatch.delitem(sys.modules, "gymnasium")
        for _ in range(2):
            registration.register_on_import()
        assert sys.meta_path == [registration._AfterGymnasium, *others]


def test_module_form_of_an_id_needs_no_import():
    *counts, start_method = run_python(
        "import gymnasium, sys\nfor name in sys.argv[1:]:\n"
        "    print(gymnasium.make(f'rltok_rl:{name}', num_steps=8).reset(seed=0)[1]['num_tokens'])\n"
        "import multiprocessing; print(multiprocessing.get_start_method(allow_none=True))"
    )
    assert ID in ENVIRONMENTS and counts == ["0"] * len(ENVIRONMENTS)
    assert start_method == "None"  # that torchrl selects is undone


SCRIPT = """
import multiprocessing, gymnasium
print("script", flush=True)
gymnasium.make("rltok_rl:rltok_rl/ByteBoundary-v0", num_steps=8).reset(seed=0)
import rltok_rl.objectives, torch
assert torch.multiprocessing.get_start_method(allow_none=True) is None
worker = multiprocessing.Process(target=print, args=("worker",))
worker.start(), worker.join()
print(worker.exitcode)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems start processes by running the script again")
def test_a_script_without_a_main_guard_runs_once(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "-W", "ignore", tmp_path / "script.py"], capture_output=True, text=True)
    assert done.stdout.split() == ["script", "worker", "0"], done.stderr


def test_dir_lists_public_names_only():
    assert dir(rltok_rl) == sorted(rltok_rl.__all__)
    assert all(getattr(rltok_rl, name) is not None for name in rltok_rl.__all__)
    with pytest.raises(AttributeError, match="module 'rltok_rl' has no attribute 'nosuch'"):
        _ = rltok_rl.nosuch


def test_same_seed_gives_bit_equal_episodes():
    actions = np.random.default_rng(0).integers(0, 2, 30)
    first, second, other = (episode(gymnasium.make(ID, num_steps=30), seed, actions) for seed in (0, 0, 4))
    np.testing.assert_equal(first, second)
    with pytest.raises(AssertionError):
        np.testing.assert_equal(first, other)


def test_gymnasium_path_equals_torchrl_path():
    actions = np.random.default_rng(1).integers(0, 2, 12)
    gym = episode(gymnasium.make(ID, text=DOCUMENTS, num_steps=12), 5, actions)
    env = build_env("tiny", DOCUMENTS, (), num_steps=12)
    env.set_seed(5)
    after = td = env.reset()
    for number, (observation, *result) in enumerate(gym):
        for name in ("byte", "recent", "position", "encoder_state"):
            np.testing.assert_array_equal(observation[name], td[name].numpy())
        if number:
            assert result[:3] == [after["reward"].item(), after["terminated"].item(), after["truncated"].item()]
        if number < 12:
            after = env.step(td.set("action", env.action_spec.encode(int(actions[number]))))["next"]
            td = after.exclude("reward")


def test_batched_steps_equal_torchrl_steps():
    """The vector environment calls the core of step and reset without TorchRL around it."""
    actions = np.random.default_rng(1).integers(0, 2, (30, 3))
    options = {"num_steps": 12, "short_documents": "whole", **ENTROPY}
    vector = ByteBoundaryVectorEnv(3, text=[*DOCUMENTS, "short"], autoreset_mode="SameStep", **options)
    env = build_env("tiny", [*DOCUMENTS, "short"], (3,), **options)
    env.set_seed(5)
    observation, td, ends = vector.reset(seed=5)[0], env.reset(), set()
    for action in actions:
        for name, values in observation.items():
            np.testing.assert_array_equal(values, td[name].numpy())
        observation, reward, terminated, truncated, _ = vector.step(action)
        after, td = env.step_and_maybe_reset(td.set("action", torch.as_tensor(action)))
        ends |= {(terminated.any(), truncated.any())}
        for name, values in {"reward": reward, "terminated": terminated, "truncated": truncated}.items():
            np.testing.assert_array_equal(values, after["next", name].flatten().numpy())
    assert {(False, False), (True, False), (False, True)} <= ends


def test_bits_and_tokens_are_counted():
    env = gymnasium.make(ID, num_steps=8).unwrapped
    env.reset(options={"text": "to be or not"})
    rewards, infos = zip(*[(r, i) for _, r, _, _, i in (env.step(1) for _ in range(8))], strict=True)
    assert infos[-1]["num_tokens"] == 8
    assert 7.0 < infos[-1]["bits"] / 8 < 9.0  # an untrained model pays about eight bits a byte
    difference = (infos[-1]["early_bits"] - infos[-1]["bits"]) * np.log(2)
    assert sum(rewards) == pytest.approx(difference, abs=1e-4)
    env.reset(seed=0)
    assert env.step(0)[4]["num_tokens"] == 1  # the first byte always has a boundary


# Other libraries


def test_torchrl_loads_it_back():
    for name in ENVIRONMENTS:
        env = GymEnv(name, num_steps=8, categorical_action_encoding=True)
        check_env_specs(env)
        assert env.rollout(8)["next", "truncated"][-1].item()
    batched = ByteBoundaryVectorEnv(3, num_steps=8, autoreset_mode="Disabled")
    vector = GymWrapper(batched, categorical_action_encoding=True)
    assert vector.rollout(12, break_when_any_done=False).shape == (3, 12)


def test_rendering():
    env = gymnasium.make(ID, render_mode="ansi", num_steps=8)
    env.reset(options={"text": "to be or not"})
    for action in (0, 0, 1, 0):
        env.step(action)
    assert env.render() == "t|o |be"

    def picture(action: int, steps: int) -> np.ndarray:
        env = gymnasium.make(ID, num_steps=70, render_mode="rgb_array").unwrapped
        with pytest.raises(RuntimeError, match="render was called before reset"):
            env.render()
        env.reset(options={"text": "ünï\n" * 40})
        for _ in range(steps):
            env.step(action)
        image = env.render()
        assert np.array_equal(image, env.render())
        return image

    without, every, early = picture(0, 6), picture(1, 6), picture(1, 1)
    assert every.dtype == np.uint8 and every.ndim == 3 and every.shape[2] == 3 and every.std() > 10
    assert (without != every).any() and without.shape == every.shape == early.shape
    with pytest.raises(ValueError, match="render_mode must be one of"):
        ByteBoundaryGym(render_mode="human")
    plain = ByteBoundaryGym(num_steps=4)
    plain.reset(seed=0)
    with pytest.warns(UserWarning, match="render was called without a render_mode"):
        assert plain.render() is None


def test_spaces_have_the_ranges_of_the_docstring():
    model = UNet(preset("tiny", begin_of_text=True, num_special=2, rate_embedding=True))
    spaces = ByteBoundaryGym(model, num_steps=8, observe_entropy=True).observation_space
    bounds = {name: (space.low.min(), space.high.max()) for name, space in spaces.items() if hasattr(space, "high")}
    assert {name: bound[0] for name, bound in bounds.items() if bound[0]} == {"encoder_state": -1e6}
    most = {"position": 8, "target_rate": 1.0, "early_entropy": math.log(256), "encoder_state": 1e6}
    assert {name: bound[1] for name, bound in bounds.items()} == pytest.approx(most, abs=2e-3)
    assert spaces["byte"].n == 258 and spaces["recent"].n == model.config.num_lags
    memoryless = [kind(overrides={"num_lags": 0}, num_steps=3) for kind in (ByteBoundaryGym, ByteBoundaryVectorEnv)]
    assert all("recent" not in env.observation_space for env in memoryless)
    assert all(env.reset(seed=0)[0] in env.observation_space for env in memoryless)
    assert ByteBoundaryGym().env.num_steps == ByteBoundaryVectorEnv().env.num_steps == 256
    assert ByteBoundaryVectorEnv().num_envs == 1


@each(marks=[0, 1])
def test_a_picture_has_the_reward_before_each_byte_and_a_title(marks, monkeypatch):
    drawn: list[tuple] = []
    monkeypatch.setattr(gym_env, "boundary_picture", lambda *args, **options: drawn.append((*args, options)))
    model = UNet(preset("tiny", begin_of_text=bool(marks), num_special=marks)).eval()
    env = ByteBoundaryGym(model, num_steps=8, render_mode="rgb_array")
    env.reset(options={"text": "before"})
    env.step(1)
    env.reset(options={"text": "to be or not"})
    env.render()
    assert drawn[-1][2]["title"] == "no byte has been predicted yet"
    results = [env.step(action) for action in (0, 0, 1, 1, 0)]
    env.render()
    text, boundaries, options = drawn[-1]
    assert text == b"to be or not"[: 6 - marks]
    assert boundaries == [True, False, True, True, False, False][marks:]
    rewards = [math.nan, *(step[1] for step in results)]
    assert options["rewards"] == pytest.approx(rewards[marks:], nan_ok=True)
    assert options["least_characters"] == 9 - marks
    info = results[-1][4]
    assert info["num_tokens"] == 3
    assert options["title"] == (
        f"3 tokens in 5 bytes, return {sum(rewards[1:]):.2f}, {info['bits'] / 5:.2f} bits per byte "
        f"(early exit {info['early_bits'] / 5:.2f})"
    )


def test_rates_are_observed_and_information_is_of_the_byte():
    """Also at the end of an episode, and of many texts."""
    model = UNet(preset("tiny", rate_embedding=True)).eval()
    documents = ["short", "brief", "small", DOCUMENTS[0]]
    options = {"model": model, "text": documents, "short_documents": "whole", "num_steps": 9}
    options |= {"target_rates": (0.05, 0.6), "observe_entropy": True}
    check_env(gymnasium.make(gymnasium.spec(ID), **options).unwrapped, skip_render_check=True)
    vector = ByteBoundaryVectorEnv(3, autoreset_mode="SameStep", **options)
    observation, info = vector.reset(seed=0)
    rates, restarts = {tuple(observation["target_rate"].flatten())}, 0
    for action in np.random.default_rng(0).integers(0, 2, (25, 3)):
        assert observation in vector.observation_space
        np.testing.assert_array_equal(info["byte"], observation["byte"])
        observation, _, terminated, truncated, info = vector.step(action)
        for row in (terminated | truncated).nonzero()[0]:
            last = info["final_obs"][row]
            assert last["byte"] == info["final_info"]["byte"][row] and last["position"] in (4, 9)
            assert last["position"] == 9 or (terminated[row] and bytes([last["byte"]]) in b"tfl")
        rates.add(tuple(observation["target_rate"].flatten()))
        restarts += bool((terminated | truncated).any())
    assert len(rates) == 1 + restarts > 3


def test_stable_baselines_learns():
    """Boundaries that cost more nats than they can gain become rarer."""
    from rltok_rl.envs import SB3VecEnv
    from stable_baselines3 import PPO

    env = SB3VecEnv(8, num_steps=32, price=8.0)
    agent = PPO("MultiInputPolicy", env, n_steps=64, batch_size=128, n_epochs=4, learning_rate=3e-3, seed=0)

    def probability() -> float:
        seen, _ = agent.policy.obs_to_tensor(agent.get_env().reset())
        return float(agent.policy.get_distribution(seen).distribution.probs[:, 1].mean().detach())

    before = probability()
    agent.learn(2048)
    assert agent.num_timesteps >= 2048
    episodes = list(agent.ep_info_buffer)  # of which PPO logs rollout/ep_rew_mean and rollout/ep_len_mean
    assert [episode["l"] for episode in episodes] == [32] * (2048 // 32)
    assert np.mean([episode["r"] for episode in episodes[-8:]]) > np.mean([episode["r"] for episode in episodes[:8]])
    assert before > 0.4 and probability() < 0.75 * before


def test_sb3_adapter_reports_episodes_as_vec_monitor_does():
    from rltok_rl.envs import SB3VecEnv
    from stable_baselines3.common.vec_env import VecMonitor

    options = {"text": [*DOCUMENTS, "short"], "short_documents": "whole", "num_steps": 9}
    ours = SB3VecEnv(3, **options)
    with pytest.warns(UserWarning, match="already wrapped with a `Monitor`"):  # as of any environment that reports
        theirs = VecMonitor(SB3VecEnv(3, **options))
    lengths = set()
    for _ in range(2):  # a reset forgets unfinished episodes
        ours.seed(0), theirs.venv.seed(0), ours.reset(), theirs.reset()
        for action in np.random.default_rng(0).integers(0, 2, (25, 3)):
            episodes = [[info.get("episode") for info in env.step(action)[3]] for env in (ours, theirs)]
            for one, other in zip(*episodes, strict=True):
                assert (one is None) == (other is None)
                if one is not None:
                    assert one["r"] == pytest.approx(other["r"], abs=1e-5) and one["l"] == other["l"]
                    assert 0 <= one["t"] < 600 and type(one["r"]) is float
                    lengths.add(one["l"])
    assert lengths == {4, 9}


def test_sb3_adapter_counts_as_monitored():
    """Stable-Baselines3's own evaluation reads ``episode``, without a warning of a missing monitor."""
    from rltok_rl.envs import SB3VecEnv
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor

    env = SB3VecEnv(2, num_steps=4)
    assert env.env_is_wrapped(Monitor) == [True, True] and env.env_is_wrapped(Monitor, 0) == [True]
    assert env.env_is_wrapped(gymnasium.Wrapper) == [False, False]  # of which Monitor is one
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent = PPO("MultiInputPolicy", env, n_steps=4, batch_size=8, seed=0)
        lengths = evaluate_policy(agent, env, 2, return_episode_rewards=True)[1]
    assert lengths == [4, 4]


def test_sb3_adapter_hands_over_the_end_of_an_episode():
    from rltok_rl.envs import SB3VecEnv

    env = SB3VecEnv(2, num_steps=3)
    env.seed(0)
    env.reset()
    for _ in range(3):
        observation, reward, done, infos = env.step(np.array([1, 0]))
    assert done.all() and reward.dtype == np.float32
    assert [info["TimeLimit.truncated"] for info in infos] == [True, True]
    assert [info["terminal_observation"]["position"].item() for info in infos] == [3, 3]
    assert [info["num_tokens"] for info in infos] == [3, 1]
    assert observation["position"].flatten().tolist() == [0, 0]
    env.seed(0)
    first = env.reset()["encoder_state"]
    env.seed(1)
    other = env.reset()["encoder_state"]
    env.seed(0)
    np.testing.assert_array_equal(env.reset()["encoder_state"], first)
    assert (first != other).any()
    env.set_options([{"text": "ab"}, {"text": "bcdefgh"}])
    assert env.reset()["byte"].tolist() == [ord("a"), ord("b")]
    done, infos = env.step(np.array([1, 0]))[2:]
    assert done.tolist() == [True, False] and not infos[0]["TimeLimit.truncated"]  # its document ended
    env.seed(4)  # rows have seeds 4 and 5, of which the first counts, as of the batched environment
    seeded = env.reset()["encoder_state"]
    np.testing.assert_array_equal(seeded, ByteBoundaryVectorEnv(2, num_steps=3).reset(seed=4)[0]["encoder_state"])
    begun = [env.reset() for _ in range(3)]  # options and seeds are of one reset
    assert len({texts["encoder_state"].tobytes() for texts in begun}) == 3
    env.set_options([{"text": "ab"}, {}])
    refused((env.reset, ValueError, "options must give a text to every row or to none, got none in row 1"))
    env.set_attr("nothing", 5)
    assert env.vector.nothing == 5 and env.get_attr("nothing", 0) == [5] == env.get_attr("nothing", [1])
    restart = env.env_method("_restart", np.array([True, False]), indices=[1], text="xy")
    assert len(restart) == 1 and bytes(restart[0]["byte"].tolist()) == b"x" + bytes([int(restart[0]["byte"][1])])
    assert env.get_attr("num_envs") == [2, 2] and env.env_is_wrapped(object) == [False, False]
    assert env.env_is_wrapped("Monitor") == [False, False]


def test_refusals():
    env = gymnasium.make(ID, num_steps=8).unwrapped
    env.reset(seed=0)
    vector = ByteBoundaryVectorEnv(3, num_steps=8)
    mask = {"reset_mask": [True, False, False]}
    refused(
        (lambda: env.step(2), ValueError, r"action must be 0 \(no boundary\) or 1 \(boundary\), got 2"),
        (lambda: env.step(np.array([1])), ValueError, "action must be 0 .* got array"),
        (lambda: env.reset(options={"txt": "a"}), ValueError, r"options may hold \['text'\], got \['txt'\]"),
        (lambda: env.reset(options={"text": "a"}), ValueError, "text must have at least 2 bytes .* got 1 in row 0"),
        (lambda: [env.step(0) for _ in range(9)], RuntimeError, "step was called after the end of the episode"),
        (lambda: vector.reset(options=mask), RuntimeError, "reset was asked for some rows before any was reset"),
        (lambda: vector.step(np.zeros(3, dtype=int)), RuntimeError, "step was called before reset"),
    )
    vector.reset(seed=np.int64(3))
    assert vector.np_random_seed == 3
    shape, seeds = (
        r"actions must be 0 or 1, of shape \[3\]",
        "seed must be one integer, got .*: all texts come from one",
    )
    modes = r"must be one of \['NextStep', 'SameStep', 'Disabled'\], got 'Next'"
    refused(
        (lambda: vector.step(np.zeros(2, dtype=int)), ValueError, shape),
        (lambda: vector.step(np.array([0, 1, 2])), ValueError, shape),
        (lambda: vector.reset(options={"reset_mask": [True]}), ValueError, r"mask must have shape \[3\], got \[1\]"),
        *((lambda seed=seed: vector.reset(seed=seed), TypeError, seeds) for seed in ([1, 2, 3], np.array([1, 2]), "1")),
        (lambda: ByteBoundaryVectorEnv(3, autoreset_mode="Next"), ValueError, modes),
        (lambda: ByteBoundaryVectorEnv(0), ValueError, "num_envs must be an integer of at least 1, got 0"),
        (lambda: ByteBoundaryVectorEnv(2, render_mode="ansi"), ValueError, "render_mode must be None .* got 'ansi'"),
    )

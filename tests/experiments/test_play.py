"""The command play: its output is that of ``evaluate_policy``, and mistakes are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rltok_rl.experiments.commands import play

from rltok_rl.evaluation import evaluate_policy

from .conftest import save_ruled

RECALL = {"env_id": "rltok_rl/Recall-v0", "num_steps": 8}


def after_spaces(observation) -> np.ndarray:
    return observation["byte"] == ord(" ")


def after_tokens(observation) -> int:
    return 1


def test_play_prints_the_evaluation(model, folder, file, output, metrics_of):
    ours = f"{__name__}:after_spaces"
    options = {"model": model, "text": Path(file), "short_documents": "whole", "num_steps": 9, "price": 0.1}
    result = evaluate_policy(after_spaces, 5, seed=3, **options)
    flags = ["--model", folder, "--steps", 9, "--price", 0.1, "--episodes", 5, "--seed", 3, "--policy", ours]
    assert output(play, *flags, "--text", file) == f"{result}\n\n{result.text()}\n"
    metrics = metrics_of(play, *flags, "--text", file, "--reference", "learned", "--greedy")
    result = evaluate_policy(after_spaces, 5, seed=3, reference="learned", deterministic=True, **options)
    assert metrics["policy_returns"] == result.policy.returns.tolist() and metrics["texts"] == 5
    assert metrics["returns"]["difference"] == [*result.summary["returns"]["difference"]]


def test_learned_is_the_segmenter_of_a_run(model, file, tmp_path, metrics_of):
    ruled = save_ruled(tmp_path / "ruled", model, "stride", stride=4)
    metrics = metrics_of(play, "--model", ruled, "--text", file, "--steps", 12, "--episodes", 2)
    assert metrics["rates"]["policy"] == [0.25, 0.0] and metrics["rates"]["reference"] == [0.25, 0.0]


@pytest.mark.parametrize("algorithm", ["PPO", "A2C", "DQN"])
def test_agents_of_stable_baselines_train_and_play(algorithm, tmp_path, metrics_of):
    sb3 = pytest.importorskip("stable_baselines3")
    from rltok_rl.envs import SB3VecEnv

    steps = {"learning_starts": 8, "train_freq": 2, "buffer_size": 64} if algorithm == "DQN" else {"n_steps": 8}
    steps |= {"batch_size": 16} if algorithm == "PPO" else {}
    agent = getattr(sb3, algorithm)("MultiInputPolicy", SB3VecEnv(2, **RECALL), seed=0, **steps)
    before = [weight.clone() for weight in agent.policy.parameters()]
    agent.learn(32)
    assert len(agent.ep_info_buffer) == 4 and all(episode["l"] == 8 for episode in agent.ep_info_buffer)
    changes = zip(before, agent.policy.parameters(), strict=True)
    assert any((old != new).any() for old, new in changes), "it was updated"
    agent.save(tmp_path / "agent.zip")
    common = ["--env", RECALL["env_id"], "--steps", 8, "--episodes", 3, "--greedy", "--reference", "never"]
    metrics = metrics_of(play, *common, "--policy", tmp_path / "agent.zip", "--trust-code")
    result = evaluate_policy(agent, 3, reference="never", deterministic=True, **RECALL)
    assert metrics["policy_returns"] == pytest.approx(result.policy.returns.tolist())


def test_mistakes_are_refused(folder, tmp_path, refused):
    (tmp_path / "agent.zip").write_bytes(b"nothing")
    agent, tests = ["--policy", tmp_path / "agent.zip"], __name__
    for arguments, message in (
        (["--policy", "unifrm"], "argument --policy: must be one of learned, random, uniform, never, always, module:f"),
        (["--reference", "unifrm"], "got 'unifrm'; did you mean 'uniform'?"),
        (["--reference", f"{tests}:nosuch"], "argument --reference must name something in the module"),
        (["--policy", "no_module:x"], "argument --policy must name a module that is installed"),
        (["--policy", f"{tests}:after_tokens"], "--policy must return 0 or 1, of shape [32], got 1"),
        (["--reference", f"{tests}:after_tokens"], "--reference must return 0 or 1, of shape [32], got 1"),
        (["--policy", "my_file.py"], "module:function or the file of an agent, got 'my_file.py'; a policy in this f"),
        (agent, "unpickles this file, which executes code in it; pass --trust-code if you trust it"),
        ([*agent, "--trust-code"], "agent.zip cannot be read as an agent of Stable-Baselines3"),
        (["--policy", "nosuch.zip", "--trust-code"], "argument --policy: nosuch.zip cannot be read: No such file or"),
        (["--env", "Recall"], "argument --env: invalid choice: 'Recall'"),
        (
            ["--env", RECALL["env_id"], "--text", "x"],
            "argument --text: belongs to ByteBoundary, got rltok",
        ),
        (["--text", tmp_path / "none"], "none cannot be read: No such file or directory"),
        (["--episodes", 0], "argument --episodes: must be an integer of at least 1, got '0'"),
        (["--price", -1], "argument --price: must be a number of at least 0, got '-1'"),
        (["--model", tmp_path / "no"], "argument --model"),
    ):
        shown = refused(play, "--model", folder, "--steps", 4, *arguments)
        assert message in shown and "zip.zip" not in shown and "batched" not in shown, shown

"""When texts that ended start anew: the modes of gymnasium's vector environments, and its wrappers on top."""

from __future__ import annotations

import sys
import types

import gymnasium
import gymnasium.wrappers as single
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import FlattenObservation, NormalizeObservation, NormalizeReward, RecordEpisodeStatistics
from rltok_rl.envs import ByteBoundaryVectorEnv

import rltok_rl  # noqa: F401 - registers the ids
from rltok_rl.models import preset

from ..each import each, refused
from ..forked import CONTEXT

ID = "rltok_rl/ByteBoundary-v0"
TEXTS = ["a text that is long enough for any window here", "bcdef", "xyz"]  # one is cut, two end


def deal_by_row(env: ByteBoundaryVectorEnv) -> None:
    """Give every row the document of its number whenever it begins."""
    source, restart = env.env.source, env._restart

    def again(rows: np.ndarray, **options):
        return restart(rows, **(options or {"text": [source.document(int(number)) for number in rows.nonzero()[0]]}))

    env._restart = again


def test_next_step_is_what_gymnasium_does_with_single_environments():
    """Rows that end at different steps, against ``SyncVectorEnv`` over single environments with the same texts."""
    actions = np.random.default_rng(0).integers(0, 2, (16, 3))
    makers = [lambda text=text: gymnasium.make(ID, text=text, short_documents="whole", num_steps=6) for text in TEXTS]
    theirs = gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)
    ours = gymnasium.make_vec(ID, num_envs=3, text=TEXTS, short_documents="whole", num_steps=6)
    assert ours.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    deal_by_row(ours.unwrapped)
    np.testing.assert_array_equal(ours.reset(seed=0)[0]["byte"], [ord(text[0]) for text in TEXTS])
    theirs.reset(seed=0)
    waited, place = set(), np.zeros(3, dtype=int)
    for action in actions:
        one, other = ours.step(action), theirs.step(action)
        for row in (1, 2):  # texts shorter than a window begin where they begin
            for name in ("byte", "recent", "position"):
                np.testing.assert_array_equal(one[0][name][row], other[0][name][row])
            np.testing.assert_allclose(one[0]["encoder_state"][row], other[0]["encoder_state"][row], atol=1e-5)
            assert one[1][row] == pytest.approx(other[1][row], abs=1e-4)
            assert one[4]["num_tokens"][row] == other[4]["num_tokens"][row]
            assert one[4]["bits"][row] == pytest.approx(other[4]["bits"][row], abs=1e-3)
            assert (one[2][row], one[3][row]) == (other[2][row], other[3][row])
        # The long text is cut at another place there, but after as many steps.
        np.testing.assert_array_equal(one[2] | one[3], other[2] | other[3])
        restarted = (one[0]["position"][:, 0] == 0) & (place > 0)
        assert (one[1][restarted] == 0).all() and not (one[2] | one[3])[restarted].any()
        waited.add(tuple(restarted.tolist()))
        place = one[0]["position"][:, 0]
    assert len(waited) > 3, "rows waited one by one, and several together"


def test_wrappers_work_with_next_step():
    env = RecordEpisodeStatistics(gymnasium.make_vec(ID, num_envs=4, num_steps=5, price=0.1))
    env.reset(seed=0)
    rewards = np.zeros(4)
    for step in range(12):
        _, reward, terminated, truncated, info = env.step(np.ones(4, dtype=int))
        if step == 5:
            assert (reward == 0).all() and not truncated.any() and (info["num_tokens"] == 0).all()
        rewards += reward if step < 5 else 0
        assert truncated.tolist() == [step % 6 == 4] * 4 and not terminated.any()
    assert env.episode_count == 8 and list(env.length_queue) == [5] * 8
    np.testing.assert_allclose(list(env.return_queue)[:4], rewards, rtol=1e-5)
    env = NormalizeObservation(FlattenObservation(NormalizeReward(gymnasium.make_vec(ID, num_envs=2, num_steps=4))))
    env.reset(seed=0)
    assert all(np.isfinite(env.step(np.zeros(2, dtype=int))[0]).all() for _ in range(6))


def test_wrappers_work_on_one_environment(monkeypatch, tmp_path):
    videos = []

    class Clip:  # in place of moviepy, which only encodes the frames that the wrapper recorded
        def __init__(self, frames, fps):
            videos.append((np.stack(frames).shape, fps))

        def write_videofile(self, path, logger=None):
            assert path.startswith(str(tmp_path))

    for name in ("moviepy", "moviepy.video", "moviepy.video.io", "moviepy.video.io.ImageSequenceClip"):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(ImageSequenceClip=Clip))
    env = gymnasium.make(ID, num_steps=5, price=0.1, render_mode="rgb_array")
    env = single.RecordVideo(env, str(tmp_path / "videos"), episode_trigger=lambda episode: True)
    env = single.NormalizeReward(single.RecordEpisodeStatistics(single.FlattenObservation(env)))
    returns = []
    for _ in range(2):
        observation, over = env.reset(seed=0)[0], False
        while not over:
            assert env.observation_space.contains(observation)
            observation, reward, terminated, over, info = env.step(1)
            assert np.isfinite(reward) and not terminated
        returns.append(info["episode"]["r"])
        assert info["episode"]["l"] == 5 and info["num_tokens"] == 5
    env.close()
    plain = gymnasium.make(ID, num_steps=5, price=0.1)
    plain.reset(seed=0)
    np.testing.assert_allclose(returns, sum(plain.step(1)[1] for _ in range(5)), rtol=1e-5)
    assert [(shape[0], fps) for shape, fps in videos] == [(6, 4), (6, 4)] and videos[0][0][3] == 3


def test_processes_step_as_single_environments_do():
    makers = [lambda: gymnasium.make(ID, num_steps=3)] * 2
    both = [AsyncVectorEnv(makers, context=CONTEXT.get_start_method()), SyncVectorEnv(makers)]
    try:
        first, second = (env.reset(seed=[0, 1])[0] for env in both)
        for action in np.random.default_rng(0).integers(0, 2, (5, 2)):  # past the ends of texts
            np.testing.assert_equal(first, second)
            (first, *results), (second, *others) = (env.step(action) for env in both)
            np.testing.assert_equal(results[:3], others[:3])
    finally:
        both[0].close()


def test_same_seed_reads_the_same_texts_in_all_modes():
    """Texts end together here, so all modes draw the same texts, only at different times."""
    begun = []
    for mode in AutoresetMode:
        env = ByteBoundaryVectorEnv(3, num_steps=4, autoreset_mode=mode)
        env.reset(seed=1)
        for _ in range(5 if mode == AutoresetMode.NEXT_STEP else 4):
            observation, _, terminated, truncated, _ = env.step(np.array([0, 1, 1]))
        if mode == AutoresetMode.DISABLED:
            observation, _ = env.reset(options={"reset_mask": terminated | truncated})
        assert observation["position"].flatten().tolist() == [0, 0, 0]
        begun.append(observation["encoder_state"])
    for other in begun[1:]:
        np.testing.assert_array_equal(begun[0], other)


@each(options=[{}, {"model": preset("tiny", rate_embedding=True), "target_rates": (0.1, 0.3)}])
def test_a_row_that_waits_takes_no_text_and_no_rate_from_the_others(options):
    """The first text that is drawn after an end is the same in all modes, and only the row that ended reads it."""
    begun = []
    for mode in AutoresetMode:
        env = ByteBoundaryVectorEnv(2, num_steps=4, autoreset_mode=mode, **options)
        env.reset(seed=1, options={"text": ["ab", "abcdefgh"]})
        observation, _, terminated, _, _ = env.step(np.array([1, 1]))
        assert terminated.tolist() == [True, False]
        if mode == AutoresetMode.NEXT_STEP:
            observation = env.step(np.array([1, 1]))[0]
        elif mode == AutoresetMode.DISABLED:
            observation, _ = env.reset(options={"reset_mask": terminated})
        begun.append({name: observation[name][0] for name in ("encoder_state", "target_rate") if name in observation})
        env = ByteBoundaryVectorEnv(2, num_steps=4, autoreset_mode=mode, **options)
        assert (
            env.metadata["autoreset_mode"] == mode == ByteBoundaryVectorEnv(1, autoreset_mode=mode.value).autoreset_mode
        )
        env.reset(seed=1)
        observation, info = env.reset(options={"reset_mask": [False, True], "text": "xyz"})
        assert observation["byte"][1] == info["byte"][1] == ord("x") and observation["position"].tolist() == [[0], [0]]
    for other in begun[1:]:
        for name, values in begun[0].items():
            np.testing.assert_allclose(other[name], values, atol=1e-5)


def test_same_step_returns_final_observations():
    env = ByteBoundaryVectorEnv(2, num_steps=2, autoreset_mode=AutoresetMode.SAME_STEP)
    env.reset(seed=0, options={"text": ["ab", "abcdef"]})
    observation, _, terminated, truncated, info = env.step(np.array([1, 1]))
    assert terminated.tolist() == [True, False] and not truncated.any()
    assert info["final_obs"][0]["position"].item() == 1 and info["final_obs"][1] is None
    assert info["_final_obs"].tolist() == [True, False]
    assert observation["position"].flatten().tolist() == [0, 1]
    observation, _, _, truncated, info = env.step(np.array([0, 0]))
    assert truncated.tolist() == [False, True] and observation["position"].flatten().tolist() == [1, 0]
    assert info["final_info"]["num_tokens"].tolist() == [1, 1] and info["num_tokens"].tolist() == [1, 0]
    assert info["_final_info"].tolist() == [False, True] and info["final_obs"][0] is None
    env.step(np.array([1, 1]))
    assert info["num_tokens"].tolist() == [1, 0], "what was handed out does not change"
    assert ByteBoundaryVectorEnv.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP


def test_rows_are_reset_by_hand():
    mask = {"reset_mask": np.array([True, False])}
    env = ByteBoundaryVectorEnv(2, num_steps=3)
    env.reset(seed=0)
    env.step(np.array([1, 0]))
    observation, info = env.reset(options=mask)
    assert observation["position"].flatten().tolist() == [0, 1] and info["num_tokens"].tolist() == [0, 1]
    assert env.reset(options={"reset_mask": [0, 0]})[0]["position"].flatten().tolist() == [0, 1]
    assert env.reset(options={"reset_mask": [1, 0]})[1]["num_tokens"].tolist() == [0, 1]
    assert env.step(np.array([0, 0]))[4]["num_tokens"].tolist() == [1, 1]  # row 1 has drawn its first boundary already
    for mode in ("NextStep", "Disabled"):  # a row that is reset by hand does not wait
        env = ByteBoundaryVectorEnv(2, num_steps=3, autoreset_mode=mode)
        env.reset(options={"text": ["ab", "abcdef"]})
        env.step(np.array([1, 1]))
        if mode == "Disabled":
            words = r"in rows \[0\]; .*reset_mask.*autoreset_mode='SameStep' or 'NextStep'"
            refused((lambda env=env: env.step(np.array([1, 1])), RuntimeError, words))
        env.reset(options=mask)
        observation, reward, *_ = env.step(np.array([1, 1]))
        assert observation["position"].flatten().tolist() == [1, 2] and (reward != 0).all()

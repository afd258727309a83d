"""The parallel rollout equals the stepped one, key for key."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from rltok_rl.agents import LearnedBoundaryActor, RandomActor, UniformActor, WhitespaceActor
from rltok_rl.envs import ByteBoundaryEnv, rollout_plan
from rltok_rl.envs.rollout_plan import plan_texts
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase, ExplorationType, RewardScaling, RewardSum, StepCounter, TransformedEnv
from torchrl.envs.utils import set_exploration_type

from rltok_rl.data import TextSource
from rltok_rl.fused import fused, missing
from rltok_rl.models import UNet, preset

from ..cuda_waits import cuda_waits
from ..each import each, refused
from .conftest import LONG, SHORT

ACTORS = {
    "learned": LearnedBoundaryActor,
    "random": lambda model: RandomActor(0.3),
    "whitespace": lambda model: WhitespaceActor(),
}
CASES = {
    "plain": {},
    "one text": {"batch_size": (1,)},
    "no batch": {"batch_size": ()},
    "one step": {"num_steps": 1},
    "documents end": {"short": True},
    "documents end, no batch": {"short": True, "batch_size": ()},
    "entropy": {"observe_entropy": True, "reward": "entropy_relative", "price": 0.3},
    "likelihood": {"reward": "log_likelihood", "short": True},
    "relative": {"reward": "relative", "price": 0.2, "short": True},
    "reference": {
        "reference": lambda byte_ids: byte_ids == ord(" "),
        "reward": lambda final, early, entropy: (final + entropy).tanh(),
        "batch_size": (),
    },
}
ONES = torch.ones(3, 5, dtype=torch.int64)


def assert_same_rollout(stepped: TensorDictBase, parallel: TensorDictBase) -> None:
    """Same keys, shapes, dtypes, names and values."""
    assert stepped.batch_size == parallel.batch_size
    assert stepped.names == parallel.names
    keys = set(stepped.keys(True, True))
    assert keys == set(parallel.keys(True, True))
    for key in sorted(keys, key=str):
        a, b = stepped[key], parallel[key]
        assert a.shape == b.shape and a.dtype == b.dtype, (key, a.shape, b.shape, a.dtype, b.dtype)
        exact = not a.dtype.is_floating_point
        torch.testing.assert_close(a, b, rtol=0, atol=0 if exact else 1e-4, msg=lambda m, k=key: f"{k}: {m}")


def assert_paths_agree(env: ByteBoundaryEnv, policy: Any, num_steps: int, *, stop: bool) -> TensorDictBase:
    """Draw texts and boundaries on both paths from equal seeds; returns the stepped rollout."""
    rollouts, next_numbers, texts = [], [], env.random_state()
    for roll in (EnvBase.rollout, lambda e, n, p, **o: e.parallel_rollout(p, max_steps=n, **o)):
        env.set_random_state(texts)
        torch.manual_seed(5)
        rollouts.append(roll(env, num_steps, policy, break_when_any_done=stop))
        next_numbers.append(torch.rand(()).item())
    assert_same_rollout(*rollouts)
    assert next_numbers[0] == next_numbers[1]  # as many random numbers were drawn
    return rollouts[0]


def step_through(env: ByteBoundaryEnv, actions: Tensor) -> TensorDictBase:
    """The stepped rollout of given decisions."""
    return EnvBase.rollout(env, actions.shape[-1], actions=list(actions.unbind(-1)), break_when_any_done=False)


@each(case=CASES)
@torch.no_grad()
def test_same_seed_same_rollout(case, make_env, model):
    """Pairwise: every case with every actor, stopping and restarting by turns; longer than an episode."""
    env = make_env(**CASES[case])
    for number, make_actor in enumerate(ACTORS.values()):
        stop = (number + len(case)) % 2 == 0
        stepped = assert_paths_agree(env, make_actor(model), env.num_steps + 13, stop=stop)
        if not stop:
            assert stepped.shape[-1] == env.num_steps + 13
            assert bool(stepped["next", "done"].any())
    actions = (torch.rand(*env.batch_size, env.num_steps + 7) < 0.4).long()
    env.set_seed(1)
    stepped = step_through(env, actions)
    env.set_seed(1)
    assert_same_rollout(stepped, env.parallel_rollout(actions=actions))


@torch.no_grad()
def test_scores_greedy_decisions_and_caps(make_env, model):
    env, actor = make_env(short=True), LearnedBoundaryActor(model)
    rolls = (lambda: EnvBase.rollout(env, 24, actor), lambda: env.parallel_rollout(actor))

    def roll(make) -> TensorDictBase:
        env.set_seed(1)
        torch.manual_seed(5)
        return make()

    drawn = roll(lambda: env.parallel_rollout(actor, max_steps=40))
    scored = roll(lambda: env.parallel_rollout(actor, actions=drawn["action"]))
    assert_same_rollout(drawn, scored)  # log-probabilities included
    env = make_env()
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        stepped, parallel = map(roll, rolls)
    assert_same_rollout(stepped, parallel)
    free = ~parallel["forced"]
    assert torch.equal(parallel["action"][free], (parallel["logits"] > 0).long()[free])
    model.train()
    assert all(roll(make)["logits"].abs().max() < 6.0 for make in rolls)  # training caps logits
    model.boundary_head.projection.weight.mul_(30)
    assert model.eval() is model and roll(rolls[1])["logits"].abs().max() > 6.0


@torch.no_grad()
def test_uniforms_and_generators_repeat(make_env, model):
    env, uniforms = make_env(), torch.rand(3, 24)

    def actions(**options) -> Tensor:
        env.set_seed(1)
        return env.parallel_rollout(**options)["action"]

    assert torch.equal(actions(uniforms=uniforms), actions(uniforms=uniforms))
    seeded = [actions(generator=torch.Generator().manual_seed(s)) for s in (0, 0, 1)]
    assert torch.equal(seeded[0], seeded[1]) and not torch.equal(seeded[0], seeded[2])
    torch.manual_seed(9)
    default = actions()
    torch.manual_seed(9)
    assert torch.equal(default, actions(actor=LearnedBoundaryActor(model)))
    for given in (default.bool(), default.int(), default.float()):
        again = actions(actions=given)
        assert again.dtype == torch.int64 and torch.equal(again, default)


@each(most=[1, 5, 24, 60], options=[{}, {"break_when_any_done": None}, {"break_when_any_done": True}])
@torch.no_grad()
def test_a_rollout_ends_with_its_first_episode_or_earlier(most, options, make_env, model):
    """As TorchRL's own does by default: SHORT has a text of two bytes, LONG is cut every 24."""
    policy = LearnedBoundaryActor(model)
    for short in (False, True):
        lengths = [
            roll(make_env(short=short), most).shape[-1]
            for roll in (
                lambda env, most: EnvBase.rollout(env, most, policy, break_when_any_done=True),
                lambda env, most: env.rollout(most, policy, **options),
                lambda env, most: env.parallel_rollout(policy, max_steps=most, break_when_any_done=True),
            )
        ]
        assert len(set(lengths)) == 1 and lengths[0] <= most, lengths


@each(short=[False, True], batch_size=[(), (3,)], stop=[False, True])
@torch.no_grad()
def test_given_texts_begin_the_rows_stepped_and_in_one_pass(short, batch_size, stop, make_env):
    """Read given texts of several lengths, one as long as a window, then texts of the source in rows that end early."""
    texts = ["a given text", LONG[3:], "xyz"][: max(1, len(batch_size) and batch_size[0])]
    env, actions = make_env(short=short, batch_size=batch_size), (torch.rand(*batch_size, 40) < 0.4).long()
    options = {"max_steps": 37, "break_when_any_done": stop, "text": texts}
    env.set_seed(1)
    parallel = env.parallel_rollout(actions=actions, **options)
    assert env.whole_rows == (stop or parallel.shape[-1] <= 2)
    env.set_seed(1)
    seen, steps = env.reset(text=texts), []
    for t in range(parallel.shape[-1]):
        step, seen = env.step_and_maybe_reset(seen.set("action", actions[..., t]))
        steps.append(step.clone())
    stepped = torch.stack(steps, len(batch_size))
    for key in ("byte", "position", "forced", "recent", "final_log_prob", ("next", "reward"), ("next", "done")):
        torch.testing.assert_close(parallel[key], stepped[key].to(parallel[key].dtype), rtol=0, atol=1e-4)
    assert bool(parallel["next", "done"][..., -1, :].any()) or not stop


@torch.no_grad()
def test_longer_actions_and_numbers_are_cut_and_leave_the_generator_of_actions(make_env, model):
    """Given decisions, random numbers or a generator take nothing from what ``set_seed`` seeded."""
    env = make_env()
    for options in (
        {"actions": (torch.rand(3, 24) < 0.4).long()},
        {"uniforms": torch.rand(3, 24)},
        {"generator": torch.Generator().manual_seed(1)},
    ):
        rollouts = []
        for steps in (24, 7):
            env.set_seed(1)
            before, state = env._action_rng.get_state(), torch.get_rng_state()
            again = {name: x.clone() if isinstance(x, Tensor) else x.manual_seed(1) for name, x in options.items()}
            rollouts.append(env.parallel_rollout(LearnedBoundaryActor(model), max_steps=steps, **again))
            assert torch.equal(env._action_rng.get_state(), before) and torch.equal(torch.get_rng_state(), state)
        long, short = rollouts
        assert short.shape == (3, 7) and env.parallel_rollout(**again).shape == (3, 24)
        assert torch.equal(long["action"][:, :7], short["action"]), options.keys()


@torch.no_grad()
def test_any_name_is_left_out_and_actors_see_as_many_boundaries_as_are_kept(make_env, model):
    env = make_env(reference="uniform", observe_entropy=True)
    actor, whole = LearnedBoundaryActor(model), set(env.parallel_rollout().keys(True, True))
    names = {*env.observation_spec.keys(), "logits", "action_log_prob"}
    for name in names:
        found = set(env.parallel_rollout(exclude=(name,)).keys(True, True))
        assert found == whole - {name, ("next", name)}, name
    for kept in (actor.terms.num_lags, actor.terms.num_lags - 1):
        shorter = ByteBoundaryEnv(UNet(preset("tiny", num_lags=kept)), LONG, num_steps=8, batch_size=(3,), seed=0)
        if kept == actor.terms.num_lags:
            shorter.parallel_rollout(actor)
            continue
        words = f"recent must hold the last {kept + 1} boundaries, got {kept}"
        refused((lambda env=shorter: env.parallel_rollout(actor), ValueError, words))


@torch.no_grad()
def test_rollout_takes_the_fast_path_only_where_it_is_the_same(make_env, model, monkeypatch):
    env, actor, taken = make_env(), LearnedBoundaryActor(model), []
    original = ByteBoundaryEnv.parallel_rollout
    monkeypatch.setattr(ByteBoundaryEnv, "parallel_rollout", lambda *a, **o: taken.append(1) or original(*a, **o))
    for options, fast in [
        ({}, True),
        ({"max_steps": 40, "break_when_any_done": False}, True),
        ({"return_contiguous": True, "trust_policy": True}, True),
        ({"max_steps": 23}, False),  # the environment stands in the middle of its texts afterwards
        ({"callback": lambda *_: None}, False),
        ({"set_truncated": True}, False),
        ({"policy": lambda td: td.set("action", torch.ones(3, dtype=torch.int64))}, False),
        ({"policy": None}, False),
    ]:
        taken.clear()
        env.set_seed(1)
        torch.manual_seed(5)
        options = {"max_steps": 24, "policy": actor, **options}
        got = env.rollout(**options)
        assert bool(taken) == fast, options
        env.set_seed(1)
        torch.manual_seed(5)
        if fast:
            assert_same_rollout(EnvBase.rollout(env, **options), got)
    with pytest.raises(RuntimeError, match="tensordict must be provided"):  # as TorchRL's own
        env.rollout(24, actor, auto_reset=False)


def test_one_backward_reaches_everything_and_only_through_its_own_loss(make_env, model):
    env = make_env(short=True)

    def reached(pick) -> set[str]:
        env.set_seed(1)
        rollout = env.parallel_rollout(max_steps=30)
        model.zero_grad(set_to_none=True)
        pick(rollout).sum().backward()
        return {n.split(".")[0] for n, p in model.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}

    trunk, policy = {"embedding", "encoder", "encoder_norm"}, {"boundary_head"}
    through_tokens = {"embedding", "encoder", "token_layers", "decoder", "decoder_norm", "final_head"}
    for name in ("action_log_prob", "logits", "entropy"):
        assert reached(lambda td, name=name: td[name]) == trunk | policy
    assert reached(lambda td: td["next", "final_log_prob"]) == through_tokens
    assert reached(lambda td: td["next", "early_log_prob"]) == trunk | {"early_head"}
    losses = ("action_log_prob", ("next", "final_log_prob"), ("next", "early_log_prob"))
    joint = reached(lambda td: sum(td[name].sum() for name in losses))
    assert joint == {name.split(".")[0] for name, _ in model.named_parameters()}
    for rollout in (EnvBase.rollout(env, 5, LearnedBoundaryActor(model)), env.parallel_rollout()):
        assert not rollout["next", "reward"].requires_grad
    assert not EnvBase.rollout(env, 5)["encoder_state"].requires_grad
    assert env.parallel_rollout()["encoder_state"].requires_grad


@pytest.mark.parametrize("fusing", [False, True])
def test_no_distribution_over_bytes_is_kept(make_env, fusing):
    """Autograd keeps the raw logits of two heads, [B, T, 256] each, and no log-softmax; fused heads keep nothing."""
    env, wide = make_env(num_steps=40), set()

    def note(x: Tensor) -> Tensor:
        if x.shape == (3, 40, 256):
            wide.add(x.data_ptr())
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x), fused(fusing):
        env.parallel_rollout()
    assert len(wide) == (
        0 if fusing and missing() is None else 4
    )  # per head the logits, and the tanh of the soft cap that made them


@torch.no_grad()
def test_transforms_and_stepping_after_a_parallel_rollout(make_env, model):
    env = TransformedEnv(make_env(), RewardSum())
    env.append_transform(StepCounter())
    env.append_transform(RewardScaling(0.0, 2.0))
    rollout = env.rollout(24, LearnedBoundaryActor(model))
    total = rollout["next", "reward"].cumsum(1)
    torch.testing.assert_close(rollout["next", "episode_reward"] * 2.0, total, rtol=1e-4, atol=1e-4)
    assert rollout["next", "step_count"][0, -1].item() == 24
    plain = make_env().parallel_rollout(actions=ONES, exclude=("encoder_state",))
    assert not any("encoder_state" in key for key in plain.keys(True, True))
    base = make_env()
    base.reset()
    base.parallel_rollout()  # which drops the texts that are being stepped through
    with pytest.raises(RuntimeError, match="step was called before reset"):
        base.step(base.rand_action(rollout[:, 0].select("byte")))
    base.reset()


@torch.no_grad()
def test_texts_of_one_length_are_read_together(model, monkeypatch):
    """One long text among short ones: short ones are not padded to its length, and nothing changes but the cost."""
    source = TextSource([LONG, *(LONG[i : i + 9] for i in range(400))], short_documents="whole")
    env = ByteBoundaryEnv(model, source, num_steps=60, batch_size=(8,), seed=3)
    read, encode = [], model.encode
    monkeypatch.setattr(model, "encode", lambda ids, **options: read.append(ids.shape) or encode(ids, **options))
    parallel = env.parallel_rollout(max_steps=120, actions=(torch.rand(8, 120) < 0.3).long())
    assert len(read) > 1
    places = sum(rows * (length - 1) for rows, length in read)
    assert 8 * 120 <= places <= 2 * 8 * 120
    monkeypatch.undo()
    env.set_seed(3)
    assert_same_rollout(step_through(env, parallel["action"]), parallel)


def test_refusals(make_env, model):
    env, window = make_env(), "some text that is long enough for a window"
    for options, error, message in [
        ({"actor": lambda td: td}, TypeError, "actor must draw whole windows (an actor of rltok_rl.agents does), got"),
        ({"actor": UniformActor(0.2), "actions": ONES}, TypeError, "actor must have get_dist to score actions, got"),
        ({"actions": torch.zeros(2, 5).long()}, ValueError, "actions must have shape [3, 'T >= 1'], got [2, 5]"),
        ({"actions": torch.zeros(3).long()}, ValueError, "actions must have shape [3, 'T >= 1'], got [3]"),
        ({"actions": torch.full((3, 5), 2)}, ValueError, "action must be 0 (no boundary) or 1 (boundary), got 2"),
        ({"max_steps": 0}, ValueError, "max_steps must be an integer of at least 1, got 0"),
        ({"actions": ONES, "uniforms": torch.rand(3, 5)}, ValueError, "give at most one of"),
        ({"uniforms": torch.rand(3, 24), "generator": torch.Generator()}, ValueError, "give at most one of"),
        ({"exclude": ("encoder",)}, ValueError, "exclude must be a tuple of names among ['action_log_prob', 'byte',"),
        ({"exclude": "byte"}, ValueError, "exclude must be a tuple of names"),
        ({"uniforms": torch.rand(3, 5)}, ValueError, "uniforms must have shape [3, 24], got [3, 5]"),
        ({"uniforms": torch.rand(2, 36)}, ValueError, "uniforms must have shape [3, 24], got [2, 36]"),
        ({"actions": ONES[:, :0]}, ValueError, "actions must have shape [3, 'T >= 1'], got [3, 0]"),
        ({"actions": ONES, "generator": torch.Generator()}, ValueError, "give at most one of"),
        ({"part": (-1, 2)}, ValueError, "part must be (r, W) with 0 <= r < W, got (-1, 2)"),
        ({"part": (2, 2)}, ValueError, "part must be (r, W) with 0 <= r < W, got (2, 2)"),
        ({"part": (0, 2), "text": window}, ValueError, "text must be None for one part of a batch"),
    ]:
        refused((lambda options=options: env.parallel_rollout(**options), error, re.escape(message)))
    single = make_env(batch_size=())
    for name, shape in (("actions", "['T >= 1']"), ("uniforms", "[24]")):
        refused(
            (lambda n=name: single.parallel_rollout(**{n: torch.ones(())}), ValueError, re.escape(f"{shape}, got []"))
        )
    with set_exploration_type(ExplorationType.MEAN), pytest.raises(ValueError, match="exploration type .* got MEAN"):
        env.parallel_rollout(LearnedBoundaryActor(model))


@torch.no_grad()
def test_parts_make_up_the_whole(make_env, model):
    """Three environments with two rows each, and one with six: the same texts, decisions and rewards."""
    actor = LearnedBoundaryActor(model)
    for short, stop in ((False, True), (True, False), (True, True)):

        def roll(rows, part, short=short, stop=stop):
            env, generator = make_env(short=short, batch_size=(rows,)), torch.Generator().manual_seed(1)
            draw = {"generator": generator, "max_steps": 40, "break_when_any_done": stop, "part": part}
            return torch.cat([env.parallel_rollout(actor, **draw) for _ in range(2)], 1)

        whole = roll(6, (0, 1))
        for index in range(3):
            assert_same_rollout(whole[2 * index : 2 * index + 2], roll(2, (index, 3)))


@pytest.mark.gpu
@torch.no_grad()
def test_gpu_rollout_equals_the_stepped_one_on_cpu():
    torch.manual_seed(0)
    model = UNet(preset("tiny")).eval()
    actions, rollouts = (torch.rand(2, 40) < 0.3).long(), []
    for device in ("cpu", "cuda"):
        env = ByteBoundaryEnv(
            model.to(device), TextSource([*SHORT, LONG], short_documents="whole"), num_steps=30, batch_size=(2,), seed=0
        )
        rollouts.append(env.parallel_rollout(actions=actions.to(device)).cpu())
    assert_same_rollout(*rollouts)


def test_texts_that_restart_keep_their_rows():
    """Groups are read in the order of lengths: one may hold the first texts of all rows, in another order."""
    model = UNet(preset("tiny"))
    documents = [bytes(65 + number % 26 for number in range(length)) for length in (30, 33, 38, 9, 7)]
    env = ByteBoundaryEnv(model, TextSource(documents, short_documents="whole"), num_steps=40, batch_size=(2,), seed=0)
    permuted = False
    for seed in range(12):
        env.set_seed(seed)
        actions = torch.randint(2, (2, 40), generator=torch.Generator().manual_seed(seed))
        assert torch.equal(env.parallel_rollout(actions=actions)["action"], actions)
        env.set_seed(seed)
        groups = plan_texts(env, 40, None, stop_at_end=False).groups()
        permuted |= any(group.row.tolist() == [1, 0] and not group.start.any() for group in groups)
    assert permuted  # or nothing was tried


@each(marks=[False, True])
def test_text_travels_narrow_and_arrives_as_it_was(marks):
    """A byte per byte of text, two with marks; on a device that is none, so that values can be compared."""
    env = ByteBoundaryEnv(
        UNet(preset("tiny", begin_of_text=marks, num_special=int(marks))), LONG, num_steps=8, batch_size=(3,), seed=0
    )
    plan = plan_texts(env, 8, None, stop_at_end=False)
    sent: list[Tensor] = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(rollout_plan, "to_device", lambda x, device: sent.append(x) or x)
        moved = plan.to(torch.device("cuda"))
    assert sent[0].dtype == (torch.int16 if marks else torch.uint8)
    for name, x in vars(plan).items():
        assert not isinstance(x, Tensor) or (x.dtype == getattr(moved, name).dtype and x.equal(getattr(moved, name)))


@pytest.mark.gpu
def test_texts_leave_from_pinned_memory(make_env):
    plan = plan_texts(make_env(), 8, None, stop_at_end=False)
    with cuda_waits("error"):
        moved = plan.to(torch.device("cuda"))
    assert moved.byte_ids.cpu().equal(plan.byte_ids)

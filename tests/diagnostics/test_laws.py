"""Laws that users run on what they write: what is in the library holds to them, and each finds what it is for."""

from __future__ import annotations

import copy
import threading
from functools import partial

import pytest
import torch
from rltok_rl.agents.segmenters import Segmenter, Segments, SpaceByte
from torch import Tensor

from rltok_rl.diagnostics.exact import (
    EnumeratedRollouts,
    exact_gradient,
    exact_head_gradient,
    expected_gradient,
    freeze_estimator,
)
from rltok_rl.diagnostics.laws import LAWS, NUM_STEPS, broken_laws
from rltok_rl.diagnostics.segmenter_laws import SEGMENTER_LAWS, broken_segmenter_laws
from rltok_rl.functional.boundary_rules import spacelike
from rltok_rl.functional.reduction import zero_masked
from rltok_rl.objectives import ReturnEstimator, make_estimator

from ..each import each
from ..named_estimators import named_estimator
from .conftest import opinionated

OPTIONS = {"group_mean": {"group_size": 2}, "running_mean": {"num_steps": NUM_STEPS}}
BIASED = {
    "batch_mean": {"exact"},
    "z_score": {"past", "ends", "exact"},
    "natural_gradient": {"exact"},  # another gradient on purpose
}
NAMES = ["discounted_return", "natural_gradient", "batch_mean", "leave_one_out", "z_score", "group_mean"]


@each(name=[*NAMES, "running_mean"])
def test_estimators_of_the_library_break_what_they_are_said_to_break(name):
    found = broken_laws(partial(named_estimator, name, **OPTIONS.get(name, {})))
    assert set(found) == BIASED.get(name, set())
    if name == "batch_mean":
        assert "(cosine 1.000, length 0.500)" in found["exact"]  # (B - 1) / B of it, with two rows


class Planted(ReturnEstimator):
    """An estimator with the mistake of the law that finds it."""

    mistake, seen = "", 0.0

    def forward(self, tensordict, **options):
        out = super().forward(tensordict, **options)
        if self.mistake:
            out["advantage"] = MISTAKES[self.mistake](self, out["advantage"], out["next", "reward"], out["action"])
        return out

    def remember(self, advantage: Tensor) -> float:
        before, self.seen = self.seen, float(advantage.mean()) if self.training else self.seen
        return before


MISTAKES = {
    "writes": lambda made, advantage, rewards, action: advantage + 0 * rewards.sub_(1),
    "repeats": lambda made, advantage, rewards, action: advantage + torch.rand(()),
    "carries_no_gradient": lambda made, advantage, rewards, action: advantage + rewards,
    "past": lambda made, advantage, rewards, action: advantage + rewards.cumsum(-2),
    "ends": lambda made, advantage, rewards, action: rewards.flip(-2).cumsum(-2).flip(-2),
    "mask": lambda made, advantage, rewards, action: advantage + rewards.nan_to_num(5.0).mean(),
    "memory": lambda made, advantage, rewards, action: advantage - made.remember(advantage),
    "exact": lambda made, advantage, rewards, action: advantage * (1 + action.unsqueeze(-1)),
}


@each(law=LAWS)
def test_each_law_finds_a_planted_mistake(law):
    LAWS[law](Planted)
    with pytest.raises(AssertionError):
        LAWS[law](type("Planted", (Planted,), {"mistake": law}))


class Fading(torch.nn.Module):
    """A baseline with memory: the mean of earlier batches per position modulo 2, fading. A mistake of each kind."""

    def __init__(self, mistake: str = "") -> None:
        super().__init__()
        self.mistake = mistake
        for name in ("total", "count"):
            self.register_buffer(name, torch.zeros(2, dtype=torch.float64))

    def learn(self, returns: Tensor, mask: Tensor | None) -> None:
        real = torch.ones_like(returns, dtype=torch.bool) if mask is None else mask
        place = (torch.arange(returns.shape[-1]) % 2).expand_as(returns)[real]
        zeros = torch.zeros_like(self.total)
        self.total.mul_(0.9).add_(zeros.index_add(0, place, returns[real].double()))
        self.count.mul_(0.9).add_(zeros.index_add(0, place, torch.ones_like(place).double()))

    def forward(self, returns: Tensor, *, mask: Tensor | None, process_group: object) -> Tensor:
        first = self.mistake == "first" and not bool(self.count.any())
        if self.training and (self.mistake == "peek" or first):
            self.learn(returns, mask)
        known = (self.total / self.count.clamp(min=1e-9)).to(returns)[torch.arange(returns.shape[-1]) % 2]
        advantages = returns - known
        if mask is not None and self.mistake != "shown":
            advantages = advantages.masked_fill(~mask, 0.0)
        if self.mistake == "eval" or (self.training and self.mistake != "peek" and not first):
            self.learn(returns, mask)
        return known.expand_as(returns) if self.mistake == "value" else advantages


def test_mistakes_of_what_remembers_are_found_while_it_learns():
    """They used to be judged in evaluation mode with nothing remembered, where few of these show."""
    mistakes = {"peek": ["past", "ends", "exact"], "first": ["exact"], "value": ["exact"], "shown": ["mask"]}
    for mistake, laws in {**mistakes, "eval": ["repeats"]}.items():
        for law in laws:
            with pytest.raises(AssertionError):
                LAWS[law](partial(ReturnEstimator, baseline=partial(Fading, mistake)))


def test_what_remembers_holds_to_all_laws_and_is_left_alone_where_it_is_shared():
    """One instance for all laws: each judges a copy."""
    shared = Fading()
    assert broken_laws(partial(ReturnEstimator, baseline=shared)) == {}
    assert not shared.count.any()


class Padded(ReturnEstimator):
    """Remembers padding."""

    def __init__(self, **options):
        super().__init__(**options)
        self.register_buffer("paid", torch.zeros(()))

    def _advantages(self, returns, view):
        advantages = zero_masked(returns - self.paid, view.mask)
        self.paid = view.read(("next", "reward")).nan_to_num(5.0).mean()
        return advantages


def test_padding_that_is_remembered_is_found():
    with pytest.raises(AssertionError, match="entries where .'collector', 'mask'. is False are remembered"):
        LAWS["mask"](Padded)


def test_what_makes_no_estimator_is_refused_with_what_would():
    how = r"make must make an estimator when it is called as make\(gamma=0.9\): a class or functools.partial"
    unfinished = partial(make_estimator, "discounted_return", baseline="running_mean")
    for make, message in (
        (unfinished, "num_steps=5: windows of .*'num_steps'"),
        (Fading, r"partial\(ReturnEstimator, baseline=...\) of a baseline; got .*'gamma'"),
        (ReturnEstimator(gamma=0.9), "got .*'gamma'"),
        (lambda gamma: "leave_one_out", "got .* which makes a str"),
    ):
        with pytest.raises(TypeError, match=f"{how}.*{message}"):
            broken_laws(make)


REMEMBERING = {
    "running_mean": lambda: ReturnEstimator(gamma=1.0, baseline="running_mean", num_steps=4),
    "fading": lambda: ReturnEstimator(gamma=1.0, baseline=Fading()),
    "attribute": lambda: type("Planted", (Planted,), {"mistake": "memory"})(gamma=1.0),
}


@each(remembering=REMEMBERING)
def test_an_estimator_that_remembers_judges_every_enumerated_batch_from_the_same_memory(remembering):
    """In training mode its memory used to run on from batch to batch: off by 271 % where it is exact."""
    model = opinionated().double()
    right, made = exact_head_gradient(model, "to be"), REMEMBERING[remembering]()
    rollout = EnumeratedRollouts(model, ["to be"], num_rows=3, seed=0)(1)
    cold = copy.deepcopy(made)(rollout.copy())["advantage"]
    for _ in range(2):  # cold, then with something to remember
        before = copy.deepcopy(made)
        torch.testing.assert_close(expected_gradient(model, "to be", made), right)
        one, other = (estimator(rollout.copy())["advantage"] for estimator in (before, made))
        assert torch.equal(one, other), "it was left as it is"
    assert not torch.equal(one, cold), "and it does remember"


def test_random_numbers_run_on_where_the_memory_stands_and_locks_are_refused():
    class Noisy(ReturnEstimator):
        def _advantages(self, returns, view):
            return returns + torch.rand((), generator=self.generator)

    noisy = Noisy(gamma=1.0)
    noisy.generator = torch.Generator().manual_seed(0)
    judge = freeze_estimator(noisy)
    rollout = EnumeratedRollouts(opinionated().double(), ["to be"], num_rows=2, seed=0)(1)
    assert not torch.equal(judge(rollout.copy())["advantage"], judge(rollout.copy())["advantage"])
    noisy.lock = threading.Lock()
    with pytest.raises(TypeError, match="estimator must be copyable .*, got Noisy: cannot pickle"):
        judge(rollout)


def test_expected_gradients_are_means_over_what_is_drawn():
    """All batches weighted: of the plain return that is the exact gradient, of twice it twice."""
    model = opinionated().double()
    right = exact_head_gradient(model, "to be")
    assert torch.equal(right, exact_gradient(model, "to be").policy["boundary_head.projection.weight"].flatten())
    plain = ReturnEstimator(gamma=1.0)
    for rows in (1, 2, 3):
        torch.testing.assert_close(expected_gradient(model, "to be", plain, num_rows=rows), right)

    def twice(rollout):
        return plain(rollout).update({"advantage": 2 * rollout["advantage"]})

    torch.testing.assert_close(expected_gradient(model, "to be", twice), 2 * right)
    several = ["to be", "or no"]
    found = expected_gradient(model, several, plain, num_rows=1)
    torch.testing.assert_close(found, exact_head_gradient(model, several))
    with pytest.raises(ValueError, match="at most 4096 batches, got 64 boundary strings in 3 rows, 262144"):
        expected_gradient(model, "to be, o", plain, num_rows=3)


class Early(SpaceByte):
    """A boundary before a space, which only the byte after it shows."""

    def __init__(self, model):
        super().__init__()

    def _window(self, states, byte_ids, uniforms):
        return Segments(torch.nn.functional.pad(spacelike(byte_ids)[:, 1:], (0, 1)))


class Counting(Segmenter):
    """Every third byte of a window; steps count from one more, or rows one after the other."""

    def __init__(self, model, together=False):
        super().__init__()
        self.together = together

    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        place = torch.arange(byte_ids.numel()).view(byte_ids.shape)
        return Segments((place if self.together else place % byte_ids.shape[1]) % 3 == 0)

    def _step(self, states, byte_ids, state, uniforms):
        return Segments((state["position"] + 1) % 3 == 0), {}


class Leaking(Segmenter):
    """Boundaries that are known in time, and tokens weighted by what comes later."""

    def __init__(self, model):
        super().__init__()

    def _window(self, states, byte_ids, uniforms):
        from rltok_rl.models.mixing import Mixing

        later = states.sum((1, 2))[:, None].expand_as(byte_ids)
        return Segments(spacelike(byte_ids), mixing=Mixing(receive=1 + later - later.detach()))

    def _step(self, states, byte_ids, state, uniforms):
        return Segments(spacelike(byte_ids)), {}


def test_laws_of_segmenters_find_planted_mistakes():
    planted = (Early, Leaking, Counting, partial(Counting, together=True))
    state = torch.get_rng_state()
    for law, make in zip(SEGMENTER_LAWS, planted, strict=True):
        assert law in broken_segmenter_laws(make), law
    assert torch.equal(torch.get_rng_state(), state)
    assert "prefixes" not in broken_segmenter_laws(type("Oracle", (Early,), {"looks_ahead": True}))

"""RateLoss: its memory, its options, its errors."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rltok_rl.functional.rate import RATE_CONTROLS
from rltok_rl.objectives import RateLoss
from rltok_rl.objectives.rate_loss import CONTROLLERS, ENDS

from ..each import each

ONE_TARGET = ["ratio", "binomial", "hinge", "pi", "price"]


def rollout(mean_logit=0.0, **entries):
    logits = (torch.randn(8, 40) + mean_logit).requires_grad_()
    action, forced = torch.rand(8, 40) < logits.sigmoid(), torch.arange(40).expand(8, 40) == 0
    return TensorDict({"logits": logits, "action": action.long(), "forced": forced, **entries}, [8, 40])


def slope(td, **options):
    return torch.autograd.grad(RateLoss(0.2, **options)(td)["loss_rate"], td["logits"])[0]


@each(control=[*RATE_CONTROLS, *CONTROLLERS], side=[(3.0, 1), (-4.0, -1)])
def test_pushes_towards_the_target(control, side):
    push = slope(rollout(side[0]), control=control)
    assert push.sum() * side[1] > 0
    assert (push[:, 0] == 0).all()  # forced


@each(control=CONTROLLERS, side=[(1.0, 1), (-3.0, -1)])
def test_memory_advances_in_training_and_is_saved(control, side):
    """On both sides of the target, a call adds at most 0.02 to the sum of errors."""
    loss, td = RateLoss(0.3, control=control, proportional=2.0, integral=0.5), rollout(side[0])
    error = td["logits"].detach()[:, 1:].sigmoid().mean() - 0.3
    assert side[1] * error > 0.02
    loss.eval()(td)
    assert loss.integral == 0
    loss.train()
    for n in (1, 2, 3):
        torch.testing.assert_close(loss(td)["push"], side[1] * 0.02 * n * 0.5 + 2.0 * error)
    other = RateLoss(0.3, control=control)
    other.load_state_dict(loss.state_dict())
    assert other.integral == loss.integral and other.push == loss.push


@each(control=CONTROLLERS)
def test_a_gain_of_0_is_no_gain(control):
    """And no default: the integral has no effect, or the error of now has none."""
    td = rollout(1.0)
    error = td["logits"].detach()[:, 1:].sigmoid().mean() - 0.3
    loss = RateLoss(0.3, control=control, proportional=2.0, integral=0.0)
    for _ in range(3):
        torch.testing.assert_close(loss(td)["push"], 2.0 * error)
    loss, fixed = (RateLoss(0.3, control=control, proportional=0.0, integral=0.5) for _ in range(2))
    first, second, still = loss(td), loss(td), fixed.eval()(td)
    pushes = torch.stack([out["push"] for out in (first, second, still)])  # of one call each, also later on
    torch.testing.assert_close(pushes, torch.tensor([0.01, 0.02, 0.0]))


def test_each_group_of_texts_is_pushed_to_its_target():
    """Against a loop over groups, by value and gradient; with one target for all, the loss of one target."""
    targets = torch.tensor([0.1, 0.3, 0.3, 0.6])[torch.arange(8) // 2]  # rows 2 to 5 share one
    td = rollout(0.5, target_rate=targets[:, None, None].expand(8, 40, 1).clone())
    logits, expected = td["logits"].detach(), torch.zeros(8, 40)
    for rows in ([0, 1], [2, 3, 4, 5], [6, 7]):
        expected[rows, 1:] = (logits[rows, 1:].sigmoid().mean() - targets[rows[0]]) / (8 * 39)
    torch.testing.assert_close(slope(td), expected)
    torch.testing.assert_close(RateLoss(0.4)(td)["loss_rate"].detach(), (logits * expected).sum())
    td["target_rate"].fill_(0.2)
    torch.testing.assert_close(slope(td), slope(td.exclude("target_rate")))
    torch.testing.assert_close(RateLoss(0.4)(td)["loss_rate"], RateLoss(0.2)(td.exclude("target_rate"))["loss_rate"])


@each(ends=ENDS)
def test_padding_has_no_target(ends):
    td = rollout(target_rate=torch.full((8, 40), 0.3))
    td["collector", "mask"] = torch.arange(40).expand(8, 40) < 30
    expected = slope(td, ends=ends)
    td["target_rate"][:, 30:] = torch.nan
    assert (
        torch.equal(slope(td, ends=ends), expected) and (expected[:, 30:] == 0).all() and (expected[:, 1:29] != 0).any()
    )


@each(control=["ratio", "hinge", "binomial"], ends=["released", "window"])
def test_both_ends_count_as_boundaries(control, ends):
    """Whatever was asked for there. Two rows of four decisions, the first forced; a window has one byte more."""
    action = torch.tensor([[0, 1, 0, 0], [0, 0, 0, 0]])
    logits = torch.tensor([[-1.0, 0.5, 0.0, -2.0], [1.0, -0.5, 0.3, 0.2]])
    td = TensorDict({"logits": logits, "action": action, "forced": torch.arange(4).expand(2, 4) == 0}, [2, 4])
    length, given = (4, [0, 3]) if ends == "released" else (5, [0, 4])
    certain, drawn = torch.full((2, length), 100.0), torch.zeros(2, length)
    certain[:, :4], drawn[:, :4] = logits, action.float()
    certain[:, given], drawn[:, given] = 100.0, 1.0
    f, g, alpha = drawn.mean(), certain.sigmoid().mean(), 0.2
    chances = torch.distributions.Binomial(length, torch.tensor(alpha)).log_prob(drawn.sum(-1))
    expected = {
        "ratio": f * g / alpha + (1 - f) * (1 - g) / (1 - alpha),
        "hinge": f - alpha - 0.005,
        "binomial": -(chances / length).mean(),
    }
    torch.testing.assert_close(RateLoss(alpha, control=control, ends=ends)(td)["loss_rate"], expected[control])


def test_refusals():
    td = rollout(target_rate=torch.full((8, 40, 1), 0.3))
    for call, error, words in (
        *(
            (lambda t=target: RateLoss(t), ValueError, f"target must lie strictly between 0 and 1, got {target}")
            for target in (0.0, 1, -0.1, float("nan"))
        ),
        (lambda: RateLoss(0.2, control="pid"), ValueError, r"one of \['logit_pressure', .*'price'\], got 'pid'"),
        (
            lambda: RateLoss(0.2, ends="all"),
            ValueError,
            r"ends must be one of \['excluded', 'released', 'window'\], got 'all'",
        ),
        (lambda: RateLoss(0.2, rows_per_mean=0), ValueError, "rows_per_mean must be an integer of at least 1, got 0"),
        (lambda: RateLoss(0.2, reduction="none"), ValueError, "reduction must be 'mean'"),
        (lambda: RateLoss(0.2)(td.exclude("logits")), KeyError, "must hold 'logits'"),
        *((lambda c=c: slope(td, control=c), ValueError, f"if each text .*got '{c}'") for c in ONE_TARGET),
    ):
        with pytest.raises(error, match=words):
            call()

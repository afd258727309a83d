"""RateLoss: its memory, its options, its errors."""

from __future__ import annotations

import torch
from tensordict import TensorDict

from rltok_rl.functional.rate import RATE_CONTROLS
from rltok_rl.objectives import RateLoss
from rltok_rl.objectives.rate_loss import CONTROLLERS, ENDS

from ..each import each, refused

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


@each(ends=ENDS)
def test_padding_has_no_target(ends):
    td = rollout(target_rate=torch.full((8, 40), 0.3))
    td["collector", "mask"] = torch.arange(40).expand(8, 40) < 30
    expected = slope(td, ends=ends)
    td["target_rate"][:, 30:] = torch.nan
    assert (
        torch.equal(slope(td, ends=ends), expected) and (expected[:, 30:] == 0).all() and (expected[:, 1:29] != 0).any()
    )


def test_refusals():
    td = rollout(target_rate=torch.full((8, 40, 1), 0.3))
    refused(
        *(
            (lambda t=target: RateLoss(t), ValueError, f"target must lie strictly between 0 and 1, got {target}")
            for target in (0.0, 1, -0.1, float("nan"))
        ),
        (lambda: RateLoss(0.2, control="pid"), ValueError, r"one of \['logit_pressure', .*'price'\], got 'pid'"),
        (lambda: RateLoss(0.2, ends="all"), ValueError, r"ends must be one of \['excluded', 'window'\], got 'all'"),
        (lambda: RateLoss(0.2, rows_per_mean=0), ValueError, "rows_per_mean must be an integer of at least 1, got 0"),
        *(
            (
                lambda n=n, c=c: RateLoss(0.2, control=c, **{n: 3.0}),
                ValueError,
                f"{n} must be None .*got 3.0 with '{c}'",
            )
            for n in ("proportional", "integral")
            for c in RATE_CONTROLS
        ),
        *(
            (lambda n=n, g=g: RateLoss(0.2, control="pi", **{n: g}), ValueError, f"{n} must lie in .*, got {g}")
            for n in ("proportional", "integral")
            for g in (-3.0, float("nan"))
        ),
        (lambda: RateLoss(0.2, reduction="none"), ValueError, "reduction must be 'mean'"),
        (lambda: RateLoss(0.2)(td.exclude("logits")), KeyError, "must hold 'logits'"),
        *((lambda c=c: slope(td, control=c), ValueError, f"if each text .*got '{c}'") for c in ONE_TARGET),
    )

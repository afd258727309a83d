"""RateLoss: its memory, its options, its errors."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rltok_rl.functional.rate import RATE_CONTROLS
from rltok_rl.objectives import RateLoss
from rltok_rl.objectives.rate_loss import CONTROLLERS


def rollout(mean_logit=0.0, shape=(8, 40)):
    logits = (torch.randn(shape) + mean_logit).requires_grad_()
    action = (torch.rand(shape) < logits.sigmoid()).long()
    forced = torch.zeros(shape, dtype=torch.bool)
    forced[:, 0] = True
    return TensorDict({"logits": logits, "action": action, "forced": forced}, shape)


@pytest.mark.parametrize("control", [*RATE_CONTROLS, *CONTROLLERS])
@pytest.mark.parametrize(("mean_logit", "sign"), [(3.0, 1), (-4.0, -1)], ids=["above", "below"])
def test_pushes_towards_the_target(control, mean_logit, sign):
    td = rollout(mean_logit)
    RateLoss(0.4, control=control)(td)["loss_rate"].backward()
    gradient = td["logits"].grad
    assert gradient.sum() * sign > 0
    assert (gradient[:, 0] == 0).all()  # forced


@pytest.mark.parametrize("control", CONTROLLERS)
@pytest.mark.parametrize(("mean_logit", "sign"), [(1.0, 1), (-3.0, -1)], ids=["above", "below"])
def test_memory_advances_in_training_and_is_saved(control, mean_logit, sign):
    """On both sides of the target, a call adds at most 0.02 to the sum of errors."""
    loss, td = RateLoss(0.3, control=control, proportional=2.0, integral=0.5), rollout(mean_logit)
    error = td["logits"][:, 1:].sigmoid().mean() - 0.3
    assert sign * error > 0.02
    loss.eval()
    loss(td)
    assert loss.integral == 0
    loss.train()
    for n in (1, 2, 3):
        out = loss(td)
        expected = sign * 0.02 * n * 0.5 + 2.0 * error
        torch.testing.assert_close(out["push"], expected.detach())
    other = RateLoss(0.3, control=control)
    other.load_state_dict(loss.state_dict())
    assert other.integral == loss.integral and other.push == loss.push


def test_targets_of_their_own_push_each_group_alone():
    """Against a loop over groups, by value and gradient; with one target for all, the loss of one target."""
    td = rollout(0.5)
    targets = torch.tensor([0.1, 0.3, 0.3, 0.6])[torch.arange(8) // 2]  # rows 2 to 5 share one
    td["target_rate"] = targets[:, None, None].expand(8, 40, 1).clone()
    loss = RateLoss(0.2)(td)["loss_rate"]
    (slope,) = torch.autograd.grad(loss, td["logits"])
    logits, expected = td["logits"].detach(), torch.zeros(8, 40)
    for rows in ([0, 1], [2, 3, 4, 5], [6, 7]):
        error = logits[rows, 1:].sigmoid().mean() - targets[rows[0]]
        expected[rows, 1:] = error / (8 * 39)
    torch.testing.assert_close(slope, expected)
    torch.testing.assert_close(loss.detach(), (logits * expected).sum())
    td["target_rate"].fill_(0.2)
    ours, plain = RateLoss(0.4)(td)["loss_rate"], RateLoss(0.2)(td.exclude("target_rate"))["loss_rate"]
    torch.testing.assert_close(ours, plain)
    for one, other in zip(*(torch.autograd.grad(x, td["logits"]) for x in (ours, plain)), strict=True):
        torch.testing.assert_close(one, other)


def test_padding_has_no_target():
    """What stands in steps that are not real reaches nothing."""
    td = rollout()
    td["target_rate"] = torch.full((8, 40), 0.3)
    td["collector", "mask"] = torch.arange(40).expand(8, 40) < 30
    (expected,) = torch.autograd.grad(RateLoss(0.2)(td)["loss_rate"], td["logits"])
    td["target_rate"][:, 30:] = torch.nan
    (found,) = torch.autograd.grad(RateLoss(0.2)(td)["loss_rate"], td["logits"])
    assert torch.equal(found, expected) and (found[:, 30:] == 0).all() and (found[:, 1:30] != 0).any()


@pytest.mark.parametrize("control", ["ratio", "binomial", "hinge", "pi", "price"])
def test_controls_of_one_target_refuse_several(control):
    td = rollout().set("target_rate", torch.full((8, 40, 1), 0.3))
    with pytest.raises(ValueError, match=f"control must be 'logit_pressure' if each text .*got '{control}'"):
        RateLoss(0.2, control=control)(td)


def test_misuse_is_refused():
    with pytest.raises(ValueError, match="target must lie strictly between 0 and 1, got 1"):
        RateLoss(1)
    with pytest.raises(ValueError, match=r"control must be one of \['logit_pressure', .*'price'\], got 'pid'"):
        RateLoss(0.2, control="pid")
    with pytest.raises(ValueError, match=r"ends must be one of \['excluded', 'released'\], got 'all'"):
        RateLoss(0.2, ends="all")
    with pytest.raises(ValueError, match="reduction must be 'mean'"):
        RateLoss(0.2, reduction="none")
    with pytest.raises(KeyError, match="must hold 'logits'"):
        RateLoss(0.2)(rollout().exclude("logits"))

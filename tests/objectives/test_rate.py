"""RateLoss: its memory, its options, its errors."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rltok_rl.functional.rate import RATE_CONTROLS
from rltok_rl.objectives import RateLoss
from rltok_rl.objectives.rate import CONTROLLERS


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
def test_memory_advances_in_training_and_is_saved(control):
    loss, td = RateLoss(0.3, control=control, proportional=2.0, integral=0.5), rollout(1.0)
    error = td["logits"][:, 1:].sigmoid().mean() - 0.3
    assert error > 0.02  # more than one call may add to the sum
    loss.eval()
    loss(td)
    assert loss.integral == 0
    loss.train()
    for n in (1, 2, 3):
        out = loss(td)
        expected = 0.02 * n * 0.5 + 2.0 * error
        torch.testing.assert_close(out["push"], expected.detach())
    other = RateLoss(0.3, control=control)
    other.load_state_dict(loss.state_dict())
    assert other.integral == loss.integral and other.push == loss.push


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

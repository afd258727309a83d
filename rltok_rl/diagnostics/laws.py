"""Laws of advantage estimators, for custom ones: ``broken_laws(MyEstimator)``.

Estimators are built with ``make(gamma=...)``. Rollouts are of a small model in float64, with everything that an
environment writes. As in training, estimators are in training mode and have seen other batches before.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.objectives.value import ValueEstimatorBase

from rltok_rl.diagnostics.enumeration import enumerate_rollouts
from rltok_rl.diagnostics.exact import exact_head_gradient, expected_gradient, remembers
from rltok_rl.models.config import preset
from rltok_rl.models.unet import UNet

Make = Callable[..., ValueEstimatorBase]

TEXT = "to be,"
"""Text of the rollouts: five decisions, the first of them forced."""
NUM_STEPS = len(TEXT) - 1
"""T, decisions of a row, for estimators with ``num_steps``."""
_GAMMA = 0.9
_REWARDS = (("next", "reward"), ("next", "final_log_prob"))  # returns read the first, trials the second
_SEEN = (1.0, 2.0, 0.5)  # scales of the rewards of earlier batches


def broken_laws(make: Make) -> dict[str, str]:
    """Return the laws that an estimator breaks, with an explanation each; {} if it obeys all of :data:`LAWS`.

    ``make`` is called as ``make(gamma=...)``: a class, or a partial with other options. For a baseline use
    ``partial(ReturnEstimator, baseline=MyBaseline)``. Windows have :data:`NUM_STEPS` = 5 steps; shrink options whose
    effect needs more: ``partial(MyEstimator, period=2)``. An estimator that runs texts again takes
    :func:`rollout_model`: ``partial(MyTrials, rollout_model())``. If it draws random numbers, let its ``forward`` call
    :func:`torch.manual_seed` for the check; most laws are about equal draws, and ``exact`` is about all of them.

    Example:
        >>> from functools import partial
        >>> from rltok_rl.objectives import ReturnEstimator
        >>> broken_laws(partial(ReturnEstimator, baseline="leave_one_out"))
        {}
        >>> sorted(broken_laws(partial(ReturnEstimator, baseline="z_score")))
        ['ends', 'exact', 'past']
    """
    return messages(LAWS, make)


def messages(laws: Mapping[str, Callable[..., None]], *arguments: Any) -> dict[str, str]:
    """Call laws; return the message of each that is broken."""
    broken = {}
    for name, law in laws.items():
        try:
            law(*arguments)
        except AssertionError as error:
            broken[name] = str(error)
    return broken


def require(holds: bool | Tensor, message: str) -> None:
    """Raise an AssertionError with a message unless something holds."""
    if not holds:
        raise AssertionError(message)


def writes(make: Make) -> None:
    """Check that ``advantage`` and ``value_target`` [*B, T, 1] are written, finite, and nothing else changes."""
    rollout = _rollout()
    before = rollout.clone()
    judged = _judge(make, rollout)
    for key in ("advantage", "value_target"):
        require(key in judged, f"{key!r} is not written")
        shape, expected = [*judged[key].shape], [*rollout.shape, 1]
        require(shape == expected, f"{key!r} must have shape {expected}, got {shape}")
        require(judged[key].isfinite().all(), f"{key!r} must be finite")
    changed = [str(key) for key in before.keys(True, True) if not torch.equal(judged[key], before[key])]
    require(not changed, f"entries of the rollout are changed: {changed}")


def repeats(make: Make) -> None:
    """Check that judging a rollout twice in evaluation mode gives the same advantages."""
    estimator = _warmed(make).eval()
    first, second = (estimator(_rollout())["advantage"] for _ in range(2))
    require(torch.equal(first, second), "the same rollout, judged twice, has other advantages")


def carries_no_gradient(make: Make) -> None:
    """Check that advantages carry no gradient."""
    rollout = _rollout()
    for key in (("next", "reward"), "logits", "action_log_prob", ("next", "final_log_prob")):
        rollout[key] = rollout[key].detach().requires_grad_()
    require(not _judge(make, rollout)["advantage"].requires_grad, "advantages carry a gradient")


def past(make: Make) -> None:
    """Check that rewards before a decision do not change its advantage."""
    rollout, at = _rollout(), 3
    paid = rollout.clone()
    for key in _REWARDS:
        paid[key][1, :at] += 7.0
    plain, changed = (_judge(make, x)["advantage"][1, at:] for x in (rollout, paid))
    _require_close(plain, changed, f"rewards before decision {at} change its advantage, or later ones, of the same row")


def ends(make: Make) -> None:
    """Check that rewards after the end of an episode do not change advantages before it."""
    rollout, at = _rollout(), 2
    for key in ("done", "terminated"):
        rollout["next", key][:, at] = True
    paid = rollout.clone()
    for reward in _REWARDS:
        paid[reward][1, at + 1 :] += 7.0
    plain, changed = (_judge(make, x)["advantage"][1, : at + 1] for x in (rollout, paid))
    _require_close(plain, changed, f"rewards after an episode's end at {at} change advantages before it")


def mask(make: Make) -> None:
    """Check that masked steps have advantage 0 and that their entries, even NaN, change nothing."""
    rollout = _rollout()
    real = torch.ones(rollout.shape, dtype=torch.bool)
    real[1, 3:] = real[3, 2:] = False
    rollout["collector", "mask"] = real
    filled = rollout.clone()
    for key in (*_REWARDS, "logits", "encoder_state"):
        filled[key][~real] = float("nan")
    filled["action"][~real] = 1 - filled["action"][~real]
    estimators = _warmed(make), _warmed(make)
    plain, changed = (f(x)["advantage"].squeeze(-1) for f, x in zip(estimators, (rollout, filled), strict=True))
    require(changed.isfinite().all(), "NaN rewards where ('collector', 'mask') is False reach advantages")
    _require_close(plain, changed, "entries where ('collector', 'mask') is False change advantages")
    require(not changed[~real].any(), "advantages must be 0 where ('collector', 'mask') is False")
    plain, changed = (estimator(_rollout())["advantage"] for estimator in estimators)
    require(torch.equal(plain, changed), "entries where ('collector', 'mask') is False are remembered")


def memory(make: Make) -> None:
    """Check that the state holds all memory: an estimator that loads it continues like the original."""
    going, fresh = _warmed(make), _build(make)
    fresh.load_state_dict(going.state_dict())
    for scale in (2.0, 3.0):
        original, loaded = (estimator(_rollout(scale))["advantage"] for estimator in (going, fresh))
        message = "an estimator with the loaded state gives other advantages: state_dict must hold all memory"
        require(torch.equal(original, loaded), message)


def exact(make: Make) -> None:
    """Check that at gamma = 1 the expected gradient is exact, over all batches of two rows."""
    right = _exact()
    judged = {"": _warmed(make, 1.0)}
    if remembers(judged[""]):  # as the first batch, and as one of many
        judged = {" of a first batch": _build(make, 1.0), f" after {len(_SEEN)} other batches": judged[""]}
    for when, estimator in judged.items():
        gradient = expected_gradient(rollout_model(), TEXT, estimator)
        cosine, length = torch.cosine_similarity(gradient, right, dim=0), gradient.norm() / right.norm()
        off = (gradient - right).norm() / right.norm()
        measured = f"off by {off:.1%} of the exact one (cosine {cosine:.3f}, length {length:.3f})"
        require(off < 1e-6, f"at gamma = 1 the expected gradient{when} is {measured}")


LAWS: dict[str, Callable[[Make], None]] = {
    law.__name__: law for law in (writes, repeats, carries_no_gradient, past, ends, mask, memory, exact)
}
"""Laws by name; each takes ``make`` and raises an AssertionError if it is broken."""


@cache
def rollout_model() -> UNet:
    """Return the model of the laws' rollouts, whose logits, rewards and lags differ widely, as a trained model's do."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = UNet(preset("tiny", width=16, window=4, num_lags=2, target_rate=0.4)).double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
            model.boundary_head.projection.weight.mul_(8.0)
    return model.requires_grad_(False)


@cache
def _exact() -> Tensor:
    return exact_head_gradient(rollout_model(), TEXT)


@cache
def _strings() -> TensorDictBase:
    with torch.no_grad():
        return enumerate_rollouts(rollout_model(), TEXT, reward="early_exit")[0]


def _rollout(scale: float = 1.0) -> TensorDictBase:
    """A fresh rollout [4, 5] of one text with different boundaries."""
    rollout = _strings()[torch.tensor([5, 9, 2, 14])].clone()
    rollout.names = [None, "time"]
    rollout["next", "reward"] = scale * rollout["next", "reward"]
    return rollout


def _build(make: Make, gamma: float = _GAMMA) -> ValueEstimatorBase:
    """Build the estimator and copy it, so that laws share no memory; return it in training mode."""
    how = f"make must make an estimator when it is called as make(gamma={gamma}): a class or functools.partial"
    try:
        estimator = make(gamma=gamma)
    except TypeError as error:
        raise TypeError(
            f"{how} with its other options (num_steps={NUM_STEPS}: windows of the laws have {NUM_STEPS} steps), or "
            f"partial(ReturnEstimator, baseline=...) of a baseline; got {error}"
        ) from error
    if not isinstance(estimator, ValueEstimatorBase):
        raise TypeError(f"{how}; got {make!r}, which makes a {type(estimator).__name__}")
    return copy.deepcopy(estimator).train()


def _warmed(make: Make, gamma: float = _GAMMA) -> ValueEstimatorBase:
    """Build an estimator and let it judge some batches."""
    estimator = _build(make, gamma)
    for scale in _SEEN:
        estimator(_rollout(scale))
    return estimator


def _judge(make: Make, rollout: TensorDictBase) -> TensorDictBase:
    return _warmed(make)(rollout.clone())


def _require_close(actual: Tensor, expected: Tensor, message: str) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9, msg=message)

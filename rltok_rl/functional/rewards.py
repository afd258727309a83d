"""Rewards per byte; higher is better.

The reward of the step that ends in byte ``x_{t+1}`` is made of the model's prediction of that byte: log-likelihoods
[*B, T] in nats of the whole model and of the early exit, and the entropy of the early exit's prediction. Subtracting
anything that does not depend on the boundaries leaves the expected policy gradient unchanged (Section 2.4).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rltok_rl.functional.reduction import wide
from rltok_rl.functional.takes import takes
from rltok_rl.utils import did_you_mean, import_path, is_import_path

Reward = Callable[..., Tensor]
"""``(final_log_prob, early_log_prob, early_entropy) -> reward``, tensors of one shape."""


@takes("final_log_prob, early_log_prob, early_entropy: float *L")
def early_exit_reward(final_log_prob: Tensor, early_log_prob: Tensor, early_entropy: Tensor | None = None) -> Tensor:
    """Return the log-likelihood gained over the early exit, which sees no tokens (Eq. 15).

    R_{t+1} = log p(x_{t+1} | x_<=t, a_<=t) - log p_early(x_{t+1} | x_<=t)
    """
    return final_log_prob - early_log_prob


@takes("final_log_prob, early_log_prob, early_entropy: float *L")
def log_likelihood_reward(
    final_log_prob: Tensor, early_log_prob: Tensor, early_entropy: Tensor | None = None
) -> Tensor:
    """Return the log-likelihood, ``R_{t+1} = log p(x_{t+1} | x_<=t, a_<=t)``: plain REINFORCE (Eq. 13)."""
    return final_log_prob


@takes("final_log_prob, early_log_prob, early_entropy: float *L")
def entropy_relative_reward(final_log_prob: Tensor, early_log_prob: Tensor, early_entropy: Tensor) -> Tensor:
    """Return the log-likelihood minus the early exit's expected log-likelihood.

        R_{t+1} = log p(x_{t+1} | x_<=t, a_<=t) + H(p_early(. | x_<=t))

    ``-H`` is known before the byte is, so it removes less noise than the early exit's log-likelihood.
    """
    return final_log_prob + early_entropy


REWARDS: dict[str, Reward] = {
    "early_exit": early_exit_reward,
    "log_likelihood": log_likelihood_reward,
    "entropy_relative": entropy_relative_reward,
}
"""Rewards by name."""
RELATIVE = "relative"
"""``early_exit`` minus what a reference policy earns on the same text; of environments, training and ``rltok view``."""


def as_reward(reward: str | Reward, *, device: torch.device | str | None = None) -> Reward:
    """Return the function of a key of :data:`REWARDS`, of a path ``module:function``, or of a function.

    A custom reward has the signature of the others, and obeys :func:`broken_reward_laws`. If it does not read the
    entropy, which costs the early exit's whole predictions, it has a default for it (``early_entropy=None``).

    Example:
        >>> as_reward("rltok_rl.functional.rewards:early_exit_reward").__name__
        'early_exit_reward'
        >>> as_reward(lambda final, early, early_entropy=None: final - final.mean())
        Traceback (most recent call last):
        ValueError: reward must obey the laws of rewards, got rltok_rl.functional.rewards:<lambda>, which breaks
        'steps': each reward must depend on its own prediction alone: not on other steps, rows or calls
    """
    if isinstance(reward, str) and reward in REWARDS:
        return REWARDS[reward]
    function: Any = reward
    if isinstance(reward, str):
        if not is_import_path(reward):
            raise ValueError(
                f"reward must be one of {[*REWARDS]}, a custom module:function or a function (environments and "
                f"training: also {RELATIVE!r}), got {reward!r}{did_you_mean(reward, [*REWARDS, RELATIVE])}"
            )
        function = import_path("reward", reward)
    if not callable(function):
        raise TypeError(f"reward must be a name, module:function or a function, got {reward!r}")
    name = function_name(reward)
    try:
        inspect.signature(function).bind("final_log_prob", "early_log_prob", "early_entropy")
    except (TypeError, ValueError) as error:  # ValueError: built-in functions have no signature
        raise TypeError(
            f"reward must take (final_log_prob, early_log_prob, early_entropy), got {name}: {error}"
        ) from None
    broken = broken_reward_laws(function, device=device)
    if broken:
        which = "; ".join(f"{law!r}: {message}" for law, message in broken.items())
        raise ValueError(f"reward must obey the laws of rewards, got {name}, which breaks {which}")
    return function


def function_name(function: str | Callable[..., Any]) -> str:
    """Return ``module:function`` of a function, or the name that it was given by."""
    if isinstance(function, str):
        return function
    if not callable(function):
        raise TypeError(f"function must be a function or its name, got {function!r:.60}")
    return f"{function.__module__}:{getattr(function, '__qualname__', type(function).__name__)}"


def reads_entropy(reward: Reward) -> bool:
    """Return whether a reward reads the early exit's entropy: its third parameter has no default."""
    parameters = [*inspect.signature(reward).parameters.values()]
    return len(parameters) < 3 or parameters[2].default is inspect.Parameter.empty


def broken_reward_laws(reward: Reward, *, device: torch.device | str | None = None) -> dict[str, str]:
    """Return the laws that a reward breaks, with an explanation each; {} if it obeys all. For tests of custom rewards.

    - ``shape``: the reward has the shape and the dtype of its inputs;
    - ``finite``: it is finite, also for likelihood 1 and entropy 0;
    - ``gradient``: it carries no gradient, for example of a module's parameters;
    - ``inputs``: it leaves its inputs unchanged;
    - ``steps``: the reward of each prediction, called with it alone, is that of the whole batch. Then it depends on no
      byte after the one that is rewarded, on no other row, and is equal stepped and in parallel.

    Example:
        >>> broken_reward_laws(lambda final, early, entropy: (final - early).clamp(min=-4.0))
        {}
        >>> sorted(broken_reward_laws(lambda final, early, entropy: (final / early).cumsum(-1)))
        ['finite', 'steps']
    """
    if not callable(reward):
        raise TypeError(f"reward must be a function, got {reward!r:.60}")
    scales = torch.tensor([-6.0, -6.0, 5.5], device=device)
    numbers = scales[:, None, None] * torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(0)).to(scales.device)
    numbers[:, 0, 0] = 0.0
    numbers[:2, 1] *= 8.0  # unlikely bytes
    inputs = numbers[: 3 if reads_entropy(reward) else 2]
    final = numbers[0]
    try:
        with torch.enable_grad():
            rewards = reward(*inputs.clone())
    except Exception as error:
        return {"shape": f"rewards must be computed from inputs of any shape; called with {[*final.shape]}: {error}"}
    if not isinstance(rewards, Tensor) or rewards.shape != final.shape or rewards.dtype != final.dtype:
        got = f"{rewards.dtype} {[*rewards.shape]}" if isinstance(rewards, Tensor) else type(rewards).__name__
        return {"shape": f"rewards must be {final.dtype} {[*final.shape]} as the inputs are, got {got}"}
    broken = {}
    if not rewards.isfinite().all():
        broken["finite"] = "rewards must be finite, also for likelihood 1 and entropy 0"
    if rewards.requires_grad:
        broken["gradient"] = "rewards must carry no gradient (torch.no_grad)"
    used = inputs.clone()
    reward(*used)
    if not torch.equal(used, inputs):
        broken["inputs"] = "inputs must stay unchanged"
    try:
        alone = torch.cat([reward(*step.clone()) for step in inputs.flatten(1).split(1, 1)])
        same = torch.allclose(alone.detach(), rewards.detach().flatten(), rtol=1e-4, atol=1e-5, equal_nan=True)
    except Exception as error:  # any error of a custom function on this shape
        broken["steps"] = f"each reward must depend on its own prediction alone; called with one of shape [1]: {error}"
    else:
        if not same:
            broken["steps"] = "each reward must depend on its own prediction alone: not on other steps, rows or calls"
    return broken


@takes("rewards: float *L", "boundaries: real *L", "price: number (-inf, inf)")
def charge_boundaries(rewards: Tensor, boundaries: Tensor, price: float) -> Tensor:
    """Subtract a price in nats per boundary, ``R'_{t+1} = R_{t+1} - price a_t``."""
    return rewards - price * boundaries.to(rewards.dtype) if price else rewards


@takes("logits: float *L V+")
def prediction_entropy(logits: Tensor) -> Tensor:
    """Compute the entropy of predictions [*B, T, V] in nats, ``H = log sum_v exp l_v - sum_v p_v l_v``."""
    logits = logits.to(wide(logits))
    return logits.logsumexp(-1) - (logits.softmax(-1) * logits).sum(-1)

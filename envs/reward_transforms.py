"""Reward transforms of a ``TransformedEnv`` on whole rollouts."""

from __future__ import annotations

import copy
from weakref import WeakKeyDictionary

from torch import Tensor
from torchrl.envs import Compose, EnvBase, Transform, TransformedEnv

from rltok_rl.functional.rewards import broken_reward_laws

_OTHER = ("_call", "_step", "_reset", "_inv_call", "_reset_env_preprocess", "_post_step_mdp_hooks")
"""Methods by which a transform changes more than the reward of a step."""
_CHECKED: WeakKeyDictionary[Transform, tuple[object, str]] = WeakKeyDictionary()
"""A transform's state when it was last checked, and the result: a check takes longer than a small rollout."""


def reward_transforms(env: EnvBase) -> list[Transform]:
    """Return the transforms of an environment, in order, which must change single rewards and nothing else.

    They read and write ``reward`` alone, by ``_apply_transform``, and obey the laws of rewards
    (:func:`~rltok_rl.functional.rewards.broken_reward_laws`), as ``RewardScaling`` and ``RewardClipping`` do. Any other
    transform is an error that names it.
    """
    if not isinstance(env, TransformedEnv):
        return []
    transforms = _flat(env.transform)
    for transform in transforms:
        state = _state(transform)
        if _CHECKED.get(transform, (None, ""))[0] != state:
            _CHECKED[transform] = state, _more_than_rewards(transform)
        if reason := _CHECKED[transform][1]:
            raise ValueError(
                f"env must have transforms of single rewards only (RewardScaling, RewardClipping, or a Transform that "
                f"defines _apply_transform for in_keys=['reward']), got {type(transform).__name__}, which {reason}; "
                f"env.rollout and torchrl.collectors.Collector step with any transform"
            )
    return [*reward_transforms(env.base_env), *transforms]


def without_transforms(env: EnvBase) -> EnvBase:
    """Return the environment inside of any ``TransformedEnv``."""
    return without_transforms(env.base_env) if isinstance(env, TransformedEnv) else env


def _flat(transform: Transform) -> list[Transform]:
    return [part for each in transform for part in _flat(each)] if isinstance(transform, Compose) else [transform]


def _state(transform: Transform) -> object:
    """What changes if an attribute is set, or a tensor is changed in place."""
    tensors = [*transform.parameters(), *transform.buffers()]
    return {name: id(value) for name, value in vars(transform).items()}, [(id(x), x._version) for x in tensors]


def _more_than_rewards(transform: Transform) -> str:
    """Say what a transform does to a step beyond its reward; "" if nothing."""
    keys = {name: [*getattr(transform, name)] for name in ("in_keys", "out_keys", "in_keys_inv", "out_keys_inv")}
    changed = [name for name in _OTHER if getattr(type(transform), name) is not getattr(Transform, name)]
    rewards = keys == {"in_keys": ["reward"], "out_keys": ["reward"], "in_keys_inv": [], "out_keys_inv": []}
    if changed and (rewards or not any(keys.values())):
        return f"defines {changed}"
    if not rewards:
        return f"reads {keys['in_keys'] + keys['out_keys_inv']} and writes {keys['out_keys'] + keys['in_keys_inv']}"
    applied = copy.deepcopy(transform.clone())._apply_transform  # the laws must not change the state of the original
    device = next((buffer.device for buffer in transform.buffers()), None)

    def reward(final: Tensor, early: Tensor, entropy: Tensor | None = None) -> Tensor:
        return applied(final[..., None])[..., 0]

    broken = "; ".join(broken_reward_laws(reward, device=device).values())
    return broken and f"breaks the laws of rewards: {broken}"

"""A whole rollout in one forward pass, equal to the stepped rollout in every key.

Shapes: B rows, T steps, n texts, L steps of the longest text, D width, w lags. :mod:`rltok_rl.envs.rollout_plan`
decides which texts a rollout reads and where their bytes lie in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from rltok_rl.agents.bernoulli import LearnedBoundaryActor, lags_of
from rltok_rl.agents.segmenters import SegmenterActor, segments_mixing
from rltok_rl.envs.reward_transforms import reward_transforms, without_transforms
from rltok_rl.envs.rollout_plan import Plan, plan_texts, step_places, to_device
from rltok_rl.envs.seeding import seeded
from rltok_rl.envs.text_env import TextEnv, check_action_values
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase, TransformedEnv
from torchrl.modules import set_recurrent_mode

from rltok_rl.data.windows import Documents
from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.functional.policy import recent_boundaries
from rltok_rl.functional.rewards import prediction_entropy
from rltok_rl.utils import check_count


def parallel_rollout(
    env: EnvBase,
    actor: Any = None,
    *,
    actions: Tensor | None = None,
    uniforms: Tensor | None = None,
    generator: torch.Generator | None = None,
    max_steps: int | None = None,
    break_when_any_done: bool = False,
    text: Documents | None = None,
    exclude: tuple[str, ...] = (),
    part: tuple[int, int] = (0, 1),
) -> TensorDictBase:
    """Reset the environment and roll it out in one forward pass.

    With gradients on, ``logits``, ``action_log_prob``, ``entropy`` and the log-likelihoods under ``next`` carry them;
    rewards never do. Afterwards the environment must be reset before it is stepped. The tensordict [*B, T] has the keys
    of a stepped rollout.

    Args:
        env: a :class:`~rltok_rl.envs.ByteBoundaryEnv`, or a ``TransformedEnv`` of one whose transforms change single
            rewards only (``RewardScaling``, ``RewardClipping``, custom ones); they are applied.
        actor: a module that draws whole windows (``draws_windows``); None is the model's own policy. With ``actions``
            it scores them (``get_dist``), and None scores nothing. A
            :class:`~rltok_rl.agents.segmenters.SegmenterActor` makes tokens in its own way and adds its losses.
        actions: [*B, T] decisions; None lets the actor draw.
        uniforms: [*B, T] in [0, 1) for the actor to draw with.
        generator: source of the uniforms otherwise, drawn step by step for all rows: on the CPU, one seed gives the
            same rollout in one pass and stepped.
        max_steps: most steps; None is one episode, or the length of ``actions``.
        break_when_any_done: end the rollout when any row's episode ends, instead of restarting the row.
        text: texts to begin with, as for ``reset``.
        exclude: keys to leave out, such as ``("encoder_state",)`` to save memory.
        part: (r, W): this environment is the r-th of W processes with equally many rows. With equal seeds, their
            rollouts together are the rollout of one environment with all rows.
    """
    transforms, env = reward_transforms(env), without_transforms(env)
    if not isinstance(env, TextEnv):
        raise TypeError(f"env must be a ByteBoundaryEnv, got {type(env).__name__}")
    env.check_device()
    if not 0 <= part[0] < part[1]:
        raise ValueError(f"part must be (r, W) with 0 <= r < W, got {part}")
    if part[1] > 1 and text is not None:
        raise ValueError(f"text must be None for one part of a batch: texts are drawn for all of it, got part={part}")
    max_steps = _most_steps(env, actions, max_steps)
    if actor is None and actions is None:
        actor = LearnedBoundaryActor(env.model)
    _check_options(env, actor, actions, uniforms, generator, exclude)
    plan = plan_texts(env, max_steps, text, stop_at_end=break_when_any_done, part=part)
    env.forget()
    env.whole_rows = plan.aligned
    draws = {}
    if actions is not None:
        draws = {"actions": actions.reshape(env.num_rows, -1).long()[:, : plan.num_steps]}
    elif getattr(actor, "draws_at_random", True):
        draws = {"uniforms": _uniforms(env, uniforms, generator, plan.num_steps, part)}
    # Groups of exactly one length for segmenters, because padding would change their losses.
    groups = plan.groups(equal=isinstance(actor, SegmenterActor))
    outputs = []
    for group in (group.to(env.device) for group in groups):
        outputs.append(_read(env, group, actor, **{name: group.to_texts(values) for name, values in draws.items()}))
    places = step_places(groups, env.num_rows)
    index = None if places is None else to_device(places, env.device)
    shape = (*env.batch_size, plan.num_steps)

    def gather(parts: Sequence[dict[str, Tensor]]) -> TensorDict:
        kept = {}
        for name in [name for name in parts[0] if name not in exclude]:
            if index is None:  # views: texts are the rows, and what follows a step shares memory with the next one
                kept[name] = parts[0][name].reshape(*shape, *parts[0][name].shape[2:])
                continue
            values = torch.cat([part[name].flatten(0, 1) for part in parts]).index_select(0, index)
            kept[name] = values.reshape(*shape, *values.shape[1:])
        return TensorDict(kept, shape, names=[*(None for _ in env.batch_size), "time"], device=env.device)

    root, after = zip(*outputs, strict=True)
    following = gather(after)
    for transform in transforms:
        following["reward"] = transform._apply_transform(following["reward"])
    return gather(root).set("next", following)


seeded_rollout = seeded(parallel_rollout)
"""``parallel_rollout`` that draws actions from the environment's generator after ``set_seed``."""
# Otherwise TorchRL looks the method up in the environment inside of a TransformedEnv, and no transform applies.
TransformedEnv.parallel_rollout = seeded_rollout
for _name in ("_rollout_stop_early", "_rollout_nonstop"):
    setattr(TransformedEnv, _name, seeded(getattr(EnvBase, _name)))


def _read(
    env: TextEnv, plan: Plan, actor: Any, *, actions: Tensor | None = None, uniforms: Tensor | None = None
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """One forward pass over texts: entries [n, L, ...] before and after each step."""
    reading, following, chunk = plan.byte_ids[:, :-1], plan.byte_ids[:, 1:], env.likelihood_chunk
    segments, encoding = None, {"target_rate": plan.target_rate}
    if env.model.config.byte_scope == "token":  # the encoder stops at boundaries, which therefore come first
        segments = actor.draw_from_bytes(reading, uniforms) if isinstance(actor, SegmenterActor) else None
        known = actions if segments is None else segments.boundaries  # [n, L]
        encoding["boundaries"] = None if known is None else F.pad(known.bool(), (0, 1))
    states = env.model.encode(plan.byte_ids, **encoding)  # [n, L + 1, D]
    early, early_logits = env.predict_early(states[:, :-1], following)  # position t predicts byte t + 1
    observation = _observation(env, plan, states, early, early_logits)  # [n, L + 1, ...]
    if env.has_reference:
        reference = env.reference_rewards(plan.byte_ids, states[:, :-1], early, early_logits, plan.target_rate)
        observation["reference_reward"] = F.pad(reference, (1, 0)).unsqueeze(-1)
    before = {name: values[:, :-1] for name, values in observation.items()}
    if isinstance(actor, SegmenterActor):
        segments = actor.draw(states[:, :-1], reading, uniforms) if segments is None else segments
        decisions = {"action": segments.boundaries.long()}
        if segments.logits is not None:
            decisions["logits"] = segments.logits
    else:
        decisions = {"action": actions} if actions is not None else _draw(actor, before, uniforms)
    boundaries = decisions["action"].bool() | before["forced"]  # [n, L]
    recent = recent_boundaries(F.pad(boundaries, (0, 1)), env.model.config.num_lags)  # [n, L + 1, w]
    observation["recent"] = recent.to(torch.int8)
    if actions is not None and actor is not None:
        policy = actor.get_dist(TensorDict({**before, "recent": recent[:, :-1]}, actions.shape))
        scores = {"entropy": policy.entropy(), "action_log_prob": policy.log_prob(actions)}
        decisions |= {"logits": policy.logits, **scores}
    mixing = None if segments is None else segments_mixing(env.model, segments, before["forced"])
    options: dict[str, Any] = {"layout": env.layout, "mixing": mixing, "target_rate": plan.target_rate}
    decoded = env.model.decode_levels(states[:, :-1], boundaries, **options)
    if segments is None:
        final = env.model.final_log_prob(decoded.states, following, chunk=chunk).float()
    else:
        final_logits = env.model.final_logits(decoded.states)  # [n, L, 256]
        final = byte_log_prob(final_logits, following).float()
        decisions |= actor.losses(segments, reading, final_logits)
    observation["final_log_prob"] = F.pad(final, (1, 0)).unsqueeze(-1)  # the first byte is not predicted
    if decoded.second is not None:  # observed one step later, once the token has ended
        observation["second_boundary"] = F.pad(decoded.second.boundaries, (1, 0))
        if decoded.second.probabilities is not None:
            observation["second_probability"] = F.pad(decoded.second.probabilities.float(), (1, 0)).unsqueeze(-1)
    reward = env.reward_of(final, early, early_logits, boundaries)
    if env.relative:
        reward = reward - reference
    last = torch.arange(1, plan.longest + 1, device=env.device) == plan.steps[:, None]  # [n, L]
    done = (last & plan.cut[:, None]).unsqueeze(-1)
    flags = {"done": done, "terminated": done & plan.ends[:, None, None], "truncated": done & ~plan.ends[:, None, None]}
    root = {name: values[:, :-1] for name, values in observation.items()} | decisions
    root |= dict(zip(flags, done.new_zeros(len(flags), *done.shape), strict=True))
    after = {name: values[:, 1:] for name, values in observation.items()}
    return root, after | flags | {"reward": reward.unsqueeze(-1)}


def _observation(
    env: TextEnv, plan: Plan, states: Tensor, early: Tensor, early_logits: Tensor | None
) -> dict[str, Tensor]:
    """Observations at all L + 1 positions of each text that do not depend on boundaries."""
    num_texts, length = plan.byte_ids.shape
    position = torch.arange(length, device=env.device).expand(num_texts, -1)
    observation = {
        "byte": plan.byte_ids,
        "position": position.unsqueeze(-1),
        "forced": position == 0,
        "encoder_state": states.float(),
        "early_log_prob": F.pad(early, (1, 0)).unsqueeze(-1),  # of the byte at each position
    }
    if plan.target_rate is not None:
        observation["target_rate"] = plan.target_rate[:, None, None].expand(-1, length, 1)
    if env.observe_entropy:
        assert early_logits is not None
        after = env.model.early_logits(states[:, -1:])
        observation["early_entropy"] = prediction_entropy(torch.cat((early_logits, after), 1)).unsqueeze(-1)
    return observation


def _draw(actor: Any, before: dict[str, Tensor], uniforms: Tensor | None) -> dict[str, Tensor]:
    """The entries [n, L, ...] that the actor adds to whole windows."""
    inputs = before if uniforms is None else {**before, "uniform": uniforms}
    with set_recurrent_mode(True):
        outputs = actor(TensorDict(inputs, before["byte"].shape))
    return {name: value for name, value in outputs.items() if name not in inputs}


def _uniforms(
    env: TextEnv, uniforms: Tensor | None, generator: torch.Generator | None, num_steps: int, part: tuple[int, int]
) -> Tensor:
    """[B, T] random numbers of a rollout; as many are drawn as stepping draws."""
    if uniforms is None:
        index, count = part
        drawn = torch.rand(num_steps, env.num_rows * count, generator=generator, device=env.device).t()
        return drawn[index * env.num_rows : (index + 1) * env.num_rows]
    if uniforms.shape[:-1] != env.batch_size or uniforms.dim() == 0 or uniforms.shape[-1] < num_steps:
        raise ValueError(f"uniforms must have shape {[*env.batch_size, num_steps]}, got {list(uniforms.shape)}")
    return uniforms.reshape(env.num_rows, -1)[:, :num_steps]


def _most_steps(env: TextEnv, actions: Tensor | None, max_steps: int | None) -> int:
    if max_steps is not None:
        max_steps = check_count("max_steps", max_steps)
    if actions is None:
        return max_steps or env.num_steps
    if actions.shape[:-1] != env.batch_size or actions.dim() == 0 or actions.shape[-1] < 1:
        raise ValueError(f"actions must have shape {[*env.batch_size, 'T >= 1']}, got {list(actions.shape)}")
    check_action_values(actions)
    return min(actions.shape[-1], max_steps or actions.shape[-1])


def _check_options(
    env: TextEnv,
    actor: Any,
    actions: Tensor | None,
    uniforms: Tensor | None,
    generator: torch.Generator | None,
    exclude: tuple[str, ...],
) -> None:
    name = type(actor).__name__
    lags, kept = lags_of(actor), env.model.config.num_lags
    if lags > kept:
        raise ValueError(
            f"recent must hold the last {lags} boundaries, got {kept}: the environment's model keeps no more"
        )
    keys, seen = getattr(actor, "terms_in_keys", ()), [*env.observation_spec.keys()]
    if missing := [key for key in keys if key not in seen]:
        hint = "; observe_entropy=True of the environment adds it" if "early_entropy" in missing else ""
        raise ValueError(f"in_keys must be observations of the environment, {seen}, got {missing}{hint}")
    if actions is None and not getattr(actor, "draws_windows", False):
        raise TypeError(
            f"actor must draw whole windows (an actor of rltok_rl.agents does), got {name}; "
            f"env.rollout steps any policy"
        )
    if actions is None and env.model.config.byte_scope == "token" and not isinstance(actor, SegmenterActor):
        raise ValueError(
            f"actor must be a SegmenterActor whose segmenter reads bytes alone with byte_scope='token', whose encoder "
            f"stops at boundaries, got {name}; actions= and env.step take any boundaries"
        )
    if actions is not None and actor is not None and not hasattr(actor, "get_dist"):
        raise TypeError(f"actor must have get_dist to score actions, got {name}; actor=None scores nothing")
    if sum(value is not None for value in (actions, uniforms, generator)) > 1:
        raise ValueError("give at most one of actions, uniforms and generator")
    known = {*env.observation_spec.keys(), "logits", "entropy", "action_log_prob"}
    if isinstance(exclude, str) or not set(exclude) <= known:
        raise ValueError(f"exclude must be a tuple of names among {sorted(known)}, got {exclude!r}")

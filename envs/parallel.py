"""A whole rollout in one forward pass, key for key and number for number what stepping gives.

Shapes: B rows, T steps, n texts, L steps of the longest text, D width, w lags. Rows whose text ends before the rollout
does start another one; each text, from its first byte to its end, becomes one row of the forward pass, so that texts
never see each other. Where no text ends early, texts are the rows and nothing is moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from rltok_rl.agents.bernoulli import LearnedBoundaryActor
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.modules import set_recurrent_mode

from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.functional.policy import recent_boundaries
from rltok_rl.functional.rewards import prediction_entropy

if TYPE_CHECKING:
    from rltok_rl.envs.byte_boundary import ByteBoundaryEnv, Texts


@dataclass(frozen=True)
class Plan:
    """Which texts a rollout reads, and where they lie in it."""

    byte_ids: Tensor  # [n, L + 1]
    steps: Tensor  # [n] decisions in each text, as far as the rollout goes
    ends: Tensor  # [n] bool, whether its last step reveals the last byte of a document
    cut: Tensor  # [n] bool, whether its last step ends the episode at all
    row: Tensor  # [n] row of the rollout
    start: Tensor  # [n] step of the rollout at which it begins
    num_steps: int  # T

    @property
    def aligned(self) -> bool:
        """Whether each row of the rollout is one text."""
        return bool((self.start == 0).all())


def plan_texts(
    env: ByteBoundaryEnv, max_steps: int, texts: Texts | None, *, stop_at_end: bool, part: tuple[int, int] = (0, 1)
) -> Plan:
    """Draw the texts of a rollout in the order in which stepping would draw them.

    Args:
        env: the environment.
        max_steps: steps at most.
        texts: first texts of the rows; None draws them.
        stop_at_end: end the rollout when any row's episode ends, instead of starting the row anew.
        part: (r, W): draw for W times as many rows, and keep the r-th W-th of them.
    """
    index, count = part
    num_rows = env.num_rows * count
    windows = [env.draw_windows(num_rows, texts)]
    rows, starts = [torch.arange(num_rows)], [torch.zeros(num_rows, dtype=torch.int64)]
    over = windows[0].lengths - 1  # [B] step at which each row's text ends
    while int(over.min()) < max_steps and not stop_at_end:
        now = int(over.min())
        ending = (over == now).nonzero().squeeze(1)
        windows.append(env.draw_windows(len(ending)))
        rows.append(ending)
        starts.append(torch.full_like(ending, now))
        over[ending] += windows[-1].lengths - 1
    num_steps = min(max_steps, int(over.min())) if stop_at_end else max_steps
    row = torch.cat(rows) - index * env.num_rows
    mine = ((row >= 0) & (row < env.num_rows)).nonzero().squeeze(1)
    start, length = torch.cat(starts)[mine], torch.cat([w.lengths for w in windows])[mine]
    steps = torch.minimum(length - 1, num_steps - start)
    longest = int(steps.max())
    return Plan(
        byte_ids=torch.cat([w.byte_ids for w in windows])[mine, : longest + 1].to(env.device),
        steps=steps.to(env.device),
        ends=torch.cat([w.ends for w in windows])[mine].to(env.device),
        cut=(steps == length - 1).to(env.device),
        row=row[mine].to(env.device),
        start=start.to(env.device),
        num_steps=num_steps,
    )


def parallel_rollout(
    env: ByteBoundaryEnv,
    actor: Any = None,
    *,
    actions: Tensor | None = None,
    uniforms: Tensor | None = None,
    generator: torch.Generator | None = None,
    max_steps: int | None = None,
    break_when_any_done: bool = False,
    text: Texts | None = None,
    exclude: tuple[str, ...] = (),
    part: tuple[int, int] = (0, 1),
) -> TensorDictBase:
    """Reset the environment and roll it out in one forward pass.

    With gradients on, ``logits``, ``action_log_prob``, ``entropy`` and the log-likelihoods under ``next`` carry them;
    rewards never do. Afterwards the environment has to be reset before it can be stepped.

    Args:
        env: the environment.
        actor: a module that draws whole windows (``draws_windows``); None is the model's own policy. With ``actions``
            it scores them; None scores nothing then.
        actions: [*B, T] the decisions to take; None lets the actor draw.
        uniforms: [*B, T] in [0, 1) for the actor to draw with.
        generator: source of the uniforms otherwise. They are taken step by step, all rows of a step together, so that
            on the CPU one seed gives one rollout, stepped or not.
        max_steps: steps at most; None takes those of an episode, or of ``actions``.
        break_when_any_done: end the rollout when any row's episode ends, instead of starting the row anew.
        text: texts to begin with, as for ``reset``.
        exclude: keys to leave out, ``("encoder_state",)`` to save memory for instance.
        part: (r, W): this environment is the r-th of W processes with as many rows each. Texts and uniforms are then
            drawn for the rows of all, and its own are kept: with equal seeds, the rollouts of all are together the
            rollout of one environment with all rows.

    Returns:
        Tensordict [*B, T] with the keys of a stepped rollout.
    """
    env.check_device()
    index, count = _check_part(part, text)
    steps = _num_steps(env, actions, max_steps)
    if actor is None and actions is None:
        actor = LearnedBoundaryActor(env.model)
    plan = plan_texts(env, steps, text, stop_at_end=break_when_any_done, part=part)
    env.forget()
    place = _Place(env, plan)

    states = env.model.encode(plan.byte_ids)  # [n, L + 1, D]
    early_logits = env.model.early_logits(states[:, :-1])  # [n, L, 256], position t predicts byte t + 1
    here = _observed_before_action(env, plan, states)
    if actions is None:
        if uniforms is None:
            everyone = torch.rand(steps, env.num_rows * count, generator=generator, device=env.device).t()
            uniforms = everyone[index * env.num_rows : (index + 1) * env.num_rows]
        elif uniforms.shape != (*env.batch_size, steps):
            raise ValueError(f"uniforms must have shape {[*env.batch_size, steps]}, got {list(uniforms.shape)}")
        chosen = _draw(actor, here, place.to_texts(uniforms.reshape(env.num_rows, -1)[:, : plan.num_steps]))
    else:
        chosen = {"action": place.to_texts(actions.reshape(env.num_rows, -1).long()[:, : plan.num_steps])}
    boundaries = chosen["action"].bool() | here["forced"]  # [n, L]
    recent = recent_boundaries(F.pad(boundaries, (0, 1)), env.model.config.num_lags)  # [n, L + 1, w]
    if actions is not None and actor is not None:
        chosen |= _score(actor, {**here, "recent": recent[:, :-1]}, chosen["action"])

    decoded = env.model.decode(states[:, :-1], boundaries)  # [n, L, D]
    revealed = plan.byte_ids[:, 1:]
    final = byte_log_prob(env.model.final_logits(decoded), revealed).float()  # [n, L]
    early = byte_log_prob(early_logits, revealed).float()
    reward = env.reward_of(final, early, early_logits, boundaries)
    observation = _observation(env, plan, states, recent, final, early, early_logits)  # [n, L + 1, ...]
    last = torch.arange(plan.byte_ids.shape[1] - 1, device=env.device) + 1 == plan.steps[:, None]  # [n, L]
    done = last & plan.cut[:, None]
    flags = {"done": done, "terminated": done & plan.ends[:, None], "truncated": done & ~plan.ends[:, None]}
    column = {name: values.unsqueeze(-1) for name, values in flags.items()}
    root = {name: values[:, :-1] for name, values in observation.items()} | chosen
    root |= {name: torch.zeros_like(values) for name, values in column.items()}
    following = {name: values[:, 1:] for name, values in observation.items()} | column
    following["reward"] = reward.unsqueeze(-1)
    return place.assemble(root, following, exclude)


def _num_steps(env: ByteBoundaryEnv, actions: Tensor | None, max_steps: int | None) -> int:
    if max_steps is not None and max_steps < 1:
        raise ValueError(f"max_steps must be at least 1 or None, got {max_steps}")
    if actions is None:
        return max_steps or env.num_steps
    if actions.dim() != len(env.batch_size) + 1 or actions.shape[:-1] != env.batch_size or actions.shape[-1] < 1:
        raise ValueError(f"actions must have shape {[*env.batch_size, 'T >= 1']}, got {list(actions.shape)}")
    check_action_values(actions)
    return min(actions.shape[-1], max_steps or actions.shape[-1])


def _check_part(part: tuple[int, int], text: Texts | None) -> tuple[int, int]:
    index, count = part
    if not 0 <= index < count:
        raise ValueError(f"part must be (r, W) with 0 <= r < W, got {part}")
    if count > 1 and text is not None:
        raise ValueError(f"text must be None for one part of a batch: texts are drawn for all of it, got part={part}")
    return index, count


class _Place:
    """Moves values between the rollout, [B, T], and its texts, [n, L]."""

    def __init__(self, env: ByteBoundaryEnv, plan: Plan) -> None:
        self.env, self.plan = env, plan
        if plan.aligned:
            return
        longest = plan.byte_ids.shape[1] - 1
        place = torch.arange(longest, device=env.device)
        when = plan.start[:, None] + place  # [n, L] step of the rollout
        inside = place < plan.steps[:, None]
        row = plan.row[:, None].expand_as(when)
        #: [n * L] where in [B * T] each place of a text lies; past its end, anywhere
        self.of_place = (row * plan.num_steps + when.clamp(max=plan.num_steps - 1)).flatten()
        #: [B * T] where in [n * L] each step of the rollout lies
        self.of_step = torch.empty(env.num_rows * plan.num_steps, dtype=torch.int64, device=env.device)
        self.of_step[self.of_place[inside.flatten()]] = inside.flatten().nonzero().squeeze(1)

    def to_texts(self, values: Tensor) -> Tensor:
        """[B, T] to [n, L]."""
        if self.plan.aligned:
            return values
        return values.flatten().index_select(0, self.of_place).view(len(self.plan.row), -1)

    def to_rollout(self, values: Tensor) -> Tensor:
        """[n, L, ...] to [*B, T, ...]."""
        if not self.plan.aligned:
            values = values.flatten(0, 1).index_select(0, self.of_step)
        else:
            values = values.flatten(0, 1)
        return values.reshape((*self.env.batch_size, self.plan.num_steps, *values.shape[1:]))

    def assemble(
        self, root: dict[str, Tensor], following: dict[str, Tensor], exclude: tuple[str, ...]
    ) -> TensorDictBase:
        """The tensordict of the rollout."""
        env = self.env
        shape = (*env.batch_size, self.plan.num_steps)
        names = [*(None for _ in env.batch_size), "time"]

        def gathered(values: dict[str, Tensor]) -> TensorDict:
            kept = {name: self.to_rollout(x) for name, x in values.items() if name not in exclude}
            return TensorDict(kept, shape, names=names, device=env.device)

        out = gathered(root)
        out.set("next", gathered(following))
        return out


def _observed_before_action(env: ByteBoundaryEnv, plan: Plan, states: Tensor) -> dict[str, Tensor]:
    """What an actor may read of [n, L] positions without knowing any boundary."""
    num_texts, longest = plan.byte_ids.shape[0], plan.byte_ids.shape[1] - 1
    position = torch.arange(longest, device=env.device).expand(num_texts, -1)
    return {
        "byte": plan.byte_ids[:, :-1],
        "position": position.unsqueeze(-1),
        "forced": position == 0,
        "encoder_state": states[:, :-1].float(),
    }


def _draw(actor: Any, here: dict[str, Tensor], uniforms: Tensor) -> dict[str, Tensor]:
    """Let the actor draw whole windows; what it adds is [n, L, ...] per key."""
    given = {**here, "uniform": uniforms}
    with set_recurrent_mode(True):
        acted = actor(TensorDict(given, uniforms.shape))
    return {name: value for name, value in acted.items() if name not in given}


def _score(actor: Any, given: dict[str, Tensor], action: Tensor) -> dict[str, Tensor]:
    """What the actor would have thought of decisions that were taken for it."""
    policy = actor.get_dist(TensorDict(given, action.shape))
    return {"logits": policy.logits, "entropy": policy.entropy(), "action_log_prob": policy.log_prob(action)}


def _observation(
    env: ByteBoundaryEnv, plan: Plan, states: Tensor, recent: Tensor, final: Tensor, early: Tensor, early_logits: Tensor
) -> dict[str, Tensor]:
    """Observations at all L + 1 positions of each text."""
    num_texts, length = plan.byte_ids.shape
    position = torch.arange(length, device=env.device).expand(num_texts, -1)
    observation = {
        "byte": plan.byte_ids,
        "recent": recent.to(torch.int8),
        "position": position.unsqueeze(-1),
        "forced": position == 0,
        "encoder_state": states.float(),
        # How the byte at each position was predicted; nothing predicts the first one.
        "final_log_prob": F.pad(final, (1, 0)).unsqueeze(-1),
        "early_log_prob": F.pad(early, (1, 0)).unsqueeze(-1),
    }
    if env.observe_entropy:
        after = env.model.early_logits(states[:, -1:])
        observation["early_entropy"] = prediction_entropy(torch.cat((early_logits, after), 1)).unsqueeze(-1)
    return observation


def check_action_values(action: Tensor) -> None:
    """Require 0 and 1; looked at on the CPU only."""
    if action.device.type == "cpu":
        wrong = (action != 0) & (action != 1)
        if bool(wrong.any()):
            raise ValueError(f"action must be 0 (no boundary) or 1 (boundary), got {action[wrong].flatten()[0].item()}")

"""Evaluation of policies in an environment, paired with a reference policy on the same texts.

Returns vary more between texts than between policies, so a mean difference on the same texts is far more precise than
the difference of two means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import InteractionType, TensorDictModuleBase, set_interaction_type
from torch import Tensor, nn

from rltok_rl.agents import FixedStrideActor, LearnedBoundaryActor, RandomActor, UniformActor
from rltok_rl.agents.segmenters import SegmenterActor
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.envs.gym_env import observation_space
from rltok_rl.envs.gym_options import refuse_names
from rltok_rl.envs.registration import ENVIRONMENTS
from rltok_rl.evaluation.bits import mean_and_error
from rltok_rl.text import check_texts, text_to_bytes
from rltok_rl.utils import check_count, did_you_mean
from rltok_rl.viz.terminal import boundary_text

POLICIES = ("learned", "random", "uniform", "never", "always")
"""Policies by name: the model's own, boundaries at random, evenly spaced, at the first byte only, after every byte."""
Policy = str | nn.Module | Callable[[dict[str, np.ndarray]], Any]
"""A name, a TorchRL actor, an object with the ``predict`` of Stable-Baselines3, or a function."""


@dataclass(frozen=True)
class Episodes:
    """Episodes of one policy, one for each of n texts of at most T steps."""

    policy: str
    returns: Tensor  # [n] float64, undiscounted
    boundaries: Tensor  # [n, T] bool, False after the end
    steps: Tensor  # [n]
    nats: Tensor  # [n] float64, cost of the predicted bytes under the whole model

    @property
    def rates(self) -> Tensor:
        """Boundaries per byte of each text, [n]; those at first bytes count."""
        return self.boundaries.sum(1).double() / self.steps

    @property
    def bits_per_byte(self) -> Tensor:
        """Bits per byte of each text under the whole model, [n]."""
        return self.nats / (math.log(2) * self.steps)


@dataclass(frozen=True)
class PolicyEvaluation:
    """Episodes of a policy and of a reference on the same texts; ``str`` of it is a table."""

    texts: list[bytes]
    policy: Episodes
    reference: Episodes

    @cached_property
    def summary(self) -> dict[str, dict[str, tuple[float, float | None]]]:
        """Mean and standard error over texts of ``policy``, ``reference`` and ``difference``, for each measure."""
        summary = {}
        for name in ("returns", "rates", "bits_per_byte"):
            ours, theirs = getattr(self.policy, name), getattr(self.reference, name)
            sides = {"policy": ours, "reference": theirs, "difference": ours - theirs}
            summary[name] = {side: mean_and_error(values) for side, values in sides.items()}
        return summary

    def text(self, number: int = 0) -> str:
        """Render a text with a ``|`` at each boundary of the policy."""
        text, steps = self.texts[number], int(self.policy.steps[number])
        drawn = [*self.policy.boundaries[number, :steps].tolist(), False]  # the last byte is not decided
        return boundary_text(text, drawn[-len(text) :], colour=False)

    def __str__(self) -> str:
        titles = {"returns": "return, nats", "rates": "boundaries per byte", "bits_per_byte": "bits per byte"}
        lines = [[f"{len(self.texts)} texts", self.policy.policy, self.reference.policy, "difference"]]
        for name, sides in self.summary.items():
            shown = [f"{mean:.4f}" + ("" if error is None else f" ± {error:.4f}") for mean, error in sides.values()]
            lines.append([titles[name], *shown])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rows = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
        return "\n".join(rows)


def evaluate_policy(
    policy: Policy,
    texts: int | str | bytes | Sequence[str | bytes] = 64,
    *,
    reference: Policy = "uniform",
    env_id: str = "rltok_rl/ByteBoundary-v1",
    num_envs: int = 32,
    deterministic: bool = False,
    batched: bool = True,
    seed: int = 0,
    **options: Any,
) -> PolicyEvaluation:
    """Evaluate a policy and a reference on the same texts, one episode each, with a batch of texts at a time.

    Actors that draw whole windows (those of :mod:`rltok_rl.agents`) read them in one forward pass; other policies step.

    Args:
        policy: a name of :data:`POLICIES`; a TorchRL actor; an agent of Stable-Baselines3; a function from the
            observation of a batch, as of ``gymnasium.make_vec``, to its actions.
        texts: documents, of which each is read from its start for at most ``num_steps`` decisions; or the number of
            windows to draw from the environment's source.
        reference: what to compare with, as ``policy``. ``"uniform"`` and ``"random"`` have the rate of the policy on
            these texts; as ``policy``, the model's target rate.
        env_id: the environment, of which a batch is made with ``options`` as by ``gymnasium.make_vec``.
        num_envs: most texts that are read at the same time.
        deterministic: take the likelier action of actors and agents instead of drawing one.
        batched: whether functions map batches of observations; else single ones, as of ``gymnasium.make``.
        seed: seed of drawn windows, target rates, and of torch's generator for both policies.
        **options: of the environment, such as ``model="pocket"``, ``num_steps=128``, ``price=0.05``.

    Example:
        >>> result = evaluate_policy("always", ["to be or not to be"], reference="never")
        >>> result.policy.boundaries.sum().item(), result.reference.rates.item()
        (17, 0.058823529411764705)
    """
    if env_id not in ENVIRONMENTS:
        raise ValueError(f"env_id must be one of {[*ENVIRONMENTS]}, got {env_id!r}{did_you_mean(env_id, ENVIRONMENTS)}")
    documents = None if isinstance(texts, int) else _documents(texts)
    count = check_count("texts", texts if documents is None else len(documents))
    num_rows = min(check_count("num_envs", num_envs), count)
    env: Any = gymnasium.make_vec(gymnasium.spec(env_id), num_envs=num_rows, **options).unwrapped
    env = env.env
    if documents is None:
        env.set_seed(seed)
        documents = _draw(env, count)
    documents = [document[: env.window_bytes] for document in documents]
    read: dict[str, Any] = {"deterministic": deterministic, "batched": batched, "seed": seed}
    episodes = _episodes(env, "policy", policy, documents, rate=env.model.config.target_rate, **read)
    firsts, steps = len(documents), int(episodes.steps.sum())
    drawn = int(episodes.boundaries.sum())
    # Boundaries at first bytes are forced: random ones are drawn after the others.
    rate = (drawn - firsts) / max(1, steps - firsts) if reference == "random" else drawn / steps
    return PolicyEvaluation(documents, episodes, _episodes(env, "reference", reference, documents, rate=rate, **read))


def _documents(texts: Any) -> list[bytes]:
    refuse_names(texts)
    documents = [text_to_bytes(text) for text in check_texts("texts", texts)]
    for number, document in enumerate(documents):
        if len(document) < 2:
            raise ValueError(f"texts must have at least 2 bytes each to read and predict, got {document!r} at {number}")
    return documents


def _draw(env: ByteBoundaryEnv, count: int) -> list[bytes]:
    """Draw the texts of windows from the environment's source."""
    windows, marks = env.draw_windows(count), env.model.config.num_marks
    rows = zip(windows.byte_ids.tolist(), windows.lengths.tolist(), strict=True)
    return [bytes(row[marks:length]) for row, length in rows]


def _named_policy(argument: str, name: str, env: ByteBoundaryEnv, rate: float) -> nn.Module:
    """Return the actor of a name of :data:`POLICIES`; ``rate`` in [0, 1] is that of random and evenly spaced ones."""
    if name == "learned":
        return LearnedBoundaryActor(env.model)
    if name == "always" or (name == "random" and rate >= 1):
        return FixedStrideActor(1)
    if name == "never" or (name == "random" and rate <= 0):
        return FixedStrideActor(env.num_steps + 1)
    if name not in POLICIES:
        known = f"{argument} must be one of {[*POLICIES]}, an actor, an agent or a function"
        raise ValueError(f"{known}, got {name!r}{did_you_mean(name, POLICIES)}")
    return RandomActor(rate) if name == "random" else UniformActor(rate)


@torch.no_grad()
def _episodes(
    env: ByteBoundaryEnv,
    argument: str,
    policy: Policy,
    texts: list[bytes],
    *,
    rate: float,
    deterministic: bool,
    batched: bool,
    seed: int,
) -> Episodes:
    """Read each text once, as many at a time as the environment has rows."""
    name = policy if isinstance(policy, str) else getattr(policy, "__name__", type(policy).__name__)
    actor: Any = _named_policy(argument, policy, env, rate) if isinstance(policy, str) else policy
    parallel = getattr(actor, "draws_windows", False)
    if isinstance(actor, nn.Module) and not parallel and not isinstance(actor, TensorDictModuleBase):
        raise TypeError(f"{argument} must read a tensordict: wrap {name} in a NetworkActor or a TensorDictModule")
    if env.model.config.byte_scope == "token" and not isinstance(actor, SegmenterActor):
        parallel = False  # the encoder stops at boundaries, which are known only in steps
    if not isinstance(actor, nn.Module):
        actor = _client(argument, actor, env, deterministic, batched)
    kind = InteractionType.DETERMINISTIC if deterministic else InteractionType.RANDOM
    parts: list[dict[str, Tensor]] = []
    with torch.random.fork_rng(devices=[]), set_interaction_type(kind):
        torch.manual_seed(seed)
        for start in range(0, len(texts), env.num_rows):
            batch = texts[start : start + env.num_rows]
            env.set_seed(seed + start)  # target rates, the same for both policies
            rows = batch + batch[:1] * (env.num_rows - len(batch))
            longest = max(map(len, batch)) - 1 + env.model.config.num_marks
            rollout = (_in_parallel if parallel else _in_steps)(env, actor, rows, longest)
            parts.append({key: values[: len(batch)] for key, values in _totals(rollout, env.num_steps).items()})
    return Episodes(name, **{key: torch.cat([part[key] for part in parts]) for key in parts[0]})


def _in_parallel(env: ByteBoundaryEnv, actor: Any, texts: list[bytes], num_steps: int) -> TensorDictBase:
    return env.parallel_rollout(actor, text=texts, max_steps=num_steps, exclude=("encoder_state",))


def _in_steps(env: ByteBoundaryEnv, actor: Any, texts: list[bytes], num_steps: int) -> TensorDictBase:
    """Roll out as TorchRL does, keeping only what the totals need; rows that end read on in other texts."""
    seen, kept = env.reset(text=texts), []
    names = ("reward", "done", "final_log_prob")
    with env.seeded_actions():  # as parallel rollouts draw them
        for _ in range(num_steps):
            seen, forced = actor(seen), seen["forced"]
            stepped, seen = env.step_and_maybe_reset(seen)
            after = stepped["next"].select(*names)
            kept.append(TensorDict({"action": stepped["action"], "forced": forced, "next": after}, env.batch_size))
    return torch.stack(kept, 1)


def _totals(rollout: TensorDictBase, num_steps: int) -> dict[str, Tensor]:
    """Sum up the first episode of each row of a rollout [B, T]."""
    after = rollout["next"].select("reward", "done", "final_log_prob").cpu()
    reward, done, log_prob = (after[name].squeeze(-1) for name in ("reward", "done", "final_log_prob"))
    first = done.cumsum(1) - done.long() == 0  # [B, T] steps of the first episode
    boundaries = (rollout["action"].bool() | rollout["forced"]).cpu() & first
    return {
        "returns": (reward.double() * first).sum(1),
        "boundaries": nn.functional.pad(boundaries, (0, num_steps - boundaries.shape[1])),
        "steps": first.sum(1),
        "nats": -(log_prob.double() * first).sum(1),
    }


def _client(
    argument: str, policy: Any, env: ByteBoundaryEnv, deterministic: bool, batched: bool
) -> Callable[[TensorDictBase], TensorDictBase]:
    """Turn a function or an agent of Stable-Baselines3 into an actor on tensordicts."""
    space, rows, state = observation_space(env), env.num_rows, None
    agent = hasattr(policy, "predict")
    if not agent and not callable(policy):
        raise TypeError(f"{argument} must be a name, an actor, an agent or a function, got {type(policy).__name__}")
    if agent and getattr(policy, "observation_space", space) != space:
        raise ValueError(
            f"{argument} must have the observations of this environment, {space}, got {policy.observation_space}: "
            f"give the model and the options that it was trained with"
        )

    def act(seen: TensorDictBase) -> TensorDictBase:
        nonlocal state
        observation = {name: seen[name].numpy(force=True) for name in space}
        if agent:
            begins = observation["position"][:, 0] == 0
            chosen, state = policy.predict(observation, state, begins, deterministic)
        elif batched:
            chosen = policy(observation)
        else:
            chosen = [policy({name: values[row] for name, values in observation.items()}) for row in range(rows)]
        actions = np.asarray(chosen)
        if actions.shape != (rows,) or ((actions != 0) & (actions != 1)).any():
            hint = "" if agent or not batched else "; batched=False calls it for one text at a time"
            raise ValueError(f"{argument} must return actions of 0 and 1, of shape [{rows}], got {chosen!r}{hint}")
        return seen.set("action", torch.as_tensor(actions.astype(np.int64), device=env.device))

    return act

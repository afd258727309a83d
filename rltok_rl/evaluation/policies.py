"""Evaluation of policies in an environment, paired with a reference policy on the same texts.

Returns vary between texts as well as between policies, so a mean difference on the same texts is far more precise than
the difference of two means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium

from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.envs.gym_options import refuse_names
from rltok_rl.envs.registration import ENVIRONMENTS
from rltok_rl.evaluation.bits import mean_and_error
from rltok_rl.evaluation.policy_episodes import Episodes, Policy, read_episodes
from rltok_rl.text import check_texts, text_to_bytes
from rltok_rl.utils import check_count, did_you_mean
from rltok_rl.viz.terminal import boundary_text


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

    Actors that draw whole windows (those of :mod:`rltok_rl.agents`) read them in one forward pass, agents and functions
    in two, with their decisions in between; other TorchRL policies step.

    Args:
        policy: a name of :data:`~rltok_rl.evaluation.POLICIES`; a TorchRL actor; an agent of Stable-Baselines3; a
            function from the observation of a batch, as of ``gymnasium.make_vec``, to its actions.
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
        documents = draw_texts(env, count)
    documents = [document[: env.window_bytes] for document in documents]
    read: dict[str, Any] = {"deterministic": deterministic, "batched": batched, "seed": seed}
    episodes = read_episodes(env, policy, documents, **read)
    firsts, steps = len(documents), int(episodes.steps.sum())
    drawn = int(episodes.boundaries.sum())
    # Boundaries at first bytes are forced: random ones are drawn after the others.
    rate = (drawn - firsts) / max(1, steps - firsts) if reference == "random" else drawn / steps
    baseline = read_episodes(env, reference, documents, rate=rate, argument="reference", **read)
    return PolicyEvaluation(documents, episodes, baseline)


def _documents(texts: Any) -> list[bytes]:
    refuse_names(texts)
    documents = [text_to_bytes(text) for text in check_texts("texts", texts)]
    for number, document in enumerate(documents):
        if len(document) < 2:
            raise ValueError(f"texts must have at least 2 bytes each to read and predict, got {document!r} at {number}")
    return documents


def draw_texts(env: ByteBoundaryEnv, count: int) -> list[bytes]:
    """Draw the texts of windows from the environment's source."""
    windows, marks = env.draw_windows(count), env.model.config.num_marks
    rows = zip(windows.byte_ids.tolist(), windows.lengths.tolist(), strict=True)
    return [bytes(row[marks:length]) for row, length in rows]

"""Periodic evaluation on a fixed held-out text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.agents.segmenters import SegmenterActor
from rltok_rl.data.languages import Language
from rltok_rl.data.windows import WindowSource
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.functional.episodes import ratio_moments, ratio_with_error, return_sums
from rltok_rl.models.unet import UNet
from rltok_rl.renamed import RenamedAttribute
from rltok_rl.training.training_step import read_bytes, rollout_returns
from rltok_rl.utils import check_count

SPACINGS = ("log", "linear")
_SEED = 0x68656C64
"""No run's seed: an endless language with a run's seed would repeat the text that the run trains on."""


def snapshot_updates(total: int, count: int, *, spacing: str = "log") -> list[int]:
    """Return the updates after which to evaluate, at most ``count``, the last one always among them.

    With ``"log"`` spacing, each comes after twice as many updates as the one before.

    Example:
        >>> snapshot_updates(1000, 8)
        [8, 16, 31, 62, 125, 250, 500, 1000]
        >>> snapshot_updates(1000, 4, spacing="linear")
        [250, 500, 750, 1000]
    """
    check_count("total", total)
    check_count("count", count)
    if spacing not in SPACINGS:
        raise ValueError(f"spacing must be one of {list(SPACINGS)}, got {spacing!r}")
    halvings = range(count - 1, -1, -1)
    shares = [0.5**n for n in halvings] if spacing == "log" else [1 - n / count for n in halvings]
    return sorted({max(1, round(total * share)) for share in shares})


@dataclass(frozen=True, kw_only=True)
class Snapshots:
    """Evaluations of a model on held-out text, which leave its training unchanged.

    Texts and random numbers are the same every time, so only the model makes a difference.
    """

    held: WindowSource
    actor: Any = None
    """Draws the boundaries; default: the model's policy."""
    language: Language | None = None
    """Of the text, if its optimum is known, for the captured share of it."""
    num_rows: int
    num_steps: int
    """Decisions per row."""
    batches: int = 8
    num_bytes: int = 240
    """Length of the sample."""
    reward: str = "early_exit"
    """Of the environment that the model trains in."""
    price: float = 0.0
    """Of a boundary, in nats."""
    seed: int = _SEED

    def take(self, model: UNet) -> dict[str, Any]:
        """Return metrics and a sample as JSON values, in evaluation mode; the model is not sharded."""
        segmenter = self.actor.segmenter if isinstance(self.actor, SegmenterActor) else None
        modes = [(module, module.training) for module in (model, segmenter) if module is not None]
        try:
            for module, _ in modes:
                module.eval()  # no cap on boundary logits
            return {**self.evaluate(model), **self.sample(model)}
        finally:
            for module, training in reversed(modes):
                module.train(training)

    @torch.no_grad()
    def evaluate(self, model: UNet) -> dict[str, float]:
        """Return bits per byte, the rate, returns and standard errors, with boundaries drawn at random.

        ``held_out_relative_return`` is the episode's return minus that of evenly spaced boundaries at the model's
        target rate on the same texts. Systems that read more than boundaries (segmenters) have none.
        """
        options: dict[str, Any] = {"num_steps": self.num_steps, "batch_size": (self.num_rows,), "seed": self.seed}
        actor = LearnedBoundaryActor(model) if self.actor is None else self.actor
        by_boundaries = not isinstance(actor, SegmenterActor)  # others are refused if byte_scope is "token"
        options |= {"reward": self.reward, "price": self.price, "reference": "uniform" if by_boundaries else None}
        env = ByteBoundaryEnv(model, self.held, **options)
        generator = torch.Generator(model.embedding.weight.device).manual_seed(self.seed)
        nats, early, rates, shares = [], [], [], []
        sums: dict[str, list[Tensor]] = {}
        for _ in range(self.batches):
            rollout = env.parallel_rollout(actor, generator=generator, exclude=("encoder_state",))
            nats.append(-rollout["next", "final_log_prob"].mean().item())
            early.append(-rollout["next", "early_log_prob"].mean().item())
            rates.append(rollout["action"].float().mean().item())
            returns = rollout_returns(rollout)
            if by_boundaries:
                gain, reference, done = (rollout["next", key] for key in ("reward", "reference_reward", "done"))
                gain = gain if env.relative else gain - reference
                returns["relative_return"] = return_sums(gain.squeeze(-1), done.squeeze(-1))["episode_return"]
            if self.language is not None:
                shares.append(self.language.share_captured(*read_bytes(rollout, model.config.num_marks)))
            for name, values in returns.items():
                sums.setdefault(name, []).append(values)
        metrics = {
            "bits_per_byte": fmean(nats) / math.log(2),
            "early_bits_per_byte": fmean(early) / math.log(2),
            "rate": fmean(rates),
        }
        for name, parts in sums.items():
            rows = torch.cat(parts)
            metrics[name], error = ratio_with_error(ratio_moments(rows), len(rows))
            metrics |= {f"{name}_standard_error": error} if len(rows) > 1 else {}
        if shares:
            metrics["share"] = fmean(shares)
        if self.batches > 1:
            errors = {"standard_error": nats, **({"share_standard_error": shares} if shares else {})}
            metrics |= {name: stdev(values) / math.sqrt(self.batches) for name, values in errors.items()}
            metrics["standard_error"] /= math.log(2)
        return {f"held_out_{name}": value for name, value in metrics.items()}

    figures = RenamedAttribute("evaluate")

    @torch.no_grad()
    def sample(self, model: UNet) -> dict[str, Any]:
        """Return ``text``, a character per byte (latin-1), ``boundaries``, a 0 or 1 per byte, and ``probabilities``."""
        device, seed, marks = model.embedding.weight.device, self.seed + 1, model.config.num_marks
        drawn = self.held.draw(1, self.num_bytes, torch.Generator().manual_seed(seed))
        window = drawn.byte_ids[:, : int(drawn.lengths[0])].to(device)  # [1, T], a document may be shorter
        if self.actor is None:
            out = model(model.mark(window), generator=torch.Generator(device).manual_seed(seed))
            boundaries, probs = out.boundaries[0, marks:], out.boundary_logits.sigmoid()[0, marks:]
        else:
            text = bytes(window[0].tolist())
            env = ByteBoundaryEnv(model, text, num_steps=len(text) - 1 + marks, batch_size=(1,), seed=seed)
            generator = torch.Generator(device).manual_seed(seed)
            rollout = env.parallel_rollout(self.actor, text=text, generator=generator)
            boundaries = rollout["action"][0, marks:]
            probs = boundaries.float()  # a rule is certain
            if isinstance(self.actor, SegmenterActor) and "logits" in rollout.keys():
                probs = rollout["logits"][0, marks:].sigmoid()
        return {
            "text": bytes(window[0, : len(boundaries)].tolist()).decode("latin-1"),
            "boundaries": "".join(str(int(b)) for b in boundaries.tolist()),
            "probabilities": [round(p, 4) for p in probs.tolist()],
        }


def sample_parts(line: dict[str, Any]) -> tuple[bytes, list[bool], list[float]]:
    """Return text, boundaries and probabilities of a sample, as the functions of :mod:`rltok_rl.viz` take them."""
    return line["text"].encode("latin-1"), [b == "1" for b in line["boundaries"]], line["probabilities"]

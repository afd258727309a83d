"""Looks at a training from outside: text that is never trained on, the same one every time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch

from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.agents.segmenters import SegmenterActor
from rltok_rl.data.languages import Language
from rltok_rl.data.windows import WindowSource
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.models.unet import UNet

SPACINGS = ("log", "linear")
_SEED = 0x68656C64
"""Of no training: a language that never ends says the same to equal seeds, and would be looked at as it was learned."""


def snapshot_updates(total: int, count: int, *, spacing: str = "log") -> list[int]:
    """Updates after which to look: none before the first, the last one always.

    Args:
        total: updates of the whole training.
        count: how many looks at most; 1 is the end alone.
        spacing: ``"log"``, each look after twice as many updates as the one before it; ``"linear"``, equally far apart.

    Example:
        >>> snapshot_updates(1000, 8)
        [8, 16, 31, 62, 125, 250, 500, 1000]
        >>> snapshot_updates(1000, 4, spacing="linear")
        [250, 500, 750, 1000]
        >>> snapshot_updates(3, 8)
        [1, 2, 3]
    """
    if total < 1:
        raise ValueError(f"total must be at least 1, got {total}")
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    if spacing not in SPACINGS:
        raise ValueError(f"spacing must be one of {list(SPACINGS)}, got {spacing!r}")
    halvings = range(count - 1, -1, -1)
    shares = [0.5**n for n in halvings] if spacing == "log" else [1 - n / count for n in halvings]
    return sorted({max(1, round(total * share)) for share in shares})


@dataclass(frozen=True, kw_only=True)
class Snapshots:
    """What a model makes of text that it does not train on; training is left as it was.

    Texts and random numbers are the same at every look, so that what differs is the model.

    Args:
        held: the text.
        actor: draws the boundaries; None is the model's own policy.
        language: that the text is of, if its answer is known: the share of what tokens can earn is told too.
        num_rows: rows of an evaluation batch.
        num_steps: decisions per row.
        batches: evaluation batches.
        num_bytes: length of the sample.
        seed: of texts and boundaries.
    """

    held: WindowSource
    actor: Any = None
    language: Language | None = None
    num_rows: int
    num_steps: int
    batches: int = 8
    num_bytes: int = 240
    seed: int = _SEED

    @property
    def bytes_predicted(self) -> int:
        """Bytes that held-out figures are means over."""
        return self.batches * self.num_rows * self.num_steps

    def take(self, model: UNet) -> dict[str, Any]:
        """Figures and a sample, ready for JSON.

        Args:
            model: in one piece.
        """
        training = model.training
        segmenter = self.actor.segmenter if isinstance(self.actor, SegmenterActor) else None
        drawing = segmenter is not None and segmenter.training
        try:
            model.eval()  # no cap on boundary logits
            if segmenter is not None:
                segmenter.eval()
            return {**self.figures(model), **self.sample(model)}
        finally:
            if segmenter is not None:
                segmenter.train(drawing)
            model.train(training)

    @torch.no_grad()
    def figures(self, model: UNet) -> dict[str, float]:
        """Bits per byte, its standard error over batches, and the rate; boundaries are drawn from the policy.

        Args:
            model: in one piece.
        """
        rows: Any = {"num_steps": self.num_steps, "batch_size": (self.num_rows,)}
        env = ByteBoundaryEnv(model, self.held, seed=self.seed, **rows)
        generator = torch.Generator(model.embedding.weight.device).manual_seed(self.seed)
        actor = LearnedBoundaryActor(model) if self.actor is None else self.actor
        nats, early, rates, shares = [], [], [], []
        for _ in range(self.batches):
            rollout = env.parallel_rollout(actor, generator=generator, exclude=("encoder_state",))
            nats.append(-rollout["next", "final_log_prob"].mean().item())
            early.append(-rollout["next", "early_log_prob"].mean().item())
            rates.append(rollout["action"].float().mean().item())
            if self.language is not None:
                byte_ids = torch.cat((rollout["byte"], rollout["next", "byte"][:, -1:]), 1)
                log_prob = rollout["next", "final_log_prob"].squeeze(-1)
                shares.append(self.language.share_captured(byte_ids, log_prob))
        figures = {
            "held_out_bits_per_byte": fmean(nats) / math.log(2),
            "held_out_early_bits_per_byte": fmean(early) / math.log(2),
            "held_out_rate": fmean(rates),
        }
        if shares:
            figures["held_out_share"] = fmean(shares)
        if self.batches > 1:
            figures["held_out_standard_error"] = stdev(nats) / math.sqrt(self.batches) / math.log(2)
        return figures

    @torch.no_grad()
    def sample(self, model: UNet) -> dict[str, Any]:
        """One text with the boundaries that the policy draws in it, and how likely it found each.

        Args:
            model: in one piece.

        Returns:
            ``text``, a character per byte (latin-1); ``boundaries``, a 0 or 1 per byte; ``probabilities``.
        """
        device, seed = model.embedding.weight.device, self.seed + 1
        drawn = self.held.draw(1, self.num_bytes, torch.Generator().manual_seed(seed))
        window = drawn.byte_ids[:, : int(drawn.lengths[0])].to(device)  # [1, T], a document may be shorter
        if self.actor is None:
            out = model(window, generator=torch.Generator(device).manual_seed(seed))
            boundaries, probs = out.boundaries[0], out.boundary_logits.sigmoid()[0]
        else:
            text = bytes(window[0].tolist())
            env = ByteBoundaryEnv(model, text, num_steps=len(text) - 1, batch_size=(1,), seed=seed)
            generator = torch.Generator(device).manual_seed(seed)
            rollout = env.parallel_rollout(self.actor, text=text, generator=generator)
            boundaries = rollout["action"][0]
            probs = boundaries.float()  # a rule is certain of itself
            if isinstance(self.actor, SegmenterActor) and "logits" in rollout.keys():
                probs = rollout["logits"][0].sigmoid()
        return {
            "text": bytes(window[0, : len(boundaries)].tolist()).decode("latin-1"),
            "boundaries": "".join(str(int(b)) for b in boundaries.tolist()),
            "probabilities": [round(p, 4) for p in probs.tolist()],
        }


def sample_parts(line: dict[str, Any]) -> tuple[bytes, list[bool], list[float]]:
    """Text, boundaries and probabilities of a sample, as the functions of :mod:`rltok_rl.viz` take them.

    Example:
        >>> sample_parts({"text": "ab", "boundaries": "10", "probabilities": [0.9, 0.1]})
        (b'ab', [True, False], [0.9, 0.1])
    """
    return line["text"].encode("latin-1"), [b == "1" for b in line["boundaries"]], line["probabilities"]

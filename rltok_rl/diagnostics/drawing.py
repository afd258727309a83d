"""Where reports get their rollouts from: real text, or all strings of short texts."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.data import RepeatedSource, WindowSource
from rltok_rl.diagnostics.enumeration import Texts, enumerate_rollouts
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.models.unet import UNet


class TextRollouts:
    """Fresh windows of text, each read by so many rows as asked, with boundaries from the model's policy.

    Args:
        model: the U-Net.
        source: where windows come from.
        num_rows: B.
        num_steps: T.
        seed: of texts and boundaries.
    """

    def __init__(self, model: UNet, source: WindowSource, *, num_rows: int, num_steps: int, seed: int) -> None:
        self.model, self.source, self.num_rows, self.num_steps = model, source, num_rows, num_steps
        self.seed, self.actor = seed, LearnedBoundaryActor(model)
        self.generator = torch.Generator(model.embedding.weight.device).manual_seed(seed)
        self._envs: dict[int, ByteBoundaryEnv] = {}

    @torch.no_grad()
    def __call__(self, rows_per_text: int) -> TensorDictBase:
        """A rollout [B, T]."""
        if rows_per_text not in self._envs:
            self._envs[rows_per_text] = ByteBoundaryEnv(
                self.model,
                RepeatedSource(self.source, rows_per_text),
                num_steps=self.num_steps,
                batch_size=(self.num_rows,),
                seed=self.seed + rows_per_text,
                observe_entropy=True,
            )
        return self._envs[rows_per_text].parallel_rollout(self.actor, generator=self.generator)


class EnumeratedRollouts:
    """Rows drawn from the enumeration of a few short texts, in float64: whole reports for the price of one.

    Args:
        model: the U-Net, in float64.
        texts: M texts of one length.
        num_rows: B.
        seed: of texts and boundaries.
    """

    def __init__(self, model: UNet, texts: Texts, *, num_rows: int, seed: int) -> None:
        with torch.no_grad():
            self.table = enumerate_rollouts(model, texts)  # [M, n, T]
        self.weights = self.table["log_weight"][..., 0].exp()  # [M, n]
        self.num_rows = num_rows
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, rows_per_text: int) -> TensorDictBase:
        """A rollout [B, T]."""
        if self.num_rows % rows_per_text:
            raise ValueError(f"rows_per_text must divide the {self.num_rows} rows, got {rows_per_text}")
        count = self.num_rows // rows_per_text
        text = torch.randint(len(self.weights), (count,), generator=self.generator)
        string = torch.multinomial(self.weights[text], rows_per_text, replacement=True, generator=self.generator)
        found = self.table[text.repeat_interleave(rows_per_text), string.flatten()]
        found.names = [None, "time"]
        return found

"""Packed tokens against padded ones: what is computed on, and what a training step takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from statistics import fmean

import torch
from rltok_rl.experiments.bench.harness import Row, compare, row_of_pairs
from rltok_rl.experiments.bench.trainers import fresh_model, paper_trainer
from torch import Tensor

from rltok_rl.data import TextSource, local_prose
from rltok_rl.models import UNet
from rltok_rl.models.attention import fastest_method, packed_attention
from rltok_rl.models.tokens import Layout, Packing, token_layout
from rltok_rl.sampling import sample_boundaries
from rltok_rl.training import Trainer

NUM_BYTES, BATCHES = 4096, 5
STEPS = {
    "cpu": (("released-18m", 2), ("pocket", 8)),
    "cuda": (("released-18m", 8), ("released-18m", 32), ("pocket", 32)),
}
"""Models and rows of a step; ``pocket`` has been trained, the other has not."""


def made(name: str, device: str) -> UNet:
    """A model as it is when it trains: ``pocket`` with its weights, a preset with fresh ones."""
    torch.manual_seed(0)  # boundaries are drawn with torch's own random numbers
    return UNet.from_pretrained(name).to(device).train() if name == "pocket" else fresh_model(name, device)


@torch.no_grad()
def drawn(model: UNet, num_rows: int) -> Iterator[Tensor]:
    """Boundaries [B, T] that the policy draws in windows of real text."""
    device, generator = model.embedding.weight.device, torch.Generator().manual_seed(0)
    text = TextSource(local_prose())
    for _ in range(BATCHES):
        byte_ids = text.draw(num_rows, NUM_BYTES, generator).byte_ids.to(device)
        yield sample_boundaries(*model.boundary_terms(model.encode(byte_ids)), cap=model.boundary_cap)


def padding_row(num_rows: int, device: str) -> Row:
    """Places that tokens are computed in, padded to the longest row and packed in buckets."""
    places, shares = [], []
    for boundaries in drawn(made("pocket", device), num_rows):
        total = int(boundaries.sum())
        packed, padded = (token_layout(boundaries, layout).byte_index.numel() for layout in (Packing(), "padded"))
        places.append((packed, padded))
        shares.append((1 - total / packed, 1 - total / padded))
    told = [f"{100 * fmean(side):.2f} % ({100 * max(side):.2f} at most)" for side in zip(*shares, strict=True)]
    name, note = f"places, padded / packed, pocket, T={NUM_BYTES}, B={num_rows}", f"empty: {told[0]} against {told[1]}"
    return replace(row_of_pairs("packing", name, places, note=note), ours_ms=float("nan"), reference_ms=float("nan"))


def trainer_of(name: str, num_rows: int, layout: Layout, device: str) -> Trainer:
    """A trainer whose tokens are laid out in one way."""
    precision = "bfloat16" if device == "cuda" else "float32"
    return paper_trainer(made(name, device), num_rows, NUM_BYTES, precision=precision, layout=layout)


def step_row(name: str, num_rows: int, device: str, packing: Packing, note: str = "") -> Row:
    """A training step with packed tokens against one with padded ones."""
    packed, padded = (trainer_of(name, num_rows, layout, device).update for layout in (packing, "padded"))
    title = f"step, packed / padded, {name}, T={NUM_BYTES}, B={num_rows}"
    return compare("packing", title, packed, padded, pairs=5, note=note)


def attention_row(num_rows: int, cap: float | None, device: str) -> Row:
    """Attention of packed tokens by the method of the device, against rows padded for it; forward and backward."""
    boundaries = next(drawn(made("pocket", device), num_rows))
    rows = token_layout(boundaries, Packing()).rows
    assert rows is not None
    dtype, heads, head_size = torch.bfloat16 if device == "cuda" else torch.float32, 6, 64
    inputs = [torch.randn(rows.room, heads, head_size, device=device, dtype=dtype) for _ in range(3)]
    inputs = [x.requires_grad_() for x in inputs]
    method = fastest_method(torch.device(device), head_size=head_size)
    ours, padded = (packed_attention(rows, cap=cap, head_size=head_size, method=how) for how in (method, "padded"))

    def work(attend) -> None:  # type: ignore[no-untyped-def]
        torch.autograd.grad(attend(*inputs).sum(), inputs)

    name = f"attention, {method} / padded, cap={cap}, T={NUM_BYTES}, B={num_rows}, forward + backward"
    return compare("packing", name, partial(work, ours), partial(work, padded), pairs=5)


def rows(device: str) -> list[Row]:
    """Padding, attention, and steps; on a GPU also steps with room that is set aside."""
    out = [padding_row(num_rows, device) for num_rows in (8, 32)]
    out += [attention_row(8, cap, device) for cap in (None, 50.0)]
    for name, num_rows in STEPS[device]:
        out.append(step_row(name, num_rows, device, Packing()))
        if device == "cuda":
            rate = 1.25 * made(name, "cpu").config.target_rate
            out.append(step_row(name, num_rows, device, Packing(tokens=rate), note="a quarter of room, no wait"))
    return out

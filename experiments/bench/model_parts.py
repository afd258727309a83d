"""Parts of the model: sliding-window attention, decoding, packed tokens and compiled layers."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rltok_rl.experiments.bench.operations import inductor_counts
from rltok_rl.experiments.bench.timing import (
    BenchRow,
    compare,
    compare_seconds,
    fresh_model,
    in_new_process,
    paper_trainer,
    row_of_pairs,
    seconds,
)
from torch import Tensor

from rltok_rl.data import TextSource, local_prose
from rltok_rl.models import UNet
from rltok_rl.models.attention import fastest_method, packed_attention, sliding_window_attention, window_attention
from rltok_rl.models.generation import stream
from rltok_rl.models.layers import SCORES
from rltok_rl.models.tokens import Packing, token_layout
from rltok_rl.sampling import sample_boundaries
from rltok_rl.training.options import compile_layers
from rltok_rl.utils import keep_memory

HEADS, CHANNELS, WINDOW = 6, 64, 64  # as in the 18M model
TIMED_LENGTHS = 5  # lengths at which whole passes are timed; 4,000 of them would take many minutes
NUM_BYTES, NUM_BATCHES = 4096, 5
PACKED_STEPS = {
    "cpu": (("released-18m", 2), ("pocket", 8)),
    "cuda": (("released-18m", 8), ("released-18m", 32), ("pocket", 32)),
}
"""Models and rows of the steps with packed tokens; `pocket` is trained, the other is not."""
COMPILED = {"pocket": (8, 512), "small": (4, 1024), "released-18m": (1, 4096)}
"""Rows and steps of the compiled presets: 4,096 bytes each."""


def _backward(attention: Callable[..., Tensor], inputs: list[Tensor]) -> None:
    torch.autograd.grad(attention(*inputs).sum(), inputs)


def attention(device: str) -> list[BenchRow]:
    """Sliding-window attention in blocks against torch's kernel with a T x T mask, forward and backward."""
    torch.manual_seed(0)
    blocks = partial(sliding_window_attention, window=WINDOW)

    def masked(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        positions = torch.arange(query.shape[1], device=device)
        mask = (positions <= positions[:, None]) & (positions > positions[:, None] - WINDOW)
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)

    def inputs(length: int, dtype: torch.dtype) -> list[Tensor]:
        shape = (2, length, HEADS, CHANNELS)
        return [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]

    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        for length in (1024, 4096):
            name = f"blocks / masked dense, T={length}, {str(dtype).removeprefix('torch.')}, forward + backward"
            timed = [partial(_backward, function, inputs(length, dtype)) for function in (blocks, masked)]
            rows.append(compare("attention", name, *timed, pairs=3))
    if device == "cuda":
        rows += [_flex_attention(cap) for cap in (None, 50.0)]
    timed = [partial(_backward, blocks, inputs(length, torch.float32)) for length in (4096, 8192)]
    return [*rows, compare("attention", "blocks at T=4096 / at T=8192", *timed, note="2 is linear")]


def _flex_attention(cap: float | None, shape: tuple[int, int] = (8, 4096)) -> BenchRow:
    """Flex attention of a compiled step at 147M against blocks, whose capped softmax is compiled there, too."""
    inputs = [torch.randn(*shape, 12, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    options: dict[str, Any] = {"window": WINDOW, "cap": cap, "starts": None}
    flat = window_attention(torch.Size(shape), torch.device("cuda"), head_size=64, traced=True, **options)

    def flex(*heads: Tensor) -> Tensor:
        return flat(*(x.flatten(0, 1) for x in heads))

    def blocks(*heads: Tensor) -> Tensor:
        before = SCORES.set("inductor")
        try:
            return sliding_window_attention(*heads, **options)
        finally:
            SCORES.reset(before)

    timed = [partial(_backward, function, inputs) for function in (flex, blocks)]
    name = f"flex / blocks, B=8, T=4096, 12 heads, cap={cap}, bfloat16, forward + backward"
    return compare("attention", name, *timed, pairs=5)


def decoding(device: str) -> list[BenchRow]:
    """Generation through the cache against a full forward pass for every byte."""
    model = fresh_model("small", device).eval()
    rows = []
    for num_bytes, goal in ((1000, 8.0), (4000, 30.0)):
        growth: list[float] = []
        timed = partial(_cached_seconds, model, num_bytes, growth), partial(_full_seconds, model, num_bytes)
        name = f"cache / full forward per byte, {num_bytes} bytes"
        row = compare_seconds("decoding", name, *timed, pairs=3, goal=goal)
        speed, factor = 1e3 * num_bytes / row.ours_ms, statistics.median(growth)
        note = f"{speed:.0f} bytes/s; the last tenth costs {factor:.2f}x the second, per byte"
        rows.append(replace(row, note=note))
    return rows


def _cached_seconds(model: UNet, num_bytes: int, growth: list[float]) -> float:
    """Seconds of generating; appends the cost per byte in the last tenth, relative to the second tenth."""
    marks = [time.perf_counter()]
    for step in stream(model, "x", max_bytes=num_bytes):
        step.byte_ids.tolist()
        marks.append(time.perf_counter())
    tenth = num_bytes // 10
    growth.append((marks[-1] - marks[-1 - tenth]) / (marks[2 * tenth] - marks[tenth]))
    return marks[-1] - marks[0]


@torch.no_grad()
def _full_seconds(model: UNet, num_bytes: int) -> float:
    """Seconds of a full pass at each of the positions 1 .. num_bytes, by the midpoint rule over a few lengths.

    The cost grows nearly linearly in the length. Boundaries are random and only the last logits are computed.
    """
    total, device = 0.0, model.embedding.weight.device
    for sample in range(TIMED_LENGTHS):
        length = round((sample + 0.5) / TIMED_LENGTHS * num_bytes)
        byte_ids = torch.randint(256, (1, length), device=device)
        boundaries = torch.rand(1, length, device=device) < model.config.target_rate
        boundaries[:, 0] = True
        start = time.perf_counter()
        states = model.encode(byte_ids)
        model.final_logits(model.decode(states, boundaries)[:, -1]).argmax(-1).item()
        total += time.perf_counter() - start
    return total / TIMED_LENGTHS * num_bytes


def packing(device: str) -> list[BenchRow]:
    """Packed tokens against padded ones: places in memory, attention, and training steps."""
    rows = [_packed_places(num_rows, device) for num_rows in (8, 32)]
    rows += [_packed_attention(8, cap, device) for cap in (None, 50.0)]
    for name, num_rows in PACKED_STEPS[device]:
        rows.append(_packed_step(name, num_rows, device, Packing()))
        if device == "cuda":
            reserved = Packing(tokens=1.25 * _model(name, "cpu").config.target_rate)
            rows.append(_packed_step(name, num_rows, device, reserved, note="a quarter of reserve, no host wait"))
    return rows


def _model(name: str, device: str) -> UNet:
    """`pocket` with its trained weights, other presets with fresh ones."""
    torch.manual_seed(0)  # boundaries are drawn with torch's global generator
    return UNet.from_pretrained(name).to(device).train() if name == "pocket" else fresh_model(name, device)


@torch.no_grad()
def _drawn_boundaries(num_rows: int, device: str) -> Iterator[Tensor]:
    """Boundaries [B, T] that the packaged policy draws in windows of prose."""
    model, text, generator = _model("pocket", device), TextSource(local_prose()), torch.Generator().manual_seed(0)
    for _ in range(NUM_BATCHES):
        byte_ids = text.draw(num_rows, NUM_BYTES, generator).byte_ids.to(device)
        yield sample_boundaries(*model.boundary_terms(model.encode(byte_ids)), cap=model.boundary_cap)


def _packed_places(num_rows: int, device: str) -> BenchRow:
    places, empty = [], []
    for boundaries in _drawn_boundaries(num_rows, device):
        total = int(boundaries.sum())
        packed, padded = (token_layout(boundaries, layout).byte_index.numel() for layout in (Packing(), "padded"))
        places.append((packed, padded))
        empty.append((1 - total / packed, 1 - total / padded))
    sides = [100 * np.array(side) for side in zip(*empty, strict=True)]
    shares = [f"{side.mean():.2f} % ({side.max():.2f} at most)" for side in sides]
    name, note = f"places, padded / packed, pocket, T={NUM_BYTES}, B={num_rows}", f"empty: {' against '.join(shares)}"
    return row_of_pairs("packing", name, places, note=note, timed=False)


def _packed_attention(num_rows: int, cap: float | None, device: str) -> BenchRow:
    """Attention of packed tokens by the device's fastest method against rows padded for it."""
    packed = token_layout(next(_drawn_boundaries(num_rows, device)), Packing()).rows
    assert packed is not None
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    inputs = [torch.randn(packed.room, HEADS, CHANNELS, device=device, dtype=dtype).requires_grad_() for _ in range(3)]
    options: dict[str, Any] = {"head_size": CHANNELS, "cap": cap}
    method = fastest_method(torch.device(device), head_size=CHANNELS)
    timed = [
        partial(_backward, packed_attention(packed, **options, method=name), inputs) for name in (method, "padded")
    ]
    name = f"attention, {method} / padded, cap={cap}, T={NUM_BYTES}, B={num_rows}, forward + backward"
    return compare("packing", name, *timed, pairs=5)


def _packed_step(name: str, num_rows: int, device: str, layout: Packing, note: str = "") -> BenchRow:
    precision = "bfloat16" if device == "cuda" else "float32"
    packed, padded = (
        paper_trainer(_model(name, device), num_rows, NUM_BYTES, precision=precision, layout=tokens).update
        for tokens in (layout, "padded")
    )
    title = f"step, packed / padded, {name}, T={NUM_BYTES}, B={num_rows}"
    return compare("packing", title, packed, padded, pairs=5, note=note)


def compiled(device: str) -> list[BenchRow]:
    """Compiled layers against eager ones: time of a step, and seconds of compiling.

    Each preset takes two processes: the first finds an empty compiler cache, the second finds the first one's.
    """
    rows = []
    for name, (num_rows, num_steps) in COMPILED.items():
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder}
            cold, warm = (
                in_new_process(f"model_parts.print_compiled({name!r}, {device!r}, {pairs})", environment)
                for pairs in (1, 5)
            )
        note = f"{warm['programs']} programs, {warm['later']} after the second update; "
        note += f"{cold['compiling']:.0f} s of compiling, {warm['compiling']:.0f} s with a warm cache; "
        note += f"{cold['kernels']} kernels, {cold['moved'] / 1e6:.0f} MB moved by a call of each program"
        title = f"step, compiled layers / as they are, {name}, T={num_steps}, B={num_rows}"
        rows.append(row_of_pairs("compiled", title, warm["pairs"], note=note))
    return rows


def print_compiled(name: str, device: str, pairs: int) -> None:
    """Print seconds of compiling, numbers of programs and paired times of steps, as JSON."""
    keep_memory()
    precision = "float32" if device == "cpu" else "bfloat16"
    layout = "padded" if device == "cpu" else Packing(tokens=0.3)
    options: dict[str, Any] = {"precision": precision, "layout": layout}
    ours, eager = (paper_trainer(fresh_model(name, device), *COMPILED[name], **options) for _ in range(2))
    compile_layers(ours.model)
    with inductor_counts() as counts:
        first = [seconds(ours.update) for _ in range(2)]  # of two numbers of tokens; later ones compile nothing
    programs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    eager.update()
    times = [(seconds(ours.update), seconds(eager.update)) for _ in range(pairs)]
    later = torch._dynamo.utils.counters["stats"]["unique_graphs"] - programs
    step = statistics.median(mine for mine, _ in times)
    compiling = sum(first) - 2 * step
    print(json.dumps({"compiling": compiling, "programs": programs, "later": later, "pairs": times, **counts}))

"""A whole training step against the usual implementation, and its parts."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from rltok_rl.experiments.bench.operations import experiment_trainer
from rltok_rl.experiments.bench.plain import PlainUNet, plain_loss
from rltok_rl.experiments.bench.timing import (
    BenchRow,
    compare,
    compare_seconds,
    fresh_model,
    in_new_process,
    paper_trainer,
    peak_above,
    resident,
    row_of_pairs,
    seconds,
)
from torch import nn

from rltok_rl.data import TextSource, local_prose
from rltok_rl.functional.policy import boundary_logits
from rltok_rl.fused import fused, missing
from rltok_rl.models import preset
from rltok_rl.sampling import sample_boundaries
from rltok_rl.training import Trainer
from rltok_rl.training.options import compile_layers
from rltok_rl.utils import keep_memory

PRESET, NUM_BYTES, NUM_ROWS = "released-18m", 4096, 1
"""A released size and the paper's windows; the plain step needs 24 GB for two rows."""
SIZE = f"T={NUM_BYTES}, B={NUM_ROWS}"
PAIRS = 5
UPDATES = {"books": (), "recall": (), "pocket": ("data.num_rows=4", "compute.compile=false")}
"""Experiments whose updates are timed, and options of each."""


@dataclass(frozen=True)
class Mode:
    """Precision and compilation of a side; each side uses its fastest."""

    precision: str = "float32"
    compiled: bool = False

    def __str__(self) -> str:
        """As notes show it."""
        return f"{self.precision}{', compiled' if self.compiled else ''}"


def modes(device: str) -> list[Mode]:
    """Modes to choose from: compiled on GPUs alone, as on a CPU that gains a tenth and costs minutes."""
    if device == "cpu":
        narrow = ["bfloat16"] if torch.ops.mkldnn._is_mkldnn_bf16_supported() else []
        return [Mode(precision) for precision in ("float32", *narrow)]
    return [Mode(precision, compiled) for precision in ("float32", "bfloat16") for compiled in (False, True)]


def our_trainer(mode: Mode, device: str) -> Trainer:
    """A trainer of ours with fresh weights."""
    model = fresh_model(PRESET, device)
    trainer = paper_trainer(model, NUM_ROWS, NUM_BYTES, precision=mode.precision)
    if mode.compiled:
        compile_layers(model)
    return trainer


def plain_step(mode: Mode, device: str) -> Callable[[], object]:
    """One update by the usual implementation."""
    torch.manual_seed(0)
    config = preset(PRESET)
    model = PlainUNet(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    if mode.compiled:
        for layers in (model.encoder, model.tokens, model.decoder):
            for layer in layers:
                layer.compile(dynamic=True)
    text, generator = TextSource(local_prose()), torch.Generator().manual_seed(0)

    def step() -> None:
        byte_ids = text.draw(NUM_ROWS, NUM_BYTES + 1, generator).byte_ids.to(device)
        uniforms = torch.rand(NUM_ROWS, NUM_BYTES, device=device)
        with torch.autocast(device, torch.bfloat16, enabled=mode.precision == "bfloat16"):
            out = model(byte_ids, uniforms)
        optimizer.zero_grad(set_to_none=True)
        plain_loss(out, target_rate=config.target_rate).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def training(device: str) -> list[BenchRow]:
    """Time and memory of a step, the share of the boundary machinery, and the growth of byte layers with length."""
    return [*_steps(device), _machinery(device), _growth(device)]


def updates(device: str) -> list[BenchRow]:
    """Updates with fused operations against plain torch, and in bfloat16 where the CPU has AMX; one thread."""
    reason = missing() if device == "cpu" else "they run on a CPU"
    if reason is not None:
        print(f"  updates: skipped, no fused operations: {reason}", file=sys.stderr, flush=True)
        return []
    if not (amx := getattr(torch.cpu, "_is_amx_tile_supported", bool)()):
        print("  updates: skipped bfloat16, it needs a CPU with AMX", file=sys.stderr, flush=True)
    torch.set_num_threads(1)
    rows = []
    for name, options in UPDATES.items():
        plain = partial(_update, experiment_trainer(name, *options), False)
        variants = {"fused": (partial(_update, experiment_trainer(name, *options), True), 2.5)}
        if amx:
            narrow = experiment_trainer(name, *options, "compute.precision=bfloat16")
            variants["bfloat16"] = partial(_update, narrow, False), 4.0
        for variant, (update, goal) in variants.items():
            title = f"update, {variant} / plain torch in float32, {name}, one thread"
            rows.append(compare("updates", title, update, plain, pairs=7, note=f"aim: {goal}"))
    return rows


def _update(trainer: Trainer, fusing: bool) -> None:
    with fused(fusing):
        trainer.update()


def _steps(device: str) -> list[BenchRow]:
    """Our step and the plain one in turn, in a new process each: together they exceed the memory of small machines."""
    mode = {side: min(modes(device), key=lambda mode: _alone(side, mode, device)[0]) for side in ("ours", "plain")}
    costs = [[_alone(side, mode[side], device) for side in mode] for _ in range(PAIRS)]
    times, peaks = ([(ours[n], plain[n]) for ours, plain in costs] for n in (0, 1))
    note = f"ours in {mode['ours']}; plain in {mode['plain']}; a process each"
    goal = 4.0 if device == "cpu" else 2.0
    rows = [row_of_pairs("training", f"step / plain step, {PRESET}, {SIZE}", times, goal=goal, note=note)]
    if device == "cpu" and sys.platform == "linux":
        ours, plain = (statistics.median(side) / 1e9 for side in zip(*peaks, strict=True))
        name, note = f"peak memory of a step, {PRESET}, {SIZE}", f"{ours:.2f} GB against {plain:.2f} GB"
        rows.append(row_of_pairs("training", name, peaks, goal=2.0, note=note, timed=False))
    return rows


def _alone(side: str, mode: Mode, device: str) -> tuple[float, float]:
    """Seconds and peak bytes of a step in a new process."""
    took, peak = in_new_process(f"step.print_step({side!r}, step.{mode!r}, {device!r})")
    print(f"  training: {side} in {mode}: {took:.2f} s", file=sys.stderr, flush=True)
    return took, peak


def print_step(side: str, mode: Mode, device: str) -> None:
    """Print the seconds of a warm step and the bytes by which steps raise the peak memory, as JSON."""
    keep_memory()
    step = our_trainer(mode, device).update if side == "ours" else plain_step(mode, device)
    before = resident()
    for _ in range(3 if mode.compiled else 1):
        step()
    took = statistics.median(seconds(step) for _ in range(3 if side == "ours" else 1))
    print(json.dumps([took, peak_above(before)]))


def _machinery(device: str) -> BenchRow:
    """Drawing, scoring, returns, policy and rate losses, forward and backward, against the whole step."""
    trainer = our_trainer(Mode(), device)
    loss, cap = trainer.loss, trainer.model.boundary_cap
    rollout = trainer.env.parallel_rollout(trainer.policy).detach()
    with torch.no_grad():
        states = trainer.model.encode(rollout["byte"])
        base, lags = (part.detach().requires_grad_() for part in trainer.model.boundary_terms(states))
    terms = [name for name in loss.terms if name in ("policy", "rate")]

    def machinery() -> None:
        boundaries = sample_boundaries(base.detach(), lags.detach(), cap=cap)
        logits = boundary_logits(base, lags, boundaries, cap=cap)
        rollout["logits"] = logits[..., None].reshape(rollout["logits"].shape)
        scores = trainer.policy.get_dist(rollout)
        rollout["action_log_prob"] = scores.log_prob(rollout["action"])
        rollout["entropy"] = scores.entropy()
        torch.stack([loss.terms[name](rollout)[f"loss_{name}"] for name in terms]).sum().backward()

    name, goal = f"drawing, scoring, returns, rate / step, {PRESET}", 50.0 if device == "cpu" else 100.0
    note = "goal: at most 2 % of a step on a CPU, 1 % on a GPU"
    return compare("training", name, machinery, trainer.update, pairs=3, repeat=5, goal=goal, note=note)


def _growth(device: str) -> BenchRow:
    """Byte layers, forward and backward, at twice the length: 1x is linear; the goal allows 2.1 times the time."""
    model = fresh_model(PRESET, device)

    def took(num_bytes: int, times: int) -> float:
        byte_ids = torch.randint(256, (1, num_bytes), device=device)
        return times * seconds(lambda: model._run_bytes(model.decoder, model.encode(byte_ids), None).sum().backward())

    name = "T=8192 / 2 x T=4096, byte layers forward and backward"
    timed = partial(took, 8192, 1), partial(took, 4096, 2)
    return compare_seconds("training", name, *timed, pairs=5, goal=2 / 2.1, note="goal: at most 2.1 times the time")

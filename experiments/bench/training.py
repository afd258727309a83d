"""A whole training step against the one that is usually written, in time and in memory; and what its parts cost.

Both sides may choose how they run: of the precisions, and with or without compiled layers, the faster is taken, each
for itself. What is compared is then the best of each.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from rltok_rl.experiments.bench.harness import Row, compare, compare_seconds, row_of_pairs, seconds
from rltok_rl.experiments.bench.plain import PlainUNet, plain_loss
from rltok_rl.experiments.bench.trainers import fresh_model, paper_trainer
from torch import nn

from rltok_rl.data import TextSource, local_prose
from rltok_rl.functional.policy import boundary_logits
from rltok_rl.models import UNet, preset
from rltok_rl.sampling import sample_boundaries
from rltok_rl.training import Trainer
from rltok_rl.training.options import compile_layers
from rltok_rl.utils import keep_memory

PRESET, NUM_BYTES, NUM_ROWS = "released-18m", 4096, 1
"""Of the comparison: a released size, and the paper's windows; the plain step wants 24 GB for two rows."""
SIDES = ("ours", "plain")
PAIRS = 3


@dataclass(frozen=True)
class Way:
    """How a side runs its step."""

    precision: str
    compiled: bool

    def __str__(self) -> str:
        """As notes have it."""
        return f"{self.precision}{', compiled' if self.compiled else ''}"


def ways(device: str) -> list[Way]:
    """What each side may choose from.

    Compiled layers are left to GPUs: on a CPU they gain a tenth and cost minutes (``docs/performance.md``), and have a
    section of their own. Processors without bfloat16 products are many times slower in them, and asked for float32
    alone.
    """
    if device == "cpu":
        narrow = ("bfloat16",) if torch.ops.mkldnn._is_mkldnn_bf16_supported() else ()
        return [Way(precision, compiled=False) for precision in ("float32", *narrow)]
    return [Way(precision, compiled) for precision in ("float32", "bfloat16") for compiled in (False, True)]


def our_trainer(way: Way, device: str, *, num_bytes: int = NUM_BYTES, num_rows: int = NUM_ROWS) -> Trainer:
    """A trainer of ours, at the beginning of a training."""
    model = fresh_model(PRESET, device)
    trainer = paper_trainer(model, num_rows, num_bytes, precision=way.precision)
    if way.compiled:
        compile_layers(model)
    return trainer


def plain_step(way: Way, device: str, *, num_bytes: int = NUM_BYTES, num_rows: int = NUM_ROWS) -> Callable[[], object]:
    """One update as it is usually written."""
    torch.manual_seed(0)
    config = preset(PRESET)
    model = PlainUNet(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    if way.compiled:
        for layers in (model.encoder, model.tokens, model.decoder):
            for layer in layers:
                layer.compile(dynamic=True)
    text, generator = TextSource(local_prose()), torch.Generator().manual_seed(0)

    def step() -> None:
        byte_ids = text.draw(num_rows, num_bytes + 1, generator).byte_ids.to(device)
        uniforms = torch.rand(num_rows, num_bytes, device=device)
        with torch.autocast(device, torch.bfloat16, enabled=way.precision == "bfloat16"):
            out = model(byte_ids, uniforms)
        optimizer.zero_grad(set_to_none=True)
        plain_loss(out, target_rate=config.target_rate).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def step_rows(device: str) -> list[Row]:
    """Ours against the plain one, each as fast as it can be: time, and peak memory on a CPU.

    Paired runs: ours, plain, ours, plain, each in a process of its own, because the two together want more memory than
    small machines have.
    """
    ours, plain = (fastest(side, device) for side in SIDES)
    ours_taken, plain_taken = [], []
    for _ in range(PAIRS):
        ours_taken.append(run_alone("ours", ours, device))
        plain_taken.append(run_alone("plain", plain, device))
    size = f"{PRESET}, T={NUM_BYTES}, B={NUM_ROWS}"
    note = f"ours in {ours}; plain in {plain}; a process each"
    goal = 4.0 if device == "cpu" else 2.0
    times, peaks = (
        [(mine[place], theirs[place]) for mine, theirs in zip(ours_taken, plain_taken, strict=True)] for place in (0, 1)
    )
    out = [row_of_pairs("training", f"step / plain step, {size}", times, goal=goal, note=note)]
    if device == "cpu" and sys.platform == "linux":
        mine, theirs = (statistics.median(side) / 1e9 for side in zip(*peaks, strict=True))
        told = f"{mine:.2f} GB against {theirs:.2f} GB"
        row = row_of_pairs("training", f"peak memory of a step, {size}", peaks, goal=2.0, note=told)
        out.append(replace(row, ours_ms=float("nan"), reference_ms=float("nan")))
    return out


def fastest(side: str, device: str) -> Way:
    """The way that takes a side the least time."""
    several = ways(device)
    return several[0] if len(several) == 1 else min(several, key=lambda way: run_alone(side, way, device)[0])


def run_alone(side: str, way: Way, device: str) -> tuple[float, float]:
    """Seconds of a step and bytes of memory that steps need, of a process of its own.

    Args:
        side: ``ours`` or ``plain``.
        way: how to run.
        device: where.
    """
    said = f"{side!r}, training.Way({way.precision!r}, {way.compiled}), {device!r}"
    code = f"from rltok_rl.experiments.bench import training; training.tell_step({said})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{side} in {way} ended with {done.returncode} (-9: out of memory): {done.stderr[-500:]}")
    took, peak = map(float, done.stdout.split()[-2:])
    print(f"  training: {side} in {way}: {took:.2f} s", file=sys.stderr, flush=True)
    return took, peak


def tell_step(side: str, way: Way, device: str) -> None:
    """Print the seconds of a step once it is warm, and how far steps raise this process's peak memory, in bytes."""
    keep_memory()
    step = our_trainer(way, device).update if side == "ours" else plain_step(way, device)
    before = resident()
    for _ in range(3 if way.compiled else 1):
        step()
    took = statistics.median(seconds(step) for _ in range(3 if side == "ours" else 1))
    print(took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before)


def machinery_row(device: str) -> Row:
    """Drawing, scoring, returns, policy and rate losses, forward and backward, against the whole step."""
    way = Way("float32", compiled=False)
    trainer = our_trainer(way, device)
    loss, cap = trainer.loss, trainer.model.boundary_cap
    rollout = trainer.env.parallel_rollout(trainer.policy).detach()
    with torch.no_grad():
        states = trainer.model.encode(rollout["byte"])
        base, lags = (part.detach().requires_grad_() for part in trainer.model.boundary_terms(states))
    own = [name for name in loss.terms if name in ("policy", "rate")]

    def machinery() -> None:
        boundaries = sample_boundaries(base.detach(), lags.detach(), cap=cap)
        logits = boundary_logits(base, lags, boundaries, cap=cap)
        rollout["logits"] = logits[..., None].reshape(rollout["logits"].shape)
        scores = trainer.policy.get_dist(rollout)
        rollout["action_log_prob"] = scores.log_prob(rollout["action"])
        rollout["entropy"] = scores.entropy()
        torch.stack([loss.terms[name](rollout)[f"loss_{name}"] for name in own]).sum().backward()

    return compare(
        "training",
        f"drawing, scoring, returns, rate / step, {PRESET}",
        machinery,
        trainer.update,
        pairs=3,
        repeat=5,
        goal=50.0 if device == "cpu" else 100.0,
        note="goal: at most 2 % of a step on a CPU, 1 % on a GPU",
    )


def growth_row(device: str) -> Row:
    """Byte layers, forward and backward, at twice the length: 1x is linear, the goal allows 2.1 times the time."""
    model = UNet(preset(PRESET)).to(device)

    def taken(num_bytes: int) -> float:
        byte_ids = torch.randint(256, (1, num_bytes), device=device)

        def work() -> None:
            states = model.encode(byte_ids)
            model._run_bytes(model.decoder, states, None).sum().backward()

        return seconds(work)

    return compare_seconds(
        "training",
        "T=8192 / 2 x T=4096, byte layers forward and backward",
        lambda: taken(8192),
        lambda: 2 * taken(4096),
        pairs=5,
        goal=2 / 2.1,
        note="goal: at most 2.1 times the time",
    )


def resident() -> int:
    """Bytes of memory that this process has now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def rows(device: str) -> list[Row]:
    """Time of a step, its memory, its machinery, and how byte layers grow."""
    return [*step_rows(device), machinery_row(device), growth_row(device)]

"""The first look: build a model, run it on text of this machine, decode it byte by byte, colour its boundaries.

The weights are fresh, so the boundaries mean nothing yet; what is shown is that every part is in place and agrees.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
from rltok_rl.experiments.arguments import use_colour

from rltok_rl.data import local_prose
from rltok_rl.functional.likelihood import bits_per_byte, next_byte_log_prob
from rltok_rl.functional.text import ids_to_bytes, text_to_ids
from rltok_rl.models import PRESETS, UNet, parameter_counts, preset
from rltok_rl.models.generation import stream
from rltok_rl.models.incremental import step
from rltok_rl.viz import boundary_text

MOST_BYTES = 65_536


def show_parameters(model: UNet) -> None:
    """Print what each part of the model holds."""
    counts = parameter_counts(model)
    for name, count in counts.items():
        if count:
            print(f"  {name:<14}{count:>12,}  {'#' * round(40 * count / counts['total']) if name != 'total' else ''}")


@torch.no_grad()
def show_forward(model: UNet, text: bytes, colour: bool) -> torch.Tensor:
    """Run one window with boundaries from the policy, print rate, cost and coloured text; return the boundaries."""
    byte_ids = text_to_ids(text)[None]
    model(byte_ids)  # the first call of all warms kernels up
    start = time.perf_counter()
    out = model(byte_ids, generator=torch.Generator().manual_seed(0))
    seconds = time.perf_counter() - start
    final, early = (next_byte_log_prob(x, byte_ids) for x in (out.final_logits, out.early_logits))
    print(
        f"  {len(text)} bytes in {1e3 * seconds:.0f} ms; {int(out.num_tokens)} tokens, rate "
        f"{out.boundaries.float().mean():.3f} (target {model.config.target_rate})"
    )
    print(
        f"  bits per byte, untrained: final {bits_per_byte(-final.sum().item(), final.numel()):.2f}, "
        f"early exit {bits_per_byte(-early.sum().item(), early.numel()):.2f} (uniform guessing: 8)"
    )
    shown = slice(0, 400)
    probs = out.boundary_logits.sigmoid()[0, shown].tolist()
    print("\n" + boundary_text(text[shown], out.boundaries[0, shown].tolist(), probs, colour=colour) + "\n")
    return out.boundaries


@torch.no_grad()
def show_stepping(model: UNet, text: bytes, boundaries: torch.Tensor) -> float:
    """Read the same bytes one at a time; print and return the largest difference in log-probability."""
    byte_ids, boundaries = text_to_ids(text)[None, :256], boundaries[:, :256]
    full = model(byte_ids, boundaries).final_logits.log_softmax(-1)
    cache = model.new_cache(1)
    start = time.perf_counter()
    said = [step(model, cache, byte_ids[:, t], boundaries[:, t])[1].final_logits for t in range(byte_ids.shape[1])]
    seconds = time.perf_counter() - start
    gap = (torch.stack(said, 1).log_softmax(-1) - full).abs().max().item()
    print(f"  {byte_ids.shape[1] / seconds:.0f} bytes/s; largest difference to the full forward: {gap:.1e} nats")
    return gap


def show_generation(model: UNet, prompt: bytes, num_bytes: int) -> None:
    """Write a few bytes; an untrained model writes noise."""
    steps = stream(model, prompt, max_bytes=num_bytes, top_k=40, generator=torch.Generator().manual_seed(0))
    written = b"".join(ids_to_bytes(s.byte_ids) for s in steps)
    print(f"  {prompt.decode()} -> {written!r}")


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; 0 if stepping and the full forward agree."""
    parser = argparse.ArgumentParser(prog="python -m rltok_rl.experiments.demo", description=__doc__)
    parser.add_argument("--model", default="small", choices=sorted(PRESETS), help="which preset to build")
    parser.add_argument("--bytes", type=int, default=2048, help="how much text to run")
    options = parser.parse_args(arguments)
    if not 2 <= options.bytes <= MOST_BYTES:
        parser.error(f"argument --bytes: must be 2 (one to read, one to predict) to {MOST_BYTES}, got {options.bytes}")
    colour = use_colour("auto")

    torch.manual_seed(0)
    model = UNet(preset(options.model)).eval()
    text = local_prose(options.bytes)
    print(f"1. A U-Net of preset {options.model!r}: parameters by part")
    show_parameters(model)
    print("\n2. One forward pass; a | marks each boundary that the policy drew")
    boundaries = show_forward(model, text, colour)
    print(f"3. The first {min(256, options.bytes)} bytes again, one at a time through the cache")
    gap = show_stepping(model, text, boundaries)
    print("\n4. Generation (fresh weights write noise)")
    show_generation(model, text[:20], 24)
    return 0 if gap < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())

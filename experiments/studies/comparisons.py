"""Systems of a finished comparison, to read its held-out text again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from rltok_rl.agents.segmenters import load_segmenter
from rltok_rl.experiments.reports.systems_page import evaluated_systems
from rltok_rl.experiments.runs.folder import RunFolder, read_run

from rltok_rl.evaluation import Reading, read_text
from rltok_rl.models import UNet


def read_comparison(folder: Path) -> tuple[list[str], RunFolder]:
    """Return the evaluated systems of a comparison, and the run of one of them: all have its text."""
    if not (systems := evaluated_systems(folder)):
        raise ValueError(f"comparison must hold evaluated systems, got {str(folder)!r}")
    return systems, read_run(folder / systems[0])


def read_with(system: Path, run: RunFolder, texts: Sequence[bytes], *, windows: int) -> Reading:
    """Read texts with the model and the boundaries of a system, whose folder it is."""
    model = UNet.from_pretrained(system / "model")
    return read_text(
        model,
        list(texts),
        context=int(run.option("data.num_steps")),
        most=windows,
        generator=torch.Generator().manual_seed(0),
        segmenter=load_segmenter(system / "model", model),
    )

"""Systems of a finished comparison, to read its held-out text again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from rltok_rl.agents.segmenters import Segmenter, load_segmenter
from rltok_rl.agents.segmenters.saved import names_code
from rltok_rl.experiments.reports.systems_page import evaluated_systems
from rltok_rl.experiments.runs.folder import RunFolder, read_run
from rltok_rl.experiments.studies.saved_boundaries import SavedBoundaries

from rltok_rl.evaluation import Reading, read_text
from rltok_rl.models import UNet

_SAVED_BOUNDARIES = f"{SavedBoundaries.__module__}:{SavedBoundaries.__name__}"


def read_comparison(folder: Path) -> tuple[list[str], RunFolder]:
    """Return the evaluated systems of a comparison, and the run of one of them: all have its text."""
    if not (systems := evaluated_systems(folder)):
        raise ValueError(f"comparison must hold evaluated systems, got {str(folder)!r}")
    return systems, read_run(folder / systems[0])


def load_system(system: Path) -> tuple[UNet, Segmenter | None]:
    """Load the model of a system, whose folder it is, and its segmenter; None if its own policy draws.

    Custom segmenters are refused, except for the library's own :class:`SavedBoundaries`.
    """
    folder = system / "model"
    model = UNet.from_pretrained(folder)
    return model, load_segmenter(folder, model, trust_code=names_code(folder, _SAVED_BOUNDARIES))


def read_with(system: Path, run: RunFolder, texts: Sequence[bytes], *, windows: int) -> Reading:
    """Read texts with the model and the boundaries of a system, whose folder it is."""
    model, segmenter = load_system(system)
    return read_text(
        model,
        list(texts),
        context=int(run.option("data.num_steps")),
        most=windows,
        generator=torch.Generator().manual_seed(0),
        segmenter=segmenter,
    )

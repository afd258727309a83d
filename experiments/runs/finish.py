"""The end of a run: what it leaves besides figures, and a finished one that is asked to go on: it has nothing to do."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rltok_rl.experiments.config import TrainConfig
from rltok_rl.experiments.runs.segmenters import keep_segmenter

from rltok_rl.models import UNet
from rltok_rl.training import Trainer
from rltok_rl.training.atomic_files import replace_text
from rltok_rl.training.metrics import read_lines
from rltok_rl.training.snapshots import sample_parts
from rltok_rl.viz import boundary_text


def write_model(config: TrainConfig, trainer: Trainer, model: UNet) -> None:
    """Write the model of a run as it is now, and the segmenter that it is of no use without.

    Args:
        config: of the run.
        trainer: of the run.
        model: in one piece.
    """
    folder = Path(config.out) / "model"
    model.save_pretrained(folder)
    keep_segmenter(config, trainer, folder)


def write_sample(out: Path, look: dict[str, Any]) -> None:
    """Write the sample of a look with its boundaries.

    Args:
        out: folder of the run.
        look: at held-out text.
    """
    text, boundaries, _ = sample_parts(look)
    replace_text(out / "sample.txt", boundary_text(text, boundaries, colour=False) + "\n")


def left_as_it_is(
    config: TrainConfig, trainer: Trainer, model: UNet, report: Callable[[Path], Path] | None = None
) -> dict[str, Any] | None:
    """Leave a finished run as it is, write what is missing of its end, and say so.

    Its memory, speed and time are those of the training, which a process that only reads its checkpoint has none of.

    Args:
        config: of the run.
        trainer: with the state of the run's last checkpoint, which is that of its end.
        model: in one piece.
        report: writes the run's report from its folder.

    Returns:
        The run's summary; None where there is none, or no last look to take its figures from: then its end is to be
        written anew.
    """
    out = Path(config.out)
    looks = read_lines(out / "samples.jsonl")
    if not (out / "summary.json").is_file() or not looks or looks[-1]["update"] != trainer.updates:
        return None
    missing = [
        name for name in ("model", "sample.txt", *(["report.md"] if report else [])) if not (out / name).exists()
    ]
    if "model" in missing:
        write_model(config, trainer, model)
    if "sample.txt" in missing:
        write_sample(out, looks[-1])
    if report and "report.md" in missing:
        report(out)
    wrote = f"wrote {', '.join(missing)}, which it lacked" if missing else "nothing to do"
    print(f"{out} is finished, after update {trainer.updates}: {wrote}", file=sys.stderr)
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary

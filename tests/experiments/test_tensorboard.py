"""TensorBoard's own reader finds all figures of a run, each once, though the run was killed and resumed."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
from rltok_rl.experiments import train
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from .configured import QUICK, configured
from .killed import killed_at

OPTIONS = [*QUICK, "optim.total_bytes=1_280", "checkpoint_every=3", "compute.threads=1", "resume=true"]
OPTIONS.append("logger=tensorboard")


def events(folder: Path) -> dict[str, dict[int, float]]:
    """Values by name and step; a step that is there twice fails."""
    reader = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})  # 0: keep all of them
    reader.Reload()
    found = {}
    for name in reader.Tags()["scalars"]:
        points = [(event.step, event.value) for event in reader.Scalars(name)]
        found[name] = dict(points)
        assert len(found[name]) == len(points), f"{name} has a step twice"
    return found


def written(folder: Path) -> dict[str, dict[int, float]]:
    """The same, from the run's own files."""
    found: dict[str, dict[int, float]] = {}
    with (folder / "metrics.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            update = int(row.pop("update"))
            for name in set(row) - {"bytes"}:
                found.setdefault(f"train/{name}", {})[update] = float(row[name])
    for line in (folder / "samples.jsonl").read_text().splitlines():
        look = json.loads(line)
        for name in look:
            if name.startswith("held_out_"):
                found.setdefault(name.replace("held_out_", "held_out/"), {})[look["update"]] = look[name]
    return found


def test_every_figure_is_read_back(tmp_path, monkeypatch):
    out = tmp_path / "run"
    monkeypatch.setattr(train, "write_report", lambda out: out / "report.md")  # slow, and not what is read here
    with killed_at(5):
        train.run(configured(*OPTIONS, f"out={out}"), "")
    assert max(events(out)["train/loss"]) == 4, "updates 4 and 5 come again after the checkpoint of update 3"
    train.run(configured(*OPTIONS, f"out={out}"), "")
    found, expected = events(out), written(out)
    assert set(found) == set(expected) and {"train/loss", "train/rate", "held_out/bits_per_byte"} <= set(found)
    assert sorted(found["train/loss"]) == list(range(1, 11))
    for name, values in expected.items():
        assert set(found[name]) == set(values), name
        for step, value in values.items():
            there = found[name][step]
            assert there == np.float32(value) or (math.isnan(there) and math.isnan(value)), (name, step)

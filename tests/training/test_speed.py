"""Bytes per second and MFU, with the names of GPUs that are not here."""

from __future__ import annotations

import csv
from itertools import count
from types import SimpleNamespace

import pytest
from rltok_rl.experiments import train

from rltok_rl.models.tokens import Packing
from rltok_rl.training.distributed import Processes
from rltok_rl.training.environment import Speed, peak_flops

from ..experiments.configured import QUICK, configured
from .processes import UPDATE, make, metrics_of

NAMES = {
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H200": 989e12,
    "NVIDIA H200 NVL": 835e12,
    "NVIDIA B200": 2250e12,
    "NVIDIA GH200 480GB": None,
    "NVIDIA GeForce RTX 4090": None,
}


def test_peaks_by_name():
    assert {name: peak_flops(name) for name in NAMES} == NAMES


def test_updates_that_are_fetched_together_share_their_time():
    trainer = make(updates=4, figures_every=2, estimator="local_flips")
    assert not {"bytes_per_second", "mfu"} & set(make(updates=1).update()), "no times on the CPU"
    assert make(Processes(world_size=2)).speed.world_size == 2
    trainer.speed = Speed("NVIDIA H100 80GB HBM3", world_size=2)
    updates = metrics_of(trainer)
    assert len({update["bytes_per_second"] for update in updates}) == 2
    for before, now in zip([{"total_flops": 0.0}, *updates], updates, strict=False):
        flops_per_byte = (now["total_flops"] - before["total_flops"]) / UPDATE
        assert (
            now["mfu"] == pytest.approx(flops_per_byte * now["bytes_per_second"] / (2 * 989e12), rel=1e-6)
            and now["mfu"] > 0
        )


def test_time_of_all_updates_that_are_fetched_together_counts(monkeypatch):
    trainer = make(updates=4, figures_every=2)
    trainer.speed = Speed("NVIDIA H100 80GB HBM3")
    clock = SimpleNamespace(perf_counter=lambda: float(trainer.updates))  # a second per update
    monkeypatch.setattr("rltok_rl.training.environment.time", clock)
    assert [update["bytes_per_second"] for update in metrics_of(trainer)] == [UPDATE] * 4


def test_time_of_repeated_updates_counts(monkeypatch):
    """Of three updates one counts; the others, repeated together, take the time of their second try."""
    trainer = make(room=1.0, figures_every=8)
    trainer.speed = Speed("NVIDIA H100 80GB HBM3")
    monkeypatch.setattr("rltok_rl.training.environment.time", SimpleNamespace(perf_counter=count().__next__))
    trainer.advance()
    trainer.env.layout = Packing(tokens=0.05)
    for updates in (1, 2):
        trainer.advance()
        trainer.advance()
        fetched = trainer.fetch_metrics()
        assert [update.metrics["bytes_per_second"] for update in fetched] == [UPDATE * updates] * updates


def test_unknown_gpu_has_no_mfu_and_says_so_once(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(Speed, "of", classmethod(lambda cls, device, world_size: cls("NVIDIA X1", world_size)))
    train.run(configured(*QUICK, "model=tiny", f"out={tmp_path / 'run'}"), "")
    with (tmp_path / "run" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 and "mfu" not in rows[0] and all(float(row["bytes_per_second"]) > 0 for row in rows)
    assert capsys.readouterr().err.count("training.environment.PEAKS has no peak of NVIDIA X1") == 1

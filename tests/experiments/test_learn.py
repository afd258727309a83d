"""Boundaries are learned where the best ones are known, by the code of the study; and the study keeps its records."""

from __future__ import annotations

import json

import pytest
import torch
from rltok_rl.experiments.studies import learn
from rltok_rl.experiments.studies.courses import SYSTEMS, course_config, fingerprint, judge, take_course
from rltok_rl.experiments.studies.learn import grid, main, matched_rate, passed, read_study, run, table, verdict
from torch import nn

from rltok_rl.data.languages import Recall
from rltok_rl.models import UNet, preset

# One value in two, asked for right after it is out of sight: learned in seconds.
EASY = (
    "++data.options={values: '01', fillers: a, shortest_gap: 2, mean_gap: 2.0, window: 2}",
    "++model.overrides={window: 2, target_rate: 0.2, width: 32, boundary_scale: 0.25}",
    "data.num_rows=16",
    "data.num_steps=48",
    "optim.total_bytes=200_000",
    "optim.warm_up_bytes=8_000",
    "optim.lr=1.0e-2",
)
TINY = ("data.num_rows=4", "data.num_steps=32", "optim.total_bytes=256", "optim.warm_up_bytes=0")


def final(system: str, seed: int = 0) -> dict[str, float]:
    return take_course(course_config("recall", system, seed, overrides=EASY), num_looks=1)["final"]


def test_the_learned_policy_finds_the_values_and_beats_what_learns_no_boundaries():
    """Fails where the policy gradient's sign is turned around: hits then fall below the boundaries elsewhere."""
    ours = final("learned")
    assert ours["hits"] > ours["elsewhere"] + 0.4, ours
    assert ours["share"] > 0.9, ours
    for system in ("uniform", "random"):
        assert final(system)["share"] < ours["share"] - 0.1, system

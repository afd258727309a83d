"""All random numbers go on where their states were taken."""

from __future__ import annotations

import random

import numpy as np
import torch

from rltok_rl.training.checkpoint import load_checkpoint, save_checkpoint
from rltok_rl.training.randomness import random_states, set_random_states

CPU = torch.device("cpu")


def draw() -> list[float]:
    return [
        torch.rand(()).item(),
        random.random(),
        random.gauss(0, 1),
        float(np.random.rand()),
        float(np.random.randn()),
    ]


def test_states_survive_a_checkpoint(tmp_path):
    draw()
    save_checkpoint(tmp_path, 1, {"random": random_states(CPU)})
    expected = draw()
    draw()
    set_random_states(load_checkpoint(tmp_path)[1]["random"], CPU)
    assert draw() == expected


def test_a_generator_that_is_not_there_is_left_alone():
    expected = random_states(CPU)["torch"]
    set_random_states({"python": random.getstate()}, CPU)
    assert torch.equal(torch.get_rng_state(), expected)

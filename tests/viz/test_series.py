"""Runs can be told apart, also by those who see fewer colours; names at the ends of lines are where they must be."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from rltok_rl.viz.series import MOST_RUNS, look_of, spread_apart
from rltok_rl.viz.style import ALERT, OURS, SERIES, plain_figures, save_figure, shades

# Machado, Oliveira and Fernandes (2009), severity 1: linear RGB as it is seen without green and without red cones.
EYES = {
    "all cones": np.eye(3),
    "no green cones": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "no red cones": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
}


def lab(colour, eyes):
    """CIELAB of what is seen of a colour."""
    from matplotlib.colors import to_rgb

    encoded = np.asarray(to_rgb(colour))
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.asarray(EYES[eyes]) @ linear, 0, 1)
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
    x, y, z = np.cbrt(np.maximum(np.asarray(to_xyz) @ seen / (0.95047, 1.0, 1.08883), 1e-6))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def apart(one, other, eyes):
    return float(np.linalg.norm(lab(one, eyes) - lab(other, eyes)))


@pytest.mark.parametrize("eyes", EYES)
def test_any_two_colours_differ_to_every_eye(eyes):
    assert min(apart(a, b, eyes) for a, b in itertools.combinations(SERIES, 2)) > 18


def test_colours_that_some_eyes_confuse_are_found():
    """Green and grey, as an earlier palette had them."""
    assert apart(OURS, "#5c6770", "all cones") > 25 and apart(OURS, "#5c6770", "no green cones") < 3


@pytest.mark.parametrize("eyes", EYES)
def test_probabilities_are_told_by_lightness_alone(eyes):
    colours = shades()
    lightness = [lab(colours(n / 10), eyes)[0] for n in range(11)]
    assert all(a - b > 3 for a, b in itertools.pairwise(lightness))
    assert apart(ALERT, colours(1.0), eyes) > 25 and apart(ALERT, colours(0.0), eyes) > 25  # a bar on either


def test_no_two_runs_look_the_same():
    looks = [look_of(n) for n in range(MOST_RUNS)]
    assert len({repr(look) for look in looks}) == MOST_RUNS == 21
    assert len({look.marker for look in looks[:7]}) == 7  # without colours, too


def test_places_are_moved_as_little_as_possible():
    """Against steps down the gradient of the same problem; order and distances hold."""
    dice = random.Random(0)
    for _ in range(20):
        places = [dice.uniform(0, 5) for _ in range(dice.randrange(2, 7))]
        found = spread_apart(places, 1.0)
        order = np.argsort(places, kind="stable")
        moved = np.array(found)[order]
        assert (np.diff(moved) >= 1 - 1e-9).all()
        # No feasible neighbour is nearer: any group of neighbours moved together, up or down.
        cost = np.sum((moved - np.array(places)[order]) ** 2)
        for start, end in itertools.combinations(range(len(places) + 1), 2):
            for step in (-1e-3, 1e-3):
                other = moved.copy()
                other[start:end] += step
                if (np.diff(other) >= 1 - 1e-9).all():
                    assert np.sum((other - np.array(places)[order]) ** 2) >= cost - 1e-12
    assert spread_apart([], 1.0) == [] and spread_apart([3.0, 1.0], 1.0) == [3.0, 1.0]


def test_a_figure_of_an_unknown_kind_is_refused(tmp_path):
    with plain_figures() as plt, pytest.raises(ValueError, match=r"path must end in one of \['.png', '.pdf', '.svg'\]"):
        save_figure(plt.figure(), tmp_path / "figure.gif")

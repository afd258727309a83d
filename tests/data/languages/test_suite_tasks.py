"""Tasks: the best boundaries are the best ones, by enumeration of short texts and of other decisions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rltok_rl.data.languages import Automaton, suite_tasks
from rltok_rl.data.languages.grammar import Node, gap, grammar
from rltok_rl.data.languages.suite_tasks import TASKS

from ...each import each, refused

SMALL = {  # dial, bytes of a text, bytes whose decisions are varied
    "recall-tight": (1.0, 15, 8),
    "delay": (4, 17, 8),
    "noise": (2, 13, 7),
    "decoy": (1, 15, 8),
    "knapsack": (2, 8, 5),
    "pair": (2, 17, 8),
    "clock": (3, 14, 5),
    "garden-path": (2, 13, 7),
    "switch": (3, 15, 8),
    "nest": (2, 17, 6),
}


def all_texts(language: Automaton, length: int) -> tuple[Tensor, Tensor]:
    """All texts of a length, [n, T], and their probabilities [n]."""
    rows = [((), 0, 1.0)]
    for _ in range(length):
        rows = [
            ((*text, language._bytes[symbol]), int(language._next[state, symbol]), chance * float(p))
            for text, state, chance in rows
            for symbol, p in enumerate(language._chance[state])
            if p
        ]
    return torch.tensor([row[0] for row in rows]), torch.tensor([row[2] for row in rows], dtype=torch.float64)


def read(language: Automaton, byte_ids: Tensor, boundaries: Tensor, changed: int | None = None) -> Tensor:
    """Log-likelihood [n] of texts [n, T] to a reader of the last ``window`` bytes, now and at each boundary.

    The reader knows where the text began and that boundaries are the best ones, but for the ``changed`` place: no
    boundary says that no token should end.
    """
    symbols, total = language._symbols(byte_ids), torch.zeros(len(byte_ids), dtype=torch.float64)
    flow = torch.zeros(len(language._chance), len(language._chance), dtype=torch.float64)
    flow.scatter_add_(1, language._next, language._chance)
    for t in range(1, byte_ids.shape[1]):
        ends = boundaries[:, :t].clone()
        ends[:, -1] = True  # the present
        belief = torch.zeros(len(byte_ids), len(flow), dtype=torch.float64)
        belief[:, 0] = 1.0
        for s in range(t):
            seen = ends[:, s : s + language.window].any(1)[:, None]
            belief = torch.where(seen, language._filter(belief, symbols[:, s]), belief @ flow)
            if s not in (0, changed):
                belief = belief * (language._best == boundaries[:, s, None])
            belief = belief / belief.sum(1, keepdim=True)
        total += (belief * language._columns(language._chance, symbols[:, t])).sum(1).log()
    return total


@each(name=SMALL)
def test_the_best_boundaries_carry_everything_and_none_is_spare(monkeypatch, name):
    """Their reader predicts as one of the whole text does, so no others are better; without one of them it loses.

    Of ``knapsack`` they are the better half: each of them is worth more than any other boundary.
    """
    for constant, value in {"VALUES": b"01", "FILLERS": b"a", "SHORTEST": 2, "MEAN": 2.5}.items():
        monkeypatch.setattr(suite_tasks, constant, value)
    dial, length, varied = SMALL[name]
    language = TASKS[name].make(dial, window=2)
    byte_ids, chance = all_texts(language, length)
    assert chance.sum() == pytest.approx(1.0) and len(byte_ids) > 50
    best, ideal = language.optimal_boundaries(byte_ids), language.ideal_log_prob(byte_ids)[:, 1:].sum(1)
    value = read(language, byte_ids, best)
    losses, gains = [], [0.0]
    for place in range(1, varied):
        changed = best.clone()
        changed[:, place] ^= True
        difference = chance * (read(language, byte_ids, changed, place) - value)
        _, prefix = byte_ids[:, : place + 1].unique(dim=0, return_inverse=True)
        zeros = torch.zeros(int(prefix.max()) + 1, dtype=torch.float64)
        change = zeros.index_add(0, prefix, difference) / zeros.index_add(0, prefix, chance)
        drawn = (zeros > 0).index_put((prefix,), best[:, place])
        losses += (-change[drawn]).tolist()
        gains += change[~drawn].tolist()
    assert min(losses) > max(gains) + 0.2
    if name == "knapsack":
        assert max(gains) > 0.5
    else:
        assert max(gains) < 1e-9
        torch.testing.assert_close(value, ideal, atol=1e-9, rtol=0)


@each(name=TASKS, grade=(1, 2, 3, 4))
def test_grades_are_languages_whose_values_bytes_cannot_see(name, grade):
    task = TASKS[name]
    language = task.language(grade)
    assert language.floor_rate(window=4) - language.entropy_rate > 0.003
    assert 1 / 600 < language.boundary_rate <= task.rate(grade) < 1 / 4
    byte_ids = language.draw(2, 300, torch.Generator().manual_seed(0)).byte_ids
    assert language.ideal_log_prob(byte_ids).isfinite().all()
    assert (language.optimal_boundaries(byte_ids).float().mean() - language.boundary_rate).abs() < 0.03


def test_switch_changes_its_language_once_and_resumes():
    source = suite_tasks.switched_source(2, 100)
    drawn = [source.draw(2, 30).byte_ids for _ in range(3)]
    assert [ord("$") in rows for rows in drawn] == [True, True, False]
    resumed = suite_tasks.switched_source(2, 100)
    resumed.load_state_dict(source.state_dict())
    assert ord("#") in resumed.draw(2, 30).byte_ids


def test_mistakes_are_named():
    refused(
        (lambda: TASKS["noise"].language(5), ValueError, r"grade must be one of \[1, 2, 3, 4\], got 5"),
        (lambda: suite_tasks.noise(300), ValueError, "dial must lie in 1..246, got 300"),
        (lambda: suite_tasks.knapsack(1), ValueError, "dial must lie in 2..26, got 1"),
        (lambda: suite_tasks.pair(9), ValueError, "dial must be at most 8, got 9"),
        (lambda: suite_tasks.garden_path(5), ValueError, "dial must lie in 1..4, got 5"),
        (lambda: suite_tasks.switch(5), ValueError, "dial must be one of"),
        (lambda: gap("x", b"a", 3, 2.0, {}), ValueError, "mean must be finite and at least shortest=3"),
        (
            lambda: grammar(
                {"a": Node(b"x", {"a": 0.5, "b": 0.5}), "b": Node(b"x", {"a": 1.0})}, {"a": 1.0}, window=1, name="x"
            ),
            ValueError,
            "'b' must not write bytes of another node after 'a'",
        ),
    )

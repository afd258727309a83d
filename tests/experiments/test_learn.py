"""Boundaries are learned where the best ones are known, by the code of the study; and the study keeps its records."""

from __future__ import annotations

import json
from typing import Any

import matplotlib.image
import pytest
import torch
from rltok_rl.experiments.studies import courses, learn
from rltok_rl.experiments.studies.courses import SYSTEMS, course_config, fingerprint, judge, take_course
from rltok_rl.experiments.studies.learn import grid, main, matched_rate, passed, read_study, run, table, verdict
from rltok_rl.experiments.studies.learn_figure import draw_learning
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rltok_rl.data.languages import Recall
from rltok_rl.models import UNet, preset

# One value of two, asked for as soon as it is out of sight: learned in seconds.
EASY = (
    "++data.options={values: '01', fillers: a, shortest_gap: 2, mean_gap: 2.0, window: 2}",
    "++model.overrides={window: 2, target_rate: 0.2, width: 32, boundary_scale: 0.25}",
    "data.num_steps=48",
    "optim.total_bytes=200_000",
    "optim.warm_up_bytes=8_000",
    "optim.lr=1.0e-2",
)
TINY = ["data.num_rows=4", "data.num_steps=32", "optim.total_bytes=256", "optim.warm_up_bytes=0"]


def final(system: str, *overrides: str) -> dict[str, float]:
    config = course_config("recall", system, seed=0, overrides=[*EASY, *overrides])
    return take_course(config, num_looks=1)["final"]


def finds_the_values(found: dict[str, float]) -> bool:
    return found["hits"] > found["elsewhere"] + 0.3 and found["share"] > 0.6


def test_the_learned_policy_finds_the_values_and_beats_what_learns_no_boundaries():
    ours = final("learned")
    assert finds_the_values(ours), ours
    for system in ("uniform", "random"):
        fixed = final(system, f"actor.rate={ours['rate']:.2f}")
        assert fixed["share"] < ours["share"] - 0.2, (system, fixed, ours)


def test_a_policy_gradient_with_its_sign_turned_around_is_noticed():
    """The same training, made to draw boundaries where they are worth least."""
    turned = final("learned", "loss.policy=-0.1")
    assert not finds_the_values(turned) and turned["hits"] < turned["elsewhere"], turned


class _Best(nn.Module):
    """Draws after a byte that follows ``#``, and at half of the other places."""

    def forward(self, byte: Tensor, position: Tensor, forced: Tensor) -> Tensor:
        before = torch.nn.functional.pad(byte[:, :-1], (1, 0))
        return ((before == ord("#")) | (position.squeeze(-1) % 2 == 0) | forced).long()


def test_boundaries_are_counted_against_the_best_ones():
    actor: Any = TensorDictModule(_Best(), ["byte", "position", "forced"], ["action"])
    actor.draws_windows, actor.draws_at_random = True, False
    model = UNet(preset("tiny", window=4))
    found = judge(model, Recall(), actor, num_rows=16, num_steps=64, num_batches=2)
    assert found["hits"] == found["in_sight"] == 1.0
    assert 0.4 < found["elsewhere"] < 0.6
    assert found["elsewhere"] < found["rate"] < found["elsewhere"] + 0.1
    assert model.training


@pytest.fixture
def judged_briefly(monkeypatch):
    monkeypatch.setattr(courses, "JUDGED_ROWS", 8)
    monkeypatch.setattr(courses, "JUDGED_BATCHES", 2)


@pytest.mark.usefixtures("judged_briefly")
def test_a_finished_training_is_judged_on_texts_of_its_own():
    course = take_course(course_config("recall", "learned", seed=0, overrides=TINY), num_looks=2)
    assert [look["bytes"] for look in course["looks"]] == [0, 128, 256] and course["bytes"] == 256
    assert course["cpu_seconds"] > 0 and set(course["sample"]) == {"text", "best", "boundaries", "probabilities"}
    assert course["looks"][-1]["share"] != course["final"]["share"]
    assert "sample" not in take_course(course_config("recall", "uniform", seed=0, overrides=TINY), num_looks=1)


@pytest.mark.parametrize("system", [name for name in SYSTEMS if name != "learned"])
def test_systems_differ_in_what_they_name_and_in_nothing_else(system):
    ours, theirs = (course_config("recall", name, seed=1, rate=0.3) for name in ("learned", system))
    assert fingerprint(ours) != fingerprint(theirs)
    assert (ours.data, ours.optim, ours.seed) == (theirs.data, theirs.optim, theirs.seed)
    assert ours.model.preset == theirs.model.preset
    given = theirs.actor.rate if theirs.actor.rate is not None else theirs.model.overrides["target_rate"]
    assert given == 0.3


@pytest.mark.usefixtures("judged_briefly")
def test_the_command_resumes_redraws_and_says_whether_the_goal_was_met(tmp_path, capsys, monkeypatch):
    options = [f"out={tmp_path}", "languages=[recall]", "seeds=2", "other_seeds=1", "looks=1"]
    options += ["systems=[learned,random]", f"overrides=[{','.join(TINY)}]"]
    assert main(options) == 1  # nothing is learned from 256 bytes
    assert "0 of 2 seeds" in capsys.readouterr().out
    first = json.loads((tmp_path / "learn.json").read_text())
    assert [(one["system"], one["seed"]) for one in first["courses"]] == [("learned", 0), ("learned", 1), ("random", 0)]
    assert first["courses"][2]["rate_given"] == matched_rate(first["courses"], "recall")
    assert (tmp_path / "learn.png").stat().st_size > 10_000

    taken = []

    def counted(config: Any, **more: Any) -> dict[str, Any]:
        taken.append((config.actor.name, config.seed))
        return take_course(config, **more)

    monkeypatch.setattr(learn, "take_course", counted)
    first["courses"].pop()
    (tmp_path / "learn.json").write_text(json.dumps(first))
    run(read_study(options), "again")
    assert taken == [("random", 0)]
    taken.clear()
    run(read_study([*options, "seeds=1", f"overrides=[{','.join([*TINY, 'optim.lr=0.1'])}]"]), "other options")
    assert taken == [("learned", 0), ("random", 0)]


def test_a_line_of_the_table_and_the_verdict_by_hand():
    figures = {"share": 0.96, "standard_error": 0.0, "rate": 0.1, "hits": 0.9, "in_sight": 1.0, "elsewhere": 0.05}
    made = {"language": "recall", "system": "learned", "seed": 0, "cpu_seconds": 100.0, "final": figures}
    slow = {**made, "cpu_seconds": 181.0}
    low = {**made, "final": {**figures, "share": 0.94}}
    assert [passed(one) for one in (made, slow, low)] == [True, False, False]
    assert verdict([made, slow, low], "recall").startswith("recall: 1 of 3 seeds at or above 0.95")
    assert "| 3 | 0.953 | 0.940 | 0.100 | 0.900 | 1.00 | 0.0500 | 127 (at most 181) |" in table([made, slow, low])


def test_the_learned_policies_come_first_and_options_are_checked():
    cells = grid(read_study(["seeds=2", "other_seeds=1"]))
    learned = [cell for cell in cells if cell[1] == "learned"]
    assert cells[: len(learned)] == learned and len(learned) == 4
    assert len(cells) == len(set(cells)) == 4 + 2 * (len(SYSTEMS) - 1)
    with pytest.raises(ValueError, match="systems must be among .*, got \\['mine'\\]"):
        read_study(["systems=[mine]"])
    with pytest.raises(ValueError, match="systems must hold 'learned'"):
        read_study(["systems=[random]"])
    with pytest.raises(ValueError, match="seeds must be at least 1, got 0"):
        read_study(["seeds=0"])
    with pytest.raises(ValueError, match="options are .*'other_seeds'.*, got \\['sedes=1'\\]"):
        read_study(["sedes=1"])
    with pytest.raises(ValueError, match="system must be one of .*, got 'mine'"):
        course_config("recall", "mine", 0)


def test_a_figure_of_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="courses must hold at least one training"):
        draw_learning([], tmp_path / "none.png", goal=0.95)


def test_the_legend_stays_within_the_figure(tmp_path):
    looks = [{"bytes": done, "share": 0.5} for done in (0, 1000)]
    made = [
        {"language": "recall", "system": system, "seed": seed, "looks": looks, "final": {"share": 0.5}}
        | {"sample": {"text": "#5a", "best": "110", "probabilities": [1.0, 0.9, 0.1]}}
        for system in SYSTEMS
        for seed in (0, 1)
    ]
    pixels = matplotlib.image.imread(draw_learning(made, tmp_path / "two.png", goal=0.95))[..., :3]
    legend = pixels[-40:]  # [rows, columns, 3]
    assert legend.min() < 0.5, "there should be a legend at the bottom"
    assert (legend[:, -4:] == 1).all(), "it is cut off at the right edge"

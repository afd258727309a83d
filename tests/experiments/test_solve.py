"""The benchmark of learners: every kind trains, cells are kept, and the page says when a threshold is reached."""

from __future__ import annotations

import matplotlib.image
import pytest
from rltok_rl.experiments.studies import learners, solve
from rltok_rl.experiments.studies.learners import FIXED, HELD_OUT_BYTES, LEARNERS, WORLDS, Course
from rltok_rl.experiments.studies.solve import SolveOptions, grid, read_solve_options, solved, train_cell

from rltok_rl.data import packaged_novel
from rltok_rl.data.disk import claim_file

from ..each import each, refused

TINY = SolveOptions(updates=2, num_steps=4)


@pytest.fixture(autouse=True)
def few_texts(monkeypatch):
    monkeypatch.setattr(solve, "TEXTS", dict.fromkeys(WORLDS, 8))


@each(learner=LEARNERS)
def test_every_learner_has_a_curve(learner):
    points = train_cell("recall", learner, 0, TINY)["points"]
    assert [point[0] for point in points] == [0] if learner in FIXED else [0, 128, 256]
    assert points[0][1] == 0 and all(a[1] <= b[1] for a, b in zip(points, points[1:], strict=False))
    if learner not in FIXED:
        assert points[-1][2] != points[0][2], "nothing was learned"


@each(learner=["torchrl_ppo", "reinforce_group_mean"])
def test_a_cell_repeats_itself_and_does_not_depend_on_evaluations(learner, monkeypatch):
    first, again = (train_cell("novel", learner, 1, TINY)["points"] for _ in range(2))
    monkeypatch.setattr(solve, "EVALUATIONS", 1)
    (*_, last) = train_cell("novel", learner, 1, TINY)["points"]
    assert [point[2] for point in first] == [point[2] for point in again] and first[-1][2] == last[2]


def test_reinforce_learns_and_groups_read_the_same_texts():
    points = train_cell("recall", "reinforce_leave_one_out", 0, SolveOptions(updates=12, num_steps=32))["points"]
    assert points[-1][2] > points[0][2] + 0.3
    env = Course("recall", 0, 1, 4).make_env(rows_per_text=2)
    byte_ids = env.draw_windows(8).byte_ids
    assert (byte_ids[::2] == byte_ids[1::2]).all() and (byte_ids[::2] != byte_ids[2:3]).any()
    assert {name for name, x in env.model.named_parameters() if x.requires_grad} == {"boundary_head.projection.weight"}


def test_the_end_of_the_novel_is_held_out():
    train, held_out = (Course("novel", 0, 1, 4).env_options(held_out=held_out)["text"] for held_out in (False, True))
    assert train + held_out == packaged_novel() and len(held_out) == HELD_OUT_BYTES


def test_commands_that_share_a_folder_share_its_cells(tmp_path, monkeypatch):
    options = SolveOptions(worlds=["recall"], learners=["never", "always"], updates=1, num_steps=4, out=str(tmp_path))
    never, always = (options.file("recall", name, 0) for name in options.learners)
    never.parent.mkdir()
    with claim_file(never.with_suffix(".lock")):  # as another process that trains it
        assert [one["learner"] for one in solve.run(options)] == ["always"]
    assert [file.name for file in never.parent.iterdir() if file.suffix == ".json"] == [always.name]
    assert [one["learner"] for one in solve.run(options)] == ["never", "always"]
    assert sorted(file.name for file in never.parent.iterdir()) == sorted([never.name, always.name])


def test_the_command_resumes_and_draws_all_cells(tmp_path, capsys, monkeypatch):
    options = [f"out={tmp_path}", "updates=1", "num_steps=4", "seeds=2"]
    assert solve.main([*options, "worlds=[recall]", "learners=[never,reinforce_batch_mean]"]) == 0
    files = sorted(tmp_path.glob("cells/*"))
    names = ("never-0", "reinforce_batch_mean-0", "reinforce_batch_mean-1")
    assert [file.name for file in files] == [f"recall-{name}-1x4.json" for name in names]
    before = [file.read_bytes() for file in files]
    monkeypatch.setitem(LEARNERS, "reinforce_batch_mean", None)
    assert solve.main([*options, "worlds=[recall,novel]", "learners=[optimum,never]"]) == 0
    assert [file.read_bytes() for file in files] == before and len([*tmp_path.glob("cells/*")]) == 5
    page = (tmp_path / "solve.md").read_text()
    assert page.strip() in capsys.readouterr().out
    places = [page.index(text) for text in ("`optimum`", "`never`", "`reinforce_batch_mean`", "## novel")]
    assert places == sorted(places)
    assert "threshold 22.2" in page and "| 0 of 2 |" in page and "![Return curves](solve.png)" in page
    assert matplotlib.image.imread(tmp_path / "solve.png").shape[1] > 800


def test_a_row_of_the_table_by_hand():
    curve = [(0, 0.0, 1.0), (100, 2.0, 5.0), (200, 4.0, 7.0)]
    assert solved(curve, 5.0) == (100, 2.0) and solved(curve, 8.0) is None
    table = solve.solve_table({"never": [[(0, 0.0, 1.0)]], "sb3_ppo": [curve, [*curve[:1], (200, 6.0, 5.0)]]}, 5.0)
    assert "| `never` | 1.0 |  |  |  |  |" in table
    assert "| `sb3_ppo` | 6.0 ± 1.0 | 5.0 ± 1.0 | 2 of 2 | 150 ± 50 | 4.0 ± 2.0 |" in table


def test_cells_and_options(monkeypatch, tmp_path):
    cells = grid(SolveOptions(seeds=2))
    assert len(cells) == len(set(cells)) == 3 * 2 * (len(LEARNERS) - len(FIXED)) + 3 * len(FIXED) - 1
    assert {world for world, *_ in cells} == set(WORLDS) and ("novel", "optimum", 0) not in cells
    monkeypatch.setattr(learners, "CLIENTS", tmp_path / "none")
    refused(
        (lambda: read_solve_options(["worlds=[toy]"]), ValueError, r"worlds must be among .*, got \['toy'\]"),
        (lambda: read_solve_options(["learners=[]"]), ValueError, "learners must be among"),
        (lambda: read_solve_options(["updates=0"]), ValueError, "updates must be at least 1, got 0"),
        (lambda: train_cell("recall", "cleanrl_ppo", 0, TINY), FileNotFoundError, "cleanrl_ppo needs .*none"),
    )
    assert solve.main(["seeds=0"]) == 2

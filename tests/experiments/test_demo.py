"""The demo: all of it in a few updates, what it says against what it measured, stopping and going on."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rltok_rl.agents.segmenters import load_segmenter
from rltok_rl.experiments.commands.parsers import LEAST_SECONDS
from rltok_rl.experiments.demo import __main__ as demo
from rltok_rl.experiments.demo import ending, findings, race
from rltok_rl.experiments.demo.plan import ACTORS, Memory, Part, bytes_that_fit, folder_for, overrides_of
from rltok_rl.experiments.demo.race import Race, TrainingFailed
from rltok_rl.experiments.demo.screen import Screen
from rltok_rl.experiments.reports.markdown import with_unit

from rltok_rl.training.metrics import read_lines, read_table

from ..forked import Forked
from ..test_project_text import machine_paths

SMALL = ("data.num_rows=2", "data.num_steps=32", "snapshots.count=1", "snapshots.batches=1", "snapshots.num_bytes=64")


class Training(Forked):
    """A training as the race starts it, with everything imported."""

    def __init__(self, command, *, stdout, env, **_):
        python, *_, module = command[: command.index("-m") + 2]
        assert python == sys.executable and stdout.name.endswith("log.txt")
        super().__init__(module, command[command.index("-m") + 2 :], err=Path(stdout.name), environment=env, quiet=True)

    def terminate(self):
        self.send_signal(signal.SIGTERM)


@pytest.fixture(scope="module", autouse=True)
def _begin_quickly() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(race, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": Training}))
        yield


@pytest.fixture(scope="module")
def quick(tmp_path_factory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """From a folder that is no checkout."""
    elsewhere, shown, threads = tmp_path_factory.mktemp("elsewhere"), io.StringIO(), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(shown):
        patch.chdir(elsewhere)
        ended = demo.main(["--quick", "--out", "it's here"])
    torch.set_num_threads(threads)
    return subprocess.CompletedProcess([], ended, shown.getvalue(), ""), elsewhere / "it's here"


def test_every_part_leaves_what_it_says(quick):
    ran, folder = quick
    assert ran.returncode in (0, 1), ran.stderr
    listed = ran.stdout.partition("Look at\n")[2].partition("\n\n")[0].split("\n")
    listed = [path for path in listed if not path.startswith("      ")]
    assert len(listed) == 4 and all((folder.parent / path.strip()).is_file() for path in listed)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name], "nothing beside the demo's folder"
    found = json.loads((folder / "demo.json").read_text())
    assert "|" not in ran.stdout and found["english_findings"]["after"]["text"][:20] not in ran.stdout
    assert (folder / "demo.png").read_bytes()[:4] == b"\x89PNG" and (folder / "demo.png").stat().st_size > 50_000
    assert not machine_paths((folder / "report.md").read_text() + ran.stdout)
    links = re.findall(r"\]\(([^)]+)\)", (folder / "report.md").read_text())
    assert len(links) == 5 and all((folder / link).is_file() for link in links)


def test_what_is_said_was_measured(quick):
    ran, folder = quick
    found = json.loads((folder / "demo.json").read_text())
    for part in ("recall", "english"):
        assert f"{found[f'{part}_findings']['parameters']:,} parameters" in (folder / "report.md").read_text()
    for name in ("learned", "uniform"):
        # The last look of the training itself, by another way to the same model.
        for part, key in (("recall", "share"), ("english", "bits_per_byte")):
            looked = read_lines(folder / f"{part}-{name}" / "samples.jsonl")[-1][f"held_out_{key}"]
            judged = found[f"{part}_findings"][name][key]
            assert judged == pytest.approx(looked, abs=1e-6)
            assert f"{judged:.3f}" in ran.stdout and f"{judged:.3f}" in (folder / "report.md").read_text()
    assert ran.returncode == (0 if ending.learned_something(found) else 1)
    assert ("It learned" in ran.stdout) == (ran.returncode == 0)
    assert found["recall_findings"]["stepping_gap"] < 1e-4


def test_the_verdict_is_the_paired_difference_at_equal_rates(quick):
    """By another way: the evenly spaced run with the segmenter that it saved, the learned one with shifted logits."""
    ran, folder = quick
    found = json.loads((folder / "demo.json").read_text())["english_findings"]
    paired = found["paired"]
    assert ending.in_english(found) in " ".join(ran.stdout.split()) or ran.returncode
    assert ending.in_english(found) in (folder / "report.md").read_text()
    assert paired["equal_rates"] and paired["rates"]["learned"] == pytest.approx(paired["rates"]["uniform"], rel=0.02)
    nats = {}
    for name in ("learned", "uniform"):
        run = folder / f"english-{name}"
        config, model = findings.read_config(run), findings.read_model(run)
        if name == "learned":
            model.boundary_head.offset += paired["shift"]
        texts = list(findings.read_texts(config.data, seed=config.seed).held_out.documents())
        generator, segmenter = torch.Generator().manual_seed(7), load_segmenter(run / "model", model)
        reading = findings.read_text(model, texts, context=64, most=256, generator=generator, segmenter=segmenter)
        nats[name] = reading.final_nats
        spent = read_table(run / "metrics.csv")["total_flops"][-1]
        assert paired["total_flops"][name] == spent and with_unit(spent, "FLOPs") in ending.in_english(found)
    apart = float((nats["learned"] - nats["uniform"]).mean()) / math.log(2)
    assert paired["difference"] == pytest.approx(apart, abs=1e-9)
    assert paired["total_flops"]["learned"] > paired["total_flops"]["uniform"], "trials count"


def test_no_verdict_without_equal_rates(quick):
    found = json.loads((quick[1] / "demo.json").read_text())["english_findings"]
    found["paired"] |= {"equal_rates": False, "rates": {"learned": 0.229, "uniform": 0.203}}
    said = ending.in_english(found)
    assert said.startswith("English: no verdict, since the rates differ (0.229 learned, 0.203 evenly spaced)")
    assert "bits per byte" not in said


def test_both_of_a_pair_begin_alike_and_read_the_same(quick):
    _, folder = quick
    for part in ("recall", "english"):
        one, other = (folder / f"{part}-{actor.name}" for actor in ACTORS)
        assert read_table(one / "metrics.csv")["bytes"] == read_table(other / "metrics.csv")["bytes"]
        # The early exit sees no boundary: before the first update it says the same of the same bytes.
        first = [read_lines(run / "samples.jsonl")[0]["held_out_early_bits_per_byte"] for run in (one, other)]
        assert first[0] == pytest.approx(first[1], abs=1e-6)
        rates = read_table(other / "metrics.csv")["rate"]
        assert max(rates) - min(rates) < 1e-6, "evenly spaced boundaries do not learn"


def test_no_colour_without_a_terminal(quick):
    assert "\x1b" not in quick[0].stdout
    assert "\x1b[" in Screen(colour=True, stream=io.StringIO()).paint("x", "good")


def test_a_training_that_is_stopped_goes_on(tmp_path):
    """Stopped after some updates, it has saved them; the next race reaches the end of the same training."""
    part = Part("recall", ("experiment=recall", *SMALL), 64, 64, 1.0)
    folder = tmp_path / "recall-uniform"
    total = 64 * 150
    runs = {"uniform": overrides_of(part, ACTORS[1], total_bytes=total, out=folder)}

    def begun() -> bool:
        return len(read_table(folder / "metrics.csv").get("bytes", [])) >= 3

    with Race(runs, {"uniform": folder}, total) as race:
        assert race.follow(lambda *_: None, deadline=time.perf_counter() + 60, stop=begun) == "stopped"
    reached = race.standings()[0].bytes_done
    assert 3 * 64 <= reached < total
    assert findings.read_model(folder).config.width == 64  # from the checkpoint
    shown = []
    with Race(runs, {"uniform": folder}, total) as race:
        assert race.follow(lambda *a: shown.append(a), deadline=time.perf_counter() + 60, stop=lambda: False) == "done"
    assert read_table(folder / "metrics.csv")["update"] == list(range(1, 151))
    assert shown[-1][0][0].finished and shown[-1][2] and not shown[0][2]


def test_a_training_that_fails_is_named(tmp_path):
    folder = tmp_path / "broken"
    with Race({"learned": ["data.source=nowhere", f"out={folder}"]}, {"learned": folder}, 64) as race:
        with pytest.raises(TrainingFailed, match=r"'learned' ended with status 1; .*log.txt ends with[\s\S]*nowhere"):
            race.follow(lambda *_: None, deadline=time.perf_counter() + 60, stop=lambda: False)


def test_a_finished_demo_is_not_written_over(tmp_path):
    folder = tmp_path / "demo"
    assert folder_for(folder) == folder
    Memory(folder).note(recall={"total_bytes": 1})
    assert folder_for(folder) == folder, "a stopped one goes on"
    Memory(folder).note(finished=True)
    assert folder_for(folder) == tmp_path / "demo-2"


def test_slow_machines_train_on_less_and_fast_ones_do_not_idle():
    sizes = [bytes_that_fit(demo.RECALL, speed=v, seconds=110.0, update=4096) for v in (1e3, 15e3, 1e6)]
    assert sizes == sorted(sizes) and len(set(sizes)) == 3
    assert sizes[0] >= demo.RECALL.least_bytes - 4096 and sizes[-1] <= demo.RECALL.most_bytes


@pytest.mark.parametrize(
    ("learned", "uniform", "expected"), [(0.9, 0.4, True), (0.4, 0.9, False), (0.4, 0.4, False), (-1.0, -2.0, False)]
)
def test_learning_has_to_show(learned, uniform, expected):
    """More than evenly spaced boundaries earn, and more than nothing."""
    found = {"recall_findings": {"learned": {"share": learned}, "uniform": {"share": uniform}}}
    assert ending.learned_something(found) is expected


@pytest.mark.parametrize("seconds", ["10", "nan"])
def test_too_little_time_is_refused(seconds, capsys):
    with pytest.raises(SystemExit):
        demo.main(["--seconds", seconds])
    message = f"argument --seconds: must be a number of at least {LEAST_SECONDS}, got {seconds!r}"
    assert message in capsys.readouterr().err

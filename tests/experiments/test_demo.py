"""The demo: all of it in a few updates, its output against its measurements, stopping and resuming."""

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
from rltok_rl.experiments.demo import __main__ as demo
from rltok_rl.experiments.demo import findings, parts, screen
from rltok_rl.experiments.demo.parts import RECALL, SYSTEMS, DemoState, Part, Race, RunFailed, RunState
from rltok_rl.experiments.demo.verdicts import english_verdict, learned_something
from rltok_rl.experiments.reports.markdown import with_unit

from rltok_rl.training.metrics import read_lines, read_table

from ..forked import Forked
from ..test_project_text import machine_paths

SMALL = ("data.num_rows=2", "data.num_steps=32", "snapshots.count=1", "snapshots.batches=1", "snapshots.num_bytes=64")


class ForkedRun(Forked):
    """A run as the race starts it, in a process with everything imported."""

    def __init__(self, command, *, stdout, env, **_):
        python, *_, module = command[: command.index("-m") + 2]
        assert python == sys.executable and stdout.name.endswith("log.txt")
        super().__init__(module, command[command.index("-m") + 2 :], err=Path(stdout.name), environment=env, quiet=True)

    def terminate(self):
        self.send_signal(signal.SIGTERM)


@pytest.fixture(scope="module", autouse=True)
def _start_quickly() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": ForkedRun}))
        yield


@pytest.fixture(scope="module")
def quick(tmp_path_factory) -> tuple[int, str, Path]:
    """Exit status, output and folder of a demo, run outside the checkout."""
    elsewhere, output, threads = tmp_path_factory.mktemp("elsewhere"), io.StringIO(), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.chdir(elsewhere)
        status = demo.main(["--quick", "--out", "it's here"])
    torch.set_num_threads(threads)
    return status, output.getvalue(), elsewhere / "it's here"


def test_every_part_leaves_its_files(quick):
    _, output, folder = quick
    listed = output.partition("Look at\n")[2].partition("\n\n")[0].split("\n")
    listed = [path for path in listed if not path.startswith("      ")]
    assert len(listed) == 4 and all((folder.parent / path.strip()).is_file() for path in listed)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name], "nothing beside the demo's folder"
    content = json.loads((folder / "demo.json").read_text())
    assert "|" not in output and content["english_findings"]["after"]["text"][:20] not in output
    assert "\x1b" not in output, "no colour without a terminal"
    assert (folder / "demo.png").read_bytes()[:4] == b"\x89PNG" and (folder / "demo.png").stat().st_size > 15_000
    assert not machine_paths((folder / "report.md").read_text() + output)
    links = re.findall(r"\]\(([^)]+)\)", (folder / "report.md").read_text())
    assert len(links) == 5 and all((folder / link).is_file() for link in links)


def test_output_and_report_have_the_measured_values(quick):
    status, output, folder = quick
    content, report = json.loads((folder / "demo.json").read_text()), (folder / "report.md").read_text()
    for part, metric in (("recall", "share"), ("english", "bits_per_byte")):
        part_findings = content[f"{part}_findings"]
        assert f"{part_findings['parameters']:,} parameters" in report
        runs = {name: folder / f"{part}-{name}" for name in SYSTEMS}
        for name, run in runs.items():
            value = part_findings[name][metric]
            assert value == read_lines(run / "samples.jsonl")[-1][f"held_out_{metric}"]
            assert f"{value:.3f}" in output and f"{value:.3f}" in report
        # Both runs start equal and read the same bytes; the early exit sees no boundary.
        tables = [read_table(run / "metrics.csv") for run in runs.values()]
        assert tables[0]["bytes"] == tables[1]["bytes"]
        early = [read_lines(run / "samples.jsonl")[0]["held_out_early_bits_per_byte"] for run in runs.values()]
        assert early[0] == pytest.approx(early[1], abs=1e-6)
        assert max(tables[1]["rate"]) - min(tables[1]["rate"]) < 1e-6, "evenly spaced boundaries do not learn"
    assert status == (0 if learned_something(content) else 1)
    assert ("It learned" in output) == (status == 0)


def test_the_verdict_is_the_paired_difference_at_equal_rates(quick):
    """Recomputed: the evenly spaced run with the segmenter that it saved, the learned one with shifted logits."""
    status, output, folder = quick
    english = json.loads((folder / "demo.json").read_text())["english_findings"]
    paired, verdict = english["paired"], english_verdict(english)
    assert verdict in " ".join(output.split()) or status
    assert verdict in (folder / "report.md").read_text()
    assert paired["equal_rates"] and paired["rates"]["learned"] == pytest.approx(paired["rates"]["uniform"], rel=0.02)
    nats = {}
    for name in SYSTEMS:
        run = folder / f"english-{name}"
        config, model = findings.read_options(run / "config.yaml"), findings.read_model(run)
        if name == "learned":
            model.boundary_head.offset += paired["shift"]
        texts = list(findings.read_texts(config.data, seed=config.seed).held_out.documents())
        generator, segmenter = torch.Generator().manual_seed(7), load_segmenter(run / "model", model)
        reading = findings.read_text(model, texts, context=64, most=256, generator=generator, segmenter=segmenter)
        nats[name] = reading.final_nats
        flops = read_table(run / "metrics.csv")["total_flops"][-1]
        assert paired["total_flops"][name] == flops and with_unit(flops, "FLOPs") in verdict
    difference = float((nats["learned"] - nats["uniform"]).mean()) / math.log(2)
    assert paired["difference"] == pytest.approx(difference, abs=1e-9)
    assert paired["total_flops"]["learned"] > paired["total_flops"]["uniform"], "trials count"
    paired |= {"equal_rates": False, "rates": {"learned": 0.229, "uniform": 0.203}}
    verdict = english_verdict(english)
    assert verdict.startswith("English: no verdict, since the rates differ (0.229 learned, 0.203 evenly spaced)")
    assert "bits per byte" not in verdict
    verdict = english_verdict(english | {"ended": "late"})
    assert verdict.startswith("English: no verdict, since the time was up") and "bits per byte" not in verdict


@pytest.mark.parametrize("live", [True, False])
def test_progress_is_drawn_on_terminals_and_written_elsewhere(live, monkeypatch):
    stream = io.StringIO()
    stream.isatty = lambda: live
    for name, value in {"NO_COLOR": "", "FORCE_COLOR": "", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(screen, "_LINE_EVERY", 0.0)
    snapshots = [{"held_out_share": value} for value in (-9.0, 0.25)]
    with screen.PartProgress(screen.make_console(), "recall", 200) as progress:
        progress.show([RunState(name, 100, snapshots, finished=False) for name in SYSTEMS])
    output = stream.getvalue()
    assert "50%" in output and "0.250 of 1" in output and "-9" not in output
    assert ("\x1b[" in output) == live and (live or output.count("\n") == 3)
    assert live or output.startswith("  learned 50% 0.250 of 1, uniform 50% 0.250 of 1\n"), "before the end"


class Deadline(float):
    """A time that has passed as soon as a condition holds."""

    def __new__(cls, condition):
        made = super().__new__(cls)
        made.condition = condition
        return made

    def __lt__(self, now):
        return self.condition()


def test_a_stopped_or_late_run_resumes_and_a_failed_one_is_named(tmp_path):
    """Stopped after some updates, it has saved them; the next race completes the same run."""
    part = Part("recall", ("experiment=recall", *SMALL), 64, 64, 1.0)
    folder, total = tmp_path / "recall-uniform", 64 * 150
    runs, folders = (
        {"uniform": parts.run_overrides(part, "uniform", total_bytes=total, out=folder)},
        {"uniform": folder},
    )

    def has_updates(count: int = 3) -> bool:
        return len(read_table(folder / "metrics.csv").get("bytes", [])) >= count

    with Race(runs, folders) as race:
        assert race.follow(lambda _: None, deadline=time.perf_counter() + 60, stop=has_updates) == "stopped"
    assert 3 * 64 <= race.states()[0].bytes_done < total
    assert findings.read_model(folder).config.width == 64  # from the checkpoint
    updates = len(read_table(folder / "metrics.csv")["bytes"])
    with Race(runs, folders) as race:  # too slow: the time is up after some updates
        late = Deadline(lambda: has_updates(updates + 3))
        assert race.follow(lambda _: None, deadline=late, stop=lambda: False) == "late"
    assert race.processes["uniform"].returncode == 128 + signal.SIGTERM, "it has saved"
    shown = []
    with Race(runs, folders) as race:
        assert race.follow(shown.append, deadline=time.perf_counter() + 60, stop=lambda: False) == "done"
    assert read_table(folder / "metrics.csv")["update"] == list(range(1, 151))
    assert shown[-1][0].finished and not shown[0][0].finished
    folder = tmp_path / "broken"
    with Race({"learned": ["data.source=nowhere", f"out={folder}"]}, {"learned": folder}) as race:
        with pytest.raises(RunFailed, match=r"'learned' ended with status 1; .*log.txt ends with[\s\S]*nowhere"):
            race.follow(lambda _: None, deadline=time.perf_counter() + 60, stop=lambda: False)


def test_plans(tmp_path):
    folder = tmp_path / "demo"
    for content, free in (({}, "demo"), ({"recall": {"total_bytes": 1}}, "demo"), ({"finished": True}, "demo-2")):
        DemoState(folder).save(**content)
        assert parts.free_folder(folder) == tmp_path / free, content
    sizes = [parts.fitting_bytes(RECALL, speed=speed, seconds=110.0, update=4096) for speed in (1e3, 15e3, 1e6)]
    assert sizes == sorted(sizes) and len(set(sizes)) == 3
    assert sizes[0] >= RECALL.least_bytes - 4096 and sizes[-1] <= RECALL.most_bytes
    for learned, uniform, expected in ((0.9, 0.4, True), (0.4, 0.9, False), (0.4, 0.4, False), (-1.0, -2.0, False)):
        shares = {"recall_findings": {"learned": {"share": learned}, "uniform": {"share": uniform}}}
        assert learned_something(shares) is expected, (learned, uniform)

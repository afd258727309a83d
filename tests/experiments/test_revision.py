"""Commits of corpora: pinned on first use, recorded in the run's folder, and read again when the run is resumed."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import datasets
import huggingface_hub
import pytest
import torch
from omegaconf import OmegaConf
from rltok_rl.experiments.compare import train_systems
from rltok_rl.experiments.runs import run as runs
from rltok_rl.experiments.runs.revision import pinned_revision
from rltok_rl.experiments.runs.run import run
from rltok_rl.experiments.runs.saved_options import read_options
from rltok_rl.experiments.texts import read_run_texts, read_texts

from rltok_rl.data import CORPORA, local_prose
from rltok_rl.training.distributed import Processes

from .configured import QUICK, configured
from .conftest import COMPARE

FIRST, SECOND = "a" * 40, "b" * 40
CORPUS = [*QUICK[:-1], "data.source=codeparrot", "data.order=random", "checkpoint_every=2"]


class Rows(list):
    column_names = ("content",)

    def select_columns(self, names: list[str]) -> Rows:
        assert names == ["content"]
        return self


class Hub:
    """A hub whose corpora have a current commit, and documents that differ between commits."""

    def __init__(self) -> None:
        self.commit: str | None = FIRST
        self.questions: list[str] = []
        self.read: list[tuple[str, str | None]] = []
        self.missing: set[str] = set()

    def dataset_info(self, path: str) -> SimpleNamespace:
        self.questions.append(path)
        if self.commit is None:
            raise RuntimeError("no route\nto host")  # httpx errors are no OSError
        return SimpleNamespace(sha=self.commit)

    def load_dataset(self, path: str, *_: object, revision: str | None, **__: object) -> Rows:
        self.read.append((path, revision))
        if revision in self.missing:
            raise datasets.exceptions.DatasetNotFoundError(f"Revision '{revision}' doesn't exist")
        text = local_prose(40_000).decode("ascii", "ignore")[7 * (revision == SECOND) :]
        return Rows({"content": text[at : at + 400]} for at in range(0, 32_000, 400))


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Hub:
    monkeypatch.chdir(tmp_path)
    hub = Hub()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    monkeypatch.setattr(datasets, "load_dataset", hub.load_dataset)
    return hub


def recorded(folder: Path | str) -> str | None:
    return OmegaConf.load(Path(folder) / "config.yaml").data.revision


def test_a_run_records_the_commit_and_reads_it_again_when_resumed(hub, capsys):
    path = CORPORA["codeparrot"].path
    run(configured(*CORPUS, "out=run"), "")
    assert hub.questions == [path] and hub.read == [(path, FIRST)] and recorded("run") == FIRST
    assert f"\n  commit {FIRST}\n" in capsys.readouterr().err
    metrics = Path("run/metrics.csv").read_bytes()
    shutil.rmtree("caches")
    hub.commit = SECOND
    for checkpoint in ("update-00000004", ""):  # from update 2, and from the start
        shutil.rmtree(f"run/checkpoints/{checkpoint}")
        Path("run/summary.json").unlink()
        run(configured(*CORPUS, "resume=true", "out=run"), "")
        assert Path("run/metrics.csv").read_bytes() == metrics and recorded("run") == FIRST
    assert hub.questions == [path] and hub.read == [(path, FIRST)] * 2
    shutil.rmtree("caches")
    run(configured(*CORPUS, "resume=true", "out=other"), "")  # a new run
    assert recorded("other") == SECOND and hub.read[-1] == (path, SECOND)
    assert Path("other/metrics.csv").read_bytes() != metrics


def test_a_resumed_run_whose_commit_is_gone_is_refused_by_name(hub):
    run(configured(*CORPUS, "out=run"), "")
    shutil.rmtree("caches")
    hub.missing, hub.commit = {FIRST}, SECOND
    words = (
        f"data.source='codeparrot' with data.revision={FIRST} cannot be read from the hub: Revision .* doesn't exist"
    )
    with pytest.raises(OSError, match=words):
        run(configured(*CORPUS, "resume=true", "out=run"), "")
    with pytest.raises(ValueError, match=f"data.revision: '{FIRST}' there, '{SECOND}' here"):
        run(configured(*CORPUS, "resume=true", "out=run", f"data.revision={SECOND}"), "")


def test_runs_of_one_folder_read_the_commit_of_its_newest_cache_without_the_hub(hub):
    run(configured(*CORPUS, "out=run"), "")
    hub.commit = None
    run(configured(*CORPUS, "seed=1", "out=again"), "")
    assert recorded("again") == FIRST and len(hub.read) == 1
    for commit, cache in ((SECOND, None), ("v1", "mine")):
        data = configured(*CORPUS).data
        data.revision, data.cache = commit, cache
        folder = Path(read_texts(data).described.rpartition("cached in ")[2])
        os.utime(folder / "index.json", (2e9, 2e9))
        assert pinned_revision(replace(data, revision=None)) == commit
    index = json.loads(Path("mine/index.json").read_text())
    index["settings"]["source"]["path"] = CORPORA["codeparrot-clean"].path
    for name, text in (("codeparrot-1", "{"), ("codeparrot-clean-1", json.dumps(index))):  # damaged; another corpus
        other = Path(shutil.copytree("mine", f"caches/{name}")) / "index.json"
        other.write_text(text)
        os.utime(other, (3e9, 3e9))
    assert pinned_revision(configured(*CORPUS).data) == SECOND


def test_a_hub_that_does_not_answer_is_named(hub, tmp_path):
    words = (
        "revision must name a commit of transformersbook/codeparrot, because the hub did not answer which one is "
        r"current \(RuntimeError: no route\)$"
    )
    hub.commit = None
    with pytest.raises(ConnectionError, match=words):
        run(configured(*CORPUS, "out=run"), "")
    assert list(tmp_path.iterdir()) == []
    run(configured(*CORPUS, "out=run", f"data.revision={FIRST}"), "")
    hub.commit, hub.dataset_info = FIRST, lambda path: SimpleNamespace(sha=None)
    shutil.rmtree("caches")
    with pytest.raises(ValueError, match="because the hub names none"):
        run(configured(*CORPUS, "out=other"), "")


def test_offline_mode_is_named_by_the_real_client(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConnectionError, match=r"did not answer which one is current \(OfflineModeIsEnabled: "):
        pinned_revision(configured(*CORPUS).data)


def test_known_commits_need_no_question_and_earlier_runs_keep_none(hub):
    data = configured(*CORPUS).data
    fineweb = replace(data, source="fineweb-10bt")
    assert pinned_revision(fineweb) == CORPORA["fineweb-10bt"].revision
    assert pinned_revision(replace(data, options={"revision": "v1"})) is None
    assert pinned_revision(replace(data, revision="v1")) == "v1"
    assert pinned_revision(replace(data, source="python-docs")) is None
    run(configured(*CORPUS, f"data.revision={FIRST}", "out=run"), "")
    config = OmegaConf.load("run/config.yaml")
    for revision, source, expected in ((None, "codeparrot", None), (SECOND, "codeparrot-clean", FIRST)):
        config.data.revision, config.data.source = revision, source
        OmegaConf.save(config, "run/config.yaml")
        assert pinned_revision(data, [Path("absent"), Path("run")]) == expected
    shutil.rmtree("caches")
    with pytest.raises(ValueError, match=f"^revision must name a commit of {CORPORA['codeparrot'].path}, because no"):
        read_texts(data)
    assert hub.questions == []


def test_other_ranks_read_the_commit_of_the_main_process(hub, monkeypatch):
    asked = []

    def make(config, processes):
        asked.append(config.data.revision)
        raise ValueError("enough")

    monkeypatch.setattr(runs, "make_trainer", make)
    monkeypatch.setattr(Processes, "broadcast", lambda self, value: value if self.main else SECOND)
    for rank in (0, 1):
        with pytest.raises(ValueError, match="enough"):
            run(configured(*CORPUS), "", Processes(rank, 2, torch.device("cpu")))
    assert asked == [FIRST, SECOND] and len(hub.questions) == 1


def test_another_commit_of_a_trusted_corpus_needs_trust(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run(configured(*CORPUS, "out=run"), "")
    data = read_options(Path("run/config.yaml")).data
    assert read_run_texts(data, False).sha256 == read_texts(data).sha256
    for revision in ("refs/pr/1", None):
        other = replace(data, revision=revision)
        with pytest.raises(ValueError, match="was not trained on by you on this machine .* pass --trust-data"):
            read_run_texts(other, False)
        if revision is not None:
            assert read_run_texts(other, True)


def test_systems_of_a_comparison_read_one_commit(hub, monkeypatch):
    asked = []

    def train(config, *_, **__):
        asked.append(config.data.revision)
        Path(config.out).mkdir(parents=True, exist_ok=True)
        OmegaConf.save(OmegaConf.structured(config), Path(config.out) / "config.yaml")
        return signal.SIGTERM if len(asked) % 2 == 0 else 0

    monkeypatch.setattr(train_systems, "_train", train)
    monkeypatch.setattr(train_systems, "write_page", lambda *_: None)
    for _ in range(2):
        options = [option for option in COMPARE if option != "data=python-docs"]
        options += ["data=files", "data.source=codeparrot", "compare.systems=[uniform,learned]", "out=compared"]
        with pytest.raises(SystemExit):
            train_systems.run(configured(*options), "")
        shutil.rmtree("caches")
        hub.commit = SECOND
    assert asked == [FIRST] * 4 and len(hub.questions) == 1

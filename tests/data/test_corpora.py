"""Text that comes with Python, and corpora through ``datasets``, from local files of the layout of the real ones."""

from __future__ import annotations

import importlib.util
import pydoc_data.topics
import sysconfig
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rltok_rl.data import CORPORA, Corpus, corpora, local_code, local_prose, read_documents, stream_corpus
from rltok_rl.evaluation.tasks import TASKS, read_task

from ..each import refused
from .test_files import write

TEXTS = [f"document {n}, è vero" for n in range(20)]


@pytest.fixture(autouse=True)
def _folders_of_the_test(tmp_path_factory, monkeypatch):
    for name in ("HF_DATASETS_CACHE", "HF_MODULES_CACHE"):
        monkeypatch.setattr(datasets.config, name, str(tmp_path_factory.mktemp(name)))


def test_prose_and_code_of_this_python(monkeypatch):
    library = Path(sysconfig.get_paths()["stdlib"])
    spec = importlib.util.spec_from_file_location("topics", library / "pydoc_data" / "topics.py")
    topics = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(topics)
    monkeypatch.setattr(pydoc_data.topics, "topics", topics.topics)
    monkeypatch.setattr(corpora, "STANDARD_LIBRARY", library)
    prose, code = local_prose(), local_code(300_000)
    assert len(prose) > 300_000 and b"  " not in prose and b"\n" not in prose
    assert prose.decode("utf-8").startswith("Execution model Structure of a program A Python program is")
    assert b"import " in code and b"unittest.main()" not in code  # no tests of Python
    assert (local_prose(5000), local_code(5000)) == (prose[:5000], code[:5000])
    page = "Objects\n*******\n\nValues, types\n=============\n\n* an item\n-x is minus x\n~~~~\n^^^^\n"
    monkeypatch.setattr(pydoc_data.topics, "topics", {"objects": page, "zebra": "Z\n-"})
    assert local_prose() == b"Objects Values, types * an item -x is minus x Z"  # without underlines


def test_names_of_the_papers_corpora():
    named = {name: (corpus.path, corpus.column, corpus.configuration) for name, corpus in CORPORA.items()}
    assert named == {
        "fineweb-10bt": ("HuggingFaceFW/fineweb", "text", "sample-10BT"),
        "fineweb-100bt": ("HuggingFaceFW/fineweb", "text", "sample-100BT"),
        "codeparrot": ("transformersbook/codeparrot", "content", None),
        "codeparrot-clean": ("codeparrot/codeparrot-clean", "content", None),
    }
    assert {corpus.split for corpus in CORPORA.values()} == {"train"}


def test_fixed_commits(monkeypatch):
    """The hub is asked for a corpus's or a task's own commit, or for the one that a caller names."""
    asked = []

    def load(path, *_, revision=None, **__):
        asked.append((path, revision))
        raise ConnectionError("no hub")

    monkeypatch.setattr(datasets, "load_dataset", load)
    for options in ({}, {"revision": "v1"}):
        for name, corpus in CORPORA.items():
            known = options or corpus.revision
            words = "no hub" if known else f"^revision must name a commit of {corpus.path}, because no commit of"
            with pytest.raises(ConnectionError if known else ValueError, match=words):
                next(stream_corpus(name, **options))
    for name in TASKS:
        with pytest.raises(OSError, match="no hub"):
            read_task(name)
    own, named, tasks = asked[: len(CORPORA) - 1], asked[len(CORPORA) - 1 : -len(TASKS)], asked[-len(TASKS) :]
    assert own == [(corpus.path, corpus.revision) for corpus in CORPORA.values() if corpus.revision]
    assert named == [(corpus.path, "v1") for corpus in CORPORA.values()]
    assert tasks == [(task.path, task.revision) for task in TASKS.values()]
    without = [name for name, source in {**CORPORA, **TASKS}.items() if source.revision is None]
    assert without == ["codeparrot"], "docs/tutorials/data.md and SECURITY.md name it"
    commits = {source.revision for source in (*CORPORA.values(), *TASKS.values())} - {None}
    assert all(len(commit) == 40 and int(commit, 16) for commit in commits)


def test_parquet_like_fineweb(tmp_path):
    folder = tmp_path / "sample" / "10BT"
    folder.mkdir(parents=True)
    for part in range(2):
        rows = {"text": TEXTS[part * 10 : part * 10 + 10], "id": [f"<{n}>" for n in range(10)]}
        pq.write_table(pa.table(rows), folder / f"{part:03d}_00000.parquet")
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: sample-10BT\n  data_files:\n  - split: train\n    path: sample/10BT/*\n---\n"
    )
    corpus = Corpus(str(tmp_path), CORPORA["fineweb-10bt"].column, CORPORA["fineweb-10bt"].configuration)
    assert list(stream_corpus(corpus)) == [text.encode() for text in TEXTS] == list(read_documents(folder))


def test_json_like_codeparrot(tmp_path):
    for part in range(2):
        write(tmp_path / f"file-{part + 1:012d}.json.gz", TEXTS[part * 10 : part * 10 + 10], "content")
    corpus = Corpus(str(tmp_path), CORPORA["codeparrot-clean"].column)
    assert list(stream_corpus(corpus)) == [text.encode() for text in TEXTS] == list(read_documents(tmp_path))
    files = {"train": str(tmp_path / "file-000000000002.json.gz")}
    assert next(stream_corpus(Corpus("json"), data_files=files)) == TEXTS[10].encode()


def test_refusals(tmp_path):
    for name in ("parquet", "jsonl"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / f"a.{name}")
    (tmp_path / "null").mkdir()
    pq.write_table(pa.table({"text": ["a", None]}), tmp_path / "null" / "a.parquet")
    column = r"column must be one of \['id', 'text'\] in .*, got column 'content'"
    refused(
        (lambda: next(stream_corpus(Corpus(str(tmp_path / "parquet"), "content"))), ValueError, column),
        (lambda: next(stream_corpus(Corpus(str(tmp_path / "jsonl"), "content"))), ValueError, column),
        (
            lambda: list(stream_corpus(Corpus(str(tmp_path / "null")))),
            TypeError,
            "hold texts, got NoneType in row 1 of",
        ),
        (lambda: stream_corpus("wikipedia"), ValueError, r"one of \['fineweb-10bt', .*\] or a Corpus, got 'wikipedia'"),
        (lambda: stream_corpus("codeparrot", split="test"), ValueError, "options must not hold 'streaming'"),
    )

"""Corpora through ``datasets``, from local files of the layout that the real ones have."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rltok_rl.data import CORPORA, Corpus, read_documents, stream_corpus

from .test_files import write

TEXTS = [f"document {n}, è vero" for n in range(20)]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path_factory, monkeypatch):
    """Whatever ``datasets`` keeps, it keeps in a folder of the test."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))
    monkeypatch.setattr(datasets.config, "HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))


def test_names():
    """Names, configurations and columns of the paper's corpora, as their pages give them."""
    web, code = CORPORA["fineweb-10bt"], CORPORA["codeparrot-clean"]
    assert (web.path, web.configuration, web.column, web.split) == (
        "HuggingFaceFW/fineweb",
        "sample-10BT",
        "text",
        "train",
    )
    assert (code.path, code.configuration, code.column, code.split) == (
        "codeparrot/codeparrot-clean",
        None,
        "content",
        "train",
    )


def test_parquet_like_fineweb(tmp_path):
    """A folder for each configuration, Parquet files with more columns than the text."""
    folder = tmp_path / "sample" / "10BT"
    folder.mkdir(parents=True)
    for part in range(2):
        rows = TEXTS[part * 10 : part * 10 + 10]
        table = pa.table({"text": rows, "id": [f"<{n}>" for n in range(10)], "token_count": list(range(10))})
        pq.write_table(table, folder / f"{part:03d}_00000.parquet")
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: sample-10BT\n  data_files:\n  - split: train\n    path: sample/10BT/*\n---\n"
    )
    corpus = Corpus(str(tmp_path), CORPORA["fineweb-10bt"].column, CORPORA["fineweb-10bt"].configuration)
    assert list(stream_corpus(corpus)) == [text.encode() for text in TEXTS] == list(read_documents(folder))


def test_json_like_codeparrot(tmp_path):
    """JSON lines in gzip, ``file-000000000001.json.gz``."""
    for part in range(2):
        write(tmp_path / f"file-{part + 1:012d}.json.gz", TEXTS[part * 10 : part * 10 + 10], "content")
    corpus = Corpus(str(tmp_path), CORPORA["codeparrot-clean"].column)
    assert list(stream_corpus(corpus)) == [text.encode() for text in TEXTS] == list(read_documents(tmp_path))
    files = {"train": str(tmp_path / "file-000000000002.json.gz")}
    assert next(stream_corpus(Corpus("json"), data_files=files)) == TEXTS[10].encode()


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_a_wrong_column_names_those_there(tmp_path, name):
    write(tmp_path / name)
    with pytest.raises(ValueError, match=r"column must be one of \['id', 'text'\] in .*, got column 'content'"):
        next(stream_corpus(Corpus(str(tmp_path), "content")))


def test_values_that_are_no_texts(tmp_path):
    pq.write_table(pa.table({"text": ["a", None]}), tmp_path / "a.parquet")
    with pytest.raises(TypeError, match="column must hold texts, got NoneType in row 1 of"):
        list(stream_corpus(Corpus(str(tmp_path))))


def test_bad_names_and_options():
    with pytest.raises(ValueError, match=r"corpus must be one of \['fineweb-10bt', .*\] or a Corpus, got 'wikipedia'"):
        stream_corpus("wikipedia")
    with pytest.raises(ValueError, match="options must not hold 'streaming'"):
        stream_corpus("codeparrot", split="test")

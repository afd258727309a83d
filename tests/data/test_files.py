"""Documents of local files, and what is said of files that cannot be read."""

from __future__ import annotations

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rltok_rl.data import LengthFilter, prepare_cache, read_documents, read_grouped_documents
from rltok_rl.data.files import passed_over

TEXTS = ["to be", "or nöt", "", "to be, that is"]


def lines(texts=TEXTS, column="text") -> str:
    return "".join(json.dumps({"id": n, column: text}) + "\n" for n, text in enumerate(texts))


def write(path, texts=TEXTS, column="text"):
    """A table of texts, of the kind that the name says."""
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"id": list(range(len(texts))), column: texts}), path)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(lines(texts, column).encode()))
    else:
        path.write_text(lines(texts, column))
    return path


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.json", "a.jsonl.gz", "a.json.gz"])
@pytest.mark.parametrize("column", ["text", "content", "book"])
def test_tables(tmp_path, name, column):
    path = write(tmp_path / name, column=column)
    named = list(read_documents(path, column))
    assert named == [text.encode() for text in TEXTS]
    if column == "book":
        with pytest.raises(
            ValueError, match=r"column must be one of \['id', 'book'\] in .*got no column named, and none"
        ):
            list(read_documents(path))
    else:
        assert list(read_documents(str(path))) == named
    with pytest.raises(ValueError, match=rf"column must be one of \['id', '{column}'\] in .*a.*, got column 'title'"):
        list(read_documents(path, "title"))


def test_text_comes_before_content(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"content": "no", "text": "yes"}\n')
    assert list(read_documents(tmp_path)) == [b"yes"]


def test_more_rows_than_are_held_at_once(tmp_path):
    texts = [f"text {n}" for n in range(1000)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=300)
    assert list(read_documents(tmp_path)) == [text.encode() for text in texts]


def test_a_folder_is_read_in_order(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").mkdir()
    for name, text in {"b/z.py": "z = 1\r\n", "a.txt": "first", "c.md": "last", "d.bin": "not read"}.items():
        (tmp_path / name).write_bytes(text.encode())
    (tmp_path / ".hidden" / "x.txt").write_text("not read")
    (tmp_path / "b" / "empty.txt").touch()
    write(tmp_path / "b" / "y.jsonl", ["one", "two"])
    assert list(read_documents(tmp_path)) == [b"first", b"", b"one", b"two", b"z = 1\r\n", b"last"]
    assert passed_over(tmp_path) == [tmp_path / "d.bin"] and passed_over(tmp_path / "a.txt") == []
    (tmp_path / "c.md").rename(tmp_path / "C.MD")
    assert b"last" in list(read_documents(tmp_path))


def test_nothing_to_read(tmp_path):
    with pytest.raises(FileNotFoundError, match="path must be a file or a folder, got .*none.txt', which is neither"):
        read_documents(tmp_path / "none.txt")
    with pytest.raises(FileNotFoundError, match=r"path must be a folder with files of the kinds \['.txt'"):
        read_documents(tmp_path)
    (tmp_path / "a.csv").write_text("text\n")
    with pytest.raises(ValueError, match=r"path must be a file of the kinds \['.txt', .*'.parquet'\], got .*a.csv"):
        read_documents(tmp_path / "a.csv")
    (tmp_path / "a.txt").touch()
    with pytest.raises(ValueError, match="path must hold text, got the empty file .*a.txt"):
        read_documents(tmp_path / "a.txt")


def test_bytes_that_are_not_utf8_are_named(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9 au lait")
    with pytest.raises(ValueError, match=r"text must be UTF-8, got .* at byte 3 of .*a\.txt; `iconv "):
        list(read_documents(tmp_path / "a.txt"))
    for name, pack in (("a.jsonl", bytes), ("a.jsonl.gz", gzip.compress)):
        (tmp_path / name).write_bytes(pack(b'{"text": "ab"}\n{"text": "\xff"}\n'))
        with pytest.raises(ValueError, match=rf"text must be UTF-8, got .* at byte 25 of .*{name}"):
            list(read_documents(tmp_path / name))
    table = pa.table({"text": pa.array([b"fine", b"ab\xff"], pa.binary())})
    spoilt = pa.table({"text": pa.Array.from_buffers(pa.string(), 2, table["text"].chunk(0).buffers())})
    pq.write_table(spoilt, tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"text must be UTF-8, got .* at byte 2 of row 1 of .*a\.parquet"):
        list(read_documents(tmp_path / "a.parquet"))


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("a.jsonl", b'{"text": 3}\n', TypeError, "column must hold texts, got int in line 1 of"),
        ("a.jsonl", b'\n{"text": null}\n', TypeError, "column must hold texts, got NoneType in line 2 of"),
        (
            "a.jsonl",
            b'{"text": "\\ud800"}\n',
            ValueError,
            "text must be UTF-8, got surrogates not allowed at character 0",
        ),
        (
            "a.json",
            b'[\n{"text": "a"}]\n',
            ValueError,
            "path must hold one JSON object per line, got Expecting .* line 1",
        ),
        ("a.json", b'["a"]\n', ValueError, "path must hold one JSON object per line, got a list in line 1"),
        ("a.json.gz", b"plain", ValueError, "path must be a whole gzip file, got .*a.json.gz'"),
        ("a.json.gz", gzip.compress(b'{"text": "a"}\n', mtime=0)[:-9], ValueError, "path must be a whole gzip file"),
        ("a.parquet", b"plain", ValueError, "path must be a Parquet file, got .*a.parquet'"),
    ],
)
def test_spoilt_files(tmp_path, name, content, error, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=message):
        list(read_documents(tmp_path / name))


def test_columns_that_hold_no_texts(tmp_path):
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(TypeError, match=r"column must hold texts, got int in row 0 of .*a\.parquet"):
        list(read_documents(tmp_path))
    pq.write_table(pa.table({"text": ["a", None]}), tmp_path / "a.parquet")
    with pytest.raises(TypeError, match=r"column must hold texts, got NoneType in row 1 of .*a\.parquet"):
        list(read_documents(tmp_path))


def test_groups_come_from_a_column(tmp_path):
    rows = [{"book": book, "part": part, "text": f"{book} {part}"} for book in ("Emma", "Émile") for part in (1, 2)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.table({name: [row[name] for row in rows] for name in rows[0]}), tmp_path / "b.parquet")
    for name in ("a.jsonl", "b.parquet"):
        pairs = list(read_grouped_documents(tmp_path / name, "book"))
        assert pairs == [(row["text"].encode(), row["book"].encode()) for row in rows]
        assert [group for _, group in read_grouped_documents(tmp_path / name, "part")] == [b"1", b"2"] * 2
        assert list(LengthFilter(read_grouped_documents(tmp_path / name, "book"), min_bytes=2, max_bytes=4))[0] == (
            b"Emma"[:4],
            b"Emma",
        )
        with pytest.raises(ValueError, match="split_by must be one of .*'book', 'part', 'text'.*got 'author'"):
            list(read_grouped_documents(tmp_path / name, "author"))
    (tmp_path / "c.txt").write_text("alone")
    assert list(read_grouped_documents(tmp_path / "c.txt", "book")) == [(b"alone", b"alone")]
    cache = prepare_cache(tmp_path / "b.parquet", tmp_path / "cache", split_by="book", min_bytes=2)
    keys = cache.keys().tolist()
    assert keys[0] == keys[1] != keys[2] == keys[3]
    with pytest.raises(FileExistsError, match="split_by"):
        prepare_cache(tmp_path / "b.parquet", tmp_path / "cache", min_bytes=2)


def test_a_group_without_a_value_is_named(tmp_path):
    pq.write_table(pa.table({"book": ["Emma", None], "text": ["a b", "c d"]}), tmp_path / "a.parquet")
    with pytest.raises(TypeError, match="split_by must name a column of texts or integers, got NoneType in row 1"):
        list(read_grouped_documents(tmp_path / "a.parquet", "book"))

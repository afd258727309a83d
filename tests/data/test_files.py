"""Documents of local files, the filter of their lengths, and errors of files that cannot be read."""

from __future__ import annotations

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rltok_rl.data import LengthFilter, prepare_cache, read_documents, read_grouped_documents
from rltok_rl.data.files import passed_over

from ..each import each, refused

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


@each(name=["a.parquet", "a.jsonl", "a.json", "a.jsonl.gz", "a.json.gz"], column=["text", "content", "book"])
def test_tables(name, column, tmp_path):
    path = write(tmp_path / name, column=column)
    named = list(read_documents(path, column))
    assert named == [text.encode() for text in TEXTS]
    if column == "book":
        refused((lambda: list(read_documents(path)), ValueError, r"one of \['id', 'book'\] in .*got no column named"))
    else:
        assert list(read_documents(str(path))) == named
    title = rf"column must be one of \['id', '{column}'\] in .*a.*, got column 'title'"
    refused((lambda: list(read_documents(path, "title")), ValueError, title))


def test_text_comes_before_content_and_batches_follow_each_other(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"content": "no", "text": "yes"}\n')
    assert list(read_documents(tmp_path)) == [b"yes"]
    texts = [f"text {n}" for n in range(1000)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "b.parquet", row_group_size=300)
    assert list(read_documents(tmp_path / "b.parquet")) == [text.encode() for text in texts]


def test_a_folder_is_read_in_order(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").mkdir()
    for name, text in {"b/z.py": "z = 1\r\n", "a.txt": "first", "C.MD": "last", "d.bin": "not read"}.items():
        (tmp_path / name).write_bytes(text.encode())
    (tmp_path / ".hidden" / "x.txt").write_text("not read")
    (tmp_path / "b" / "empty.txt").touch()
    write(tmp_path / "b" / "y.jsonl", ["one", "two"])
    assert list(read_documents(tmp_path)) == [b"last", b"first", b"", b"one", b"two", b"z = 1\r\n"]
    assert passed_over(tmp_path) == [tmp_path / "d.bin"] and passed_over(tmp_path / "a.txt") == []


def test_paths_without_text(tmp_path):
    (tmp_path / "a.csv").write_text("text\n")
    (tmp_path / "a.txt").touch()
    (tmp_path / "empty").mkdir()
    refused(
        (lambda: read_documents(tmp_path / "none.txt"), FileNotFoundError, "got .*none.txt', which is neither"),
        (lambda: read_documents(tmp_path / "empty"), FileNotFoundError, r"a folder with files of the kinds \['.txt'"),
        (lambda: read_documents(tmp_path / "a.csv"), ValueError, r"kinds \['.txt', .*'.parquet'\], got .*a.csv"),
        (lambda: read_documents(tmp_path / "a.txt"), ValueError, "must hold text, got the empty file .*a.txt"),
    )


def test_spoilt_files_are_named(tmp_path):
    split = gzip.compress(b'{"text": "a"}\n', mtime=0)[:-9]
    latin = b'{"text": "ab"}\n{"text": "\xff"}\n'
    for number, (ending, content, error, words) in enumerate(
        [
            ("txt", b"caf\xe9 au lait", ValueError, r"text must be UTF-8, got .* at byte 3 of .*\.txt; `iconv "),
            ("jsonl", latin, ValueError, r"text must be UTF-8, got .* at byte 25 of .*\.jsonl"),
            ("jsonl.gz", gzip.compress(latin), ValueError, r"text must be UTF-8, got .* at byte 25 of .*\.gz"),
            ("jsonl", b'{"text": 3}\n', TypeError, "column must hold texts, got int in line 1 of"),
            ("jsonl", b'\n{"text": null}\n', TypeError, "column must hold texts, got NoneType in line 2 of"),
            ("jsonl", b'{"text": "\\ud800"}\n', ValueError, "got surrogates not allowed at character 0"),
            ("json", b'[\n{"text": "a"}]\n', ValueError, "hold one JSON object per line, got Expecting .* line 1"),
            ("json", b'["a"]\n', ValueError, "path must hold one JSON object per line, got a list in line 1"),
            ("json.gz", b"plain", ValueError, "path must be a whole gzip file, got .*json.gz'"),
            ("json.gz", split, ValueError, "path must be a whole gzip file"),
            ("parquet", b"plain", ValueError, "path must be a Parquet file, got .*parquet'"),
        ]
    ):
        path = tmp_path / f"{number}.{ending}"
        path.write_bytes(content)
        refused((lambda path=path: list(read_documents(path)), error, words))
    spoilt = pa.array([b"fine", b"ab\xff"], pa.binary())
    spoilt = pa.Array.from_buffers(pa.string(), 2, spoilt.buffers())
    for texts, error, words in [
        (spoilt, ValueError, r"text must be UTF-8, got .* at byte 2 of row 1 of .*a\.parquet"),
        ([1, 2], TypeError, r"column must hold texts, got int in row 0 of .*a\.parquet"),
        (["a", None], TypeError, r"column must hold texts, got NoneType in row 1 of .*a\.parquet"),
    ]:
        pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
        refused((lambda: list(read_documents(tmp_path / "a.parquet")), error, words))


def test_groups_come_from_a_column(tmp_path):
    rows = [{"book": book, "part": part, "text": f"{book} {part}"} for book in ("Emma", "Émile") for part in (1, 2)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.table({name: [row[name] for row in rows] for name in rows[0]}), tmp_path / "b.parquet")
    for path in (tmp_path / "a.jsonl", tmp_path / "b.parquet"):
        pairs = list(read_grouped_documents(path, "book"))
        assert pairs == [(row["text"].encode(), row["book"].encode()) for row in rows]
        assert [group for _, group in read_grouped_documents(path, "part")] == [b"1", b"2"] * 2
        assert [group for _, group in read_grouped_documents(path, "text")] == [row["text"].encode() for row in rows]
        cut = next(iter(LengthFilter(read_grouped_documents(path, "book"), min_bytes=2, max_bytes=3)))
        assert (cut.text, cut.group) == (b"Emm", b"Emma")
        author = "split_by must be one of .*'book', 'part', 'text'.*got 'author'"
        refused((lambda path=path: list(read_grouped_documents(path, "author")), ValueError, author))
    (tmp_path / "c.txt").write_text("alone")
    assert list(read_grouped_documents(tmp_path / "c.txt", "book")) == [(b"alone", b"alone")]
    keys = prepare_cache(tmp_path / "b.parquet", tmp_path / "cache", split_by="book", min_bytes=2).keys().tolist()
    assert keys[0] == keys[1] != keys[2] == keys[3]
    with pytest.raises(FileExistsError, match="split_by"):
        prepare_cache(tmp_path / "b.parquet", tmp_path / "cache", min_bytes=2)
    pq.write_table(pa.table({"book": ["Emma", None], "text": ["a b", "c d"]}), tmp_path / "d.parquet")
    with pytest.raises(TypeError, match="split_by must name texts or integers, got NoneType in row 1"):
        list(read_grouped_documents(tmp_path / "d.parquet", "book"))


def test_a_filter_keeps_the_papers_lengths_and_counts_the_rest():
    texts = [b"a" * 4095, b"b" * 4096, b"c" * 4097, b"", b"d" * 9000]
    kept = LengthFilter(texts)
    assert list(kept) == list(kept) == [b"b" * 4096, b"c" * 4096, b"d" * 4096]  # a second pass counts anew
    report = kept.report
    assert (report.kept, report.dropped, report.cut) == (3, 2, 2)
    assert report.kept_bytes + report.dropped_bytes + report.cut_bytes == sum(map(len, texts))
    assert str(report) == (
        "kept 3 of 5 documents (12,288 of 21,288 bytes); dropped 2 with fewer than 4,096 bytes (4,095 bytes); "
        "cut 2 to their first 4,096 bytes (4,905 bytes cut off)"
    )
    assert list(LengthFilter(["éé", "é"], min_bytes=4, max_bytes=3)) == [b"\xc3\xa9\xc3"]  # bytes, not characters
    assert list(LengthFilter(["ééé"], min_bytes=2, max_bytes=None)) == ["ééé".encode()]
    assert str(LengthFilter([], max_bytes=None).report).endswith("fewer than 4,096 bytes (0 bytes)")
    refused(
        (lambda: LengthFilter([], min_bytes=1), ValueError, "min_bytes must be at least 2"),
        (lambda: LengthFilter([], max_bytes=1), ValueError, "max_bytes must be at least 2 or None"),
        (lambda: LengthFilter("abc"), TypeError, "documents must be several texts, got one"),
    )

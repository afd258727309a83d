"""Texts of several kinds in one file."""

from __future__ import annotations

import json

import pytest
from rltok_rl.experiments.studies import mixture


def write(path, column, groups):
    rows = [{column: name, "text": text} for name, texts in groups.items() for text in texts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_sources_have_equal_shares_in_whole_groups(tmp_path, capsys):
    books = write(tmp_path / "books.jsonl", "book", {f"b{n}": ["x" * 30, "é" * 15, "z" * 60] for n in range(9)})
    code = write(tmp_path / "code.jsonl", "package", {f"p{n}": ["y" * 20] for n in range(30)})
    out = tmp_path / "mixture.jsonl"
    options = [f"sources={{{books}: book, {code}: package}}", f"out={out}", "bytes_each=300", "most_bytes=100"]
    mixture.main(options)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    sizes = {}
    for row in rows:
        kind = row["book"].partition(": ")[0]
        sizes[kind] = sizes.get(kind, 0) + len(row["text"].encode())
    assert sizes == {str(books): 300, str(code): 300}, "five books of 60 bytes, 15 packages of 20"
    assert sum(row["text"] == "z" * 60 for row in rows) == 0, "a group's bytes are limited"
    assert f"300 of 5 groups of {books}, 300 of 15 groups of {code}" in capsys.readouterr().out
    first = out.read_bytes()
    mixture.main(options)
    assert out.read_bytes() == first


def test_sources_must_be_named():
    with pytest.raises(ValueError, match="sources must name files"):
        mixture.main([])

"""Texts of several kinds in one file."""

from __future__ import annotations

import json
import random

import pytest
from rltok_rl.experiments.studies import mixture

LIMITS = ["bytes_per_source=300", "bytes_per_group=100", "min_bytes=10"]


def write(path, column, groups):
    rows = [{column: name, "text": text} for name, texts in groups.items() for text in texts]
    random.Random(0).shuffle(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def mixed(tmp_path, *options):
    out = tmp_path / "texts" / "mixture.jsonl"
    mixture.main([f"out={out}", *LIMITS, *options])
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_sources_have_equal_shares_in_whole_groups(tmp_path, capsys):
    groups = {f"b{n}": ["x" * 30, "é" * 15, "short"] for n in range(9)}
    books = write(tmp_path / "books.jsonl", "book", groups)
    code = write(tmp_path / "code.jsonl", "package", {f"p{n}": ["y" * 20] for n in range(30)})
    rows = mixed(tmp_path, f"sources={{{books}: book, {code}: package}}")
    sizes: dict[str, int] = {}
    for row in rows:
        sizes[row["book"]] = sizes.get(row["book"], 0) + len(row["text"].encode())
    kinds = [name.partition(": ")[0] for name in sizes]
    assert (kinds.count("books"), kinds.count("code")) == (5, 15) and set(sizes.values()) == {60, 20}
    assert f"300 bytes in 5 groups of {books}, 300 bytes in 15 groups of {code}" in capsys.readouterr().out
    assert not any(row["text"] == "short" for row in rows)
    reordered = write(tmp_path / "books.jsonl", "book", dict(reversed(groups.items())))
    again = mixed(tmp_path, f"sources={{{reordered}: book, {code}: package}}")
    assert {row["book"] for row in again} == set(sizes), "hashes choose groups, not their order"


def test_a_group_is_cut_at_whole_documents(tmp_path):
    books = write(tmp_path / "books.jsonl", "book", {"b": ["x" * 60, "y" * 60, "z" * 101]})
    assert sum(len(row["text"]) for row in mixed(tmp_path, f"sources={{{books}: book}}")) == 60


def test_plain_texts_are_groups_without_their_text_as_a_name(tmp_path):
    (tmp_path / "plain.txt").write_text("w" * 50 + "\n\n" + "v" * 50)
    rows = mixed(tmp_path, f"sources={{{tmp_path / 'plain.txt'}: book}}", "bytes_per_group=300")
    assert rows and all(len(row["book"]) < 210 for row in rows)


@pytest.mark.parametrize(
    ("sources", "message"),
    [("{}", "sources must be files"), ("{a.jsonl: b, x/a.jsonl: b}", "of different names"), (None, "sources must")],
)
def test_sources_must_be_named(sources, message):
    with pytest.raises(ValueError, match=message):
        mixture.main([] if sources is None else [f"sources={sources}"])


def test_a_source_without_a_fitting_document_is_refused(tmp_path):
    books = write(tmp_path / "books.jsonl", "book", {"b": ["tiny"]})
    with pytest.raises(ValueError, match="a document of 10 to 100 bytes each, got none in"):
        mixed(tmp_path, f"sources={{{books}: book}}")

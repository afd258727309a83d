"""Texts of several kinds in one file."""

from __future__ import annotations

import json
import math
import random

import pytest
from rltok_rl.experiments.compare import train_systems
from rltok_rl.experiments.runs.folder import EVALUATION, read_run
from rltok_rl.experiments.studies import mixture

from .conftest import COMPARE, configured

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


def test_systems_are_compared_in_each_source(tmp_path, capsys, monkeypatch):
    """Evaluations name no group: they are those of held-out groups in the order of their keys."""
    generator = random.Random(0)
    letters = {"x": "x ", "y": "yyyyyyy "}
    texts = {
        kind: {f"{kind}{n}": ["".join(generator.choices(letters[kind], k=300 + 20 * n))] for n in range(8)}
        for kind in letters
    }
    sources = {kind: write(tmp_path / f"{kind}.jsonl", "book", groups) for kind, groups in texts.items()}
    file = tmp_path / "mixture.jsonl"
    named = ", ".join(f"{path}: book" for path in sources.values())
    mixture.main([f"out={file}", f"sources={{{named}}}", "min_bytes=10"])
    monkeypatch.setattr(train_systems, "write_report", lambda folder: folder / "report.md")
    data = [f"data.source={file}", "data.split_by=book", "data.held_out=0.4", "data.min_bytes=192", "data.cache=null"]
    systems = ["compare.systems=[uniform,whitespace]", "compare.windows=200"]
    folders = [tmp_path / str(seed) for seed in range(2)]
    for seed, folder in enumerate(folders):
        train_systems.run(configured(*COMPARE, *data, *systems, f"seed={seed}", f"out={folder}"), "the command")
    for seed, folder in enumerate(folders):  # losses that name their kind: one bit more for y, and for uniform
        run = read_run(folder / "uniform")
        held, keys, of_key = mixture._held_out(run, trust_data=False)
        assert {of_key[key] for key in keys} == {"x", "y"}
        assert all(set(text) == {ord(of_key[key]), ord(" ")} for text, key in zip(held, keys, strict=True))
        for system in ("uniform", "whitespace"):
            path = folder / system / EVALUATION
            stored = json.loads(path.read_text())
            sizes = [
                sum(len(text) - 1 for text, k in zip(held, keys, strict=True) if k == key) for key in sorted(of_key)
            ]
            assert stored["counts"] == sizes
            bits = [1 + (of_key[key] == "y") + (1 + seed / 10) * (system == "uniform") for key in sorted(of_key)]
            stored["nats"] = [math.log(2) * bit * count for bit, count in zip(bits, sizes, strict=True)]
            path.write_text(json.dumps(stored))
    capsys.readouterr()
    mixture.main([f"comparison=[{folders[0]},{folders[1]}]", "windows=8"])
    header, _, *rows = capsys.readouterr().out.strip().splitlines()
    assert header.startswith("| system | x: bits per byte | x: minus uniform | x: rate | y: bits per byte |")
    cells = {row.split("|")[1].strip(): [cell.strip() for cell in row.split("|")[2:-1]] for row in rows}
    assert cells["uniform"][0] == "2.050" and cells["uniform"][3] == "3.050" and cells["uniform"][1] == "-"
    assert cells["whitespace"][0] == "1.000" and cells["whitespace"][3] == "2.000"
    assert cells["whitespace"][1] == cells["whitespace"][4] == "-1.050 [-1.685, -0.415]"
    assert [float(cells["whitespace"][n]) for n in (2, 5)] == pytest.approx([1 / 2, 1 / 8], abs=0.1)
    with pytest.raises(ValueError, match="sources must be left out with comparison"):
        mixture.main([f"comparison=[{folders[0]}]", "sources={a.jsonl: b}"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="comparison must hold evaluated systems"):
        mixture.main([f"comparison=[{tmp_path / 'empty'}]"])

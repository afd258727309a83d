"""Books without white space, and boundaries compared with the ends of their words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from rltok_rl.experiments.compare import train_systems
from rltok_rl.experiments.runs.folder import read_run
from rltok_rl.experiments.studies import no_spaces
from rltok_rl.experiments.studies.no_spaces import TOLERANCES, without_spaces, word_end_matches
from rltok_rl.experiments.texts import read_texts

from rltok_rl.evaluation import read_text
from rltok_rl.models import UNet, preset

from .conftest import COMPARE, configured

WORDS = "to be or not to be, that is the question:\nwhether 'tis nobler in the mind to suffer "


@pytest.fixture
def books(tmp_path) -> Path:
    """Eight books of two documents each."""
    rows = [{"book": f"book {n % 8}", "text": f"é{n} " + WORDS * 3} for n in range(16)]
    (tmp_path / "books.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "books.jsonl"


def test_ends_are_the_bytes_before_white_space():
    text, ends = without_spaces(" é to\n\tbe ".encode())
    assert text == "étobe".encode() and ends.tolist() == [False, True, False, True, False, True]
    assert without_spaces(b" \n") == (b"", pytest.approx(torch.zeros(0)))


def test_file_keeps_the_first_documents_of_each_book(books, tmp_path, capsys):
    out = tmp_path / "texts" / "no-spaces.jsonl"
    no_spaces.main([f"source={books}", f"out={out}", "most_bytes=300"])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["book"] for row in rows] == [f"book {n}" for n in range(8)], "the second ones do not fit"
    for row in rows:
        assert without_spaces(row["with_spaces"].encode())[0].decode() == row["text"] and " " not in row["text"]
    size = sum(len(row["text"].encode()) for row in rows)
    assert capsys.readouterr().out == f"{out}: {size:,} bytes of 8 books, without white space\n"


def test_boundaries_at_all_word_ends_match_all_of_them():
    text, ends = without_spaces(WORDS.encode() * 2)
    reading = read_text(UNet(preset("tiny")), text, context=32)
    reading.boundaries.copy_(ends[reading.at])
    assert [f1 for f1, _ in word_end_matches(reading, ends)] == [1.0] * len(TOLERANCES)
    reading.boundaries.copy_(ends.roll(1)[reading.at])
    f1s = [f1 for f1, _ in word_end_matches(reading, ends)]
    assert f1s[0] < 0.3 < 0.9 < f1s[1] and f1s == sorted(f1s)


def test_systems_are_compared_with_the_words_of_held_out_books(books, tmp_path, capsys, monkeypatch):
    out = tmp_path / "no-spaces.jsonl"
    no_spaces.main([f"source={books}", f"out={out}"])
    monkeypatch.setattr(train_systems, "write_report", lambda folder: folder / "report.md")
    options = [f"data.source={out}", "data.split_by=book", "data.held_out=0.3", "data.min_bytes=192"]
    folder = tmp_path / "compared"
    config = configured(*COMPARE, *options, "compare.systems=[uniform,spacebyte]", "data.cache=null", f"out={folder}")
    train_systems.run(config, "the command")
    capsys.readouterr()
    texts, ends = no_spaces.held_out_words(read_run(folder / "uniform"), trust_data=False)
    assert texts == list(read_texts(config.data).held_out.documents()) and 0 < len(texts) < 5
    words = [json.loads(line)["with_spaces"].split() for line in out.read_text().splitlines()]
    assert int(ends.sum()) == sum(len(each) for each in words if "".join(each).encode() in texts)
    no_spaces.main([f"comparison={folder}", "windows=16"])
    header, _, *rows = capsys.readouterr().out.strip().splitlines()
    assert header.startswith("| system | boundaries per byte | F1 within 0 bytes (chance) |")
    found = {cells[1].strip(): cells[2:-1] for cells in (row.split("|") for row in rows)}
    assert set(found) == {"uniform", "spacebyte"}
    marks, spaced = (found[name] for name in ("spacebyte", "uniform"))
    assert float(marks[0]) < float(spaced[0]), "a rule about spaces is left with punctuation"
    for cell in spaced[1:]:
        f1, chance = (float(word.strip("()")) for word in cell.split())
        assert 0 < f1 <= 1 and 0 < chance < 1


@pytest.mark.parametrize(
    ("options", "message"),
    [([], "one of source and comparison"), (["source=x", "comparison=y"], "one of source"), (["windows=0"], "windows")],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        no_spaces.main(options)

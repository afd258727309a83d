r"""Texts of several kinds in one file, to see whether one policy suits all of them.

    python -m rltok_rl.experiments.studies.mixture out=texts/mixture.jsonl \
        'sources={books: book, texts/code.jsonl: package, texts/newspaper.jsonl: book}'
    rltok train experiment=compare-main data.source=texts/mixture.jsonl

Every source has the same share, in whole groups, so that a group is either trained on or held out.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rltok_rl.experiments.studies.common import check_minimums, read_options

from rltok_rl.data.disk import replace_text
from rltok_rl.data.files import read_grouped_documents


@dataclass
class Options:
    """Options of the command."""

    sources: dict[str, str] = field(default_factory=dict)
    """Files or folders, each with the column that names its groups, such as books."""
    out: str = "texts/mixture.jsonl"
    bytes_each: int = 5_500_000
    """Bytes of a source, at most."""
    most_bytes: int = 250_000
    """Bytes of a group, so that none outweighs the others."""


def pick_groups(source: str, column: str, bytes_each: int, most_bytes: int) -> dict[str, list[str]]:
    """Return the documents of some groups, which are chosen by the hashes of their names."""
    groups: dict[bytes, list[str]] = {}
    sizes: dict[bytes, int] = {}
    for text, group in read_grouped_documents(source, column):
        size = sizes.get(group, 0) + len(text)
        if size <= most_bytes and text:
            sizes[group] = size
            groups.setdefault(group, []).append(text.decode())
    picked, left = {}, bytes_each
    for group in sorted(groups, key=lambda name: hashlib.sha256(name).digest()):
        if sizes[group] <= left:
            left -= sizes[group]
            picked[f"{source}: {group.decode()}"] = groups[group]
    return picked


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the file and print what it holds."""
    options = read_options(Options, sys.argv[1:] if arguments is None else arguments)
    check_minimums(options, {"bytes_each": 1, "most_bytes": 1})
    if not options.sources:
        raise ValueError("sources must name files and the columns of their groups, as {books: book}, got none")
    rows, shares = [], []
    for source, column in options.sources.items():
        groups = pick_groups(source, column, options.bytes_each, options.most_bytes)
        texts = [{"book": group, "text": text} for group, documents in groups.items() for text in documents]
        rows += texts
        shares.append(f"{sum(len(row['text'].encode()) for row in texts):,} of {len(groups)} groups of {source}")
    out = Path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_text(out, "".join(json.dumps(row) + "\n" for row in rows))
    print(f"{out}, bytes: {', '.join(shares)}")


if __name__ == "__main__":
    main()

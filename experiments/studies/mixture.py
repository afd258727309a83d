r"""Texts of several kinds in one file, to see whether one policy suits all of them.

    python -m rltok_rl.experiments.studies.mixture out=texts/mixture.jsonl \
        'sources={books: book, texts/code.jsonl: package, texts/newspaper.jsonl: book}'
    rltok train experiment=compare-main data.source=texts/mixture.jsonl

Sources have about equal shares, in whole groups, so that a group is either trained on or held out.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rltok_rl.experiments.studies.common import check_minimums, read_options, write_rows

from rltok_rl.data.files import read_grouped_documents


@dataclass
class Options:
    """Options of the command."""

    sources: dict[str, str] = field(default_factory=dict)
    """Files or folders, each with the column that names its groups, such as books."""
    out: str = "texts/mixture.jsonl"
    bytes_per_source: int = 5_500_000
    """Bytes of a source, at most."""
    bytes_per_group: int = 250_000
    """Bytes of a group, at most, so that none outweighs the others."""
    min_bytes: int = 4096
    """Shorter documents are left out, as in training (``data.min_bytes``)."""


def pick_groups(source: str, column: str, options: Options) -> dict[bytes, list[bytes]]:
    """Return the documents of some groups, which are chosen by the hashes of their names."""
    groups: dict[bytes, list[bytes]] = {}
    for text, group in read_grouped_documents(source, column):
        documents = groups.setdefault(group, [])
        if len(text) >= options.min_bytes and len(text) + sum(map(len, documents)) <= options.bytes_per_group:
            documents.append(text)
    picked, left = {}, options.bytes_per_source
    for group in sorted(groups, key=lambda name: hashlib.sha256(name).digest()):
        size = sum(map(len, groups[group]))
        if 0 < size <= left:
            left -= size
            picked[group] = groups[group]
    if not picked:
        most = min(options.bytes_per_source, options.bytes_per_group)
        raise ValueError(
            f"sources must have a document of {options.min_bytes} to {most} bytes each, got none in {source!r}"
        )
    return picked


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the file and print what it holds."""
    options = read_options(Options, sys.argv[1:] if arguments is None else arguments)
    check_minimums(options, {"bytes_per_source": 1, "bytes_per_group": 1, "min_bytes": 1})
    names = [Path(source).stem for source in options.sources]
    if not names or len(set(names)) < len(names):
        raise ValueError(
            "sources must be files or folders of different names, each with the column of its groups, as "
            f"{{books: book}}, got {list(options.sources)}"
        )
    rows, shares = [], []
    for name, (source, column) in zip(names, options.sources.items(), strict=True):
        groups = pick_groups(source, column, options)
        for group, documents in groups.items():  # a plain text is its own group
            label = group.decode() if len(group) < 200 else hashlib.sha256(group).hexdigest()
            rows += [{"book": f"{name}: {label}", "text": text.decode()} for text in documents]
        size = sum(len(text) for documents in groups.values() for text in documents)
        shares.append(f"{size:,} bytes in {len(groups):,} groups of {source}")
    write_rows(options.out, rows)
    print(f"{options.out}: {', '.join(shares)}")


if __name__ == "__main__":
    main()

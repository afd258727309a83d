r"""Texts of several kinds in one file, to see whether one policy suits all of them.

    python -m rltok_rl.experiments.studies.mixture out=texts/mixture.jsonl \
        'sources={books: book, texts/code.jsonl: package, texts/newspaper.jsonl: book}'
    rltok train experiment=compare-main data.source=texts/mixture.jsonl seed=0 out=runs/mixture/0
    python -m rltok_rl.experiments.studies.mixture 'comparison=[runs/mixture/0]'

Sources have about equal shares, in whole groups, so that a group is either trained on or held out. The last command
compares systems on the held-out groups of each source; several folders are seeds of one comparison.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rltok_rl.experiments.reports.markdown import markdown
from rltok_rl.experiments.reports.paired import interval, paired_over_seeds
from rltok_rl.experiments.runs.folder import EVALUATION, RunFolder
from rltok_rl.experiments.studies.common import check_minimums, read_options, write_rows
from rltok_rl.experiments.studies.comparisons import read_comparison, read_with
from rltok_rl.experiments.texts import data_config, read_run_texts
from torch import Tensor

from rltok_rl.data import DocumentSource
from rltok_rl.data.files import read_grouped_documents
from rltok_rl.data.source import document_key
from rltok_rl.evaluation import corpus_bits_per_byte
from rltok_rl.foreign import read_json


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
    comparison: list[str] = field(default_factory=list)
    """Folders of comparisons that were trained on the file, one for each seed."""
    windows: int = 1024
    """Windows of held-out text in which boundaries are counted."""
    trust_data: bool = False
    """Read texts that a run names, though they were not trained on on this machine."""


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


def table_of_sources(options: Options) -> str:
    """Return a Markdown table of bits per byte and boundaries per byte in each source, averaged over seeds."""
    losses: dict[str, dict[str, dict[int, float]]] = {}  # by system, source and seed
    rates: dict[str, dict[str, list[float]]] = {}
    for seed, folder in enumerate(map(Path, options.comparison)):
        systems, run = read_comparison(folder)
        texts, keys, sources = _held_out(run, trust_data=options.trust_data)
        names = [sources[key] for key in keys]
        groups = [sources[key] for key in sorted(sources)]  # in the order of evaluations
        for system in systems:
            evaluation = read_json(folder / system / EVALUATION)
            counts, nats = torch.tensor(evaluation["counts"]), torch.tensor(evaluation["nats"], dtype=torch.float64)
            reading = read_with(folder / system, run, texts, windows=options.windows)
            for source in sorted({*groups}):
                held, read = _where(groups, source), _where(names, source)[reading.document]
                loss, rate = corpus_bits_per_byte(counts[held], nats[held]), reading.boundaries[read].double().mean()
                losses.setdefault(system, {}).setdefault(source, {})[seed] = loss
                rates.setdefault(system, {}).setdefault(source, []).append(float(rate))
    return _markdown(losses, rates)


def _held_out(run: RunFolder, *, trust_data: bool) -> tuple[list[bytes], list[int], dict[int, str]]:
    """Return held-out documents, the key of the group of each, and the source of each group by its key."""
    data = data_config(run.config)
    held_out = read_run_texts(data, trust_data).held_out
    assert isinstance(held_out, DocumentSource)
    keys = held_out.keys().tolist()
    names = {document_key(group): group.decode() for _, group in read_grouped_documents(data.source, "book")}
    return list(held_out.documents()), keys, {key: names[key].partition(": ")[0] for key in keys}


def _where(names: Sequence[str], name: str) -> Tensor:
    return torch.tensor([each == name for each in names])


def _markdown(losses: Mapping[str, Any], rates: Mapping[str, Any]) -> str:
    rows = []
    sources = sorted(next(iter(losses.values())))
    for system, of_system in losses.items():
        cells = []
        for source in sources:
            pair = paired_over_seeds(of_system[source], losses.get("uniform", {}).get(source, {}))
            minus = interval(None if system == "uniform" else pair)
            cells += [f"{fmean(of_system[source].values()):.3f}", minus, f"{fmean(rates[system][source]):.3f}"]
        rows.append([system, *cells])
    columns = [f"{source}: {what}" for source in sources for what in ("bits per byte", "minus uniform", "rate")]
    return markdown(["system", *columns], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the file and print what it holds, or print the table of a comparison."""
    options = read_options(Options, sys.argv[1:] if arguments is None else arguments)
    check_minimums(options, {"bytes_per_source": 1, "bytes_per_group": 1, "min_bytes": 1, "windows": 1})
    if options.comparison:
        if options.sources:
            raise ValueError(f"sources must be left out with comparison, got {dict(options.sources)}")
        print(table_of_sources(options))
        return
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

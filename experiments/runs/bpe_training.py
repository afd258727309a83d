"""Train BPE for a run: on as much of its training text as a rate needs, once for all runs on that text."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rltok_rl.agents.rules import check_rate
from rltok_rl.agents.segmenters import TokenizerSplit
from rltok_rl.agents.segmenters.tokenizer_files import read_tokenizer
from rltok_rl.agents.segmenters.tokenizer_rates import MOST_PIECES, RatedBPE, choose_pre_tokenizer, grow_bpe
from rltok_rl.agents.segmenters.tokenizers import PreTokenizer, tokenizers_library, train_bpe

from rltok_rl.data import CachedSource, DocumentSource
from rltok_rl.data.disk import replace_text
from rltok_rl.data.windows import WindowSource
from rltok_rl.text import ids_to_bytes

NUM_BYTES, MOST_BYTES = 2_000_000, 128_000_000
"""Text of the first and of the last training for a rate."""
ASIDE_SHARE, ASIDE_BYTES = 0.05, 1_000_000
"""Documents that BPE is not trained on but measured on, and the bytes of their windows."""
_CHUNK = 1 << 16  # bytes of a document that are handed over at once
_FORMAT = 1  # raised when equal options train another tokenizer


@dataclass(frozen=True)
class TokenizerText:
    """Text to train a tokenizer on, and windows to measure it on."""

    num_bytes: float
    """Bytes to train on; infinite for a language."""
    first: Callable[[int], Iterator[str]]
    """Reads the first bytes, in parts."""
    aside: list[bytes]


def read_windows(source: WindowSource, num_bytes: int, length: int, seed: int) -> list[bytes]:
    """Draw windows with that many bytes in all, at least one."""
    drawn = source.draw(max(1, num_bytes // length), length, torch.Generator().manual_seed(seed))
    return [ids_to_bytes(row[:size]) for row, size in zip(drawn.byte_ids, drawn.lengths.tolist(), strict=True)]


def decode(text: bytes) -> str:
    """Return a text that may begin or end inside a character."""
    return text.decode("utf-8", errors="replace")


def cache_folder(source: WindowSource) -> Path | None:
    """Return the folder of a source's tokenizers, that of its byte cache; None if it has none, as built-in texts."""
    return source.folder.parent if isinstance(source, CachedSource) else None


def tokenizer_text(source: WindowSource, length: int, seed: int) -> TokenizerText:
    """Hold documents aside to measure rates on, in windows of ``length``; the others are read in random order.

    Documents of one group stay on one side. Of a single document, the end is held aside.
    """
    if not isinstance(source, DocumentSource):  # a language, whose text never ends

        def fresh(num_bytes: int) -> Iterator[str]:
            return map(decode, read_windows(source, num_bytes, length, seed))

        return TokenizerText(math.inf, fresh, read_windows(source, ASIDE_BYTES, length, seed + 1))
    train, aside = _hold_aside(source, length)
    order = torch.randperm(train.num_documents, generator=torch.Generator().manual_seed(seed)).tolist()

    def first(num_bytes: int) -> Iterator[str]:
        for number in order:
            document = train.document(number)[:num_bytes]
            num_bytes -= len(document)
            for at in range(0, len(document), _CHUNK):
                yield decode(document[at : at + _CHUNK])
            if not num_bytes:
                return

    measured = read_windows(aside, min(ASIDE_BYTES, aside.num_bytes), length, seed)
    return TokenizerText(train.num_bytes, first, measured)


def _hold_aside(source: DocumentSource, length: int) -> tuple[DocumentSource, DocumentSource]:
    keys = source.keys()
    groups = keys.unique()  # [groups], sorted hashes
    if len(groups) > 1:
        aside = torch.isin(keys, groups[: max(1, round(ASIDE_SHARE * len(groups)))])
        return (
            source.with_documents(source.starts[~aside], source.lengths[~aside]),
            source.with_documents(source.starts[aside], source.lengths[aside]),
        )
    starts, size = source.starts[:1], int(source.lengths[0])  # other documents are equal to this one
    tail = max(length, round(ASIDE_SHARE * size))
    if size < 2 * tail:
        return source, source  # too short to be divided
    cut = torch.tensor([size - tail])
    return source.with_documents(starts, cut), source.with_documents(starts + cut, torch.tensor([tail]))


def bpe_of_rate(
    source: WindowSource,
    rate: float,
    *,
    length: int,
    seed: int = 0,
    num_bytes: int | None = None,
    most_bytes: int | None = None,
    pre_tokenizer: PreTokenizer | None = None,
    folder: Path | None = None,
) -> RatedBPE:
    """Train BPE on documents until it has ``rate`` tokens per byte of other documents; print the result on stderr.

    Args:
        length: bytes of the windows that the rate is measured on.
        num_bytes: text of the first training; None for :data:`NUM_BYTES`.
        most_bytes: limit of the text; None for :data:`MOST_BYTES`.
        pre_tokenizer: None for ``gpt2``, or ``spaces`` if the words of ``gpt2`` alone exceed the rate.
        folder: as for :func:`cached_bpe`.
    """
    check_rate(rate)
    text = tokenizer_text(source, length, seed)
    chosen = choose_pre_tokenizer(text.aside, rate) if pre_tokenizer is None else pre_tokenizer
    most = MOST_BYTES if most_bytes is None else most_bytes
    start = min(NUM_BYTES, most) if num_bytes is None else num_bytes
    if start > most:
        raise ValueError(f"num_bytes must be at most most_bytes, {most}, got {start}")
    start, most = (int(min(number, text.num_bytes)) for number in (start, most))

    def train(num_bytes: int) -> TokenizerSplit:
        return cached_bpe(folder, lambda: text.first(num_bytes), vocabulary=MOST_PIECES, pre_tokenizer=chosen)

    rated = grow_bpe(train, text.aside, rate, num_bytes=start, most_bytes=most)
    hint = "; pre_tokenizer=spaces has a lower limit" if chosen == "gpt2" and rated.rate > rate else ""
    print(f"{rated} (pre_tokenizer={chosen}){'' if rated.met else hint}", file=sys.stderr)
    return rated


def cached_bpe(folder: Path | None, texts: Callable[[], Iterable[str]], **options: Any) -> TokenizerSplit:
    """Train BPE on texts, or read the tokenizer that an earlier run trained on equal texts with equal options.

    Its file is named by a hash of the text, the options and the version of the library. It is complete or absent: it is
    written under another name and then renamed. Without a folder nothing is read or written.
    """
    if folder is None:
        return train_bpe(texts(), **options)
    digest = hashlib.sha256(repr((_FORMAT, tokenizers_library().__version__, sorted(options.items()))).encode())
    for text in texts():
        digest.update(text.encode())
    path = folder / f"bpe-{digest.hexdigest()[:16]}.json"
    if path.exists():
        try:
            return read_tokenizer(path.read_text(encoding="utf-8"))
        except Exception as error:  # the library raises no other type
            raise ValueError(f"{path} is not what was written ({error}); delete it to train again") from None
    split = train_bpe(texts(), **options)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(path, split.tokenizer.to_str())
    except OSError as error:
        raise OSError(f"{folder} must be a folder that can be written, got {error.strerror}") from None
    return split

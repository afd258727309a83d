"""Log-likelihood of continuations: log p(y | c) of texts y after contexts c, byte by byte.

    p(y | c) = E_{a ~ pi} [ prod_{t in y} p(x_t | x_<t, a_<t) ]

is the probability that ``generate`` writes y after it has read c, with boundaries drawn in c and in y. The mean of K
products estimates it. The logarithm of the estimate lies below log p(y | c) in the mean and rises with K, so its bits
are an upper bound that K tightens.

Context and continuation are encoded separately. Nothing predicts the first byte of a text: after an empty context all
256 bytes are equally likely (8 bits). A model with ``begin_of_text`` predicts it; it reads the mark before each window.

Shapes: K draws, n bytes of a continuation, V = 256 bytes, R rows of T bytes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rltok_rl.agents.segmenters import Segmenter
from rltok_rl.evaluation.windowed import SegmentedModel
from rltok_rl.models import UNet
from rltok_rl.text import text_to_bytes
from rltok_rl.utils import check_count

BATCH_BYTES = 16_384
"""Bytes of a forward pass, unless a single text has more. Results do not depend on it beyond rounding."""


@dataclass(frozen=True)
class Continuations:
    """Scores of n continuations, on the CPU."""

    log_likelihood: Tensor  # [n] float64, log p(y | c) in nats, from all draws together
    one_draw: Tensor  # [n] float64, the mean log-likelihood of single draws, at most log_likelihood
    num_bytes: Tensor  # [n] int64, bytes of y
    likeliest: Tensor  # [n] bool, whether each byte of y is the likeliest after those before
    cut: Tensor  # [n] bool, whether bytes of c were left out


def mixture_log_likelihood(log_probs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Score a text under a mixture of K predictors: its log-likelihood, and whether greedy decoding produces it.

        p(y) = 1/K sum_k prod_t p_k(y_t),        p(y_t | y_<t) = sum_k w_kt p_k(y_t),  w_kt ~ prod_{s<t} p_k(y_s)

    Args:
        log_probs: [K, n, V] log p_k of each byte at each place.
        targets: [n] the bytes y_t.

    Returns:
        log p(y) and the mean over k of log p_k(y), float64; whether y_t maximises p(. | y_<t) for all t.
    """
    of_targets = log_probs.gather(-1, targets.expand(len(log_probs), -1).unsqueeze(-1)).squeeze(-1).double()  # [K, n]
    totals = of_targets.sum(-1)  # [K]
    before = of_targets.cumsum(-1) - of_targets  # [K, n], log w up to a constant
    weights = (before - before.amax(0)).to(log_probs.dtype)
    mixed = (weights.unsqueeze(-1) + log_probs).logsumexp(0)  # [n, V], up to a constant
    return totals.logsumexp(0) - math.log(len(totals)), totals.mean(), (mixed.argmax(-1) == targets).all()


def continuation_windows(
    context: bytes, continuation: bytes, context_bytes: int | None = None, *, marked: bool = False
) -> list[tuple[bytes, int]]:
    r"""Cut a continuation into texts that predict each of its bytes once, from at most ``context_bytes`` (None: all).

    Contexts are cut from the left, and a continuation longer than ``context_bytes`` into pieces of that length. The
    first byte after an empty context is not predicted, unless a mark comes before it. Each text comes with the number
    of its last bytes that are predicted; all but its last byte are read.

    Example:
        >>> continuation_windows(b"to be or", b" not", 6)
        [(b' or not', 4)]
        >>> continuation_windows(b"", b"to be", 3)
        [(b'to b', 3), (b'o be', 1)]
    """
    text = context + continuation
    read = len(text) if context_bytes is None else check_count("context_bytes", context_bytes)
    pieces = []
    for start in range(max(len(context), 0 if marked else 1), len(text), read):
        end = min(start + read, len(text))
        pieces.append((text[max(0, end - 1 - read) : end], end - start))
    return pieces


@torch.no_grad()
def continuation_log_likelihood(
    model: UNet,
    contexts: Sequence[str | bytes],
    continuations: Sequence[str | bytes],
    *,
    context_bytes: int | None = None,
    samples: int = 1,
    greedy: bool = False,
    seed: int = 0,
    segmenter: Segmenter | None = None,
    target_rate: float | None = None,
    batch_rows: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Continuations:
    """Score continuations of contexts, with boundaries drawn by the policy or a segmenter.

    The random numbers of a continuation depend on its context (on itself, if the context is empty) and ``seed`` alone:
    not on what else is scored, and all choices of a question share them.

    Args:
        model: the U-Net, in the mode it should run in.
        contexts: n texts, which may be empty.
        continuations: n texts of at least one byte, delimiters included.
        context_bytes: bytes that a prediction may see at most; None for all.
        samples: K, the number of draws.
        greedy, segmenter, target_rate: how boundaries are drawn, as for :func:`~rltok_rl.evaluation.read_text`.
        seed: determines all random numbers.
        batch_rows: continuations of a forward pass at most; None limits bytes only.
        progress: called with bytes read and bytes to read, before the first forward pass and after each.
    """
    segmented = SegmentedModel(model, segmenter, target_rate, greedy)
    check_samples(segmented, samples)
    if batch_rows is not None:
        check_count("batch_rows", batch_rows)
    before, after = _as_bytes("contexts", contexts, 0), _as_bytes("continuations", continuations, 1)
    if len(before) != len(after):
        raise ValueError(f"contexts and continuations must be as many, got {len(before)} and {len(after)}")
    windows, marks = [], model.config.num_marks
    for number, (context, continuation) in enumerate(zip(before, after, strict=True)):
        pieces = continuation_windows(context, continuation, context_bytes, marked=bool(marks))
        for piece, (text, scored) in enumerate(pieces):
            windows.append(
                _Window(number, text, scored, continuation_seed(seed, piece, context or continuation), marks)
            )
    lengths = torch.tensor([len(context) for context in before], dtype=torch.int64)
    num_bytes = torch.tensor([len(continuation) for continuation in after], dtype=torch.int64)
    together = (lengths + marks == 0) * torch.tensor(-math.log(256), dtype=torch.float64)
    alone, likeliest = together.clone(), lengths + marks > 0
    total, done = sum(window.length for window in windows) * samples, 0
    padded = segmenter is None or not segmenter.looks_ahead  # looking ahead would see the padding
    if progress is not None:
        progress(0, total)
    for batch in _batches(windows, samples, batch_rows, padded):
        for window, (all_draws, one_draw, best) in zip(batch, _score(segmented, batch, samples), strict=True):
            together[window.number] += all_draws
            alone[window.number] += one_draw
            likeliest[window.number] &= best
        done += sum(window.length for window in batch) * samples
        if progress is not None:
            progress(done, total)
    cut = lengths + num_bytes - 1 > (math.inf if context_bytes is None else context_bytes)
    return Continuations(together, alone, num_bytes, likeliest, cut)


@dataclass(frozen=True)
class _Window:
    """A text to read, whose last bytes are predicted."""

    number: int  # of the continuation
    text: bytes
    scored: int  # predicted bytes
    seed: int
    marks: int

    @property
    def length(self) -> int:
        """T, ids that are read: the mark, and all bytes but the last."""
        return self.marks + len(self.text) - 1

    def uniforms(self, samples: int) -> Tensor:
        """[T - marks, K] random numbers, the first ones of any longer window of this seed."""
        return torch.rand(len(self.text) - 1, samples, generator=torch.Generator().manual_seed(self.seed))


def _score(segmented: SegmentedModel, batch: list[_Window], samples: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """:func:`mixture_log_likelihood` of each window; each is read K times, in neighbouring rows."""
    texts = [torch.tensor(list(window.text)) for window in batch]
    # Padded on the right, where no scored byte can see it.
    read = pad_sequence([text[:-1] for text in texts], batch_first=True).repeat_interleave(samples, 0)  # [R K, T]
    drawn = None
    if segmented.at_random and not segmented.greedy:
        drawn = pad_sequence([window.uniforms(samples) for window in batch], batch_first=True)  # [R, T, K]
        drawn = drawn.transpose(1, 2).flatten(0, 1)  # [R K, T]
    final_logits = segmented.run(read, drawn).final_logits
    for window, text, rows in zip(batch, texts, final_logits.split(samples), strict=True):
        logits = rows[:, window.length - window.scored : window.length]  # [K, n, V]
        log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1).cpu()
        yield mixture_log_likelihood(log_probs, text[len(text) - window.scored :])


def _batches(windows: list[_Window], samples: int, batch_rows: int | None, padded: bool) -> Iterator[list[_Window]]:
    """Windows of about equal length together (of equal length, unless ``padded``), the longest first."""
    batch: list[_Window] = []
    for window in sorted(windows, key=lambda window: -window.length):
        if batch:
            size = (len(batch) + 1) * samples * batch[0].length
            other = not padded and window.length != batch[0].length
            if size > BATCH_BYTES or len(batch) == batch_rows or other:
                yield batch
                batch = []
        batch.append(window)
    if batch:
        yield batch


def continuation_seed(seed: int, piece: int, text: bytes) -> int:
    """Return a seed of 64 bits for a piece of the continuation of a text."""
    return int.from_bytes(hashlib.blake2b(b"%d %d " % (seed, piece) + text, digest_size=8).digest(), "big")


def _as_bytes(name: str, texts: Sequence[str | bytes], least: int) -> list[bytes]:
    """The UTF-8 bytes of each text."""
    if isinstance(texts, (str, bytes)):
        raise TypeError(f"{name} must be a list of texts, got one {type(texts).__name__}")
    encoded = []
    for number, text in enumerate(texts):
        try:
            encoded.append(text_to_bytes(text))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} must hold texts, got number {number}: {error}") from None
        if len(encoded[-1]) < least:
            raise ValueError(f"{name} must have at least {least} byte each, got an empty one as number {number}")
    return encoded


def check_samples(segmented: SegmentedModel, samples: int) -> None:
    """Refuse several samples of boundaries that are not drawn at random."""
    segmented.check_own_greedy()
    if check_count("samples", samples) > 1 and (segmented.greedy or not segmented.at_random):
        boundaries = segmented.name if segmented.segmenter is not None else "greedy boundaries"
        raise ValueError(f"samples must be 1 if nothing is drawn at random, got {samples} with {boundaries}")

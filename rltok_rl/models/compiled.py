"""Compiled pieces of layers, one program for all inputs of one kind.

A layer is compiled in pieces that know nothing of attention: what stands before it and what stands after it are
functions of ``[L, D]``, whatever L positions are (bytes of all rows, padded tokens, packed tokens, single steps).
Attention, which is another function for each of them, stays as it is, but for the scores of capped attention, which no
kernel of torch serves. So torch compiles few programs, each once, for any number of positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

FEW = 32
"""Fewer positions than this run as they are: a compiled program does not pay, and one alone is another program."""
_SCORES: ContextVar[str | None] = ContextVar("_SCORES", default=None)


@lru_cache
def compiled(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    """A function compiled when it is first called; models whose programs are more than torch keeps run it as it is.

    Args:
        function: of tensors and modules, the same for all models.
        backend: as ``torch.compile`` names it.
    """
    return torch.compile(function, backend=backend)


def varies(x: Tensor, *dims: int) -> Tensor:
    """A tensor, marked as one whose sizes in ``dims`` are another in every batch: one program is made for all of them.

    Args:
        x: any tensor, not a view of another.
        dims: counted from the beginning or the end; none is the first. Those that ``x`` has not, and those of size 1,
            are passed over.
    """
    for dim in dims or (0,):
        if -x.dim() <= dim < x.dim() and x.shape[dim] > 1:
            torch._dynamo.maybe_mark_dynamic(x, dim % x.dim())
    return x


def in_rows(x: Tensor, *last: int) -> Tensor:
    """[*L, ...] as [L, *last] in memory of its own: of a view, programs would also depend on what it is a view of.

    Args:
        x: any tensor.
        last: sizes of the dimensions behind the first.
    """
    rows = x.reshape(-1, *last)
    return rows.clone() if rows._is_view() else rows


@contextmanager
def compiled_scores(backend: str) -> Iterator[None]:
    """Within the block, capped attention turns scores into weights by a compiled function."""
    before = _SCORES.set(backend)
    try:
        yield
    finally:
        _SCORES.reset(before)


def scores_backend() -> str | None:
    """What scores are compiled with here; None where they are not."""
    return _SCORES.get()

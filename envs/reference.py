"""Reference policies that returns are compared with, as functions of whole texts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rltok_rl.functional.rewards import function_name
from rltok_rl.models.unet import UNet
from rltok_rl.utils import import_path, is_import_path

Reference = str | Callable[[Tensor], Tensor]
"""A name, ``module:function``, or a function of bytes [n, L] to boundaries [n, L], 0 or 1."""
_FIXED: dict[str, Callable[[Tensor], Tensor]] = {"never": torch.zeros_like, "always": torch.ones_like}


def as_reference(reference: Reference, model: UNet) -> Callable[[Tensor], Tensor] | None:
    """Return the function of a reference policy; None for ``"uniform"``. It must be causal, row by row."""
    if model.config.byte_scope == "token":
        raise ValueError(
            f"reference must be None (and reward not 'relative') with byte_scope='token', whose encoder states depend "
            f"on boundaries, got {function_name(reference)!r}"
        )
    if reference == "uniform":
        return None
    if isinstance(reference, str) and reference in _FIXED:
        return _FIXED[reference]
    if isinstance(reference, str) and not is_import_path(reference):
        raise ValueError(
            f"reference must be 'uniform', 'never', 'always', a custom module:function, a function or None, got "
            f"{reference!r}"
        )
    function = import_path("reference", reference) if isinstance(reference, str) else reference
    expected = "reference must be a function of byte_ids [n, L] to boundaries [n, L] of 0 and 1"
    if not callable(function):
        raise TypeError(f"{expected}, got {reference!r}")
    byte_ids = torch.randint(32, 127, (3, 8), generator=torch.Generator().manual_seed(0))
    byte_ids = byte_ids.to(model.embedding.weight.device)
    try:
        drawn = function(byte_ids)
    except Exception as error:
        raise ValueError(f"{expected}, got {function_name(reference)}, which raises: {error}") from error
    if not isinstance(drawn, Tensor) or drawn.shape != byte_ids.shape or not torch.equal(drawn, drawn.bool().to(drawn)):
        got = [*drawn.shape] if isinstance(drawn, Tensor) else type(drawn).__name__
        raise ValueError(f"{expected}, got {function_name(reference)}, which returns {got} for [3, 8]")
    for row, end in ((0, 1), (1, 4), (2, 7)):
        if not torch.equal(function(byte_ids[row : row + 1, :end])[0], drawn[row, :end]):
            raise ValueError(
                f"reference must decide about each byte by the bytes of its text up to it, got "
                f"{function_name(reference)}, which depends on later bytes, other texts or chance"
            )
    return function

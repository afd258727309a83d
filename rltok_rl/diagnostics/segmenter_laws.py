"""Laws of segmenters, for custom ones: ``broken_segmenter_laws(MySegmenter)``.

A causal model can only use boundaries that it knows in time, and draws the same ones byte by byte as in whole windows.
Segmenters are built with ``make(model)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rltok_rl.agents.segmenters import Segmenter, read_byte, read_window, start_reading
from rltok_rl.diagnostics.laws import messages, require
from rltok_rl.models.config import preset
from rltok_rl.models.unet import UNet

TEXT = "Größe: 3 m, not 12 cm. 日本語 and naïve cafés; to be, or not to be?\n\tThe quick brown fox jumps."
"""Text of the laws: several scripts, digits, white space."""


def broken_segmenter_laws(make: Callable[[UNet], Segmenter]) -> dict[str, str]:
    """Return the laws that a segmenter breaks, with an explanation each; {} if it obeys all.

    ``make`` is called with a small U-Net in float64: a class, or a function with the options.

    Example:
        >>> from rltok_rl.agents.segmenters import make_segmenter
        >>> broken_segmenter_laws(lambda model: make_segmenter("spacebyte", model))
        {}
    """
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = UNet(preset("tiny", width=16, window=6, num_lags=3)).double()
        segmenter = make(model).double()
    laws = {name: law for name, law in SEGMENTER_LAWS.items() if not (segmenter.looks_ahead and name in _CAUSAL)}
    return messages(laws, model, segmenter, example_texts(2, 16))


def assert_prefixes_agree(model: UNet, segmenter: Segmenter, byte_ids: Tensor) -> None:
    """f(x_<i) = f(x)_<i for every i, and for every other ending."""
    uniforms = fixed_uniforms(byte_ids)
    whole = _read_window(model, segmenter, byte_ids, uniforms)
    for end in range(1, byte_ids.shape[1]):
        changed = torch.cat((byte_ids[:, :end], byte_ids[:, end:].flip(1)), 1)
        for window in (byte_ids[:, :end], changed):
            part = _read_window(model, segmenter, window, uniforms[:, : window.shape[1]])
            before = slice(None), slice(end)
            _require_equal(part, whole, before, before, f"before byte {end} depend on what comes after it")


def assert_no_gradient_from_later(model: UNet, segmenter: Segmenter, byte_ids: Tensor) -> None:
    """The prediction after byte t has no gradient from the embedding of any later byte."""
    embeddings: list[Tensor] = []

    def record(_module: object, _args: object, embedded: Tensor) -> Tensor:
        embeddings.append(embedded.detach().requires_grad_())
        return embeddings[-1]

    handle = model.embedding.register_forward_hook(record)
    try:
        out = read_window(model, segmenter, byte_ids, uniforms=fixed_uniforms(byte_ids))
    finally:
        handle.remove()
    direction = torch.linspace(-1, 1, 256, dtype=torch.float64).sin()
    for t in range(byte_ids.shape[1]):
        (slope,) = torch.autograd.grad((out.final_logits[:, t] @ direction).sum(), embeddings[0], retain_graph=True)
        require(slope[:, : t + 1].any(), f"the prediction after byte {t} depends on no byte")
        require(not slope[:, t + 1 :].any(), f"the prediction after byte {t} has a gradient from later bytes")


def assert_steps_are_the_window(model: UNet, segmenter: Segmenter, byte_ids: Tensor) -> None:
    """Boundaries and predictions byte by byte are those of the whole window."""
    uniforms = fixed_uniforms(byte_ids)
    steps = read_streamed(model, segmenter, byte_ids, uniforms)
    _require_equal(steps, _read_window(model, segmenter, byte_ids, uniforms), ..., ..., "of steps and window differ")
    require(steps[0][:, 0].all(), "the first byte must have a boundary")


def assert_rows_are_independent(model: UNet, segmenter: Segmenter, byte_ids: Tensor) -> None:
    """A row has the same boundaries in a batch and alone."""
    uniforms = fixed_uniforms(byte_ids)
    together = _read_window(model, segmenter, byte_ids, uniforms)
    for row in range(len(byte_ids)):
        alone = _read_window(model, segmenter, byte_ids[row : row + 1], uniforms[row : row + 1])
        _require_equal(alone, together, 0, row, f"of row {row} depend on other rows")


SEGMENTER_LAWS: dict[str, Callable[[UNet, Segmenter, Tensor], None]] = {
    "prefixes": assert_prefixes_agree,
    "gradients": assert_no_gradient_from_later,
    "steps": assert_steps_are_the_window,
    "rows": assert_rows_are_independent,
}
"""Laws by name; each takes a model, its segmenter and bytes [B, T], and raises an AssertionError if broken."""
_CAUSAL = ("prefixes", "steps")
"""Laws that do not apply to segmenters that look ahead."""


def example_texts(num_rows: int, length: int) -> Tensor:
    """Return different places of one text, repeated as needed: [B, T] int64 bytes."""
    ids = torch.tensor(list((TEXT * (1 + (length + 40 * num_rows) // 100)).encode()))
    return torch.stack([ids[37 * row :][:length] for row in range(num_rows)])


def fixed_uniforms(byte_ids: Tensor) -> Tensor:
    """Return the same random numbers in [0, 1) every time, [B, T]."""
    return torch.rand(byte_ids.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def read_streamed(model: UNet, segmenter: Segmenter, byte_ids: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Read byte by byte; return boundaries [B, T] and next-byte logits [B, T, 256]."""
    reader = start_reading(model, segmenter, len(byte_ids))
    columns = zip(byte_ids.T, uniforms.T, strict=True)
    steps = [read_byte(model, segmenter, reader, byte, uniforms=drawn) for byte, drawn in columns]
    boundaries = torch.stack([step.segments.boundaries for step in steps], 1)
    return boundaries, torch.stack([step.prediction.final_logits for step in steps], 1)


@torch.no_grad()
def _read_window(model: UNet, segmenter: Segmenter, byte_ids: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Read a window in one forward pass."""
    read = read_window(model, segmenter, byte_ids, uniforms=uniforms)
    return read.segments.boundaries, read.final_logits


def _require_equal(actual: Any, expected: Any, here: Any, there: Any, message: str) -> None:
    """Require boundaries and predictions to be equal at two indices."""
    for name, x, y in zip(("boundaries", "predictions"), actual, expected, strict=True):
        torch.testing.assert_close(x[here], y[there], rtol=0, atol=1e-9, msg=f"{name} {message}")

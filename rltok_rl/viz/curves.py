"""How a training went: figures over bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_PANELS = (
    ("bits per byte", ("bits_per_byte", "early_bits_per_byte")),
    ("boundaries per byte", ("rate",)),
    ("policy entropy, nats", ("entropy",)),
    ("advantage spread, nats", ("advantage_spread",)),
)
_NAMES = {"bits_per_byte": "whole model", "early_bits_per_byte": "early exit"}
_COLOURS = ("#0b7a75", "#9aa5b1")


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Each value averaged with up to ``window - 1`` before it.

    Example:
        >>> smooth([1.0, 3.0, 5.0], 2)
        [1.0, 2.0, 4.0]
    """
    if window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    return [sum(part) / len(part) for n in range(len(values)) for part in [values[max(0, n - window + 1) : n + 1]]]


def draw_curves(history: Mapping[str, Sequence[float]], path: Path, *, target_rate: float | None = None) -> Path:
    """Draw losses, rate, entropy and advantage spread against bytes.

    Args:
        history: one list per figure, all of one length; ``bytes`` is what they are drawn against.
        path: the PNG to write.
        target_rate: drawn as a line beside the rate.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    bytes_done = [x / 1e6 for x in history["bytes"]]
    if not bytes_done:
        raise ValueError("history must hold at least one update, got none")
    panels = [(title, [k for k in keys if k in history]) for title, keys in _PANELS]
    panels = [(title, keys) for title, keys in panels if keys]
    window = max(1, len(bytes_done) // 40)
    look: Any = {"font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 150}
    with plt.rc_context(look):
        figure, axes = plt.subplots(
            1, len(panels), figsize=(2.7 * len(panels), 2.4), layout="constrained", squeeze=False
        )
        for panel, (title, keys) in zip(axes[0], panels, strict=True):
            for key, colour in zip(keys, _COLOURS, strict=False):
                panel.plot(bytes_done, history[key], color=colour, alpha=0.2, lw=0.6)
                panel.plot(bytes_done, smooth(history[key], window), color=colour, lw=1.4, label=_NAMES.get(key))
            if len(keys) > 1:
                panel.legend(frameon=False)
            if title.startswith("boundaries") and target_rate is not None:
                panel.axhline(target_rate, color="#d1495b", lw=0.8, ls=":")
                panel.set_ylim(bottom=0)
            panel.set_title(title, loc="left", fontsize=8)
            panel.set_xlabel("MB of text")
        figure.savefig(path)
        plt.close(figure)
    return path

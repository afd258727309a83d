"""The table of ``rltok eval``: its figures for people."""

from __future__ import annotations

import math
from typing import Any

from rltok_rl.experiments.boundary_tables import EDGES, number


def table(figures: dict[str, Any]) -> str:
    """The figures for people.

    Args:
        figures: those of :func:`rltok_rl.evaluation.summarise`, with ``text``, ``context``, ``stride``,
            ``target_rate``, ``bytes_per_second``, and ``samples`` and ``particles`` where they were asked for.
    """
    lines = [
        f"text               {figures['text']}",
        f"bytes predicted    {figures['bytes']:,} {_windows(figures)} ({figures['bytes_per_second']:,.0f} bytes/s)",
        *_losses(figures),
        f"tokens             {figures['tokens']:,}, of {figures['bytes_per_token']:.2f} bytes on average",
        f"rate               {figures['rate']:.4f} boundaries per byte (target {_target(figures['target_rate'])})",
        *([f"boundaries         {figures['segmenter']}"] if figures.get("segmenter") else []),
        "",
        f"{'boundaries at':<18}{'share':>8}{'chance':>9}{'ratio':>8}{'places taken':>15}",
    ]
    for name, edge in figures["word_edges"].items():
        beside = f"{edge['chance']:>9.3f}{number(edge['lift'], 2):>8}{number(edge['covered'], 3):>15}"
        lines.append(f"  {EDGES[name]:<16}{number(edge['share'], 3):>8}{beside}")
    return "\n".join(lines)


def _windows(figures: dict[str, Any]) -> str:
    """What a byte was predicted from."""
    if figures["context"] is None:
        return "byte by byte, each after all before it"
    count = figures["windows"]
    windows = f"in {count:,} window{'' if count == 1 else 's'} of {figures['context']:,}"
    apart = figures["context"] - figures["stride"]
    return windows + (f", {figures['stride']:,} apart" if apart else "")


def _losses(figures: dict[str, Any]) -> list[str]:
    """Bits per byte, a line for each way to draw boundaries, and the early exit's."""
    many = figures["documents"] > 1
    beside = (
        f"{'of the corpus':<19}mean of {figures['documents']:,} documents"
        if many
        else "of one document, so without a standard error"
    )
    samples = figures.get("samples")
    rows = {"whole model": figures}
    if samples is not None:
        together = {f"{samples['count']:,} samples": samples["k_samples"]} if samples["count"] > 1 else {}
        rows = {"one sample": samples["one_sample"], **together, "thresholded": samples["thresholded"]}
    if figures.get("particles"):
        rows[f"{figures['particles']['count']:,} particles"] = figures["particles"]
    rows["early exit"] = {name.removeprefix("early_"): value for name, value in figures.items() if "early_" in name}
    lines = [f"{'bits per byte':<19}{beside}"]
    for name, row in rows.items():
        if row is None:
            lines.append(f"  {name:<17}none: boundaries have no probability")
            continue
        shown = [_with_error(row, kind) for kind in (("corpus", "document") if many else ("corpus",))]
        rate = f"   at {row['rate']:.4f} boundaries per byte" if name == "thresholded" else ""
        lines.append(f"  {name:<17}" + "".join(f"{one:<19}" for one in shown).rstrip() + rate)
    least = min(row["corpus_bits_per_byte"] for row in rows.values() if row is not None)
    if least > 8:
        lines.append("  more than the 8 bits of an even guess: the model was trained on other text than this")
    if samples is not None and samples["corpus_spread"] is not None:
        spread = f"{samples['corpus_spread']:.4f}, standard deviation of one sample from draw to draw"
        lines.append(f"  {'spread':<17}{spread}")
    return lines


def _with_error(row: dict[str, Any], kind: str) -> str:
    loss, error = row[f"{kind}_bits_per_byte"], row[f"{kind}_standard_error"]
    return f"{loss:.4f}" + ("" if error is None else f" ± {error:.4f}")


def _target(rate: float | None) -> str:
    return "none" if rate is None else f"{rate:g}"


def without_nan(value: Any) -> Any:
    """The same with None for what is not a number, which JSON has no word for.

    Args:
        value: nested dicts and lists of plain values.

    Example:
        >>> without_nan({"a": {"b": [[1.0, math.nan]]}, "c": 1})
        {'a': {'b': [[1.0, None]]}, 'c': 1}
    """
    if isinstance(value, dict):
        return {name: without_nan(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [without_nan(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value

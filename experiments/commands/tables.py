"""Tables of ``rltok eval``, ``rltok tasks`` and ``rltok boundaries`` for terminals."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from rltok_rl.training.progress import bar
from rltok_rl.utils import printable

EDGES = {"last_letter": "last letter", "space": "space after", "first_letter": "first letter", "any": "any of these"}
MEASURES = {
    "kappa": "Cohen's kappa: agreement beyond chance",
    "f1": "F1",
    "jaccard": "Jaccard: boundaries of both, of those of either",
    "correlation": "correlation of probabilities",
}
SHARE = {"share": 3, "chance": 3, "lift": 2, "covered": 3}
"""Digits of the numbers of a share of boundaries."""
AFFIX = {"covered": 3, "elsewhere": 3, "lift": 2}
MATCH = {"shift": 0, "precision": 3, "recall": 3, "f1": 3, "chance_f1": 3}
_SIDES, _MATCH, _AFFIX = (6, 9, 8, 16, 9, 8), (6, 11, 8, 8, 11), (22, 9, 15, 17, 8)
"""Widths of columns: positions from both ends of a word; matches; affixes."""
CHOICES = {"bits_per_byte": "bits per byte", "accuracy": "accuracy"}
CHOICES |= {"accuracy_per_byte": "per byte", "likeliest": "likeliest bytes"}


def boundaries_page(results: dict[str, Any]) -> str:
    """Describe the boundaries of one model, from the results of ``rltok boundaries``."""
    ((name, model),) = results["models"].items()
    lengths, entropy, tolerance = model["bytes_per_token"], model["entropy"], results["tolerance"]
    quantiles = ", ".join(f"{float(q):.0%} {number(value, 0)}" for q, value in lengths["quantiles"].items())
    near = f"against (partners at most {_bytes(tolerance)} apart)"
    sides = [model["word_positions"][side] for side in ("start", "end")]
    columns = ("share", "chance", "lift")
    places = {"white space": model["white_space"], **_edges(model), "inside characters": model["split_characters"]}
    return _joined(
        f"model              {printable(name)}",
        f"text               {results['text']}, {model['bytes']:,} bytes with a decision",
        f"boundaries         {model['boundaries']:,}, {model['rate']:.4f} per byte",
        f"bytes per token    {number(lengths['mean'], 2)} ± {number(lengths['spread'], 2)} (spread); {quantiles}",
        f"policy entropy     {entropy['bits_per_byte']:.4f} bits per byte (at this rate at most {entropy['most']:.4f})",
        "",
        *_shares(places),
        "",
        "by position in the word, in bytes",
        f"  {'':<9}{'from its start':<33}{'from its end':<24}",
        _row("", ("share", "chance", "ratio") * 2, 11, *_SIDES),
        *(
            _row(f"  {at}", [number(side[at][key], SHARE[key]) for side in sides for key in columns], 11, *_SIDES)
            for at in sides[0]
        ),
        "  0 is its first or last byte, -1 the byte before or after it; outside touches no word there",
        "",
        _row("between stem and affix", ("words", "places taken", "in other words", "ratio"), *_AFFIX),
        *(
            _row(f"  {affix}", [f"{row['places']:,}", *(number(row[key], AFFIX[key]) for key in AFFIX)], *_AFFIX)
            for affix, row in model["affixes"].items()
        ),
        "  at the same place, in words as long; affixes are spelling, so string and under have one",
        "",
        "bytes per token",
        *_histogram(lengths["histogram"]),
        "",
        *([near] if tolerance else []),
        _row("" if tolerance else "against", ("shift", "precision", "recall", "F1", "by chance"), 24, *_MATCH),
        *(
            _row(f"  {name}", [number(row[key], digits) for key, digits in MATCH.items()], 24, *_MATCH)
            for name, rows in model["against"].items()
            for row in rows
        ),
        "  shift: bytes that the reference is moved by; -1 ends a token at the last byte of a bpe token",
    )


def agreement_page(results: dict[str, Any]) -> str:
    """Describe several models: a line each, and a matrix for each measure of agreement."""
    models, agreement = results["models"], results["agreement"]
    names, tolerance = [printable(name) for name in agreement["names"]], results["tolerance"]
    width = max(map(len, names)) + 4
    widths = (width, 8, 8, 9, 13, 8, 8)
    lines = [
        f"text {results['text']}, {next(iter(models.values()))['bytes']:,} bytes with a decision",
        "",
        _row("", ("rate", "bytes", "entropy", "space share", "ratio", "taken"), *widths),
    ]
    for place, (name, model) in enumerate(zip(map(printable, models), models.values(), strict=True), 1):
        numbers = [(model["rate"], 4), (model["bytes_per_token"]["mean"], 2), (model["entropy"]["bits_per_byte"], 4)]
        numbers += [(model["white_space"][key], SHARE[key]) for key in ("share", "lift", "covered")]
        lines.append(_row(f"{place:>2}  {name}", [number(*value) for value in numbers], *widths))
    lines.append(
        "bytes: per token; entropy: bits per byte; space: boundaries at white space, ratio to chance, places taken"
    )
    for key, title in MEASURES.items():
        near = f" with a tolerance of {_bytes(tolerance)}" if key == "f1" and tolerance else ""
        columns = (width, *(8 for _ in names))
        lines += ["", title + near, _row("", [str(place + 1) for place in range(len(names))], *columns)]
        for place, (name, row) in enumerate(zip(names, agreement[key], strict=True), 1):
            lines.append(_row(f"{place:>2}  {name}", [number(value, 3) for value in row], *columns))
    return _joined(*lines, "", "Diagonal: two draws of one policy, which is how far two equal policies would agree.")


def evaluation_table(results: dict[str, Any]) -> str:
    """Describe a model on a text, from the results of ``rltok eval``."""
    target = "none" if results["target_rate"] is None else f"{results['target_rate']:g}"
    return _joined(
        f"text               {results['text']}",
        f"bytes predicted    {results['bytes']:,} {_windows(results)} ({results['bytes_per_second']:,.0f} bytes/s)",
        *_losses(results),
        f"tokens             {results['tokens']:,}, of {results['bytes_per_token']:.2f} bytes on average",
        f"rate               {results['rate']:.4f} boundaries per byte (target {target})",
        *([f"boundaries         {results['segmenter']}"] if results.get("segmenter") else []),
        "",
        *_shares(_edges(results)),
    )


def tasks_table(tasks: dict[str, dict[str, Any]]) -> str:
    """Describe the metrics of :func:`rltok_rl.evaluation.tasks.choice_metrics`, by task."""
    widths = (16, 8, *(19 for _ in CHOICES), 9)
    lines = [_row("task", ["examples", *CHOICES.values(), "chance"], *widths)]
    for name, metrics in tasks.items():
        cells = [with_error(metrics[key], metrics[f"{key}_error"]) for key in CHOICES]
        lines.append(_row(name, [f"{metrics['examples']:,}", *cells, number(metrics["chance"], 3)], *widths))
    return _joined(*lines)


def _edges(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    return {EDGES[edge]: share for edge, share in results["word_edges"].items()}


def _shares(shares: dict[str, dict[str, float]]) -> list[str]:
    """Shares of the boundaries at some places, by chance, their ratio, and the share of such places taken."""
    lines = [_row("boundaries at", ("share", "chance", "ratio", "places taken"), 18, 8, 9, 8, 15)]
    for name, share in shares.items():
        lines.append(_row(f"  {name}", [number(share[key], digits) for key, digits in SHARE.items()], 20, 6, 9, 8, 15))
    return lines


def _histogram(counts: list[int]) -> list[str]:
    total, most = sum(counts), max(counts)
    names = [*map(str, range(1, len(counts))), f"{len(counts)}+"]
    rows = zip(names, counts, strict=True) if total else ()
    return [f"  {name:<5}{count / total:>7.3f} {bar(count / most, 24)}" for name, count in rows] or ["  no token"]


def _windows(results: dict[str, Any]) -> str:
    """The bytes that each byte was predicted from."""
    if results["context"] is None:
        return "byte by byte, each after all before it"
    count = results["windows"]
    windows = f"in {count:,} window{'' if count == 1 else 's'} of {results['context']:,}"
    return windows + (f", {results['stride']:,} apart" if results["stride"] != results["context"] else "")


def _losses(results: dict[str, Any]) -> list[str]:
    """Bits per byte, a line for each way to draw boundaries, and the early exit's."""
    many, samples, particles = results["documents"] > 1, results.get("samples"), results.get("particles")
    means = f"{'of the corpus':<19}mean of {results['documents']:,} documents"
    lines = [f"{'bits per byte':<19}{means if many else 'of one document, so without a standard error'}"]
    rows: dict[str, dict[str, Any] | None] = {"whole model": results}
    if samples is not None:
        together = {f"{samples['count']:,} samples": samples["k_samples"]} if samples["count"] > 1 else {}
        rows = {"one sample": samples["one_sample"], **together, "thresholded": samples["thresholded"]}
    if particles:
        rows[f"{particles['count']:,} particles"] = particles
    rows["early exit"] = {name.removeprefix("early_"): value for name, value in results.items() if "early_" in name}
    for name, row in rows.items():
        if row is None:
            lines.append(f"  {name:<17}none: boundaries have no probability")
            continue
        kinds = ("corpus", "document") if many else ("corpus",)
        losses = [with_error(row[f"{kind}_bits_per_byte"], row[f"{kind}_standard_error"]) for kind in kinds]
        rate = f"   at {row['rate']:.4f} boundaries per byte" if name == "thresholded" else ""
        lines.append(f"  {name:<17}" + "".join(f"{loss:<19}" for loss in losses).rstrip() + rate)
    if min(row["corpus_bits_per_byte"] for row in rows.values() if row is not None) > 8:
        lines.append("  more than the 8 bits of a uniform guess: the model was trained on other text than this")
    if samples is not None and samples["corpus_spread"] is not None:
        lines.append(f"  {'spread':<17}{samples['corpus_spread']:.4f}, standard deviation between single samples")
    return lines


def with_error(value: float | None, error: float | None) -> str:
    """Format a number with its standard error, if there is one.

    Example:
        >>> with_error(2.0, None), with_error(None, None)
        ('2.0000', '-')
    """
    return number(value, 4) + ("" if value is None or error is None else f" ± {error:.4f}")


def number(value: float | None, digits: int) -> str:
    """Format a number with digits after the point, or a dash if there is none.

    Example:
        >>> number(0.5, 2), number(float("nan"), 2)
        ('0.50', '-')
    """
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def _row(name: str, cells: Iterable[str], width: int, *widths: int) -> str:
    return f"{name:<{width}}" + "".join(f"{cell:>{wide}}" for cell, wide in zip(cells, widths, strict=True))


def _bytes(count: int) -> str:
    return "1 byte" if count == 1 else f"{count} bytes"


def _joined(*lines: str) -> str:
    return "\n".join(line.rstrip() for line in lines)

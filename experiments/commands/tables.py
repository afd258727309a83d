"""The figures of ``rltok boundaries`` for people: a page of one model, matrices of several."""

from __future__ import annotations

import math
from typing import Any

EDGES = {"last_letter": "last letter", "space": "space after", "first_letter": "first letter", "any": "any of these"}
MEASURES = {
    "kappa": "Cohen's kappa: agreement beyond chance",
    "f1": "F1",
    "jaccard": "Jaccard: boundaries of both, of those of either",
    "correlation": "correlation of probabilities",
}
_BARS = "▏▎▍▌▋▊▉█"  # one to eight eighths of a character
_WIDTH = 24


def page(figures: dict[str, Any]) -> str:
    """One model.

    Args:
        figures: as the command writes them as JSON, with nan.
    """
    ((name, found),) = figures["models"].items()
    lengths, entropy = found["bytes_per_token"], found["entropy"]
    quantiles = ", ".join(f"{float(q):.0%} {number(value, 0)}" for q, value in lengths["quantiles"].items())
    lines = [
        f"model              {name}",
        f"text               {figures['text']}, {found['bytes']:,} bytes with a decision",
        f"boundaries         {found['boundaries']:,}, {found['rate']:.4f} per byte",
        f"bytes per token    {number(lengths['mean'], 2)} ± {number(lengths['spread'], 2)} (spread); {quantiles}",
        f"policy entropy     {entropy['bits_per_byte']:.4f} bits per byte (at this rate at most {entropy['most']:.4f})",
        "",
        f"{'boundaries at':<18}{'share':>8}{'chance':>9}{'ratio':>8}{'places taken':>15}",
        _place("white space", found["white_space"]),
        *(_place(EDGES[edge], one) for edge, one in found["word_edges"].items()),
        _place("inside characters", found["split_characters"]),
        "",
        "by position in the word, in bytes",
        *_positions(found["word_positions"]),
        "",
        "bytes per token",
        *_histogram(lengths["histogram"]),
        "",
        *_against(found["against"], figures["tolerance"]),
    ]
    return "\n".join(line.rstrip() for line in lines)


def matrices(figures: dict[str, Any]) -> str:
    """Several models: a line for each, and a matrix for each measure of agreement.

    Args:
        figures: as for :func:`page`, with ``agreement``.
    """
    agreement = figures["agreement"]
    names = agreement["names"]
    width = max(map(len, names))
    head = f"{'':<{width + 4}}{'rate':>8}{'bytes':>8}{'entropy':>9}{'space share':>13}{'ratio':>8}{'taken':>8}"
    lines = [
        f"text {figures['text']}, {next(iter(figures['models'].values()))['bytes']:,} bytes with a decision",
        "",
        head,
    ]
    for place, (name, one) in enumerate(figures["models"].items(), 1):
        space = one["white_space"]
        lines.append(
            f"{place:>2}  {name:<{width}}{one['rate']:>8.4f}{number(one['bytes_per_token']['mean'], 2):>8}"
            f"{one['entropy']['bits_per_byte']:>9.4f}{number(space['share'], 3):>13}{number(space['lift'], 2):>8}"
            f"{number(space['covered'], 3):>8}"
        )
    lines += ["bytes: per token; entropy: bits per byte; space: boundaries at white space, beside chance, places taken"]
    for key, title in MEASURES.items():
        near = f" with a tolerance of {_bytes(figures['tolerance'])}" if key == "f1" and figures["tolerance"] else ""
        lines += ["", title + near, " " * (width + 4) + "".join(f"{place:>8}" for place in range(1, len(names) + 1))]
        for place, (name, row) in enumerate(zip(names, agreement[key], strict=True), 1):
            lines.append(f"{place:>2}  {name:<{width}}" + "".join(f"{number(value, 3):>8}" for value in row))
    lines += ["", "On the diagonal: two draws of one policy, which is how far two equal policies would agree."]
    return "\n".join(line.rstrip() for line in lines)


def bar(share: float, most: float, *, width: int = _WIDTH) -> str:
    """A bar of block characters.

    Args:
        share: of which the bar is as long.
        most: what a full bar stands for.
        width: of a full bar, in characters.

    Example:
        >>> bar(0.5, 1.0, width=4), bar(0.0, 1.0)
        ('██', '')
    """
    eighths = round(8 * width * share / most) if most > 0 and not math.isnan(share) else 0
    return _BARS[-1] * (eighths // 8) + (_BARS[eighths % 8 - 1] if eighths % 8 else "")


def _place(name: str, one: dict[str, float]) -> str:
    share, ratio = number(one["share"], 3), number(one["lift"], 2)
    return f"  {name:<18}{share:>6}{one['chance']:>9.3f}{ratio:>8}{number(one['covered'], 3):>15}"


def _positions(sides: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """Positions from the start and from the end side by side."""
    lines = [f"  {'':<9}{'from its start':<33}{'from its end':<24}"]
    lines.append(
        f"  {'':<9}" + f"{'share':>6}{'chance':>9}{'ratio':>8}{'':<10}" + f"{'share':>6}{'chance':>9}{'ratio':>8}"
    )
    for name in sides["start"]:
        cells = [
            f"{number(one['share'], 3):>6}{one['chance']:>9.3f}{number(one['lift'], 2):>8}"
            for one in (sides[side][name] for side in ("start", "end"))
        ]
        lines.append(f"  {name:<9}" + f"{'':<10}".join(cells))
    return [*lines, "  0 is its first or last byte, -1 the byte before or after it; outside touches no word there"]


def _histogram(counts: list[int]) -> list[str]:
    total, most = sum(counts), max(counts)
    if not total:
        return ["  no token"]
    lines = []
    for length, count in enumerate(counts, 1):
        name = f"{length}{'+' if length == len(counts) else ''}"
        lines.append(f"  {name:<5}{count / total:>7.3f} {bar(count, most)}")
    return lines


def _against(against: dict[str, list[dict[str, float]]], tolerance: int) -> list[str]:
    head = f"{'shift':>6}{'precision':>11}{'recall':>8}{'F1':>8}{'by chance':>11}"
    lines = [f"{'against':<24}{head}"]
    if tolerance:
        lines = [f"against (partners at most {_bytes(tolerance)} apart)", f"{'':<24}{head}"]
    for name, rows in against.items():
        for row in rows:
            cells = [number(row[key], 3) for key in ("precision", "recall", "f1", "chance_f1")]
            lines.append(f"  {name:<22}{row['shift']:>6.0f}{cells[0]:>11}{cells[1]:>8}{cells[2]:>8}{cells[3]:>11}")
    return [*lines, "  shift: bytes that the reference is moved by; -1 ends a token at the last byte of a bpe piece"]


def _bytes(count: int) -> str:
    return "1 byte" if count == 1 else f"{count} bytes"


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


def number(value: float, digits: int) -> str:
    """So many digits after the point; a dash for nan.

    Example:
        >>> number(0.5, 2), number(float("nan"), 2)
        ('0.50', '-')
    """
    return "-" if math.isnan(value) else f"{value:.{digits}f}"

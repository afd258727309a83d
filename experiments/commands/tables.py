"""Tables of ``rltok eval`` and ``rltok boundaries`` for terminals."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from rltok_rl.training.progress import bar

EDGES = {"last_letter": "last letter", "space": "space after", "first_letter": "first letter", "any": "any of these"}
MEASURES = {
    "kappa": "Cohen's kappa: agreement beyond chance",
    "f1": "F1",
    "jaccard": "Jaccard: boundaries of both, of those of either",
    "correlation": "correlation of probabilities",
}


def page(results: dict[str, Any]) -> str:
    """Describe the boundaries of one model.

    Args:
        results: of ``rltok boundaries``.
    """
    ((name, model),) = results["models"].items()
    lengths, entropy = model["bytes_per_token"], model["entropy"]
    quantiles = ", ".join(f"{float(q):.0%} {number(value, 0)}" for q, value in lengths["quantiles"].items())
    edges = {EDGES[edge]: share for edge, share in model["word_edges"].items()}
    shares = {"white space": model["white_space"], **edges, "inside characters": model["split_characters"]}
    lines = [
        f"model              {name}",
        f"text               {results['text']}, {model['bytes']:,} bytes with a decision",
        f"boundaries         {model['boundaries']:,}, {model['rate']:.4f} per byte",
        f"bytes per token    {number(lengths['mean'], 2)} ± {number(lengths['spread'], 2)} (spread); {quantiles}",
        f"policy entropy     {entropy['bits_per_byte']:.4f} bits per byte (at this rate at most {entropy['most']:.4f})",
        "",
        *_shares(shares),
        "",
        "by position in the word, in bytes",
        *_positions(model["word_positions"]),
        "",
        "bytes per token",
        *_histogram(lengths["histogram"]),
        "",
        *_against(model["against"], results["tolerance"]),
    ]
    return _joined(lines)


def matrices(results: dict[str, Any]) -> str:
    """Describe several models: a line each, and a matrix for each measure of agreement.

    Args:
        results: as for :func:`page`, with ``agreement``.
    """
    agreement = results["agreement"]
    names = agreement["names"]
    width = max(map(len, names))
    lines = [
        f"text {results['text']}, {next(iter(results['models'].values()))['bytes']:,} bytes with a decision",
        "",
        f"{'':<{width + 4}}{'rate':>8}{'bytes':>8}{'entropy':>9}{'space share':>13}{'ratio':>8}{'taken':>8}",
    ]
    for place, (name, model) in enumerate(results["models"].items(), 1):
        space, mean = model["white_space"], model["bytes_per_token"]["mean"]
        lines.append(
            f"{place:>2}  {name:<{width}}{model['rate']:>8.4f}{number(mean, 2):>8}"
            f"{model['entropy']['bits_per_byte']:>9.4f}{number(space['share'], 3):>13}{number(space['lift'], 2):>8}"
            f"{number(space['covered'], 3):>8}"
        )
    lines += [
        "bytes: per token; entropy: bits per byte; space: boundaries at white space, ratio to chance, places taken"
    ]
    for key, title in MEASURES.items():
        near = f" with a tolerance of {_bytes(results['tolerance'])}" if key == "f1" and results["tolerance"] else ""
        lines += ["", title + near, " " * (width + 4) + "".join(f"{place:>8}" for place in range(1, len(names) + 1))]
        for place, (name, row) in enumerate(zip(names, agreement[key], strict=True), 1):
            lines.append(f"{place:>2}  {name:<{width}}" + "".join(f"{number(value, 3):>8}" for value in row))
    return _joined([*lines, "", "Diagonal: two draws of one policy, which is how far two equal policies would agree."])


def table(results: dict[str, Any]) -> str:
    """Describe a model on a text.

    Args:
        results: of ``rltok eval``.
    """
    target = "none" if results["target_rate"] is None else f"{results['target_rate']:g}"
    lines = [
        f"text               {results['text']}",
        f"bytes predicted    {results['bytes']:,} {_windows(results)} ({results['bytes_per_second']:,.0f} bytes/s)",
        *_losses(results),
        f"tokens             {results['tokens']:,}, of {results['bytes_per_token']:.2f} bytes on average",
        f"rate               {results['rate']:.4f} boundaries per byte (target {target})",
        *([f"boundaries         {results['segmenter']}"] if results.get("segmenter") else []),
        "",
        *_shares({EDGES[edge]: share for edge, share in results["word_edges"].items()}),
    ]
    return _joined(lines)


def _shares(shares: dict[str, dict[str, float]]) -> list[str]:
    """Shares of the boundaries at some places, by chance, their ratio, and the share of such places taken."""
    lines = [f"{'boundaries at':<18}{'share':>8}{'chance':>9}{'ratio':>8}{'places taken':>15}"]
    return lines + [f"  {name:<18}{_share(share)}{number(share['covered'], 3):>15}" for name, share in shares.items()]


def _share(share: dict[str, float]) -> str:
    return f"{number(share['share'], 3):>6}{share['chance']:>9.3f}{number(share['lift'], 2):>8}"


def _positions(sides: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """Positions from the start and from the end of words, side by side."""
    head = f"{'share':>6}{'chance':>9}{'ratio':>8}"
    lines = [f"  {'':<9}{'from its start':<33}{'from its end':<24}", f"  {'':<9}{head}{'':<10}{head}"]
    for name in sides["start"]:
        lines.append(f"  {name:<9}" + f"{'':<10}".join(_share(sides[side][name]) for side in ("start", "end")))
    return [*lines, "  0 is its first or last byte, -1 the byte before or after it; outside touches no word there"]


def _histogram(counts: list[int]) -> list[str]:
    total, most = sum(counts), max(counts)
    if not total:
        return ["  no token"]
    names = [*map(str, range(1, len(counts))), f"{len(counts)}+"]
    rows = zip(names, counts, strict=True)
    return [f"  {name:<5}{count / total:>7.3f} {bar(count / most, 24)}" for name, count in rows]


def _against(against: dict[str, list[dict[str, float]]], tolerance: int) -> list[str]:
    head = f"{'shift':>6}{'precision':>11}{'recall':>8}{'F1':>8}{'by chance':>11}"
    lines = [f"{'against':<24}{head}"]
    if tolerance:
        lines = [f"against (partners at most {_bytes(tolerance)} apart)", f"{'':<24}{head}"]
    for name, rows in against.items():
        for row in rows:
            precision, recall, f1, chance = (number(row[key], 3) for key in ("precision", "recall", "f1", "chance_f1"))
            lines.append(f"  {name:<22}{row['shift']:>6.0f}{precision:>11}{recall:>8}{f1:>8}{chance:>11}")
    return [*lines, "  shift: bytes that the reference is moved by; -1 ends a token at the last byte of a bpe token"]


def _windows(results: dict[str, Any]) -> str:
    """The bytes that each byte was predicted from."""
    if results["context"] is None:
        return "byte by byte, each after all before it"
    count = results["windows"]
    windows = f"in {count:,} window{'' if count == 1 else 's'} of {results['context']:,}"
    return windows + (f", {results['stride']:,} apart" if results["stride"] != results["context"] else "")


def _losses(results: dict[str, Any]) -> list[str]:
    """Bits per byte, a line for each way to draw boundaries, and the early exit's."""
    many = results["documents"] > 1
    means = f"{'of the corpus':<19}mean of {results['documents']:,} documents"
    lines = [f"{'bits per byte':<19}{means if many else 'of one document, so without a standard error'}"]
    samples, particles = results.get("samples"), results.get("particles")
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
        losses = [with_error(row, kind) for kind in (("corpus", "document") if many else ("corpus",))]
        rate = f"   at {row['rate']:.4f} boundaries per byte" if name == "thresholded" else ""
        lines.append(f"  {name:<17}" + "".join(f"{loss:<19}" for loss in losses).rstrip() + rate)
    if min(row["corpus_bits_per_byte"] for row in rows.values() if row is not None) > 8:
        lines.append("  more than the 8 bits of a uniform guess: the model was trained on other text than this")
    if samples is not None and samples["corpus_spread"] is not None:
        lines.append(f"  {'spread':<17}{samples['corpus_spread']:.4f}, standard deviation between single samples")
    return lines


def with_error(row: dict[str, Any], kind: str) -> str:
    """Format a loss with its standard error, if there is one.

    Example:
        >>> with_error({"corpus_bits_per_byte": 2.0, "corpus_standard_error": None}, "corpus")
        '2.0000'
    """
    loss, error = row[f"{kind}_bits_per_byte"], row[f"{kind}_standard_error"]
    return f"{loss:.4f}" + ("" if error is None else f" ± {error:.4f}")


def number(value: float, digits: int) -> str:
    """Format a number with digits after the point, or a dash for nan.

    Example:
        >>> number(0.5, 2), number(float("nan"), 2)
        ('0.50', '-')
    """
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def _bytes(count: int) -> str:
    return "1 byte" if count == 1 else f"{count} bytes"


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(line.rstrip() for line in lines)

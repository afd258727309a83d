"""Views of a text for ``rltok view``: as models read it, and as runs sampled it during training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rltok_rl.agents.segmenters import Segmenter
from rltok_rl.experiments.runs.folder import RunFolder

from rltok_rl.evaluation.detail import COMPARING, Detail
from rltok_rl.training.snapshots import sample_parts
from rltok_rl.viz.viewer import Segmented, Snapshot, TextView


def short_names(paths: Sequence[str]) -> list[str]:
    """Name models by their folders, with as many parent folders as it takes to tell them apart.

    Example:
        >>> short_names(["runs/a/learned", "runs/b/learned", "runs/b/uniform/"])
        ['a/learned', 'b/learned', 'uniform']
        >>> short_names(["runs/a", "runs/a"])
        ['a', 'a (2)']
    """
    parts = [Path(path).resolve().parts if Path(path).exists() else Path(path).parts for path in paths]
    names, seen = [], Counter[str]()
    for path in parts:
        sizes = range(1, len(path) + 1)
        unique = (size for size in sizes if all(p[-size:] != path[-size:] for p in parts if p != path))
        name = "/".join(path[-next(unique, len(path)) :])
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return names


def read_snapshot(detail: Detail, label: str) -> Snapshot:
    """Show a text as a model read it."""
    numbers = {
        "probability": detail.probabilities,
        "score": detail.scores,
        "early_bits": detail.early_bits,
        "final_bits": detail.final_bits,
        "reward": detail.rewards,
        "return": detail.returns,
        "advantage": detail.advantages,
    }
    arrays = {name: values.numpy() for name, values in numbers.items()}
    boundaries, forced = detail.boundaries.numpy(), detail.forced.numpy()
    return Snapshot(label, boundaries, forced, len(detail.text) - 1, arrays, detail.summary)


def sample_snapshots(run: RunFolder, text: bytes) -> list[Snapshot]:
    """Show the snapshots of a run whose sample begins with a text."""
    snapshots, size, marks = [], len(text), int(bool(run.model.get("begin_of_text")))
    for line in run.snapshots:
        sample, boundaries, probabilities = sample_parts(line)
        if sample[:size] != text:  # the run's text has changed
            continue
        tokens = sum(boundaries[:size]) + marks
        metrics = {"rate": tokens / size, "bytes_per_token": size / max(1, tokens), "tokens": tokens}
        kinds = ("bits_per_byte", "early_bits_per_byte")
        metrics |= {kind: line[f"held_out_{kind}"] for kind in kinds if f"held_out_{kind}" in line}
        rule = all(p in (0.0, 1.0) for p in probabilities[:size])
        numbers = {} if rule else {"probability": [*[float("nan")] * (1 - marks), *probabilities[1 - marks : size]]}
        forced = [not marks] + [False] * (size - 1)
        snapshots.append(Snapshot(time_label(line), boundaries[:size], forced, None, numbers, metrics))
    return snapshots


def time_label(line: dict[str, Any]) -> str:
    """Label a snapshot, a line of ``samples.jsonl``, with its time.

    Example:
        >>> time_label({"update": 250, "bytes": 2_048_000}), time_label({"update": 0, "bytes": 0})
        ('update 250, after 2.05 MB', 'before training')
    """
    megabytes = line["bytes"] / 1e6
    after = f"update {line['update']:,}, after {megabytes:,.{2 if megabytes < 100 else 0}f} MB"
    return after if line["update"] else "before training"


def sample_views(runs: Sequence[tuple[str, RunFolder]]) -> list[TextView]:
    """Show the samples of named runs; runs with the same sample are shown side by side."""
    groups: list[list[tuple[str, RunFolder, bytes]]] = []
    for name, run in runs:
        if run.snapshots:
            text = sample_parts(run.snapshots[-1])[0]
            group = next((group for group in groups if _same_sample(group[0][2], text)), None)
            if group is None:
                groups.append(group := [])
            group.append((name, run, text))
    about = "Bits per byte are those of all held-out text at that time; rates are of the text below."
    views = []
    for group in groups:
        shared = min((text for _, _, text in group), key=len)
        segmenters = [Segmented(name, sample_snapshots(run, shared)) for name, run, _ in group]
        names = "" if len(groups) == 1 else f" of {', '.join(name for name, _, _ in group)}"
        views.append(TextView(f"held-out sample{names}", shared, segmenters, about))
    return views


def _same_sample(sample: bytes, other: bytes) -> bool:
    """Whether samples are equal up to a last byte, which rules leave out."""
    size = min(len(sample), len(other))
    return sample[:size] == other[:size] and max(len(sample), len(other)) <= size + 1


def reading_note(
    segmenter: Segmenter | None, *, context: int, gamma: float, reward: str, baseline: str, draws: int, how: str
) -> str:
    """Describe in two sentences how the metrics of a model were computed."""
    name = "The learned policy" if segmenter is None else type(segmenter).__name__
    if segmenter is None or segmenter.draws_at_random:
        drawn, advantage = f"draws boundaries ({how})", f"baseline: {baseline}"
        advantage += f" over {draws} draws" if baseline in COMPARING else ""
    else:
        ahead = ", an oracle: it reads later bytes" if segmenter.looks_ahead else ""
        drawn, advantage = f"sets boundaries by a rule{ahead}", "no advantage: nothing is decided at random"
    return f"{name} {drawn} in windows of {context:,} bytes. Reward: {reward}; return: gamma {gamma:g}; {advantage}."

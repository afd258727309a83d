"""What there is to look at: models on a text, and the looks that runs took at a text of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rltok_rl.agents.segmenters import Segmenter
from rltok_rl.experiments.runs.folder import RunFolder

from rltok_rl.evaluation.detail import COMPARING, Detail
from rltok_rl.training.snapshots import sample_parts
from rltok_rl.viz.viewer import Segmented, Snapshot, TextView


def short_names(paths: Sequence[str]) -> list[str]:
    """Names that tell models apart: their folders', with as many of the folders above as that takes.

    Args:
        paths: folders, or ids of the hub.

    Example:
        >>> short_names(["runs/a/learned", "runs/b/learned", "runs/b/uniform/"])
        ['a/learned', 'b/learned', 'uniform']
        >>> short_names(["runs/a", "runs/a"])
        ['a', 'a (2)']
    """
    parts = [Path(path).resolve().parts if Path(path).exists() else Path(path).parts for path in paths]
    kept = [1] * len(parts)

    def names() -> list[str]:
        return ["/".join(one[-size:]) for one, size in zip(parts, kept, strict=True)]

    while True:
        now = names()
        alike = [n for n, name in enumerate(now) if now.count(name) > 1 and kept[n] < len(parts[n])]
        alike = [n for n in alike if any(now[n] == now[m] and parts[n] != parts[m] for m in range(len(now)))]
        if not alike:
            break
        for n in alike:
            kept[n] += 1
    seen: dict[str, int] = {}
    told = []
    for name in now:
        seen[name] = seen.get(name, 0) + 1
        told.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return told


def detail_look(detail: Detail, label: str) -> Snapshot:
    """A text as a model read it, as a look.

    Args:
        detail: what :func:`~rltok_rl.evaluation.detail.read_detail` gave.
        label: of the look.
    """
    numbers = {
        "probability": detail.probabilities,
        "score": detail.scores,
        "early_bits": detail.early_bits,
        "final_bits": detail.final_bits,
        "reward": detail.rewards,
        "return": detail.returns,
        "advantage": detail.advantages,
    }
    return Snapshot(
        label=label,
        boundaries=detail.boundaries.numpy(),
        forced=detail.forced.numpy(),
        decided=len(detail.text) - 1,
        numbers={name: values.numpy() for name, values in numbers.items()},
        metrics=detail.summary,
    )


def sample_text(run: RunFolder) -> bytes | None:
    """The text that a run looked at again and again, as it was last; None where it never did.

    Args:
        run: its folder.
    """
    return sample_parts(run.snapshots[-1])[0] if run.snapshots else None


def sample_looks(run: RunFolder, text: bytes) -> list[Snapshot]:
    """What a run saw in its text.

    Args:
        run: its folder.
        text: its :func:`sample_text`, or the beginning of it.
    """
    looks, size = [], len(text)
    for line in run.snapshots:
        read, boundaries, probabilities = sample_parts(line)
        if read[:size] != text:  # the run's text changed under it
            continue
        boundaries, probabilities = boundaries[:size], probabilities[:size]
        tokens = sum(boundaries)
        figures = {"rate": tokens / size, "bytes_per_token": size / tokens, "tokens": tokens}
        for name in ("bits_per_byte", "early_bits_per_byte"):
            if f"held_out_{name}" in line:
                figures[name] = line[f"held_out_{name}"]
        rule = all(p in (0.0, 1.0) for p in probabilities)
        numbers = {} if rule else {"probability": [float("nan"), *probabilities[1:]]}
        forced = [True] + [False] * (size - 1)
        looks.append(Snapshot(look_label(line), boundaries, forced, None, numbers, figures))
    return looks


def look_label(line: dict[str, Any]) -> str:
    """When a look was taken.

    Args:
        line: of ``samples.jsonl``.

    Example:
        >>> look_label({"update": 250, "bytes": 2_048_000})
        'update 250, after 2.05 MB'
        >>> look_label({"update": 0, "bytes": 0})
        'before training'
    """
    if not line["update"]:
        return "before training"
    megabytes = line["bytes"] / 1e6
    return f"update {line['update']:,}, after {megabytes:,.{2 if megabytes < 100 else 0}f} MB"


def sample_views(runs: Sequence[tuple[str, RunFolder]]) -> list[TextView]:
    """The texts that runs looked at; runs that looked at the same one are shown side by side.

    A rule is looked at in one byte less than a policy: what both have is shown.

    Args:
        runs: names and folders.
    """
    groups: list[list[tuple[str, RunFolder, bytes]]] = []
    for name, run in runs:
        text = sample_text(run)
        if text is None:
            continue
        alike = next((group for group in groups if _begin_alike(group[0][2], text)), None)
        if alike is None:
            groups.append([(name, run, text)])
        else:
            alike.append((name, run, text))
    about = "Bits per byte are those of all held-out text at that time; rates are of the text below."
    views = []
    for group in groups:
        shared = min((text for _, _, text in group), key=len)
        segmenters = [Segmented(name, sample_looks(run, shared)) for name, run, _ in group]
        whose = "" if len(groups) == 1 else f" of {', '.join(name for name, _, _ in group)}"
        views.append(TextView(f"held-out sample{whose}", shared, segmenters, about))
    return views


def _begin_alike(one: bytes, other: bytes) -> bool:
    """Whether texts are the same, but for a byte at the end."""
    size = min(len(one), len(other))
    return one[:size] == other[:size] and max(len(one), len(other)) <= size + 1


def how_made(
    segmenter: Segmenter | None, *, context: int, gamma: float, reward: str, baseline: str, draws: int, how: str
) -> str:
    """How the figures of a model came about, in two sentences.

    Args:
        segmenter: who draws; None for the model's own policy.
        context: bytes of a window.
        gamma: discount.
        reward: name of the reward.
        baseline: name of the baseline.
        draws: rows that it compares.
        how: ``greedy`` or the seed.
    """
    at_random = segmenter is None or segmenter.draws_at_random
    who = "The learned policy" if segmenter is None else type(segmenter).__name__
    ahead = ", an oracle: it looks at bytes to come" if segmenter is not None and segmenter.looks_ahead else ""
    drawn = f"draws boundaries ({how})" if at_random else f"sets boundaries by a rule{ahead}"
    judged = f"baseline: {baseline}" if at_random else "no advantage: nothing is decided at random"
    if at_random and baseline in COMPARING:
        judged += f" over {draws} draws"
    return f"{who} {drawn} in windows of {context:,} bytes. Reward: {reward}; return: gamma {gamma:g}; {judged}."


def seeded(seed: int) -> torch.Generator:
    """Random numbers of a reading; those of ``rltok eval`` with the same seed."""
    return torch.Generator().manual_seed(seed)

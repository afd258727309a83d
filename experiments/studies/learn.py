"""Whether boundaries are learned where the best ones are known, and what learns them.

    python -m rltok_rl.experiments.studies.learn out=experiments/results/learn

Every option of :class:`Study` can be given so. One frozen schedule per language (``conf/experiment``) serves all seeds
and systems; what counts is the share of the optimal return on fresh texts after the last update. A result is on disk as
soon as its training is done: the same command goes on after an interruption, and redraws what is complete.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rltok_rl.experiments.reports.labels import SYSTEM_LABELS
from rltok_rl.experiments.reports.markdown import markdown, number
from rltok_rl.experiments.studies.courses import SYSTEMS, course_config, fingerprint, take_course
from rltok_rl.experiments.studies.learn_figure import draw_learning
from rltok_rl.experiments.texts import LANGUAGES

from rltok_rl.training.record import machine
from rltok_rl.utils import keep_memory

GOAL, GOAL_SECONDS = 0.95, 180.0
"""Share of the optimal return that the learned policy has to reach, and CPU seconds that it has for it."""


@dataclass
class Study:
    """Options of the study."""

    languages: list[str] = field(default_factory=lambda: list(LANGUAGES))
    """Experiments to run."""
    systems: list[str] = field(default_factory=lambda: list(SYSTEMS))
    """Keys of ``SYSTEMS``; the learned policy comes first, the others are held to the rate that it came to."""
    seeds: int = 5
    """Seeds of the learned policy: 0, 1, ..."""
    other_seeds: int = 2
    """Seeds of every other system."""
    looks: int = 12
    """Looks at fresh texts on the way."""
    overrides: list[str] = field(default_factory=list)
    """Options of every training, as on its command line."""
    out: str = "runs/learn"
    """Folder of results."""


def read_study(arguments: Sequence[str]) -> Study:
    """Options from a command line.

    Args:
        arguments: ``name=value``.

    Example:
        >>> read_study(["seeds=3", "systems=[learned,random]"]).systems
        ['learned', 'random']
    """
    try:
        merged = OmegaConf.merge(OmegaConf.structured(Study), OmegaConf.from_dotlist(list(arguments)))
    except OmegaConfBaseException as error:
        raise ValueError(f"options are {list(asdict(Study()))}, got {list(arguments)}: {error.msg}") from None
    study = OmegaConf.to_object(merged)
    assert isinstance(study, Study)
    for name, given, allowed in (
        ("languages", study.languages, list(LANGUAGES)),
        ("systems", study.systems, list(SYSTEMS)),
    ):
        if not given or set(given) - set(allowed):
            raise ValueError(f"{name} must be among {allowed}, got {given}")
    if "learned" not in study.systems:
        raise ValueError(f"systems must hold 'learned', whose rate the others are given, got {study.systems}")
    for name, least in (("seeds", 1), ("other_seeds", 1), ("looks", 1)):
        if getattr(study, name) < least:
            raise ValueError(f"{name} must be at least {least}, got {getattr(study, name)}")
    return study


def grid(study: Study) -> list[tuple[str, str, int]]:
    """(language, system, seed) of all trainings, in their order: the learned policies of all languages first."""
    cells = [(language, "learned", seed) for seed in range(study.seeds) for language in study.languages]
    others = [system for system in study.systems if system != "learned"]
    return cells + [(lan, system, s) for s in range(study.other_seeds) for lan in study.languages for system in others]


def select(courses: Sequence[dict[str, Any]], language: str, system: str) -> list[dict[str, Any]]:
    """The trainings of one system on one language."""
    return [one for one in courses if one["language"] == language and one["system"] == system]


def matched_rate(courses: Sequence[dict[str, Any]], language: str) -> float:
    """Boundaries per byte that the learned policies of a language came to, on average."""
    return round(fmean(one["final"]["rate"] for one in select(courses, language, "learned")), 2)


def passed(course: dict[str, Any]) -> bool:
    """Whether a training reached the goal, at its end and in time."""
    return bool(course["final"]["share"] >= GOAL and course["cpu_seconds"] <= GOAL_SECONDS)


def table(courses: Sequence[dict[str, Any]]) -> str:
    """A line per language and system."""
    header = ["language", "system", "seeds", "share of the optimal return", "lowest", "boundaries per byte"]
    header += ["drawn of the best", "in sight", "elsewhere", "CPU seconds"]
    lines = []
    for language in dict.fromkeys(one["language"] for one in courses):
        for system in SYSTEM_LABELS:
            if not (mine := select(courses, language, system)):
                continue
            found = {key: [one["final"][key] for one in mine] for key in mine[0]["final"]}
            means = [number(fmean(found[key])) for key in ("rate", "hits", "in_sight", "elsewhere")]
            seconds = [one["cpu_seconds"] for one in mine]
            lines.append(
                [f"`{language}`", SYSTEM_LABELS[system], str(len(mine)), f"{fmean(found['share']):.3f}"]
                + [f"{min(found['share']):.3f}", *means, f"{fmean(seconds):.0f} (at most {max(seconds):.0f})"]
            )
    return markdown(header, lines)


def verdict(courses: Sequence[dict[str, Any]], language: str) -> str:
    """One line on the learned policies of a language."""
    mine = select(courses, language, "learned")
    return (
        f"{language}: {sum(map(passed, mine))} of {len(mine)} seeds at or above {GOAL} of the optimal return after the "
        f"last update, within {GOAL_SECONDS:.0f} CPU seconds of one thread"
    )


def run(study: Study, command: str) -> list[dict[str, Any]]:
    """Train what is not there yet, write, and return all trainings.

    Args:
        study: options.
        command: how it was started.
    """
    keep_memory()
    torch.set_num_threads(1)  # CPU seconds are those of one thread
    out = Path(study.out)
    out.mkdir(parents=True, exist_ok=True)
    store = out / "learn.json"
    kept = json.loads(store.read_text())["courses"] if store.exists() else []
    cells, start, fresh = grid(study), time.perf_counter(), 0
    courses: list[dict[str, Any]] = []
    for place, (language, system, seed) in enumerate(cells):
        rate = None if system == "learned" else matched_rate(courses, language)
        config = course_config(language, system, seed, rate=rate, overrides=study.overrides)
        name = {"language": language, "system": system, "seed": seed, "options": fingerprint(config)}
        course = next((one for one in kept if all(one[key] == value for key, value in name.items())), None)
        if course is None:
            tell = _teller(
                f"{place + 1}/{len(cells)} {language} {system} seed {seed}", start, fresh, len(cells) - place
            )
            course = {**name, "rate_given": rate, **take_course(config, num_looks=study.looks, after_look=tell)}
            fresh += 1
        courses.append(course)
        others = [one for one in kept if one not in courses]  # of other options: not shown, not lost before the end
        _write(store, study, command, [*courses, *(others if place < len(cells) - 1 else [])])
    lines = [verdict(courses, language) for language in study.languages]
    (out / "learn.md").write_text("\n\n".join([f"`{command}`", machine("cpu"), *lines, table(courses)]) + "\n")
    draw_learning(courses, out / "learn.png", goal=GOAL)
    return courses


def _teller(label: str, start: float, fresh: int, left: int) -> Callable[[dict[str, Any], float], None]:
    """Prints a line per look, with the time that is left for all trainings at the pace so far."""

    def tell(look: dict[str, Any], done: float) -> None:
        remaining = (time.perf_counter() - start) / max(fresh + done, 0.01) * (left - done)
        shown = f"share {look['share']:.3f}, rate {look['rate']:.3f}, {look['cpu_seconds']:.0f} CPU s"
        print(f"  {label}: {done:.0%}, {shown}; about {remaining:.0f} s left", file=sys.stderr, flush=True)

    return tell


def _write(store: Path, study: Study, command: str, courses: Sequence[dict[str, Any]]) -> None:
    """In one piece, so that a killed study leaves the last complete one."""
    options = {key: value for key, value in asdict(study).items() if key != "out"}
    content = {"command": command, "machine": machine("cpu"), "options": options, "courses": list(courses)}
    beside = store.with_suffix(".tmp")
    beside.write_text(json.dumps(content) + "\n")
    os.replace(beside, store)


def main(arguments: list[str] | None = None) -> int:
    """Command line; 0 where every learned policy reached the goal."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        study = read_study(given)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    courses = run(study, " ".join(["python -m rltok_rl.experiments.studies.learn", *given]))
    print((Path(study.out) / "learn.md").read_text())
    print(Path(study.out) / "learn.png")
    return 0 if all(passed(one) for one in courses if one["system"] == "learned") else 1


if __name__ == "__main__":
    sys.exit(main())

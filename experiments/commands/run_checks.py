"""Check the options of runs before anything is imported or written, and remove the folders of refused runs."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import OmegaConf
from rltok_rl.experiments.commands.option_errors import nearest
from rltok_rl.experiments.commands.overrides import CommandLine, model_sizes, read_command_line
from rltok_rl.experiments.commands.schema import CONF
from rltok_rl.experiments.recipes import BY_CHOICE, MODEL, OF_ALL, OF_LEARNED, as_typed, check_recipe, flat, read_whole
from rltok_rl.experiments.run_config import check_out

_SYSTEMS = "compare.systems"
_OF_RULES = ("actor.name", "actor.rate")
"""Their options that matter if an actor draws by a rule."""


def read_run_options(name: str, arguments: Sequence[str]) -> CommandLine:
    """Read and check the arguments of ``rltok NAME``; raise ValueError with one line if something is wrong."""
    line = read_command_line(name, arguments)
    if name == "train":
        check_policy(line.overrides)
        _check_comparison(line)
        for config in line.configs:
            changed = {name.removeprefix(MODEL) for name in config.changes if name.startswith(MODEL)}
            for field in (set(config.model.overrides) | changed) - set(model_sizes()):
                suggestion = nearest(field, [*model_sizes()])
                raise ValueError(f"model.overrides holds fields of UNetConfig, got {field!r}{suggestion}")
        check_recipes(line)
    _check_folders([config.out for config in line.configs])
    return line


def check_policy(overrides: Sequence[Override]) -> None:
    """Refuse options of a learned policy if a rule or a segmenter draws the boundaries instead.

    Options that an experiment sets for its policy are ignored then; the same options on the command line are an error.
    """
    by_name = {override.key_or_group: override for override in overrides if not override.is_delete()}
    by_segmenter = _drawing(by_name, "segmenter")
    drawing = by_segmenter or _drawing(by_name, "actor")
    if drawing is None:
        return
    heeded = OF_ALL if by_segmenter else OF_ALL + _OF_RULES
    for name, override in by_name.items():
        group, dot, _ = name.partition(".")
        of_actor = group == "actor" and (drawing.startswith("actor") or override.value() == "learned")
        if group not in OF_LEARNED or name in heeded or (of_actor and name in ("actor", "actor.name")):
            continue
        path = CONF / group / f"{override.value()}.yaml"
        chosen: Any = OmegaConf.load(path) if not dot and path.exists() else {}
        if not any(f"{group}.{key}" in heeded for key in chosen):
            text = str(override.input_line).partition("=")[2]
            raise ValueError(f"{name}={text} belongs to a policy that is learned, got {drawing}")


def _check_comparison(line: CommandLine) -> None:
    """Refuse options of a comparison on the command line of single runs."""
    if not line.configs or any(OmegaConf.select(config, _SYSTEMS) for config in line.configs):
        return  # --cfg and --info run nothing
    for override in line.overrides:
        name = str(override.key_or_group)
        if name.startswith("compare.") and name != _SYSTEMS and not override.is_delete():
            raise ValueError(f"{override.input_line} belongs to a comparison, got no compare.systems")


def check_recipes(line: CommandLine) -> None:
    """Refuse options that contradict a recipe, and choices that a recipe would undo."""
    by_group: dict[str, list[Override]] = {}
    for override in line.overrides:
        by_group.setdefault(override.key_or_group, []).append(override)
    ablations = [name for override in by_group.get("ablation", []) for name in _values(override)]
    for config in line.configs:
        check_recipe(config)
        _check_ablation(config, ablations)
        for group in BY_CHOICE if config.recipe else ():
            for override in by_group.get(group, []):
                for choice in _values(override):
                    _check_choice(config, group, choice)


def _check_ablation(config: Any, ablations: Sequence[str]) -> None:
    """Refuse options that undo an ablation; in a sweep, all of them."""
    undone = []
    for ablation in ablations:
        options, _ = read_whole(CONF / "ablation" / f"{ablation}.yaml")
        del options["changes"]
        pairs = [(option, value, OmegaConf.select(config, option)) for option, value in flat(options).items()]
        undone += [(ablation, *pair) for pair in pairs if pair[1] not in ({}, pair[2])][:1]
    if len(undone) == len(ablations) > 0:
        ablation, option, value, other = undone[0]
        raise ValueError(f"{option}={as_typed(other)} undoes ablation={ablation}, which sets {as_typed(value)}")


def _values(override: Override) -> list[str]:
    """The values of an override, several in a sweep."""
    if not override.is_sweep_override():
        return [str(override.value())]
    return [text.strip() for text in override.sweep_string_iterator()]


def _check_choice(config: Any, group: str, choice: str) -> None:
    """Refuse the choice of a group if the recipe has set one of its options to another value."""
    path = CONF / group / f"{choice}.yaml"
    options: Any = OmegaConf.load(path) if path.exists() else {}
    for option, value in options.items():
        set_to = config[group].get(option, value)
        if option not in ("defaults", *BY_CHOICE[group]) and set_to != value:
            name = f"{group}.{option}"
            raise ValueError(
                f"{group}={choice} sets {name}={value}, which recipe={config.recipe} sets to {set_to}; to change it on "
                f"purpose, add {name}={value} changes=[{','.join([*config.changes, name])}]"
            )


def _drawing(by_name: dict[str, Override], group: str) -> str | None:
    """The override that replaces the learned policy; None if there is none, or in a sweep."""
    name = next((name for name in reversed(by_name) if name in (group, f"{group}.name")), None)
    if name is None or by_name[name].is_sweep_override():
        return None
    value = str(by_name[name].value())
    by_policy = value.split("-")[0] == "learned" or value == "warm_start" or "$" in value
    return None if by_policy else f"{name}={value}"


def _check_folders(folders: Sequence[str]) -> None:
    """Refuse folders that are empty names, shared by several runs, or cannot be written."""
    for out, count in Counter(folders).items():
        check_out(out)
        if count > 1:
            raise ValueError(
                f"out must name another folder for each run of --multirun, got {out} for {count} runs; "
                f"write 'out={out}-${{hydra:job.num}}'"
            )
        existing = next(path for path in (Path(out), *Path(out).absolute().parents) if path.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            reason = "cannot be written" if existing.is_dir() else "is not a folder"
            raise ValueError(f"out must be a folder that can be written, got {out!r}: {existing} {reason}")


def missing_folders(folder: Path) -> list[Path]:
    """List the folder and its parents that do not exist, the deepest first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def remove_empty(folders: Sequence[Path]) -> None:
    """Remove folders from :func:`missing_folders` that a refused run has made, unless they hold files."""
    from rltok_rl.data.disk import CLAIM  # imports torch

    for folder in folders:
        with contextlib.suppress(OSError):
            if [path.name for path in folder.iterdir()] == [CLAIM]:
                (folder / CLAIM).unlink()
            folder.rmdir()


def remove_sweep() -> None:
    """Remove what Hydra has written for a sweep whose first run was refused."""
    hydra = HydraConfig.get() if HydraConfig.initialized() else None
    if hydra is None or hydra.mode != RunMode.MULTIRUN or hydra.job.num != 0:
        return
    sweep = Path(hydra.sweep.dir)
    parents = [] if sweep.is_absolute() else list(sweep.parents)[:-1]
    (sweep / "multirun.yaml").unlink(missing_ok=True)
    remove_empty([sweep / hydra.sweep.subdir, sweep, *parents])

"""The page of all options of a training, from the schemas that check them and the files that set them.

``python docs/rltok_docs/options.py`` writes docs/reference/configuration.md.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from omegaconf import OmegaConf
from rltok_rl.agents.segmenters import SEGMENTERS
from rltok_rl.experiments import run_config, texts
from rltok_rl.experiments.commands.schema import CONF, REQUIRED, Option, choices, comment, schemas
from rltok_rl.experiments.compare.systems import system_names
from rltok_rl.experiments.recipes import as_typed
from rltok_rl.experiments.runs import build
from rltok_rl.experiments.runs.segmenters import TRAINED_WITH, TokenizerTraining
from torchrl.objectives.utils import get_value_estimator_entry

from rltok_rl.data import CORPORA
from rltok_rl.functional.baselines import BASELINES, group_mean
from rltok_rl.functional.rate import RATE_CONTROLS
from rltok_rl.functional.rewards import RELATIVE, REWARDS
from rltok_rl.models import PRESETS, UNetConfig
from rltok_rl.objectives import rate_loss, reinforce
from rltok_rl.training import options, sharding, snapshots

PAGE = Path(__file__).resolve().parent.parent / "reference" / "configuration.md"

ALLOWED: dict[str, list[str]] = {
    "model.preset": [*PRESETS],
    "data.source": [*texts.BUILT_IN, *texts.LANGUAGES, *CORPORA, "PATH"],
    "data.order": [*texts.ORDERS],
    "data.short_documents": ["error", "whole"],
    "actor.name": [*build.ACTORS],
    "segmenter.name": [*SEGMENTERS],
    "estimator.name": [*build.ESTIMATORS],
    "estimator.reward": [*REWARDS, RELATIVE],
    "baseline.name": [*build.BASELINE_NAMES],
    "rate.control": [*RATE_CONTROLS, *rate_loss.CONTROLLERS],
    "loss.objective": [*build.OBJECTIVES],
    "loss.average": [*get_args(get_type_hints(reinforce.BoundaryReinforceLoss.__init__)["average"])],
    "compute.precision": [*options.PRECISIONS],
    "compute.strategy": [*sharding.STRATEGIES],
    "logger.name": choices("logger"),
    "snapshots.spacing": [*snapshots.SPACINGS],
    "compare.systems": system_names(),
}
"""Words that an option takes, from where they are checked."""

PLAIN = {"whole": "int", "number": "float", "switch": "bool"}
"""Kinds of arguments that :func:`rltok_rl.functional.takes.takes` declares, as types."""

HEAD = """\
# Options of a training

<!-- Written by docs/rltok_docs/options.py from experiments/run_config.py and experiments/conf; edit those. -->

All options of `rltok train`, by group, with their defaults, ranges, units and the words that they take. A value outside
its range is refused before anything is read or written. `GROUP=CHOICE` sets a whole group (`rate=hinge`),
`GROUP.OPTION=VALUE` one option (`rate.coefficient=0.03`); `null` is none. Omitted groups default to
`{defaults}`. "The choice has it" means that each file of the group sets the value. [Training](../training.md) describes
the purpose of each group.
"""


def page() -> str:
    """The whole page."""
    schemas = {**run_config.GROUPS, "snapshots": run_config.SnapshotConfig, "compare": run_config.CompareConfig}
    parts = [HEAD.format(defaults=" ".join(_defaults()))]
    for group, schema in schemas.items():
        parts.append(f"## `{group}`\n\n{_doc(schema)}\n\n{_table(group, schema)}")
        if group in run_config.GROUPS:
            parts.append(_choices(group))
    types = _kinds(run_config.TrainConfig)
    loose = [field for field in _options(run_config.TrainConfig) if not is_dataclass(types[field.name])]
    parts.append("## Of no group\n\n" + _rows("", loose))
    for group, what in run_config.WHOLE.items():
        parts.append(f"## `{group}`\n\n{what} See [recipes](../recipes.md).\n\n" + _choices(group))
    parts.append(
        "## `model.overrides`\n\nFields of `UNetConfig`, any of which can be replaced: `model.overrides.window=8`. "
        "More on some of them in [options of the model](../model-options.md) and [two levels](../two-levels.md).\n\n"
        + _rows("", list(_options(UNetConfig)))
    )
    parts.append(
        "## Options by name\n\nWhat `segmenter.options`, `estimator.options`, `baseline.options` and `rate.options` "
        "may hold, by the segmenter, estimator or baseline (`segmenter=learned` takes `num_lags` of the model). Others "
        "are refused, and so are values outside the range and numbers that are not finite.\n\n" + _named_options()
    )
    return "\n".join(parts)


def _table(group: str, schema: Any) -> str:
    return _rows(f"{group}.", list(_options(schema)))


def _rows(prefix: str, found: list[Option]) -> str:
    text = "| option | type | default | what it does |\n|---|---|---|---|\n"
    for one in found:
        said = (
            re.sub(r"\.\s+# (.*)$", r" (\1).", " ".join(one.description.split())).replace("``", "`").replace("|", "\\|")
        )
        words = _words(prefix + one.name, one.kind, said)
        kind = one.kind.replace("|", "\\|")
        limits = re.sub(r"^(\S+ \S+?)(,.*)?$", r" in `\1`\2", one.range)
        text += f"| `{prefix}{one.name}` | `{kind}`{limits} | {_default(one)} | {(said + words).strip()} |\n"
    return text


def _named_options() -> str:
    """The options of segmenters, estimators, baselines and rate controls, with their ranges."""
    text = "| of | option | type | default |\n|---|---|---|---|\n"
    for name, make in SEGMENTERS.items():
        taken = {"bpe": TRAINED_WITH, "unigram": TRAINED_WITH[:3]}.get(name, ())
        training = [(option, TokenizerTraining.__dataclass_fields__[option]) for option in taken]
        for option, field in training:
            kinds = [_kind_word(kind) for kind in get_args(get_type_hints(TokenizerTraining)[option])]
            kinds[0] = _with_range(kinds[0], field.metadata.get("range"))
            text += _named_row(f"segmenter={name}", option, ", or ".join(kinds), None)
        function: Any = make.func if isinstance(make, partial) else make
        text += _signature_rows(f"segmenter={name}", function, ("model", "tokenizer"), ())
    for name, names in build.ESTIMATORS.items():
        text += _signature_rows(f"estimator.name={name}", get_value_estimator_entry(name).cls, (), names)
    for name, function in {"group_mean": group_mean, **BASELINES}.items():
        for argument in getattr(function, "arguments", ()):
            default = inspect.signature(function).parameters[argument.name].default
            if argument.kinds[0].name in PLAIN:
                kind = _with_range(f"`{PLAIN[argument.kinds[0].name]}`", argument.kinds[0].range)
                text += _named_row(f"baseline={name}", argument.name, kind, default)
    text += _named_row("baseline=running_mean", "decay", _with_range("`float`", "[0, 1]"), 0.9)
    return text + _signature_rows("rate", rate_loss.RateLoss, (), build.RATE_OPTIONS)


def _signature_rows(of: str, function: Any, without: tuple[str, ...], names: tuple[str, ...]) -> str:
    """The rows of a function's parameters, or of those with the given names, of a class also those of its bases."""
    makers = [base.__init__ for base in function.__mro__] if names and isinstance(function, type) else [function]
    rows: dict[str, str] = {}
    for maker in makers:
        inner = maker.__init__ if isinstance(maker, type) else maker
        hints = get_type_hints(inner, include_extras=True)
        for name, parameter in inspect.signature(maker).parameters.items():
            if name not in rows and ((name in names) if names or not without else name not in without):
                kinds = get_args(hints[name]) if get_origin(hints[name]) in (Union, UnionType) else (hints[name],)
                rows[name] = _named_row(of, name, ", or ".join(map(_kind_word, kinds)), parameter.default)
    return "".join(rows.values())


def _kind_word(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        return _with_range(f"`{kind.__origin__.__name__}`", kind.__metadata__[0])
    if get_origin(kind) is Literal:
        return ", ".join(f"`{word}`" for word in get_args(kind))
    return "null" if kind is NoneType else f"`{str(getattr(kind, '__name__', kind)).replace('typing.', '')}`"


def _with_range(kind: str, range_: str | None) -> str:
    return f"{kind} in `{range_}`" if range_ else kind


def _named_row(of: str, option: str, kind: str, default: Any) -> str:
    missing = default is inspect.Parameter.empty
    return f"| `{of}` | `{option}` | {kind} | {'' if missing else f'`{as_typed(default)}`'} |\n"


def _words(name: str, kind: str, said: str) -> str:
    """The words that an option takes, unless it has named them all."""
    allowed = [f"`{word}`" for word in ALLOWED.get(name, [])]
    if all(word in said for word in allowed):
        return ""
    return f" {'Any' if kind.startswith('list') else 'One'} of {', '.join(allowed)}."


def _options(schema: Any) -> tuple[Option, ...]:
    """The fields of a dataclass."""
    return schemas(Path(inspect.getfile(schema)))[schema.__name__].options


def _default(option: Option) -> str:
    plain = {REQUIRED: "the choice has it", "{}": "none", "[]": "none"}
    return plain.get(option.default, f"`{option.default}`")


def _choices(group: str) -> str:
    text = f"| `{group}=` | what | sets |\n|---|---|---|\n"
    for choice in choices(group):
        path = CONF / group / f"{choice}.yaml"
        text += f"| `{choice}` | {_comment(path)} | {_sets(path)} |\n"
    return text


def _sets(path: Path) -> str:
    """What a file sets, as it would be typed."""
    held: Any = OmegaConf.to_container(OmegaConf.load(path))
    words = [f"`{word}`" for word in _based_on(held.pop("defaults", []))]
    held.pop("hydra", None)
    return ", ".join([*words, *(f"`{name}={value}`" for name, value in _flat(held))]) or "nothing"


def _based_on(defaults: list[Any]) -> Iterator[str]:
    for one in defaults:
        if isinstance(one, dict):
            yield from (
                f"{key.removeprefix('override ').lstrip('/').split('@')[0]}={value}" for key, value in one.items()
            )
        elif one not in ("schema", "_self_"):
            yield f"experiment={one}"


def _flat(held: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in held.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _word(value)


def _word(value: Any) -> str:
    """A value as it is typed, large numbers in groups of digits."""
    return f"{value:_}" if type(value) is int and value > 9999 else as_typed(value)


def _comment(path: Path) -> str:
    return comment(path).replace("|", "\\|")


def _defaults() -> Iterator[str]:
    held: Any = OmegaConf.to_container(OmegaConf.load(CONF / "train.yaml"))
    for one in held["defaults"]:
        if isinstance(one, dict):
            yield from (f"{key}={value}" for key, value in one.items() if key in run_config.GROUPS and value)


def _doc(schema: Any) -> str:
    return inspect.cleandoc(schema.__doc__ or "")


def _kinds(schema: Any) -> dict[str, Any]:
    return get_type_hints(schema)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE, file=sys.stderr)

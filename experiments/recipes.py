"""Recipes: a whole method in one word, such as ``recipe=paper``, and what a run changes of it.

A recipe is a file of ``conf/recipe``. It sets every option that says how boundaries are learned, with the source of
each value in a comment, and leaves text, sizes and budget to the other groups. A run may not differ from its recipe,
except in the options that ``changes`` names.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf
from rltok_rl.experiments.run_config import GROUPS, TrainConfig

from rltok_rl.utils import did_you_mean

FOLDER = Path(__file__).resolve().parent / "conf"
RECIPES = tuple(sorted(path.stem for path in (FOLDER / "recipe").glob("*.yaml")))
"""Names of the recipes."""
BY_CHOICE = {
    "estimator": ("name", "options"),
    "baseline": ("name", "rows_per_text", "options"),
    "loss": ("objective", "policy_epochs"),
    "rate": ("control", "options"),
}
"""Options that a recipe sets by choosing a file of their group."""
SIZES = (
    *("width", "num_heads", "num_encoder_layers", "num_token_layers", "num_decoder_layers", "window", "target_rate"),
    *("rope_base", "byte_mlp_ratio", "token_mlp_ratio", "token_width", "token_heads", "second_width", "second_heads"),
)
"""Fields of ``UNetConfig`` that no recipe sets. Any other field that a recipe does not set has its default."""
OF_LEARNED = ("actor", "estimator", "baseline", "rate", "loss")
"""Groups about a policy that learns by rewards."""
_OF_POLICY = (
    *(f"{group}." for group in OF_LEARNED),
    *("model.overrides.boundary_", "model.overrides.num_lags"),
)
OF_ALL = ("loss.language_model", "loss.early_exit")
"""Options of the loss that also matter without a policy that learns by rewards."""
MODEL = "model.overrides."
_SHOWN = 4  # differences in one line


class Setting(NamedTuple):
    """The value of an option in a recipe, and where it is from."""

    value: Any
    source: str


DEFAULT = Setting("its default", "no recipe sets it")
"""Of fields of the model that no recipe sets, apart from sizes."""


class Difference(NamedTuple):
    """An option of a run that is not as in a recipe."""

    option: str
    value: Any
    setting: Setting

    def __str__(self) -> str:
        """The difference in words."""
        return f"{self.option}={as_typed(self.value)} instead of {as_typed(self.setting.value)}"


@cache
def recipe_settings(name: str) -> dict[str, Setting]:
    """Return every option that a recipe sets.

    Example:
        >>> recipe_settings("paper")["estimator.gamma"]
        Setting(value=0.99, source='Section 2.4')
    """
    if name not in RECIPES:
        raise ValueError(f"recipe must be one of {[*RECIPES]}, got {name!r}")
    path = FOLDER / "recipe" / f"{name}.yaml"
    sources = _sources(path.read_text(encoding="utf-8"))
    recipe, chosen = read_whole(path)
    del recipe["recipe"]
    values: Any = OmegaConf.create({group: OmegaConf.structured(schema) for group, schema in GROUPS.items()})
    values.merge_with(recipe)
    by_choice = {f"{group}.{option}": sources[group] for group in chosen for option in BY_CHOICE[group]}
    named = by_choice | {option: source for option, source in sources.items() if "." in option}
    return {option: Setting(_read(values, option), source) for option, source in named.items()}


def read_whole(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the options that a file of a recipe or an ablation sets, and the groups of which it chooses a file."""
    file: Any = OmegaConf.load(path)
    chosen = {str(key).split("/")[-1]: name for entry in file.pop("defaults", []) for key, name in entry.items()}
    choices: Any = OmegaConf.create(
        {group: OmegaConf.load(FOLDER / group / f"{n}.yaml") for group, n in chosen.items()}
    )
    for choice in choices.values():
        del choice["defaults"]
    options: Any = OmegaConf.to_container(OmegaConf.merge(choices, file))
    return options, list(chosen)


def read_choice(group: str, name: str) -> dict[str, Any]:
    """Return the options that the file of a choice sets, such as ``third-letter`` of ``segmenter``."""
    options: Any = OmegaConf.to_container(OmegaConf.load(FOLDER / group / f"{name}.yaml"))
    options.pop("defaults", None)
    return dict(options)


def _sources(text: str) -> dict[str, str]:
    """Return the comment behind every option and every choice of a group."""
    sources, parents = {}, [""]
    for line in text.splitlines():
        match = re.fullmatch(r"( *)(- override /)?(\w+):(?: [^#]*\S)?(?:  # (.*))?", line)
        if match is None or match[3] in ("defaults", "recipe"):
            continue
        del parents[len(match[1]) // 2 + 1 :]
        name = match[3] if match[2] else parents[-1] + match[3]
        if match[4]:
            sources[name] = match[4]
        parents.append(f"{name}.")
    return sources


def differences(config: Any, name: str, model: Mapping[str, Any] | None = None) -> list[Difference]:
    """List the options in which a run differs from a recipe; ``model`` has the fields of the run's ``UNetConfig``.

    Without ``model``, fields that the run does not set count as equal. Options of a policy that learns by rewards count
    only if the run has one.
    """
    learned = config.segmenter.name == config.actor.name == "learned"
    fields = {**config.segmenter.model, **config.model.overrides}
    fields |= config.segmenter.options if config.segmenter.name == "learned" else {}
    settings, differing = recipe_settings(name), []
    for option, setting in settings.items():
        if not learned and option.startswith(_OF_POLICY) and option not in OF_ALL:
            continue
        field = option.removeprefix(MODEL)
        value = _read(config, option) if field == option else fields.get(field, (model or {}).get(field, setting.value))
        if value != setting.value:
            differing.append(Difference(option, value, setting))
    if learned:
        others = [field for field in fields if field not in SIZES and MODEL + field not in settings]
        differing += [Difference(MODEL + field, fields[field], DEFAULT) for field in others]
    return differing


def follow_policy(config: TrainConfig, name: str, *, keep: Sequence[str] = ()) -> TrainConfig:
    """Return a run's options with the policy of a recipe: its input, estimator, baseline, loss and rate.

    The optimizer, soft caps and biases of next-byte predictions stay those of the run, and so does every option that
    ``keep`` names, whole, in part, or by its group.
    """
    config = copy.deepcopy(config)
    config.recipe, config.changes = None, []
    config.actor.name, config.actor.rate = "learned", None
    for option, setting in recipe_settings(name).items():
        followed = option.startswith((*_OF_POLICY, f"{MODEL}encoder_norm"))
        if followed and not any(covers(kept, option) or covers(option, kept) for kept in keep):
            group, _, field = option.rpartition(".")
            if group == "model.overrides":
                config.model.overrides[field] = setting.value
            else:
                setattr(attrgetter(group)(config), field, setting.value)
    return config


def check_recipe(config: Any) -> None:
    """Refuse options that contradict the run's recipe without being named in ``changes``."""
    settings, changes = recipe_settings(config.recipe or RECIPES[0]), list(config.changes)
    for change in changes:
        if not change.startswith(MODEL) and not any(covers(change, option) for option in settings):
            groups = list(dict.fromkeys(option.rpartition(".")[0] for option in settings))
            near = did_you_mean(change, [*settings, *groups])
            raise ValueError(f"changes must name options of a recipe, or groups of {groups}, got {change!r}{near}")
    if config.recipe is None:
        return
    for option, value, setting in differences(config, config.recipe):
        if not any(covers(change, option) for change in changes):
            raise ValueError(
                f"{option}={as_typed(value)} contradicts recipe={config.recipe}, which has {as_typed(setting.value)} "
                f"({setting.source}); to change it on purpose, add changes=[{','.join([*changes, option])}]"
            )


def describe_recipe(config: Any, model: Mapping[str, Any]) -> str:
    """Say in a line which recipe a run follows, and where it differs; ``model`` as in :func:`differences`."""
    if config.recipe is not None:
        return _described(f"recipe: {config.recipe}", differences(config, config.recipe, model))
    by_name = {name: differences(config, name, model) for name in ("ours", *RECIPES)}
    name = min(by_name, key=lambda name: len(by_name[name]))
    return _described(
        f"no recipe; closest: {name}" if by_name[name] else f"no recipe, but equal to {name}", by_name[name]
    )


def _described(start: str, differing: list[Difference]) -> str:
    if not differing:
        return start
    more = f", and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
    return f"{start}, except {', '.join(map(str, differing[:_SHOWN]))}{more}"


def covers(change: str, option: str) -> bool:
    """Whether a change names an option or its group."""
    return option == change or option.startswith(f"{change}.")


def _read(config: Any, option: str) -> Any:
    """The value of an option in a ``TrainConfig`` or in what Hydra composes."""
    value = attrgetter(option)(config)
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def flat(options: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested options to dotted names.

    Example:
        >>> flat({"seed": 1, "optim": {"lr": 0.1}})
        {'seed': 1, 'optim.lr': 0.1}
    """
    flattened: dict[str, Any] = {}
    for key, value in options.items():
        nested = isinstance(value, dict) and value
        flattened |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return flattened


def as_typed(value: Any) -> str:
    """Return a value as it is typed on the command line.

    Example:
        >>> as_typed({"ends": "window", "rates": [0.1, None]})
        '{ends: window, rates: [0.1,null]}'
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {as_typed(element)}" for name, element in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(as_typed, value))}]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)

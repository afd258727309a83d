"""Arguments and reset options of the gymnasium environments."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import logger
from gymnasium.vector import AutoresetMode
from rltok_rl.envs.byte_boundary import ByteBoundaryEnv

from rltok_rl.data import LengthFilter, TextSource, WindowSource, local_prose, packaged_novel, read_documents
from rltok_rl.data.source import Short
from rltok_rl.data.windows import Documents
from rltok_rl.models import PRESETS, UNet, UNetConfig, preset
from rltok_rl.models.pretrained import PACKAGED, SOURCES
from rltok_rl.utils import did_you_mean

Model = str | Path | UNetConfig | UNet
Texts = Documents | Path | Sequence[str | bytes | Path] | WindowSource | None

UNTRAINED = tuple(name for name in PRESETS if name not in PACKAGED)
"""Names of untrained presets. A preset that has a trained model in the package means that model."""
OPTIONS = (
    *(
        option.name
        for option in inspect.signature(ByteBoundaryEnv.__init__).parameters.values()
        if option.kind is option.KEYWORD_ONLY and option.name not in ("num_steps", "batch_size")
    ),
    "overrides",
    "short_documents",
)
"""Options that every gymnasium environment takes in addition to its named arguments."""


def build_env(
    model: Model,
    text: Texts,
    batch_size: tuple[int, ...],
    *,
    overrides: Mapping[str, Any] | None = None,
    short_documents: Short | None = None,
    **options: Any,
) -> ByteBoundaryEnv:
    """Build the TorchRL environment behind a gymnasium environment."""
    source = read_source(text, short_documents)
    return ByteBoundaryEnv(read_model(model, overrides), source, batch_size=batch_size, **options)


def is_preset(model: Model) -> bool:
    """Return whether a model is named by an untrained preset."""
    return isinstance(model, str) and model in UNTRAINED


def read_model(model: Model, overrides: Mapping[str, Any] | None = None) -> UNet:
    """Load or build the U-Net that ``model`` means; ``overrides`` replace fields of an untrained preset."""
    shown = repr(str(model)) if isinstance(model, (str, Path)) else f"a {type(model).__name__}"
    if overrides and not is_preset(model):
        hint = f"; preset({shown}, ...) is an untrained one" if isinstance(model, str) and model in PACKAGED else ""
        raise ValueError(f"overrides are for an untrained preset by name, got {dict(overrides)} and {shown}{hint}")
    if isinstance(model, UNet):
        return model
    if is_preset(model):
        if any(Path(str(model), inside, "config.json").is_file() for inside in ("", "model")):
            logger.warn(f"model={model!r} is the untrained preset; the folder of that name is './{model}'")
        model = preset(str(model), **(overrides or {}))
    if isinstance(model, UNetConfig):
        with torch.random.fork_rng(devices=[]):  # the same weights every time
            torch.manual_seed(0)
            return UNet(model).eval()
    if not isinstance(model, (str, Path)):
        raise TypeError(f"model must be a name, a folder, a UNetConfig or a UNet, got {type(model).__name__}")
    if len(Path(model).parts) < 2 and str(model) not in PACKAGED and not Path(model).exists():
        raise ValueError(
            f"model must be {SOURCES}, an untrained preset of {[*UNTRAINED]}, a UNetConfig or a UNet, got {shown}"
            f"{did_you_mean(str(model), [*UNTRAINED, *PACKAGED])}"
        )
    try:
        return UNet.from_pretrained(model)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"model={shown} cannot be read: {error}") from None


def read_source(text: Texts, short_documents: Short | None = None) -> WindowSource:
    """Build the source of windows that ``text`` means; None is the prose that comes with Python, "novel" ours."""
    if isinstance(text, WindowSource):
        if short_documents is not None:
            raise ValueError(
                f"short_documents belongs to documents, got {short_documents!r} and a {type(text).__name__}"
            )
        return text
    refuse_names(text)
    if text is not None and not isinstance(text, (Path, Iterable)):
        raise TypeError(
            f"text must be a text, a Path, several of these, or a source of windows, got {type(text).__name__}"
        )
    if text is None or text == "novel":
        text = local_prose() if text is None else packaged_novel()
    documents: list[Any] = [text] if isinstance(text, (str, bytes, Path)) else list(text)
    if any(isinstance(item, Path) for item in documents):
        parts = (read_documents(item) if isinstance(item, Path) else [item] for item in documents)
        kept = LengthFilter((document for part in parts for document in part), min_bytes=2, max_bytes=None)
        documents = list(kept)
        if kept.report.dropped:
            logger.warn(f"text: {kept.report}")
    return TextSource(documents, short_documents=short_documents or "error")


def refuse_names(text: Any) -> None:
    """Reject strings that all name existing files or folders, which were meant to be read.

    Example:
        >>> refuse_names("/")
        Traceback (most recent call last):
        ValueError: text is the text itself, got '/', which is a file or a folder: Path('/') reads it (b'/' is the text)
    """
    items = [text] if isinstance(text, str) else text
    if not isinstance(items, (list, tuple)) or not items:
        return
    if all(isinstance(item, str) and os.path.exists(item) for item in items):
        name = items[0]
        raise ValueError(
            f"text is the text itself, got {name!r}, which is a file or a folder: Path({name!r}) reads it "
            f"({os.fsencode(name)!r} is the text)"
        )


def check_options(env: object, options: Mapping[str, Any]) -> None:
    """Reject options that neither the environment's arguments nor :data:`OPTIONS` have."""
    allowed = [*inspect.signature(type(env)).parameters, *OPTIONS]
    allowed.remove("options")
    for name in options:
        if name not in allowed:
            hint = did_you_mean(name, allowed, {"max_episode_steps": "num_steps"})
            # In Python's own words, which torchrl's GymEnv waits for: it tries frameskip= on every environment.
            raise TypeError(f"got an unexpected keyword argument {name!r}; allowed are {allowed}{hint}")


def check_reset_options(options: dict[str, Any] | None, *names: str) -> dict[str, Any]:
    """Reject unknown options of ``reset``, and texts that are names of files."""
    options = dict(options or {})
    unknown = sorted(set(options) - set(names))
    if unknown:
        raise ValueError(f"options may hold {list(names)}, got {unknown}")
    refuse_names(options.get("text"))
    return options


def check_autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """Return a mode of gymnasium's vector environments, by name or as it is."""
    modes = [known.value for known in AutoresetMode]
    if not isinstance(mode, AutoresetMode) and mode not in modes:
        raise ValueError(f"autoreset_mode must be one of {modes}, got {mode!r}")
    return AutoresetMode(mode)


def last_seen(over: np.ndarray, observation: dict[str, np.ndarray], info: dict[str, Any]) -> dict[str, Any]:
    """Return what ``SAME_STEP`` adds to the information: the last observations of texts that are over [n]."""
    rows = np.empty(len(over), dtype=object)  # the form of gymnasium's final observations
    for row in over.nonzero()[0]:
        rows[row] = {name: values[row] for name, values in observation.items()}
    return {"final_obs": rows, "final_info": info, "_final_obs": over, "_final_info": over}


def check_actions(actions: Any, num_rows: int, words: str = "actions must be", hint: str = "") -> np.ndarray:
    """Return actions as an array; require 0 or 1 for each of so many rows. ``words`` and ``hint`` frame the error."""
    array = np.asarray(actions)
    if array.shape != (num_rows,) or ((array != 0) & (array != 1)).any():
        raise ValueError(f"{words} 0 or 1, of shape [{num_rows}], got {actions!r}{hint}")
    return array

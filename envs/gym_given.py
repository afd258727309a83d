"""What a gymnasium user gives: a model, documents, options."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from gymnasium import logger
from rltok_rl.envs.byte_boundary import ByteBoundaryEnv

from rltok_rl.data import LengthFilter, TextSource, WindowSource, local_prose, read_documents
from rltok_rl.data.source import Documents, Short
from rltok_rl.models import PRESETS, UNet, UNetConfig, preset
from rltok_rl.models.pretrained import PACKAGED, SOURCES
from rltok_rl.utils import did_you_mean

Model = str | Path | UNetConfig | UNet
Texts = Documents | Path | Sequence[str | bytes | Path] | WindowSource | None

UNTRAINED = tuple(name for name in PRESETS if name not in PACKAGED)
"""Names that mean a preset. Those of trained models that come with the package mean these, here as elsewhere."""

_ENV = inspect.signature(ByteBoundaryEnv.__init__).parameters.values()
OPTIONS = (
    *(one.name for one in _ENV if one.kind is one.KEYWORD_ONLY and one.name not in ("num_steps", "batch_size")),
    "overrides",
    "short_documents",
)
"""What every environment takes beside the arguments that it names itself."""
_MEANT = {"max_episode_steps": "num_steps"}  # what gymnasium.make calls it


def build_env(
    model: Model,
    text: Texts,
    batch_size: tuple[int, ...],
    *,
    overrides: Mapping[str, Any] | None = None,
    short_documents: Short | None = None,
    **options: Any,
) -> ByteBoundaryEnv:
    """A TorchRL environment from what a gymnasium user gives.

    Args:
        model: as for :func:`read_model`.
        text: as for :func:`read_source`.
        batch_size: ``()`` or ``(n,)``.
        overrides: as for :func:`read_model`.
        short_documents: as for :func:`read_source`.
        **options: passed on to :class:`~rltok_rl.envs.ByteBoundaryEnv`.
    """
    source = read_source(text, short_documents)
    return ByteBoundaryEnv(read_model(model, overrides), source, batch_size=batch_size, **options)


def is_preset(model: Model) -> bool:
    """Whether a model is given by the name of an untrained preset.

    Args:
        model: as for :func:`read_model`.

    Example:
        >>> is_preset("tiny"), is_preset("pocket")
        (True, False)
    """
    return isinstance(model, str) and model in UNTRAINED


def read_model(model: Model, overrides: Mapping[str, Any] | None = None) -> UNet:
    """The U-Net that a user means.

    Args:
        model: what ``UNet.from_pretrained`` takes (a folder, a run, a hub id, ``"pocket"``), which is trained; the name
            of any other preset, or a configuration, which are untrained, with weights that are always the same; or a
            U-Net, which is taken as it is.
        overrides: fields to replace of a preset that is given by name.

    Example:
        >>> read_model("tiny", {"num_lags": 1}).config.num_lags
        1
    """
    if overrides and not is_preset(model):
        shown = repr(str(model)) if isinstance(model, (str, Path)) else f"a {type(model).__name__}"
        hint = f"; preset({shown}, ...) is an untrained one" if isinstance(model, str) and model in PACKAGED else ""
        wanted = "overrides are for an untrained preset given by name"
        raise ValueError(f"{wanted}, got {dict(overrides)} and {shown}{hint}")
    if isinstance(model, UNet):
        return model
    if is_preset(model):
        if any(Path(str(model), inside, "config.json").is_file() for inside in ("", "model")):
            logger.warn(f"model={model!r} is the untrained preset; the folder of that name is './{model}'")
        return _untrained(preset(str(model), **(overrides or {})))
    if isinstance(model, UNetConfig):
        return _untrained(model)
    if not isinstance(model, (str, Path)):
        raise TypeError(f"model must be a name, a folder, a UNetConfig or a UNet, got {type(model).__name__}")
    if len(Path(model).parts) < 2 and str(model) not in PACKAGED and not Path(model).exists():
        hint = did_you_mean(str(model), [*UNTRAINED, *PACKAGED])
        raise ValueError(
            f"model must be {SOURCES}, an untrained preset of {[*UNTRAINED]}, a UNetConfig or a UNet, "
            f"got {str(model)!r}{hint}"
        )
    try:
        return UNet.from_pretrained(model)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"model={str(model)!r} cannot be read: {error}") from None


def _untrained(config: UNetConfig) -> UNet:
    with torch.random.fork_rng(devices=[]):  # two environments of one name are one environment
        torch.manual_seed(0)
        return UNet(config).eval()


def read_source(text: Texts, short_documents: Short | None = None) -> WindowSource:
    """The source of windows that a user means.

    Args:
        text: documents; files and folders of them, as a ``Path`` or several; a source; None is prose that every Python
            brings along.
        short_documents: as for :class:`~rltok_rl.data.TextSource`; None is ``"error"``. A source has its own.
    """
    if isinstance(text, WindowSource):
        if short_documents is not None:
            raise ValueError(
                f"short_documents belongs to documents, got {short_documents!r} and a {type(text).__name__}, "
                f"which is made with its own"
            )
        return text
    documents = local_prose() if text is None else read_texts(text)
    return TextSource(documents, short_documents=short_documents or "error")


def read_texts(text: Documents | Path | Sequence[str | bytes | Path]) -> Documents:
    """Documents, those of files and folders read.

    Args:
        text: as for :func:`read_source`.
    """
    refuse_names(text)
    if isinstance(text, (str, bytes)):
        return text
    given: list[str | bytes | Path] = [text] if isinstance(text, Path) else list(text)
    texts = [one for one in given if not isinstance(one, Path)]
    if len(texts) == len(given):
        return texts
    kept = LengthFilter(_read(given), min_bytes=2, max_bytes=None)
    documents = list(kept)
    if kept.report.dropped:
        logger.warn(f"text: {kept.report}")
    return documents


def _read(given: Iterable[str | bytes | Path]) -> Iterator[str | bytes]:
    for one in given:
        if isinstance(one, Path):
            yield from read_documents(one)
        else:
            yield one


def refuse_names(text: Any) -> None:
    """Refuse texts that were meant to be read: a string, or several, of which each names a file or a folder.

    Args:
        text: anything; bytes are never taken for names.

    Example:
        >>> refuse_names("/")
        Traceback (most recent call last):
        ValueError: text is the text itself, got '/', which is a file or a folder: Path('/') reads it (b'/' is the text)
    """
    given = [text] if isinstance(text, str) else text
    if not isinstance(given, (list, tuple)) or not given:
        return
    if all(isinstance(one, str) and os.path.exists(one) for one in given):  # False, too, for what is too long a name
        name = given[0]
        raise ValueError(
            f"text is the text itself, got {name!r}, which is a file or a folder: Path({name!r}) reads it "
            f"({os.fsencode(name)!r} is the text)"
        )


def check_options(options: Mapping[str, Any], *named: str) -> None:
    """Refuse what no environment takes, and say what it does.

    Args:
        options: by name.
        *named: what the environment takes by its own names.

    Example:
        >>> check_options({"max_episode_steps": 4}, "num_steps")
        Traceback (most recent call last):
        TypeError: got an unexpected keyword argument 'max_episode_steps', did you mean 'num_steps'? Allowed are
        ['num_steps', 'reward', 'price', 'observe_entropy', 'target_rates', 'layout', 'likelihood_chunk', 'seed',
        'overrides', 'short_documents']
    """
    allowed = [*named, *OPTIONS]
    for name in options:
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, n=1)
            meant = _MEANT.get(name) or (near[0] if near else None)
            hint = f", did you mean {meant!r}? Allowed" if meant in allowed else "; allowed"
            # In Python's own words, which torchrl's GymEnv waits for: it tries frameskip= on every environment.
            raise TypeError(f"got an unexpected keyword argument {name!r}{hint} are {allowed}")

"""Saving and loading of segmenters, beside their model and in checkpoints.

segmenter.json          name and options
segmenter.safetensors   weights and thresholds that are not the model's
tokenizer.json          of a subword tokenizer
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from rltok_rl.agents.segmenters.registry import make_segmenter
from rltok_rl.agents.segmenters.segmenter import Segmenter
from rltok_rl.agents.segmenters.tokenizer_files import read_tokenizer
from rltok_rl.agents.segmenters.tokenizers import TokenizerSplit, WordSplit
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rltok_rl.foreign import (
    MOST_STATE,
    NAMED,
    TEXT,
    check_file,
    check_sizes,
    check_trust,
    check_values,
    read_config_file,
    read_json,
    read_limited,
)
from rltok_rl.models.pretrained import model_folder
from rltok_rl.models.weights import CONFIG, check_finite, replaced_files
from rltok_rl.utils import is_import_path

WORD, WEIGHTS, TOKENIZER = "segmenter.json", "segmenter.safetensors", "tokenizer.json"
_MOST = 1 << 20  # blocks, lags and windows of a segmenter
FORMAT = 1  # raised when files of older versions can no longer be read
SPLITS: dict[str, type[TokenizerSplit]] = {"pieces": TokenizerSplit, "words": WordSplit}
"""Kinds of tokenizer splits, by their name in ``segmenter.json``."""


def own_parameters(segmenter: nn.Module, model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a segmenter that are not the model's."""
    shared = {id(p) for p in model.parameters()}
    return [p for p in segmenter.parameters() if id(p) not in shared]


def own_state(segmenter: Segmenter, model: nn.Module) -> dict[str, Any]:
    """Return the tensors of a segmenter that are not the model's, and its ``tokenizer`` as JSON."""
    shared = {id(x) for x in (*model.parameters(), *model.buffers())}
    tensors = segmenter.state_dict(keep_vars=True)
    state: dict[str, Any] = {name: x.detach() for name, x in tensors.items() if id(x) not in shared}
    split = getattr(segmenter, "split", None)
    if isinstance(split, TokenizerSplit):
        state["tokenizer"] = split.tokenizer.to_str()
    return state


@torch.no_grad()
def load_own_state(segmenter: Segmenter, model: nn.Module, state: Mapping[str, Any]) -> None:
    """Load the result of :func:`own_state` into a segmenter with the same name and options."""
    tensors = dict(state)
    tokenizer = tensors.pop("tokenizer", None)
    if tokenizer is not None:
        split = getattr(segmenter, "split", None)
        kind = type(split) if isinstance(split, TokenizerSplit) else TokenizerSplit
        segmenter.split = read_tokenizer(tokenizer, kind, trust_code=True)  # type: ignore[assignment]
    targets = {name: x for name, x in own_state(segmenter, model).items() if isinstance(x, Tensor)}
    wrong = sorted(set(targets) ^ set(tensors)) or [
        n for n, x in targets.items() if x.shape != getattr(tensors[n], "shape", None)
    ]
    if wrong:
        name = type(segmenter).__name__
        raise ValueError(f"state must hold {sorted(targets)} of {name}, got another {wrong[0]!r}")
    for name, x in targets.items():
        x.copy_(tensors[name])


def save_segmenter(
    folder: Path, segmenter: Segmenter, model: nn.Module, *, name: str, options: Mapping[str, Any]
) -> None:
    """Save a segmenter in the folder of its model, with the name and the options (plain values) that it was made of."""
    state = own_state(segmenter, model)
    tokenizer = state.pop("tokenizer", None)
    content: dict[str, Any] = {"format": FORMAT, "name": name, "options": dict(options)}
    with replaced_files(folder) as partial:
        if state:
            tensors = {key: x.to("cpu", copy=True).contiguous() for key, x in state.items()}
            save_file(tensors, partial / WEIGHTS, metadata={"format": "pt"})
        if tokenizer is not None:
            (partial / TOKENIZER).write_text(tokenizer, encoding="utf-8")
            content["split"] = "words" if isinstance(segmenter.split, WordSplit) else "pieces"
        (partial / WORD).write_text(json.dumps(content, indent=1) + "\n")
        stale = [file for file in (WEIGHTS, TOKENIZER) if not (partial / file).exists()]
    for file in stale:
        (folder / file).unlink(missing_ok=True)


def rebuild_segmenter(
    path: Path, name: str, options: Mapping[str, Any], model: Any, state: Mapping[str, Any], *, trust_code: bool
) -> Segmenter:
    """Build the segmenter that a file names and load its state, in evaluation mode.

    All names of segmenters that are read from files pass through here and :func:`~rltok_rl.foreign.check_trust`: custom
    code, ``module:Class``, is imported only with ``trust_code``.
    """
    check_trust(path, name, trust_code)
    if not is_import_path(name):
        saved = {key: x for key, x in state.items() if isinstance(x, Tensor)}
        check_finite(saved, f"the weights of {path}")
        _check_options(path, options, model, [*saved.values()])
    try:
        segmenter = make_segmenter(name, model, **options)
        load_own_state(segmenter, model, state)
    except (ValueError, TypeError, RuntimeError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{path} cannot be used: {str(error).partition(chr(10))[0]}") from error
    return segmenter.eval()


def _check_options(path: Path, options: Mapping[str, Any], model: Any, saved: list[Tensor]) -> None:
    """Compare sizes in the options of a library's segmenter with its saved tensors, before it is built."""
    where, sizes = f"options in {path}", {key: value for key, value in options.items() if isinstance(value, int)}
    check_sizes(where, {"num_layers": sizes.pop("num_layers", 0)}, len(saved), f"as {len(saved)} tensors are saved")
    hidden, num_bytes = sizes.pop("hidden", 0) * model.config.width, sum(x.nbytes for x in saved)
    check_sizes(where, {"hidden x width": hidden}, num_bytes, "the bytes of its tensors")
    check_sizes(where, sizes, _MOST, "as no segmenter needs more")


def names_code(folder: Path, name: str) -> bool:
    """Whether a saved segmenter is custom code of this name, which the caller trusts."""
    content = read_json(folder / WORD) if is_import_path(name) and os.path.lexists(folder / WORD) else None
    return isinstance(content, dict) and content.get("name") == name


def load_segmenter(source: str | Path, model: Any, trust_code: bool = False, **hub_options: Any) -> Segmenter | None:
    """Load the segmenter of a saved model, in evaluation mode; None if the model's own policy draws.

    The source is that of the model: the folder, a run's folder, or a hub id with ``hub_options`` such as ``revision``.
    If ``segmenter.json`` names custom code, ``module:Class``, it is imported and executed with ``trust_code``, and an
    error without. A missing file is an error in a run whose ``config.yaml`` names a segmenter or an actor.
    """
    path = Path(source)
    is_model_folder = path.is_dir() and not (path / "model" / CONFIG).is_file()
    folder = path if is_model_folder else model_folder(source) or _download(str(source), hub_options)
    if folder is None:
        return None
    path, run = folder / WORD, folder.parent / "config.yaml"
    if not os.path.lexists(path):
        config = read_config_file(run) if folder.name == "model" and os.path.lexists(run) else {}
        for group in ("segmenter", "actor"):
            if (name := (config.get(group) or {}).get("name", "learned")) != "learned":
                raise ValueError(f"{folder} must hold {WORD}, because {run} names the {group} {name!r}")
        return None
    content = check_values(read_json(path), {"name": TEXT, "options": NAMED}, path, ("format", "name", "options"))
    name, options, number = content["name"], dict(content["options"]), content["format"]
    if type(number) is not int or number != FORMAT:
        raise ValueError(f"{path} must be of format {FORMAT}, got {number!r}")
    check_trust(path, name, trust_code)
    state: dict[str, Any] = {}
    weights, tokenizer = folder / WEIGHTS, folder / TOKENIZER
    if os.path.lexists(weights):
        check_file(weights)
        try:
            state |= load_file(weights)
        except SafetensorError as error:
            raise ValueError(f"{weights} must be a whole safetensors file, got one that is not: {error}") from None
    if os.path.lexists(tokenizer):
        split = content.get("split", "pieces")
        if split not in [*SPLITS]:
            raise ValueError(f"split in {path} must be one of {sorted(SPLITS)}, got {split!r}")
        state["tokenizer"] = read_limited(tokenizer, MOST_STATE)
        options["tokenizer"] = read_tokenizer(state["tokenizer"], SPLITS[split], str(tokenizer), trust_code=trust_code)
    return rebuild_segmenter(path, name, options, model, state, trust_code=trust_code)


def _download(hub_id: str, options: Mapping[str, Any]) -> Path | None:
    """Fetch the segmenter of a model on the hub; returns its folder, or None, with a note, if there is none."""
    try:
        path = Path(hf_hub_download(hub_id, WORD, **options))
    except LocalEntryNotFoundError as error:
        places = {name: options[name] for name in ("cache_dir", "revision") if name in options}
        if try_to_load_from_cache(hub_id, WORD, **places) is not _CACHED_NO_EXIST:
            reason = "fetch the model once with a network"
            raise FileNotFoundError(f"{hub_id} may have a {WORD} that is not in the cache; {reason}") from error
    except EntryNotFoundError:
        pass
    else:
        for name in (WEIGHTS, TOKENIZER):
            with contextlib.suppress(EntryNotFoundError):
                hf_hub_download(hub_id, name, **options)
        return path.parent
    print(f"{hub_id} has no {WORD}: its own policy draws the boundaries", file=sys.stderr)
    return None

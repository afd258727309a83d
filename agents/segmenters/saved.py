"""Segmenters in checkpoints and beside models: what they have of their own, in the folder of the model.

segmenter.json          its word and its options
segmenter.safetensors   its weights and thresholds; what it shares with the model is the model's
tokenizer.json          of a subword tokenizer
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rltok_rl.agents.segmenters.base import Segmenter
from rltok_rl.agents.segmenters.bpe import TokenizerSplit
from rltok_rl.agents.segmenters.registry import make_segmenter
from rltok_rl.agents.segmenters.unigram import WordSplit
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rltok_rl.utils import check_trust

WORD, WEIGHTS, TOKENIZER = "segmenter.json", "segmenter.safetensors", "tokenizer.json"
FORMAT = 1
"""Raised when what older versions wrote can no longer be read as it is."""
SPLITS: dict[str, type[TokenizerSplit]] = {"pieces": TokenizerSplit, "words": WordSplit}
"""What the pieces of a tokenizer are read as, by the word that stands in ``segmenter.json``."""


def own_parameters(segmenter: nn.Module, model: nn.Module) -> list[nn.Parameter]:
    """Parameters of a segmenter that are not the model's."""
    shared = {id(p) for p in model.parameters()}
    return [p for p in segmenter.parameters() if id(p) not in shared]


def own_state(segmenter: Segmenter, model: nn.Module) -> dict[str, Any]:
    """What a segmenter has of its own: tensors by name, and its ``tokenizer`` as a text.

    Args:
        segmenter: of the model.
        model: the U-Net.

    Example:
        >>> from rltok_rl.models import UNet, preset
        >>> model = UNet(preset("tiny"))
        >>> sorted(own_state(make_segmenter("entropy-threshold", model, predictor="early_exit"), model))
        ['threshold']
    """
    shared = {id(x) for x in (*model.parameters(), *model.buffers())}
    held = segmenter.state_dict(keep_vars=True)
    state: dict[str, Any] = {name: x.detach() for name, x in held.items() if id(x) not in shared}
    split = getattr(segmenter, "split", None)
    if isinstance(split, TokenizerSplit):
        state["tokenizer"] = split.tokenizer.to_str()
    return state


@torch.no_grad()
def load_own_state(segmenter: Segmenter, model: nn.Module, state: Mapping[str, Any]) -> None:
    """Take on what :func:`own_state` told of a segmenter of the same word and options.

    Args:
        segmenter: of the model.
        model: the U-Net.
        state: tensors by name, and ``tokenizer``.
    """
    state = dict(state)
    text = state.pop("tokenizer", None)
    if text is not None:
        held = getattr(segmenter, "split", None)
        kind = type(held) if isinstance(held, TokenizerSplit) else TokenizerSplit
        segmenter.split = read_tokenizer(text, kind)  # type: ignore[assignment]
    mine = {name: x for name, x in own_state(segmenter, model).items() if isinstance(x, Tensor)}
    wrong = sorted(set(mine) ^ set(state)) or [n for n, x in mine.items() if x.shape != state[n].shape]
    if wrong:
        raise ValueError(f"state must hold {sorted(mine)} of {type(segmenter).__name__}, got another {wrong[0]!r}")
    for name, x in mine.items():
        x.copy_(state[name])


def read_tokenizer(text: str, kind: type[TokenizerSplit] = TokenizerSplit) -> TokenizerSplit:
    """A tokenizer from its JSON.

    Args:
        text: as the ``tokenizers`` library writes it.
        kind: what its pieces are read as.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ImportError("the segmenter needs the tokenizers package: pip install 'rltok_rl[bpe]'") from error
    return kind(Tokenizer.from_str(text))


def save_segmenter(
    folder: Path, segmenter: Segmenter, model: nn.Module, *, name: str, options: Mapping[str, Any]
) -> None:
    """Write a segmenter beside its model.

    Args:
        folder: of the model.
        segmenter: of the model.
        model: the U-Net.
        name: its word, a key of :data:`~rltok_rl.agents.segmenters.SEGMENTERS`, or ``module:Class``.
        options: that it was made with, plain values.
    """
    state = own_state(segmenter, model)
    text = state.pop("tokenizer", None)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {key: x.to("cpu", copy=True).contiguous() for key, x in state.items()}
    for path, there in ((folder / WEIGHTS, bool(tensors)), (folder / TOKENIZER, text is not None)):
        if not there:
            path.unlink(missing_ok=True)
    if tensors:
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    if text is not None:
        (folder / TOKENIZER).write_text(text, encoding="utf-8")
    content: dict[str, Any] = {"format": FORMAT, "name": name, "options": dict(options)}
    if text is not None:
        content["split"] = "words" if isinstance(segmenter.split, WordSplit) else "pieces"
    (folder / WORD).write_text(json.dumps(content, indent=1) + "\n")


def rebuild_segmenter(
    path: Path, name: str, options: Mapping[str, Any], model: Any, state: Mapping[str, Any], *, trust_code: bool
) -> Segmenter:
    """Make the segmenter that a file names and load its state, in evaluation mode.

    All segmenters whose names are read from files are made here, after
    :func:`~rltok_rl.utils.check_trust`.

    Args:
        path: the file.
        name: a key of :data:`~rltok_rl.agents.segmenters.SEGMENTERS`, or ``module:Class``.
        options: arguments of the segmenter.
        model: the U-Net.
        state: from :func:`own_state`.
        trust_code: whether custom code, ``module:Class``, may be imported.
    """
    check_trust(path, name, trust_code)
    segmenter = make_segmenter(name, model, **options)
    load_own_state(segmenter, model, state)
    return segmenter.eval()


def load_segmenter(folder: Path, model: Any, trust_code: bool = False) -> Segmenter | None:
    """Load the segmenter beside a model, in evaluation mode; None if the model draws its boundaries itself.

    Args:
        folder: of the model.
        model: the U-Net that was loaded from it.
        trust_code: whether to import and execute custom code, ``module:Class``, if ``segmenter.json`` names it. The
            default raises an error instead.
    """
    path = folder / WORD
    if not path.is_file():
        return None
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        name, options, number = str(held["name"]), dict(held["options"]), held["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} must hold format, name and options as JSON, got what cannot be read: {error}"
        ) from None
    if number != FORMAT:
        raise ValueError(f"{path} must be of format {FORMAT}, got {number!r}")
    check_trust(path, name, trust_code)
    state: dict[str, Any] = {}
    if (folder / WEIGHTS).is_file():
        try:
            state |= load_file(folder / WEIGHTS)
        except SafetensorError as error:
            raise ValueError(
                f"{folder / WEIGHTS} must be a whole safetensors file, got one that is not: {error}"
            ) from None
    if (folder / TOKENIZER).is_file():
        split = held.get("split", "pieces")
        if split not in SPLITS:
            raise ValueError(f"split in {path} must be one of {sorted(SPLITS)}, got {split!r}")
        text = (folder / TOKENIZER).read_text(encoding="utf-8")
        state["tokenizer"], options["tokenizer"] = text, read_tokenizer(text, SPLITS[split])
    return rebuild_segmenter(path, name, options, model, state, trust_code=trust_code)

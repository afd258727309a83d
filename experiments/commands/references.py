"""Boundary strings to compare with that no model has to be trained for: rules, and the pieces of tokenizers."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rltok_rl.agents.segmenters import Segmenter, TokenizerSplit, make_segmenter
from rltok_rl.agents.segmenters.saved import SPLITS, TOKENIZER
from rltok_rl.agents.segmenters.tokenizers import read_tokenizer
from rltok_rl.experiments.commands.arguments import read_bytes
from rltok_rl.experiments.commands.documents import complete_config

from rltok_rl.models import Segmentation, UNet
from rltok_rl.text import text_to_ids

PIECES = ("bpe", "unigram")
"""References with a tokenizer."""
REFERENCES = ("spacebyte", "whitespace", *PIECES, "uniform", "stride", "random", "bernoulli")
"""Words of segmenters that are rules; all others are trained, and compared as models."""
_WINDOW = 4096  # bytes of a text that a tokenizer is trained on at once


def make_reference(name: str, model: UNet, *, rate: float, tokenizer: TokenizerSplit | None = None) -> Segmenter:
    """The segmenter of a name; those that aim at a rate aim at the one that is given.

    Args:
        name: one of :data:`REFERENCES`.
        model: any U-Net; the rules do not read its states.
        rate: boundaries per byte.
        tokenizer: of :data:`PIECES`.

    Example:
        >>> from rltok_rl.models import preset
        >>> make_reference("uniform", UNet(preset("tiny")), rate=0.25).target_rate
        0.25
    """
    if name not in REFERENCES:
        raise ValueError(f"reference must be one of {list(REFERENCES)}, got {name!r}")
    options: dict[str, Any] = {}
    if name in PIECES:
        options["tokenizer"] = tokenizer
    elif name == "stride":
        options["stride"] = max(1, round(1 / rate))
    elif name in ("uniform", "random", "bernoulli"):
        options["rate"] = rate
    return make_segmenter(name, model, **options).cpu().eval()


def segment_by_rule(segmenter: Segmenter, text: bytes, *, generator: torch.Generator | None = None) -> Segmentation:
    """Draw the boundaries of a text by a rule that reads bytes alone: nothing is encoded.

    Args:
        segmenter: of :func:`make_reference`.
        text: at least one byte.
        generator: source of random numbers, on the CPU.
    """
    byte_ids = text_to_ids(text)[None]  # [1, T]
    drawn = segmenter(torch.zeros(*byte_ids.shape, 1), byte_ids, generator=generator)
    known = drawn.boundaries if drawn.logits is None else drawn.logits.sigmoid()
    probabilities = known[0].float()
    probabilities[0] = 1.0
    return Segmentation(text, drawn.boundaries[0], probabilities)


def saved_tokenizer(name: str, path: Path) -> TokenizerSplit:
    """A tokenizer from its file.

    Args:
        name: of :data:`PIECES`.
        path: of ``tokenizer.json``, or a folder that has one, or the folder of a run whose model has one.
    """
    for found in (path / TOKENIZER, path / "model" / TOKENIZER, path):
        if found.is_file():
            break
    else:
        raise FileNotFoundError(f"{path} must be a {TOKENIZER} or a folder that holds one")
    try:
        return read_tokenizer(found.read_text(encoding="utf-8"), SPLITS["words" if name == "unigram" else "pieces"])
    except ImportError:
        raise
    except Exception as error:  # the library raises nothing more special
        raise ValueError(f"{found} must be a tokenizer as the tokenizers library writes it: {error}") from None


def trained_tokenizer(
    name: str, model: UNet, *, run: Any, text: bytes | None, rate: float, vocabulary: int | None
) -> TokenizerSplit:
    """A tokenizer trained as a training would: from windows of its training text, or of a text that is given.

    Args:
        name: of :data:`PIECES`.
        model: any U-Net.
        run: configuration of the run whose training text is taken, as its ``config.yaml`` says.
        text: to train on instead; None takes the run's.
        rate: pieces per byte to come near to.
        vocabulary: number of pieces instead; None goes by the rate.
    """
    from rltok_rl.agents.segmenters.tokenizer_training import train_on
    from rltok_rl.experiments.runs.segmenters import train_tokenizer  # what it needs takes seconds to import

    aim: dict[str, Any] = {"rate": rate} if vocabulary is None else {"vocabulary": vocabulary}
    if text is not None:
        length = min(_WINDOW, len(text))
        windows = [text[start : start + length] for start in range(0, len(text), length)]
        return train_on(name, windows, length=length, **aim)
    from rltok_rl.experiments.config import SegmenterConfig
    from rltok_rl.experiments.texts import read_texts

    config = replace(complete_config(run), segmenter=SegmenterConfig(name=name, options=aim))
    return train_tokenizer(config, model, read_texts(config.data))


Train = Callable[..., TokenizerSplit]
"""``(model, rate=...)`` to a tokenizer."""


def find_tokenizers(parser: argparse.ArgumentParser, options: argparse.Namespace, run: Any) -> dict[str, Train]:
    """How the tokenizers of ``--against`` come about; what is missing for them is said before anything is drawn."""
    names = [name for name in dict.fromkeys(options.against) if name in PIECES]
    given = [key for key in ("tokenizer", "train_on", "vocabulary") if getattr(options, key) is not None]
    if given and not names:
        parser.error(f"argument --{given[0].replace('_', '-')}: belongs to {' and '.join(PIECES)} in --against")
    if "tokenizer" in given:
        if len(given) > 1:
            what = f"argument --{given[1].replace('_', '-')}"
            parser.error(f"{what}: belongs to tokenizers that are trained, not --tokenizer")
        try:
            return {name: partial(_as_it_is, saved_tokenizer(name, options.tokenizer)) for name in names}
        except (OSError, ValueError, ImportError) as error:
            parser.error(f"argument --tokenizer: {error}")
    if names and run is None and options.train_on is None:
        parser.error(f"argument --against: {names[0]} needs --tokenizer or --train-on, since no model is a run")
    text = None if options.train_on is None else read_bytes(parser, options.train_on, least=2)
    common: dict[str, Any] = {"run": run, "text": text, "vocabulary": options.vocabulary}
    return {name: partial(trained_tokenizer, name, **common) for name in names}


def find_references(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    model: UNet,
    tokenizers: dict[str, Train],
    rate: float,
) -> dict[str, Segmenter]:
    """What ``--against`` names; tokenizers and rules that aim at a rate aim at this one."""
    found = {}
    for name in dict.fromkeys(options.against):
        try:
            tokenizer = tokenizers[name](model, rate=rate) if name in tokenizers else None
            found[name] = make_reference(name, model, rate=rate, tokenizer=tokenizer)
        except (OSError, ValueError, ImportError) as error:
            parser.error(f"--against {name}: {error}")
    return found


def _as_it_is(split: TokenizerSplit, model: UNet, *, rate: float) -> TokenizerSplit:
    return split

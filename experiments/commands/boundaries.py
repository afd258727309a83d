"""Measure where boundaries lie and how far models agree.

    rltok boundaries runs/mine
    rltok boundaries runs/mine --text notes.txt --against spacebyte bpe --json
    rltok boundaries runs/seed-1 runs/seed-2 runs/seed-3 --against spacebyte

One model gets a page: white space, positions in words, bytes per token, split characters, entropy of the policy, and
precision, recall and F1 against rules and tokenizers. Several models get one matrix for each measure of agreement. The
text is what the first run held out, unless --text names another. A boundary at byte t ends a token after byte t.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rltok_rl.agents.segmenters import Segmenter, TokenizerSplit, make_segmenter, segment_text
from rltok_rl.agents.segmenters.saved import SPLITS, TOKENIZER
from rltok_rl.agents.segmenters.tokenizers import read_tokenizer, train_on
from rltok_rl.experiments.commands import parsers
from rltok_rl.experiments.commands.arguments import (
    command,
    complete_config,
    find_documents,
    load_with_segmenter,
    read_bytes,
    run_config,
)
from rltok_rl.experiments.commands.tables import matrices, page
from rltok_rl.experiments.reports.markdown import without_nan
from rltok_rl.experiments.run_config import SegmenterConfig

from rltok_rl.evaluation.agreement import agreement_matrix, boundary_correlation, boundary_match, cohen_kappa, jaccard
from rltok_rl.evaluation.boundaries import DrawnTexts, boundary_metrics, join_texts
from rltok_rl.models import Segmentation, UNet, segment
from rltok_rl.text import text_to_ids

TOKENIZERS = ("bpe", "unigram")
"""References with a tokenizer."""
_SAME_TEXT = ("source", "column", "options", "held_out", "min_bytes", "max_bytes", "limit", "short_documents")
"""Options of ``data`` that decide what a run holds out."""
_WINDOW = 4096  # bytes of a text that a tokenizer is trained on at once


@dataclass(frozen=True)
class Drawer:
    """Draws boundaries by a model's policy, by its segmenter, or (without a model) by a rule."""

    model: UNet | None
    segmenter: Segmenter | None
    options: argparse.Namespace

    @property
    def at_random(self) -> bool:
        """Whether a second draw may differ."""
        return not self.options.greedy if self.segmenter is None else self.segmenter.draws_at_random

    def draw(self, text: bytes, generator: torch.Generator) -> Segmentation:
        """Draw the boundaries of a text."""
        if self.segmenter is None:
            assert self.model is not None
            greedy, rate = self.options.greedy, self.options.rate
            return segment(self.model, text, generator=generator, greedy=greedy, target_rate=rate)
        if self.model is not None:
            return segment_text(self.model, self.segmenter, text, generator=generator)
        byte_ids = text_to_ids(text)[None]  # [1, T]; rules read no states
        drawn = self.segmenter(torch.zeros(*byte_ids.shape, 1), byte_ids, generator=generator)
        probabilities = (drawn.boundaries if drawn.logits is None else drawn.logits.sigmoid())[0].float()
        probabilities[0] = 1.0
        return Segmentation(text, drawn.boundaries[0], probabilities)


def _single(options: argparse.Namespace, name: str) -> argparse.Namespace:
    """The options as a command with one model has them."""
    return argparse.Namespace(**{**vars(options), "model": name, "data": options.text})


def _first_run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> tuple[str, Any]:
    """Return the first model that is a run, and its options; note others that may have seen its held-out text."""
    runs = {name: run for name in options.models if (run := run_config(parser, name)) is not None}
    if not runs:
        if options.text is None:
            missing = f"--text ({options.models[0]} is not the folder of a run)"
            parser.error(f"the following arguments are required: {missing}")
        return options.models[0], None
    first = next(iter(runs))
    texts = {name: [run.data.get(key) for key in _SAME_TEXT] for name, run in runs.items()}
    for name in options.models if options.text is None else ():
        if texts.get(name) != texts[first]:
            print(f"note: {name} may have been trained on the held-out text of {first}", file=sys.stderr)
    return first, runs[first]


def saved_tokenizer(name: str, path: Path) -> TokenizerSplit:
    """Read a tokenizer from ``tokenizer.json``, from a folder that holds it, or from a run.

    Args:
        name: ``bpe`` or ``unigram``.
        path: the file or folder.
    """
    file = next((file for file in (path / TOKENIZER, path / "model" / TOKENIZER, path) if file.is_file()), None)
    if file is None:
        raise FileNotFoundError(f"{path} must be a {TOKENIZER} or a folder that holds one")
    try:
        return read_tokenizer(file.read_text(encoding="utf-8"), SPLITS["words" if name == "unigram" else "pieces"])
    except ImportError:
        raise
    except Exception as error:  # the library raises no other type
        raise ValueError(f"{file} must be a tokenizer as the tokenizers library writes it: {error}") from None


def trained_tokenizer(
    name: str, model: UNet, *, run: Any, text: bytes | None, rate: float, vocabulary: int | None
) -> TokenizerSplit:
    """Train a tokenizer on windows of a run's training text, or of another text.

    Args:
        name: ``bpe`` or ``unigram``.
        model: any U-Net.
        run: options of the run.
        text: to train on instead; None takes the run's.
        rate: boundaries per byte to aim at.
        vocabulary: number of tokens instead; None goes by the rate.
    """
    from rltok_rl.experiments.runs.segmenters import train_tokenizer  # takes seconds to import
    from rltok_rl.experiments.texts import read_texts

    aim: dict[str, Any] = {"rate": rate} if vocabulary is None else {"vocabulary": vocabulary}
    if text is not None:
        length = min(_WINDOW, len(text))
        return train_on(name, [text[at : at + length] for at in range(0, len(text), length)], length=length, **aim)
    config = replace(complete_config(run), segmenter=SegmenterConfig(name=name, options=aim))
    return train_tokenizer(config, model, read_texts(config.data))


def _check_tokenizers(parser: argparse.ArgumentParser, options: argparse.Namespace, run: Any) -> dict[str, Any]:
    """Check the options of tokenizers before anything is drawn; return saved ones and the text to train others on."""
    names = [name for name in options.against if name in TOKENIZERS]
    given = [key for key in ("tokenizer", "train_on", "vocabulary") if getattr(options, key) is not None]
    flags = [f"argument --{key.replace('_', '-')}" for key in given]
    if given and not names:
        parser.error(f"{flags[0]}: belongs to {' and '.join(TOKENIZERS)} in --against")
    if options.tokenizer is not None:
        if len(given) > 1:
            parser.error(f"{flags[1]}: belongs to tokenizers that are trained, not --tokenizer")
        try:
            return {name: saved_tokenizer(name, options.tokenizer) for name in names}
        except (OSError, ValueError, ImportError) as error:
            parser.error(f"argument --tokenizer: {error}")
    if names and run is None and options.train_on is None:
        parser.error(f"argument --against: {names[0]} needs --tokenizer or --train-on, since no model is a run")
    return {"text": None if options.train_on is None else read_bytes(parser, options.train_on, least=2)}


def make_reference(name: str, model: UNet, *, rate: float, tokenizer: TokenizerSplit | None = None) -> Segmenter:
    """Make the segmenter of a name of ``--against``.

    Args:
        name: of a rule or tokenizer.
        model: any U-Net; rules do not read its states.
        rate: boundaries per byte, of rules that aim at one.
        tokenizer: of ``bpe`` and ``unigram``.

    Example:
        >>> from rltok_rl.models import preset
        >>> make_reference("uniform", UNet(preset("tiny")), rate=0.25).target_rate
        0.25
    """
    options: dict[str, Any] = {"rate": rate} if name in ("uniform", "random", "bernoulli") else {}
    if name in TOKENIZERS:
        options = {"tokenizer": tokenizer}
    elif name == "stride":
        options = {"stride": max(1, round(1 / rate))}
    return make_segmenter(name, model, **options).cpu().eval()


def compare(
    drawn: DrawnTexts, references: dict[str, DrawnTexts], *, shifts: list[int], tolerance: int
) -> dict[str, list[dict[str, float]]]:
    """Compute precision, recall and F1 against every reference at every shift.

    Args:
        drawn: by the model.
        references: the same texts, by name.
        shifts: bytes that a reference is moved by.
        tolerance: bytes that partners may lie apart.
    """

    def match(reference: DrawnTexts, shift: int) -> dict[str, float]:
        strings = (drawn.boundaries, reference.boundaries, drawn.counted)
        return {"shift": shift, **asdict(boundary_match(*strings, shift=shift, tolerance=tolerance))}

    return {name: [match(reference, shift) for shift in shifts] for name, reference in references.items()}


def agree(pairs: dict[str, tuple[DrawnTexts, DrawnTexts]], tolerance: int) -> dict[str, Any]:
    """Compute one matrix per measure of agreement.

    Args:
        pairs: two draws of each name; the diagonal compares them.
        tolerance: of F1, in bytes.
    """
    first, second = zip(*pairs.values(), strict=True)
    counted = first[0].counted
    boundaries, again = ([drawn.boundaries for drawn in draws] for draws in (first, second))
    probabilities, redrawn = ([drawn.probabilities for drawn in draws] for draws in (first, second))
    return {
        "names": list(pairs),
        "kappa": agreement_matrix(boundaries, again, lambda a, b: cohen_kappa(a, b, counted)),
        "f1": agreement_matrix(boundaries, again, lambda a, b: boundary_match(a, b, counted, tolerance=tolerance).f1),
        "jaccard": agreement_matrix(boundaries, again, lambda a, b: jaccard(a, b, counted)),
        "correlation": agreement_matrix(probabilities, redrawn, lambda a, b: boundary_correlation(a, b, counted)),
    }


@command
def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = parsers.boundaries()
    options = parser.parse_args(arguments)
    several = len(options.models) > 1
    for name in options.models:
        if (times := options.models.count(name)) > 1:
            parser.error(f"argument MODEL: every model must be named once, got {name} {times} times")
    if several and options.shift is not None:
        parser.error("argument --shift: belongs to a single model, got several")
    options.against = list(dict.fromkeys(options.against))
    source, run = _first_run(parser, options)
    text_name, texts = find_documents(parser, _single(options, source), run)
    models = {name: Drawer(*load_with_segmenter(parser, _single(options, name)), options) for name in options.models}
    tokenizers = _check_tokenizers(parser, options, run)
    shifts = list(dict.fromkeys(options.shift or (-1, 0, 1)))
    gap = 1 + options.tolerance + max(map(abs, shifts))  # so that no boundary is moved or paired into another text
    generators = [torch.Generator(device).manual_seed(options.seed) for device in (options.device, "cpu")]

    def draw(drawer: Drawer) -> DrawnTexts:
        generator = generators[drawer.model is None]  # rules draw on the CPU
        return join_texts([drawer.draw(text, generator) for text in texts], gap=gap)

    drawn = {name: draw(drawer) for name, drawer in models.items()}
    metrics = {name: boundary_metrics(texts) for name, texts in drawn.items()}
    first = options.models[0]
    model, rate = models[first].model, max(metrics[first]["rate"], 1 / metrics[first]["bytes"])
    assert model is not None
    rules: dict[str, Drawer] = {}
    for name in options.against:
        try:
            tokenizer = tokenizers.get(name)
            if name in TOKENIZERS and tokenizer is None:
                how = {"run": run, "text": tokenizers["text"], "vocabulary": options.vocabulary}
                tokenizer = trained_tokenizer(name, model, rate=rate, **how)
            rules[name] = Drawer(None, make_reference(name, model, rate=rate, tokenizer=tokenizer), options)
        except (OSError, ValueError, ImportError) as error:
            parser.error(f"--against {name}: {error}")
    references = {name: draw(drawer) for name, drawer in rules.items()}
    for name, by_model in drawn.items():
        how = {"shifts": [0] if several else shifts, "tolerance": options.tolerance}
        metrics[name]["against"] = compare(by_model, references, **how)
    results: dict[str, Any] = {"text": text_name, "tolerance": options.tolerance, "models": metrics}
    if several:
        once = drawn | references
        pairs = {n: (once[n], draw(one) if one.at_random else once[n]) for n, one in (models | rules).items()}
        results["agreement"] = agree(pairs, options.tolerance)
    if options.json:
        print(json.dumps(without_nan(results), indent=1))
    else:
        print(matrices(results) if several else page(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())

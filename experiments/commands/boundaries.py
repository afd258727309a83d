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
from rltok_rl.agents.segmenters import Segmenter, TokenizerSplit, draw_from_bytes, make_segmenter, segment_text
from rltok_rl.agents.segmenters.saved import SPLITS, TOKENIZER
from rltok_rl.agents.segmenters.tokenizer_files import read_tokenizer
from rltok_rl.agents.segmenters.tokenizer_rates import train_on
from rltok_rl.experiments.commands import arguments
from rltok_rl.experiments.commands.parsers import Parser, command
from rltok_rl.experiments.commands.tables import agreement_page, boundaries_page
from rltok_rl.experiments.reports.markdown import without_nan
from rltok_rl.experiments.run_config import SegmenterConfig
from rltok_rl.experiments.runs.saved_options import read_options

from rltok_rl.evaluation.agreement import agreement_matrix, boundary_correlation, boundary_match, cohen_kappa, jaccard
from rltok_rl.evaluation.boundaries import DrawnTexts, boundary_metrics, join_texts
from rltok_rl.foreign import MOST_STATE, read_limited
from rltok_rl.models import Segmentation, UNet, segment
from rltok_rl.text import text_to_ids
from rltok_rl.utils import printable

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
            how: Any = {"greedy": self.options.greedy, "target_rate": self.options.rate}
            return segment(self.model, text, generator=generator, **how)
        if self.model is not None:
            return segment_text(self.model, self.segmenter, text, generator=generator)
        drawn = draw_from_bytes(self.segmenter, text_to_ids(text)[None], generator=generator)  # [1, T]
        probabilities = (drawn.boundaries if drawn.logits is None else drawn.logits.sigmoid())[0].float()
        probabilities[0] = 1.0
        return Segmentation(text, drawn.boundaries[0], probabilities)


def _first_run(parser: Parser, options: argparse.Namespace) -> tuple[str, Any]:
    """Return the first model that is a run, and its options; note others that may have seen its held-out text."""
    runs = {name: run for name in options.models if (run := arguments.run_config(parser, name)) is not None}
    if not runs:
        return options.models[0], None
    first = next(iter(runs))
    texts = {name: [(run.get("data") or {}).get(key) for key in _SAME_TEXT] for name, run in runs.items()}
    for name in options.models if options.text is None else ():
        if texts.get(name) != texts[first]:
            note = f"note: {name} may have been trained on the held-out text of {first}"
            print(printable(note), file=sys.stderr)
    return first, runs[first]


def saved_tokenizer(name: str, path: Path, trust_code: bool) -> TokenizerSplit:
    """Read ``bpe`` or ``unigram`` from a ``tokenizer.json``, from a folder that holds it, or from a run.

    The user trusts a file on the command line.
    """
    file = next((file for file in (path / TOKENIZER, path / "model" / TOKENIZER, path) if file.is_file()), None)
    if file is None:
        raise FileNotFoundError(f"{path} must be a {TOKENIZER} or a folder that holds one")
    kind = SPLITS["words" if name == "unigram" else "pieces"]
    return read_tokenizer(read_limited(file, MOST_STATE), kind, str(file), trust_code=trust_code or file == path)


def trained_tokenizer(
    name: str,
    model: UNet,
    *,
    run: Path | None,
    text: bytes | None,
    rate: float,
    vocabulary: int | None,
    trust_data: bool = False,
) -> TokenizerSplit:
    """Train ``bpe`` or ``unigram`` at a rate, or with a vocabulary, on ``text``, or a run's training text.

    ``run`` is the run's ``config.yaml``.
    """
    from rltok_rl.experiments.runs.bpe_training import bpe_of_rate  # these take seconds to import
    from rltok_rl.experiments.runs.segmenters import train_tokenizer
    from rltok_rl.experiments.texts import read_run_texts

    from rltok_rl.data import TextSource

    aim: dict[str, Any] = {"rate": rate} if vocabulary is None else {"vocabulary": vocabulary}
    if text is not None:
        length = min(_WINDOW, len(text))
        if name == "bpe" and vocabulary is None:
            return bpe_of_rate(TextSource(text), rate, length=length).split
        return train_on(name, [text[at : at + length] for at in range(0, len(text), length)], length=length, **aim)
    assert run is not None  # callers without a run bring a text
    config = replace(read_options(run), segmenter=SegmenterConfig(name=name, options=aim))
    return train_tokenizer(config, model, read_run_texts(config.data, trust_data))


def _check_tokenizers(parser: Parser, options: argparse.Namespace, run: Any) -> dict[str, Any]:
    """Check the options of tokenizers before anything is drawn; return saved ones and the text to train others on."""
    names = [name for name in options.against if name in TOKENIZERS]
    flags = [f"--{key}" for key in ("tokenizer", "train-on", "vocabulary") if vars(options)[key.replace("-", "_")]]
    if flags and not names:
        parser.error(f"argument {flags[0]}: belongs to {' and '.join(TOKENIZERS)} in --against")
    if options.tokenizer is not None:
        if len(flags) > 1:
            parser.error(f"argument {flags[1]}: belongs to tokenizers that are trained, not --tokenizer")
        try:
            return {name: saved_tokenizer(name, options.tokenizer, options.trust_code) for name in names}
        except (OSError, ValueError, ImportError) as error:
            parser.error(f"argument --tokenizer: {error}")
    if names and run is None and options.train_on is None:
        parser.error(f"argument --against: {names[0]} needs --tokenizer or --train-on, since no model is a run")
    return {"text": None if options.train_on is None else arguments.read_bytes(parser, options.train_on, least=2)}


def make_reference(name: str, model: UNet, *, rate: float, tokenizer: TokenizerSplit | None = None) -> Segmenter:
    """Make the segmenter of a name of ``--against``; a rule that aims at a rate gets ``rate`` boundaries per byte."""
    options: dict[str, Any] = {"rate": rate} if name in ("uniform", "random", "bernoulli") else {}
    if name in TOKENIZERS:
        options = {"tokenizer": tokenizer}
    elif name == "stride":
        options = {"stride": max(1, round(1 / rate))}
    return make_segmenter(name, model, **options).cpu().eval()


def match(drawn: DrawnTexts, reference: DrawnTexts, *, shift: int, tolerance: int) -> dict[str, float]:
    """Compute precision, recall and F1 against a reference that is moved by ``shift`` bytes."""
    strings = (drawn.boundaries, reference.boundaries, drawn.counted)
    return {"shift": shift, **asdict(boundary_match(*strings, shift=shift, tolerance=tolerance))}


def agree(pairs: dict[str, tuple[DrawnTexts, DrawnTexts]], tolerance: int) -> dict[str, Any]:
    """Compute a matrix per measure of agreement from two draws of each name; the diagonal compares them."""
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


@command("boundaries", __doc__)
def main(parser: Parser, options: argparse.Namespace) -> None:
    """Command line."""
    several = len(options.models) > 1
    for name in options.models:
        if (times := options.models.count(name)) > 1:
            parser.error(f"argument MODEL: every model must be named once, got {name} {times} times")
    if several and options.shift is not None:
        parser.error("argument --shift: belongs to a single model, got several")
    shared = {**vars(options), "data": options.text}
    single = {name: argparse.Namespace(**{**shared, "model": name}) for name in options.models}
    models = {name: Drawer(*arguments.load_with_segmenter(parser, single[name]), options) for name in single}
    source, run = _first_run(parser, options)
    text_name, texts = arguments.find_documents(parser, single[source], run)
    tokenizers = _check_tokenizers(parser, options, run)
    shifts = [0] if several else list(dict.fromkeys(options.shift or (-1, 0, 1)))
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
    for name in dict.fromkeys(options.against):
        try:
            tokenizer = tokenizers.get(name)
            if name in TOKENIZERS and tokenizer is None:
                how = {
                    "run": Path(source) / "config.yaml",
                    "text": tokenizers["text"],
                    "vocabulary": options.vocabulary,
                }
                tokenizer = trained_tokenizer(name, model, rate=rate, trust_data=options.trust_data, **how)
            rules[name] = Drawer(None, make_reference(name, model, rate=rate, tokenizer=tokenizer), options)
        except (OSError, ValueError, ImportError) as error:
            parser.error(f"--against {name}: {error}")
    references = {name: draw(drawer) for name, drawer in rules.items()}
    for name, by_model in drawn.items():
        metrics[name]["against"] = {
            rule: [match(by_model, reference, shift=shift, tolerance=options.tolerance) for shift in shifts]
            for rule, reference in references.items()
        }
    results: dict[str, Any] = {"text": text_name, "tolerance": options.tolerance, "models": metrics}
    if several:
        once = drawn | references
        pairs = {n: (once[n], draw(drawer) if drawer.at_random else once[n]) for n, drawer in (models | rules).items()}
        results["agreement"] = agree(pairs, options.tolerance)
    if options.json:
        print(json.dumps(without_nan(results), indent=1))
    else:
        print(agreement_page(results) if several else boundaries_page(results))

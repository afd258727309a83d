"""Measure where boundaries lie, and how far models agree about them.

    rltok boundaries runs/mine
    rltok boundaries runs/mine --text notes.txt --against spacebyte bpe --json
    rltok boundaries runs/seed-1 runs/seed-2 runs/seed-3 --against spacebyte

One model gets a page: white space, position in words, bytes per token, characters that are split, entropy of the
policy, and precision, recall and F1 against rules and tokenizers. Several get one matrix for each measure of agreement.
The text is what the first run held out, unless another is given. A boundary at byte t ends a token after byte t.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

import torch
from rltok_rl.agents.segmenters import Segmenter, segment_text
from rltok_rl.experiments.commands import parsers
from rltok_rl.experiments.commands.arguments import (
    command,
    load_with_segmenter,
)
from rltok_rl.experiments.commands.documents import find_texts, run_config
from rltok_rl.experiments.commands.references import find_references, find_tokenizers, segment_by_rule
from rltok_rl.experiments.commands.tables import matrices, page
from rltok_rl.experiments.reports.markdown import without_nan

from rltok_rl.evaluation.agreement import agreement_matrix, boundary_correlation, boundary_match, cohen_kappa, jaccard
from rltok_rl.evaluation.boundaries import DrawnTexts, boundary_metrics, join_texts
from rltok_rl.models import Segmentation, UNet, segment

SHIFTS = (-1, 0, 1)
_SAME_TEXT = ("source", "column", "options", "held_out", "min_bytes", "max_bytes", "limit", "short_documents")
"""Options of ``data`` that decide what a run holds out."""


class Drawer:
    """Draws boundaries for one name: of a model, or of a rule."""

    def __init__(self, model: UNet | None, segmenter: Segmenter | None, options: argparse.Namespace) -> None:
        self.model, self.segmenter, self.options = model, segmenter, options

    @property
    def at_random(self) -> bool:
        """Whether a second draw would be another."""
        return not self.options.greedy if self.segmenter is None else self.segmenter.draws_at_random

    def draw(self, text: bytes, generator: torch.Generator) -> Segmentation:
        """The boundaries of a text."""
        if self.model is None:
            assert self.segmenter is not None
            return segment_by_rule(self.segmenter, text, generator=generator)
        if self.segmenter is not None:
            return segment_text(self.model, self.segmenter, text, generator=generator)
        given = {"greedy": self.options.greedy, "target_rate": self.options.rate}
        return segment(self.model, text, generator=generator, **given)


def one_model(options: argparse.Namespace, name: str) -> argparse.Namespace:
    """The options as a command that takes one model has them."""
    return argparse.Namespace(**{**vars(options), "model": name, "data": options.text})


def find_drawers(parser: argparse.ArgumentParser, options: argparse.Namespace) -> dict[str, Drawer]:
    """Models by the names that they were given."""
    for name in options.models:
        if (times := options.models.count(name)) > 1:
            parser.error(f"argument MODEL: every model must be named once, got {name} {times} times")
    found = {}
    for name in options.models:
        found[name] = Drawer(*load_with_segmenter(parser, one_model(options, name)), options)
    return found


def find_run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> tuple[str, Any]:
    """The first model that is a run, and its configuration; others that may have seen its text are named."""
    runs = {name: run for name in options.models if (run := run_config(parser, name)) is not None}
    if not runs:
        if options.text is None:
            parser.error(
                f"the following arguments are required: --text ({options.models[0]} is not the folder of a run)"
            )
        return options.models[0], None
    first = next(iter(runs))
    known = {name: [run.data.get(key) for key in _SAME_TEXT] for name, run in runs.items()}
    if options.text is None:
        for name in [name for name in options.models if known.get(name) != known[first]]:
            print(f"note: {name} was not held off the text that {first} held out", file=sys.stderr)
    return first, runs[first]


def compare(
    drawn: DrawnTexts, references: dict[str, DrawnTexts], *, shifts: list[int], tolerance: int
) -> dict[str, list[dict[str, float]]]:
    """Precision, recall and F1 against every reference at every shift.

    Args:
        drawn: by the model.
        references: the same texts, by name.
        shifts: bytes that a reference is moved by.
        tolerance: bytes that partners may lie apart.
    """

    def at(reference: DrawnTexts, shift: int) -> dict[str, float]:
        given = (drawn.boundaries, reference.boundaries, drawn.counted)
        return {"shift": shift, **asdict(boundary_match(*given, shift=shift, tolerance=tolerance))}

    return {name: [at(reference, shift) for shift in shifts] for name, reference in references.items()}


def agree(pairs: dict[str, tuple[DrawnTexts, DrawnTexts]], tolerance: int) -> dict[str, Any]:
    """One matrix per measure, of all names.

    Args:
        pairs: two draws of each.
        tolerance: of F1.
    """
    one, other = ([pair[place] for pair in pairs.values()] for place in (0, 1))
    counted = one[0].counted
    strings, again = [x.boundaries for x in one], [x.boundaries for x in other]
    likely, likely_again = [x.probabilities for x in one], [x.probabilities for x in other]
    return {
        "names": list(pairs),
        "kappa": agreement_matrix(strings, again, lambda a, b: cohen_kappa(a, b, counted)),
        "f1": agreement_matrix(strings, again, lambda a, b: boundary_match(a, b, counted, tolerance=tolerance).f1),
        "jaccard": agreement_matrix(strings, again, lambda a, b: jaccard(a, b, counted)),
        "correlation": agreement_matrix(likely, likely_again, lambda a, b: boundary_correlation(a, b, counted)),
    }


@command
def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = parsers.boundaries()
    options = parser.parse_args(arguments)
    several = len(options.models) > 1
    if several and options.shift is not None:
        parser.error("argument --shift: belongs to one model beside references, got several models")
    source, run = find_run(parser, options)
    named, texts = find_texts(parser, one_model(options, source), run)
    drawers, tokenizers = find_drawers(parser, options), find_tokenizers(parser, options, run)
    shifts = list(SHIFTS) if options.shift is None else list(dict.fromkeys(options.shift))
    gap = 1 + options.tolerance + max(map(abs, shifts))  # so that no boundary is moved or paired into another text
    generator = torch.Generator(options.device).manual_seed(options.seed)
    on_cpu = torch.Generator().manual_seed(options.seed)  # of rules

    def drawn_by(drawer: Drawer) -> DrawnTexts:
        numbers = on_cpu if drawer.model is None else generator
        return join_texts([drawer.draw(text, numbers) for text in texts], gap=gap)

    drawn = {name: drawn_by(drawer) for name, drawer in drawers.items()}
    own = {name: boundary_metrics(one) for name, one in drawn.items()}
    first = next(iter(drawers))
    model = drawers[first].model
    assert model is not None
    rate = max(own[first]["rate"], 1 / own[first]["bytes"])
    rules = find_references(parser, options, model, tokenizers, rate)
    references = {name: Drawer(None, rule, options) for name, rule in rules.items()}
    beside = {name: drawn_by(drawer) for name, drawer in references.items()}
    for name, one in drawn.items():
        own[name]["against"] = compare(one, beside, shifts=[0] if several else shifts, tolerance=options.tolerance)
    figures: dict[str, Any] = {"text": named, "tolerance": options.tolerance, "models": own}
    if several:
        pairs = {}
        for name, drawer in (drawers | references).items():
            mine = (drawn | beside)[name]
            pairs[name] = (mine, drawn_by(drawer) if drawer.at_random else mine)
        figures["agreement"] = agree(pairs, options.tolerance)
    if options.json:
        print(json.dumps(without_nan(figures), indent=1))
    else:
        print(matrices(figures) if several else page(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())

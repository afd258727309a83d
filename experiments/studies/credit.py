"""Show the advantage of each decision of a text, by estimator, next to its counterfactual truth.

    rltok credit runs/mine
    rltok credit pocket --text "The old man walked slowly through the garden" --estimators paper group_mean_4@0.9
    rltok credit runs/mine --file notes.txt --estimators paper my_file:MyEstimator

The truth of a decision is the expected difference of return between drawing and not drawing a boundary there, under the
model's policy, with the run's price per boundary. An estimator's difference of advantages is compared with it: bias,
standard deviation, correlation and cost by estimator, and a figure along the text. By default the text is a window of
the run's held-out text that --seed draws. The other rows of a batch are other windows of the same text, or of
python-docs for a --text without a run.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rltok_rl.experiments.commands import arguments
from rltok_rl.experiments.commands.parsers import BUILT_IN, CREDITED, GAMMA, WINDOW, Parser, command
from rltok_rl.experiments.reports.markdown import without_nan
from rltok_rl.experiments.run_config import TrainConfig
from rltok_rl.experiments.runs.custom import custom_estimator
from rltok_rl.experiments.runs.saved_options import read_options
from rltok_rl.experiments.studies.candidates import make_candidate
from rltok_rl.experiments.studies.common import StepLines
from rltok_rl.experiments.studies.credit_page import decisions_table, draw_credit, estimators_table

from rltok_rl.data import TextSource
from rltok_rl.diagnostics.decision_credit import CreditRow, DecisionCredit, credit_rows, measure_credit
from rltok_rl.diagnostics.estimator_report import Candidate
from rltok_rl.functional.rewards import RELATIVE, REWARDS
from rltok_rl.models import UNet
from rltok_rl.sampling.sampler import NotFiniteError
from rltok_rl.text import ids_to_bytes
from rltok_rl.training.environment import machine
from rltok_rl.utils import is_import_path

_MOST = 512  # bytes of a text: the text is read once per byte
_SLOW = "regression"  # fitted anew for every flip, it takes longer than all others together


def find_text(parser: Parser, options: argparse.Namespace, run: Any) -> tuple[str, bytes, TextSource]:
    """Return the name and bytes of the text, and a source of other windows as long."""
    if options.text is None and options.file is None and run is None:
        missing = f"--text or --file ({options.model} is not the folder of a run)"
        parser.error(f"the following arguments are required: {missing}")
    if options.text is not None and options.bytes is not None:
        parser.error("argument --bytes: not allowed with --text")
    data = options.file or (BUILT_IN[1] if run is None else None)
    name, documents = arguments.find_documents(
        parser, argparse.Namespace(**{**vars(options), "data": data, "bytes": None}), run
    )
    if options.text is not None:
        name, text = "a text", os.fsencode(options.text)
        size = len(text)
    else:
        text, size = b"", min(options.bytes or WINDOW, max(map(len, documents)))
    if not 3 <= size <= _MOST:
        subject = "argument --text:" if options.text is not None else "argument --bytes:" if options.bytes else name
        parser.error(f"{subject} must have 3 to {_MOST} bytes, got {size}")
    source = TextSource([document for document in documents if len(document) >= size] or [text])
    if options.text is None:
        text = ids_to_bytes(source.draw(1, size, torch.Generator().manual_seed(options.seed)).byte_ids[0])
    return name, text, source


def make_candidates(
    options: argparse.Namespace, model: UNet, gamma: float, num_steps: int, price: float
) -> list[Candidate]:
    """Make the named estimators, with their own discount if they have one."""
    candidates = []
    for name, own_gamma in options.estimators or [(name, None) for name in CREDITED if name != _SLOW]:
        discount = gamma if own_gamma is None else own_gamma
        label = name if own_gamma is None else f"{name}@{own_gamma:g}"
        if not is_import_path(name):
            candidates.append(make_candidate(name, discount, model, num_steps, label=label, price=price))
            continue
        config = TrainConfig()
        config.estimator.name, config.estimator.gamma, config.data.num_steps = name, discount, num_steps
        candidates.append(Candidate(label, custom_estimator(config, model)))
    return candidates


def credit_content(text: bytes, marks: int, credit: DecisionCredit, rows: list[CreditRow]) -> dict[str, Any]:
    """Return the measurements as plain values: a row by estimator, and all estimators by decision."""
    num_draws = len(credit.worth)
    worth, error = credit.worth.mean(0).tolist(), (credit.worth.std(0) / num_draws**0.5).tolist()
    measures = {}
    for row in rows:
        values = credit.differences(row.name)
        measures[row.name] = (values.mean(0), values.std(0) / num_draws**0.5, credit.deviation(row.name))
    keys = ("difference", "error", "deviation")
    return {
        "text": text.decode("latin-1"),
        "estimators": [asdict(row) for row in rows],
        "decisions": [
            {
                "byte": number + 1 - marks,
                "probability": probability,
                "truth": worth[number],
                "truth_error": error[number],
                "estimators": {
                    name: {key: float(values[number]) for key, values in zip(keys, each, strict=True)}
                    for name, each in measures.items()
                },
            }
            for number, probability in enumerate(credit.probs.mean(0).tolist())
        ],
    }


@command("credit", __doc__)
def main(parser: Parser, options: argparse.Namespace) -> None:
    """Command line."""
    start = time.perf_counter()
    run = arguments.run_config(parser, options.model)
    both = argparse.Namespace(**vars(options), greedy=False, rate=None)
    model, segmenter = arguments.load_with_segmenter(parser, both)
    if segmenter is not None:
        parser.error(f"argument MODEL: must have a learned policy, got boundaries of {type(segmenter).__name__}")
    name, text, source = find_text(parser, options, run)
    try:
        trained = None if run is None else read_options(Path(options.model) / "config.yaml").estimator
    except ValueError as error:
        parser.error(f"argument MODEL: {error}")
    if trained is not None and trained.reward not in (*REWARDS, RELATIVE):  # those have one truth
        parser.error(
            f"argument MODEL: must have rewards of log-likelihoods alone, whose truth this measures, got "
            f"estimator.reward={trained.reward}"
        )
    price = 0.0 if trained is None else trained.price
    model.train()  # the soft cap belongs to the policy in training
    gamma = options.gamma
    if gamma is None:
        gamma = GAMMA if trained is None else trained.gamma
    torch.manual_seed(options.seed)
    marks = model.config.num_marks
    try:
        candidates = make_candidates(options, model, gamma, len(text) - 1 + marks, price)
        names = [candidate.name for candidate in candidates]
        if len({*names}) != len(names):
            raise ValueError(f"must all be different, got {names}")
    except (ValueError, TypeError, ImportError) as error:
        parser.error(f"argument --estimators: {error}")
    sizes: Any = {"num_rows": options.rows}
    how: Any = {"gamma": gamma, "price": price, "num_draws": options.draws, "seed": options.seed}
    try:
        credit = measure_credit(model, text, source, candidates, **how, **sizes, progress=StepLines("draw"))
    except NotFiniteError:
        raise  # the weights of the model are named
    except ValueError as error:
        option = "--rows" if str(error).startswith("num_rows must ") else "--estimators"
        parser.error(f"argument {option}: {arguments.without_subject(error, 'num_rows')}")
    content: dict[str, Any] = {
        "command": shlex.join(["rltok", "credit", *sys.argv[1:]]),
        "machine": machine(options.device),
        "seconds": round(time.perf_counter() - start),
        "model": options.model,
        "source": name,
        "gamma": gamma,
        "price": price,
        "draws": options.draws,
        "rows": options.rows,
        **credit_content(text, marks, credit, credit_rows(credit, model, candidates, **sizes)),
    }
    summary = estimators_table(content)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "credit.md").write_text(f"{summary}\n\n{decisions_table(content)}\n")
        (options.out / "credit.json").write_text(json.dumps(without_nan(content), indent=1) + "\n")
        figure = draw_credit(content, options.out / "credit.png")
    except OSError as error:
        parser.error(f"argument --out: {options.out} cannot be written: {error.strerror or error}")
    if options.json:
        print(json.dumps(without_nan(content), indent=1))
    else:
        rest = f"All decisions: {figure.with_suffix('.md')}, {figure}"
        print(summary, decisions_table(content, most=8), rest, sep="\n\n")


if __name__ == "__main__":
    sys.exit(main())

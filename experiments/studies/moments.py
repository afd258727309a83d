"""What estimators do to the policy's gradient at several moments of a training.

    python -m rltok_rl.experiments.studies.moments experiment=recall recipe=ours moments=[0.05,0.3,1.0]

Fields of :class:`Options` are options of the study; all others are those of ``rltok train`` and describe the training.
The training is the same as without the measurements, and leaves no files but the study's page.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rltok_rl.experiments.commands.overrides import compose_config
from rltok_rl.experiments.reports.markdown import markdown, number
from rltok_rl.experiments.run_config import TrainConfig
from rltok_rl.experiments.runs.build import make_trainer
from rltok_rl.experiments.studies.candidates import CANDIDATES, make_candidate
from rltok_rl.experiments.studies.common import check_minimums, command_line, read_options
from rltok_rl.experiments.studies.gradients import GradientMeter
from rltok_rl.experiments.studies.pages import value_and_error

from rltok_rl.data.windows import WindowSource
from rltok_rl.training.environment import machine
from rltok_rl.training.loop import Trainer

_METRICS = ("bits_per_byte", "early_bits_per_byte", "rate", "entropy")


@dataclass
class Options:
    """Options of the study."""

    moments: list[float] = field(default_factory=lambda: [0.05, 0.3, 1.0])
    """Shares of the training after which estimators are measured; 0 is before the first update."""
    estimators: list[str] = field(
        default_factory=lambda: [
            "paper",
            "paper@0.9",
            "critic_td@0.9",
            "group_mean_2@0.9",
            "local_flips@0.9",
            "token_gain",
        ]
    )
    """Candidates, with a discount of their own after @, else 1."""
    num_batches: int = 100
    """Batches of each candidate."""
    reference_batches: int = 200
    """Batches of the reference gradient (gamma 1, four rows per text)."""
    warm_up: int = 40
    """Batches that critics learn from beforehand."""
    out: str = "runs/moments"
    """Folder of page and numbers."""


def read_candidates(options: Options) -> dict[str, tuple[str, float]]:
    """Return name and discount of each candidate by its label, after checking all options."""
    check_minimums(options, {"num_batches": 3, "reference_batches": 3, "warm_up": 0})
    if not options.moments or options.moments != sorted(set(options.moments)):
        raise ValueError(f"moments must increase, got {options.moments}")
    if not 0 <= options.moments[0] <= options.moments[-1] <= 1:
        raise ValueError(f"moments must lie in [0, 1], got {options.moments}")
    candidates = {}
    for label in options.estimators:
        name, _, gamma = label.partition("@")
        try:
            discount = float(gamma or 1.0)
        except ValueError:
            discount = -1.0
        if name not in CANDIDATES or not 0 <= discount <= 1:
            raise ValueError(
                f"estimators must be among {list(CANDIDATES)}, with a discount in [0, 1] after @, got {label!r}"
            )
        candidates[label] = (name, discount)
    return candidates


def split_arguments(arguments: Sequence[str]) -> tuple[Options, list[str]]:
    """Separate the study's options from those of the training."""
    names = Options.__dataclass_fields__
    own = [argument for argument in arguments if argument.partition("=")[0] in names]
    return read_options(Options, own), [argument for argument in arguments if argument not in own]


def measure(
    trainer: Trainer,
    source: WindowSource,
    config: TrainConfig,
    candidates: dict[str, tuple[str, float]],
    options: Options,
) -> dict[str, Any]:
    """Measure all candidates on the trainer's present model; the training is not affected."""
    model, length = trainer.model, config.data.num_steps
    meter = GradientMeter(model, source, config.data.num_rows, length, seed=100_000 + config.seed)
    made = [
        make_candidate(name, gamma, model, length, label=label, price=config.estimator.price)
        for label, (name, gamma) in candidates.items()
    ]
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        reference, rate = meter.reference(options.reference_batches), meter.rate()
        sizes: Any = {"num_batches": options.num_batches, "warm_up": options.warm_up}
        rows = meter.rows(made, reference, rate, label="estimators", **sizes)
    return {"reference": {"ratio": reference.ratio, "error": reference.error}, "rate": rate, "rows": rows}


def run(config: TrainConfig, options: Options, command: str) -> Path:
    """Train and measure; write page and numbers, and return the folder."""
    candidates, start = read_candidates(options), time.perf_counter()
    if config.data.num_rows % 4:
        raise ValueError(f"data.num_rows must be a multiple of 4, got {config.data.num_rows}")
    torch.set_num_threads(config.compute.threads or 1)
    trainer, texts = make_trainer(config)
    moments, measured = list(options.moments), list[dict[str, Any]]()
    learned = "policy" in trainer.loss.terms and trainer.segmenter is None
    if not learned or trainer.model.config.boundary_bias:
        raise ValueError("the training must have a policy that learns from rewards, and boundary_bias=false")

    def is_due() -> bool:
        return bool(moments) and trainer.fraction_done >= moments[0] - 1e-9

    def after_update(metrics: dict[str, float]) -> None:
        last = trainer.last_update
        if not is_due() or (last is not None and last.update != trainer.updates):
            return
        moment = moments.pop(0)
        print(f"after {moment:.0%} of the training, {trainer.updates} updates", file=sys.stderr)
        kept = {name: metrics[name] for name in _METRICS if name in metrics}
        measured.append({"moment": moment, "updates": trainer.updates, "metrics": kept})
        measured[-1] |= measure(trainer, texts.train, config, candidates, options)

    after_update({})
    trainer.run(after_update, fetch_when=is_due)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    report = {"command": command, "machine": machine("cpu"), "seconds": round(time.perf_counter() - start)}
    report |= {"options": asdict(options), "moments": measured}
    (out / "moments.json").write_text(json.dumps(report, indent=1) + "\n")
    (out / "moments.md").write_text(page(report))
    return out


def page(report: dict[str, Any]) -> str:
    """Return the page: for each moment the model's state, and a row per estimator."""
    options = report["options"]
    text = f"`{report['command']}`\n\n{report['machine']}; {report['seconds']} s\n"
    header = ["estimator", "signal / noise of a batch", "cost", "at equal cost", "cosine", "length", "bias", "noise"]
    for entry in report["moments"]:
        state = ", ".join(f"{name} {number(value)}" for name, value in entry["metrics"].items()) or "untrained"
        text += f"\n## After {entry['moment']:.0%} of the training\n\n{entry['updates']} updates; {state}.\n\n"
        body = [
            [
                f"`{row['name']}`",
                value_and_error(row["ratio"], row["error"]),
                f"{row['cost']:.2f}",
                number(row["per_cost"]),
                value_and_error(row["cosine"], row["cosine_error"]),
                value_and_error(row["scale"], row["scale_error"]),
                f"{number(row['bias'])}, at most {number(row['bias_limit'])}",
                number(row["variance"]),
            ]
            for row in sorted(entry["rows"], key=lambda row: -row["per_cost"])
        ]
        text += markdown(header, body) + "\n"
    return text + (
        f"\nEach candidate has {options['num_batches']} batches. Cosine, length, bias and noise are against the "
        f"reference, {options['reference_batches']} other batches with four rows per text and gamma 1. Noise is the "
        "trace of the covariance of a batch's gradient, over the squared length of the reference.\n"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study."""
    words = sys.argv[1:] if arguments is None else arguments
    options, overrides = split_arguments(words)
    read_candidates(options)
    out = run(compose_config(overrides), options, command_line("moments", words))
    print((out / "moments.md").read_text(), out, sep="\n")


if __name__ == "__main__":
    main()

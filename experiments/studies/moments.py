"""Signal, cost and bias of estimators at several moments of a run.

    python -m rltok_rl.experiments.studies.moments experiment=recall recipe=unscaled moments=[0.05,0.3,1.0]

Fields of :class:`Options` are options of the study; all others are those of ``rltok train`` and describe the run. It
learns as it would without measurements, and leaves no files but the study's page. All moments have the same windows
of the training text, and critics are warmed up on the fixed model of each moment.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rltok_rl.experiments.commands.overrides import compose_config
from rltok_rl.experiments.reports.markdown import number
from rltok_rl.experiments.run_config import TrainConfig
from rltok_rl.experiments.runs.build import make_trainer
from rltok_rl.experiments.runs.valid_options import check_options
from rltok_rl.experiments.studies.candidates import CANDIDATES, make_candidate
from rltok_rl.experiments.studies.common import check_minimums, command_line, read_options, unchanged, write_numbers
from rltok_rl.experiments.studies.estimator_options import rows_together
from rltok_rl.experiments.studies.gradients import GradientMeter
from rltok_rl.experiments.studies.pages import gradient_table

from rltok_rl.data.windows import WindowSource
from rltok_rl.training.environment import machine
from rltok_rl.training.loop import Trainer

_METRICS = ("bits_per_byte", "early_bits_per_byte", "rate", "entropy")


@dataclass
class Options:
    """Options of the study."""

    moments: list[float] = field(default_factory=lambda: [0.05, 0.3, 1.0])
    """Shares of the run after which estimators are measured; 0 is before the first update."""
    estimators: list[str] = field(
        default_factory=lambda: [
            *("paper@0.9", "paper@0.95", "paper@0.99", "paper", "leave_one_out@0.9", "z_score@0.9", "running_mean@0.9"),
            *("control_variate@0.9", "regression@0.9", "critic_td@0.9", "critic@0.9"),
            *("pooled_critic_td@0.9", "pooled_critic@0.9", "natural@0.9", "natural@0.95"),
            *("group_mean_2@0.9", "group_mean_4@0.9", "sibling_trial@0.9", "sibling_trial_blocks@0.9"),
            *("sibling_trial_antithetic@0.9", "sibling_trial_disarm@0.9", "sibling_trial_disarm@0.99"),
            *("local_flips@0.9", "budgeted_flips@0.9", "doubly_robust@0.9"),
            *("token_gain@0.9", "token_gain", "shared_gain_4"),
        ]
    )
    """Candidates as ``name`` or ``name@gamma``; gamma is 1 by default."""
    num_batches: int = 100
    """Batches of each candidate."""
    reference_batches: int = 200
    """Batches of the reference gradient (gamma 1, four rows per text)."""
    warm_up: int = 40
    """Batches that critics learn from beforehand."""
    out: str = "runs/moments"
    """Folder of page and numbers."""


def read_candidates(options: Options) -> dict[str, tuple[str, float]]:
    """Return name and discount of each candidate by its label, after checking all options of the study."""
    check_minimums(options, {"num_batches": 3, "reference_batches": 3, "warm_up": 0})
    if not options.moments or options.moments != sorted(set(options.moments)):
        raise ValueError(f"moments must increase, got {options.moments}")
    if not 0 <= options.moments[0] <= options.moments[-1] <= 1:
        raise ValueError(f"moments must lie in [0, 1], got {options.moments}")
    if not options.estimators or len(set(options.estimators)) != len(options.estimators):
        raise ValueError(f"estimators must be different names, at least one, got {options.estimators}")
    candidates = {}
    for label in options.estimators:
        name, _, gamma = label.partition("@")
        try:
            discount = float(gamma or 1.0)
        except ValueError:
            discount = math.nan
        if name not in CANDIDATES or not 0 <= discount <= 1:
            raise ValueError(
                f"estimators must be among {list(CANDIDATES)}, with a discount in [0, 1] after @, got {label!r}"
            )
        candidates[label] = (name, discount)
    return candidates


def check_run(config: TrainConfig, candidates: dict[str, tuple[str, float]]) -> None:
    """Raise ValueError for a run whose policy gradient this study does not measure."""
    check_options(config)
    together = rows_together([name for name, _ in candidates.values()])
    if config.data.num_rows % together:
        raise ValueError(
            f"data.num_rows must be a multiple of {together} with these estimators, got {config.data.num_rows}"
        )
    if (config.actor.name, config.segmenter.name) != ("learned", "learned"):
        raise ValueError(
            f"actor and segmenter must be learned, got {config.actor.name!r} and {config.segmenter.name!r}: the study "
            f"measures the gradient of a policy"
        )
    if config.estimator.reward != "early_exit" or config.estimator.price or config.actor.rates is not None:
        raise ValueError(
            f"estimator.reward must be 'early_exit', estimator.price 0 and actor.rates null, "
            f"got {config.estimator.reward!r}, {config.estimator.price} and {config.actor.rates}"
        )


def split_arguments(arguments: Sequence[str]) -> tuple[Options, list[str]]:
    """Separate the study's options from those of the run."""
    names = Options.__dataclass_fields__
    study = [argument for argument in arguments if argument.partition("=")[0] in names]
    return read_options(Options, study), [argument for argument in arguments if argument not in study]


def measure(
    trainer: Trainer,
    source: WindowSource,
    config: TrainConfig,
    candidates: dict[str, tuple[str, float]],
    options: Options,
) -> dict[str, Any]:
    """Measure all candidates on the trainer's present model; the run is not affected."""
    model, length = trainer.model, config.data.num_steps
    meter = GradientMeter(model, source, config.data.num_rows, length, seed=100_000 + config.seed)
    sizes: Any = {"num_batches": options.num_batches, "warm_up": options.warm_up}
    with unchanged(trainer):
        torch.manual_seed(config.seed)
        named = candidates.items()
        measured = [make_candidate(name, gamma, model, length, label=label) for label, (name, gamma) in named]
        reference, rate = meter.reference(options.reference_batches), meter.rate()
        rows = meter.measure(measured, reference, rate, label="estimators", **sizes)
    return {"reference": {"ratio": reference.ratio, "error": reference.error}, "rate": rate, "rows": rows}


def run(config: TrainConfig, options: Options, command: str) -> Path:
    """Train and measure; write page and numbers, and return the folder."""
    candidates, start = read_candidates(options), time.perf_counter()
    check_run(config, candidates)
    if config.compute.threads:
        torch.set_num_threads(config.compute.threads)
    trainer, texts = make_trainer(config)
    if trainer.model.config.boundary_bias:
        raise ValueError("boundary_bias must be false: the closed form of the policy gradient covers weights, got true")
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    moments, measured = list(options.moments), list[dict[str, Any]]()

    def is_due() -> bool:
        return bool(moments) and trainer.fraction_done >= moments[0] - 1e-9

    def after_update(metrics: dict[str, float]) -> None:
        last = trainer.last_update
        if not is_due() or (last is not None and last.update != trainer.updates):
            return
        print(f"after {moments[0]:.3g} of the run, {trainer.updates} updates", file=sys.stderr)
        content = measure(trainer, texts.train, config, candidates, options)
        content["metrics"] = {name: metrics[name] for name in _METRICS if name in metrics}
        while is_due():  # several moments may lie in one update
            measured.append({"moment": moments.pop(0), "updates": trainer.updates, **content})

    after_update({})
    trainer.run(after_update, fetch_when=is_due)
    report: dict[str, Any] = {"command": command, "machine": machine(config.compute.device)}
    report |= {"seconds": round(time.perf_counter() - start), "options": asdict(options), "moments": measured}
    write_numbers(out / "moments.json", report)
    (out / "moments.md").write_text(page(report))
    return out


def page(report: dict[str, Any]) -> str:
    """Return the page: for each moment the model's state, and a row per estimator."""
    options = report["options"]
    text = f"`{report['command']}`\n\n{report['machine']}; {report['seconds']} s\n"
    for entry in report["moments"]:
        state = ", ".join(f"{name} {number(value)}" for name, value in entry["metrics"].items()) or "untrained"
        text += f"\n## After {entry['moment']:.3g} of the run\n\n{entry['updates']} updates; {state}.\n\n"
        text += gradient_table(entry["rows"], exact=True) + "\n"
    return text + (
        f"\nEach candidate has {options['num_batches']} batches. Cosine, length, bias and variance are against the "
        f"reference, {options['reference_batches']} other batches with four rows per text and gamma 1; - is lost in "
        "noise. Bias is at most its bound with 97.5 % confidence. Variance is the trace of the covariance of a batch's "
        "gradient, over the squared length of the reference.\n"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the study."""
    words = sys.argv[1:] if arguments is None else arguments
    options, overrides = split_arguments(words)
    out = run(compose_config(overrides), options, command_line("moments", words))
    print((out / "moments.md").read_text(), out, sep="\n")


if __name__ == "__main__":
    main()

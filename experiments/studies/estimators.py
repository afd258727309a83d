"""What each advantage estimator does to the gradient: bias, noise, signal at equal cost, agreement with the truth.

    python -m rltok_rl.experiments.studies.estimators estimators=[paper,group_mean_4] gamma=0.95

Fields of :class:`~rltok_rl.experiments.studies.estimator_options.EstimatorOptions` are options (Hydra). A toy model is
trained first, unless its file exists.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import hydra
import torch
from omegaconf import OmegaConf
from rltok_rl.experiments.commands import help as option_help
from rltok_rl.experiments.commands.overrides import CommandLine
from rltok_rl.experiments.commands.run_checks import read_run_options
from rltok_rl.experiments.studies.candidates import make_candidate
from rltok_rl.experiments.studies.common import StepLines, command_line, write_numbers
from rltok_rl.experiments.studies.estimator_options import EstimatorOptions, check_options
from rltok_rl.experiments.studies.gradients import GradientMeter
from rltok_rl.experiments.studies.pages import draw_figures, write_page
from rltok_rl.experiments.studies.toy import get_toy

from rltok_rl.data import TextSource, local_code
from rltok_rl.diagnostics.estimator_report import estimator_report, train_candidates
from rltok_rl.diagnostics.exact import EnumeratedRollouts, TextRollouts, exact_head_gradient
from rltok_rl.diagnostics.truth import counterfactual_correlation, resampled_correlation
from rltok_rl.models.unet import UNet
from rltok_rl.training.environment import machine

_EXACT_ROWS = 8


def exact_part(model: UNet, source: TextSource, study: EstimatorOptions) -> dict[str, Any]:
    """Measure bias and noise on short texts, against the exact gradient, in float64."""
    wide = UNet(model.config).double().train(model.training)
    wide.load_state_dict(model.state_dict())
    texts = source.draw(
        study.exact_texts, study.exact_bytes + 1, torch.Generator().manual_seed(study.seed + 17)
    ).byte_ids
    exact = exact_head_gradient(wide, texts)
    rollouts = EnumeratedRollouts(wide, texts, num_rows=_EXACT_ROWS, seed=study.seed)
    rate = float((rollouts.weights.unsqueeze(-1) * rollouts.table["action"]).sum(1).mean())
    tables = {}
    for gamma in study.gammas:
        names = study.estimators if gamma == 1.0 else [name for name in study.sweep if name in study.estimators]
        if names:
            rows = estimator_report(
                wide,
                rollouts,
                [make_candidate(name, gamma, wide, study.exact_bytes) for name in names],
                num_batches=study.exact_batches if gamma == 1.0 else study.exact_batches // 3,
                warm_up=study.warm_up,
                num_rows=_EXACT_ROWS,
                num_steps=study.exact_bytes,
                rate=rate,
                reference=exact,
                progress=StepLines(f"exact, gamma {gamma}:", lines=20),
            )
            tables[str(gamma)] = [row.to_dict() for row in rows]
    return {"texts": [bytes(t.tolist()).decode("utf-8", "replace") for t in texts], "tables": tables}


def real_part(model: UNet, source: TextSource, study: EstimatorOptions) -> dict[str, Any]:
    """Measure signal and noise on batches of real text, against an unbiased gradient of other batches."""
    meter = GradientMeter(model, source, study.num_rows, study.num_steps, seed=study.seed)
    reference, rate = meter.reference(study.reference_batches), meter.rate()
    sizes: Any = {"num_batches": study.num_batches, "warm_up": study.warm_up}
    candidates = [make_candidate(name, study.gamma, model, study.num_steps) for name in study.estimators]
    swept = [
        make_candidate(name, gamma, model, study.num_steps, label=f"{name}@{gamma}")
        for name in study.sweep
        if name in study.estimators
        for gamma in study.gammas
    ]
    table = meter.measure(candidates, reference, rate, label=f"real text, gamma {study.gamma}", **sizes)
    sweep = meter.measure(swept, reference, rate, label="real text, every gamma", offset=500, **sizes) if swept else []
    return {
        "reference": {"ratio": reference.ratio, "error": reference.error, "batches": study.reference_batches},
        "rate": rate,
        "table": table,
        "sweep": sweep,
    }


def truth_part(model: UNet, source: TextSource, study: EstimatorOptions) -> dict[str, Any]:
    """Correlate advantages with the true advantage of single decisions, resampled and counterfactual."""
    texts = source.draw(16, study.num_steps + 1, torch.Generator().manual_seed(study.seed + 29)).byte_ids
    if not study.samples and not study.flip_batches:
        return {}
    candidates = [make_candidate(name, study.gamma, model, study.num_steps) for name in study.estimators]
    # On other texts: they would memorise these few.
    meter = GradientMeter(model, source, study.num_rows, study.num_steps, seed=study.seed)
    candidates = train_candidates(meter.rollouts(4000), candidates, study.warm_up)
    result: dict[str, Any] = {}
    shared: Any = {"gamma": study.gamma, "seed": study.seed}
    if study.samples:
        shared["progress"] = StepLines("resampled truth:", lines=20)
        sizes: Any = {"num_samples": study.samples, "num_judged": study.judged}
        result["resampled"] = asdict(resampled_correlation(model, texts, candidates, **sizes, **shared))
    if study.flip_batches:
        shared["progress"] = StepLines("counterfactual truth:", lines=20)
        rollouts = TextRollouts(model, source, num_rows=16, num_steps=study.num_steps, seed=study.seed + 3000)
        sizes = {"num_batches": study.flip_batches, "num_positions": 48, "pairs": 2}
        result["counterfactual"] = asdict(counterfactual_correlation(model, rollouts, candidates, **sizes, **shared))
    return result


def run(study: EstimatorOptions, command: str) -> Path:
    """Measure, write page, figures and JSON (with the ``command``), and return the folder."""
    if study.threads:
        torch.set_num_threads(study.threads)
    torch.manual_seed(study.seed)
    start = time.perf_counter()
    source = TextSource(local_code())
    model = get_toy(Path(study.toy), source, updates=study.updates)
    model.train()  # the soft cap belongs to the policy in training
    report: dict[str, Any] = {"command": command, "machine": machine("cpu"), "options": asdict(study)}
    if study.exact_texts:
        report["exact"] = exact_part(model, source, study)
    report["real"] = real_part(model, source, study)
    report["truth"] = truth_part(model, source, study)
    report["seconds"] = round(time.perf_counter() - start)
    out = Path(study.out)
    out.mkdir(parents=True, exist_ok=True)
    write_numbers(out / "estimators.json", report)
    figures = draw_figures(report, out)
    page = write_page(report, out)
    print(page.read_text(), page, *figures, sep="\n")
    return out


@hydra.main(version_base="1.3", config_path=None, config_name="estimators")
def run_composed(config: Any) -> None:
    """Run the study with the options that Hydra has composed."""
    study: Any = OmegaConf.to_object(config)
    try:
        check_options(study)
    except ValueError as error:
        sys.exit(f"rltok estimators: {error}")
    run(study, command_line("estimators", sys.argv[1:]))


def main(line: CommandLine | None = None) -> None:
    """Run the study with checked options; default: those of ``sys.argv``."""
    if line is None:
        if any(word in ("-h", "--help") for word in sys.argv[1:]):
            print(option_help.estimators())
            return
        try:
            line = read_run_options("estimators", sys.argv[1:])
        except ValueError as error:
            sys.exit(f"rltok estimators: {error}")
    sys.argv[1:] = line.arguments
    run_composed()


if __name__ == "__main__":
    main()

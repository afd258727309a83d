"""What each advantage estimator does to the gradient: bias, noise, signal at equal cost, agreement with the truth.

    python -m rltok_rl.experiments.studies.estimators estimators=[paper,group_mean_4] gamma=0.95

Every option of :class:`~rltok_rl.experiments.studies.options.Study` can be given so (Hydra). A toy model is
trained first where there is none.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
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
from rltok_rl.experiments.studies.options import Study, check
from rltok_rl.experiments.studies.pages import draw_figures, write_page
from rltok_rl.experiments.studies.toy import get_toy

from rltok_rl.data import TextSource, local_code
from rltok_rl.diagnostics.exact import EnumeratedRollouts, TextRollouts, exact_gradient
from rltok_rl.diagnostics.gradient_quality import signal_to_noise
from rltok_rl.diagnostics.report import collect_gradients, estimator_report
from rltok_rl.diagnostics.truth import counterfactual_correlation, resampled_correlation
from rltok_rl.models.unet import UNet
from rltok_rl.training.record import machine


def bar(what: str) -> Callable[[int, int], None]:
    """A line that counts up, with the time left."""
    start = time.perf_counter()

    def show(done: int, total: int) -> None:
        if done % max(1, total // 20) == 0 or done == total:
            left = (time.perf_counter() - start) / done * (total - done)
            print(f"  {what}: {done}/{total}, {left:.0f} s left", file=sys.stderr, flush=True)

    return show


def exact_part(model: UNet, source: TextSource, study: Study) -> dict[str, Any]:
    """Bias and noise on short texts, against the exact gradient."""
    wide = UNet(model.config).double().train(model.training)
    wide.load_state_dict(model.state_dict())
    generator = torch.Generator().manual_seed(study.seed + 17)
    texts = source.draw(study.exact_texts, study.exact_bytes + 1, generator).byte_ids
    exact = exact_gradient(wide, texts).policy["boundary_head.projection.weight"].flatten()
    draw = EnumeratedRollouts(wide, texts, num_rows=8, seed=study.seed)
    rate = float((draw.weights.unsqueeze(-1) * draw.table["action"]).sum(1).mean())
    options: dict[str, Any] = dict(num_rows=8, num_steps=study.exact_bytes, rate=rate, reference=exact)
    tables = {}
    for gamma in study.gammas:
        names = study.estimators if gamma == 1.0 else [n for n in study.sweep if n in study.estimators]
        # Short texts leave no room for spans, and need the float64 copy of the model.
        members = [make_candidate(name, gamma, wide, study.exact_bytes) for name in names]
        if members:
            batches = study.exact_batches if gamma == 1.0 else study.exact_batches // 3
            rows = estimator_report(
                wide,
                draw,
                members,
                num_batches=batches,
                warm_up=study.warm_up,
                progress=bar(f"exact, gamma {gamma}"),
                **options,
            )
            tables[str(gamma)] = [row.to_dict() for row in rows]
    return {"texts": [bytes(t.tolist()).decode("utf-8", "replace") for t in texts], "tables": tables}


def real_part(model: UNet, source: TextSource, study: Study) -> dict[str, Any]:
    """Signal and noise on batches of real text."""

    def rollouts(seed: int) -> TextRollouts:
        return TextRollouts(model, source, num_rows=study.num_rows, num_steps=study.num_steps, seed=study.seed + seed)

    unbiased = make_candidate("group_mean_4", 1.0, model, study.num_steps)
    found = collect_gradients(
        model, rollouts(1000), [unbiased], study.reference_batches, progress=bar("reference gradient")
    )["group_mean_4"]
    reference = signal_to_noise(found)
    rate = float(rollouts(2000)(1)["action"].float().mean())
    options: dict[str, Any] = dict(num_rows=study.num_rows, num_steps=study.num_steps, rate=rate, reference=reference)
    members = [make_candidate(name, study.gamma, model, study.num_steps) for name in study.estimators]
    rows = estimator_report(
        model,
        rollouts(0),
        members,
        num_batches=study.num_batches,
        warm_up=study.warm_up,
        progress=bar(f"real text, gamma {study.gamma}"),
        **options,
    )
    swept = [
        make_candidate(name, gamma, model, study.num_steps, label=f"{name}@{gamma}")
        for name in study.sweep
        if name in study.estimators
        for gamma in study.gammas
    ]
    more = (
        estimator_report(
            model,
            rollouts(500),
            swept,
            num_batches=study.num_batches,
            warm_up=study.warm_up,
            progress=bar("real text, every gamma"),
            **options,
        )
        if swept
        else []
    )
    return {
        "reference": {"ratio": reference.ratio, "error": reference.error, "batches": study.reference_batches},
        "rate": rate,
        "table": [row.to_dict() for row in rows],
        "sweep": [row.to_dict() for row in more],
    }


def truth_part(model: UNet, source: TextSource, study: Study) -> dict[str, Any]:
    """Agreement of single advantages with what decisions are worth."""
    result: dict[str, Any] = {}
    generator = torch.Generator().manual_seed(study.seed + 29)
    texts = source.draw(16, study.num_steps + 1, generator).byte_ids
    members = [make_candidate(name, study.gamma, model, study.num_steps) for name in study.estimators]
    members = [one for one in members if one.learn is None]  # what learns would learn these few texts by heart
    if not members:
        return result
    if study.samples:
        found = resampled_correlation(
            model,
            texts,
            members,
            gamma=study.gamma,
            num_samples=study.samples,
            num_judged=study.judged,
            seed=study.seed,
            progress=bar("resampled truth"),
        )
        result["resampled"] = asdict(found)
    if study.flip_batches:
        draw = TextRollouts(model, source, num_rows=16, num_steps=study.num_steps, seed=study.seed + 3000)
        found = counterfactual_correlation(
            model,
            draw,
            members,
            gamma=study.gamma,
            num_batches=study.flip_batches,
            num_positions=48,
            pairs=2,
            seed=study.seed,
            progress=bar("counterfactual truth"),
        )
        result["counterfactual"] = asdict(found)
    return result


def run(study: Study, command: str) -> Path:
    """Measure, write, and return the folder."""
    check(study)
    if study.threads:
        torch.set_num_threads(study.threads)
    torch.manual_seed(study.seed)
    start = time.perf_counter()
    source = TextSource(local_code())
    model = get_toy(Path(study.toy), source, updates=study.updates)
    model.train()  # the soft cap belongs to the policy that is trained
    options = asdict(study)
    report: dict[str, Any] = {"command": command, "machine": machine("cpu"), "options": options}
    if study.exact_texts:
        report["exact"] = exact_part(model, source, study)
    report["real"] = real_part(model, source, study)
    report["truth"] = truth_part(model, source, study)
    report["seconds"] = round(time.perf_counter() - start)
    out = Path(study.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "estimators.json").write_text(json.dumps(report, indent=1) + "\n")
    figures = draw_figures(report, out)
    page = write_page(report, out)
    print(page.read_text())
    for path in (page, *figures):
        print(path)
    return out


@hydra.main(version_base="1.3", config_path=None, config_name="estimators")
def configured(config: Any) -> None:
    """Run the study that Hydra has composed."""
    study = OmegaConf.to_object(config)
    assert isinstance(study, Study)
    try:
        check(study)
    except ValueError as error:
        sys.exit(f"rltok estimators: {error}")
    run(study, " ".join(["python -m rltok_rl.experiments.studies.estimators", *sys.argv[1:]]))


def main(line: CommandLine | None = None) -> None:
    """Command line.

    Args:
        line: options that are checked already; default: those of ``sys.argv``.
    """
    if line is None:
        if any(word in ("-h", "--help") for word in sys.argv[1:]):
            print(option_help.estimators())
            return
        try:
            line = read_run_options("estimators", sys.argv[1:])
        except ValueError as error:
            sys.exit(f"rltok estimators: {error}")
    sys.argv[1:] = line.arguments
    configured()


if __name__ == "__main__":
    main()

"""A run on a language with a known answer: training, evaluation on fresh texts, and CPU time."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import Any

import torch
from omegaconf import OmegaConf
from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.experiments.commands.overrides import compose_config
from rltok_rl.experiments.run_config import TrainConfig
from rltok_rl.experiments.runs.build import make_trainer
from rltok_rl.experiments.studies.common import unchanged
from rltok_rl.experiments.studies.equal_rates import calibrate_threshold, policy_at_rate

from rltok_rl.data.languages import Language
from rltok_rl.diagnostics.gradient_quality import policy_gradient, signal_to_noise
from rltok_rl.models.unet import UNet
from rltok_rl.training.loop import Trainer
from rltok_rl.training.snapshots import snapshot_updates
from rltok_rl.training.training_step import read_bytes

# The policy of recipe=paper; texts, sizes and the optimizer are those of the language.
_PAPER = (
    *("estimator=discounted_return", "baseline=batch_mean", "loss.policy=0.01", "rate.coefficient=0.01"),
    "model.overrides.encoder_norm=false",
)
SYSTEMS: dict[str, tuple[str, ...]] = {
    "learned": (),
    "uniform": ("actor=uniform", "actor.warm_start_bytes=0"),
    "random": ("actor=random", "actor.warm_start_bytes=0"),
    "paper": _PAPER,
    "paper_short": (*_PAPER, "estimator.gamma=0.9"),  # three of four stored versions of the released training step
    "no_early_exit": (*_PAPER, "estimator.reward=log_likelihood", "loss.early_exit=0.0"),
}
"""Overrides of ``experiment=recall`` or ``experiment=lexicon`` by system."""
_FIXED = ("uniform", "random")  # systems without a learned policy
FINAL_ROWS, FINAL_BATCHES = 128, 16
"""Size of the final evaluation."""
_SEED = 1_000_003  # of evaluation texts; seeds of runs are small
_SAMPLE_BYTES = 64


def run_config(
    language: str, system: str, seed: int, *, rate: float | None = None, overrides: Sequence[str] = ()
) -> TrainConfig:
    """Return the configuration of a run on a language, with boundaries per byte of ``rate`` or the experiment's."""
    if system not in SYSTEMS:
        raise ValueError(f"system must be one of {list(SYSTEMS)}, got {system!r}")
    rates = []
    if rate is not None:
        rates = [f"actor.rate={rate}" if system in _FIXED else f"model.overrides.target_rate={rate}"]
    options = [f"experiment={language}", *SYSTEMS[system], *rates, f"seed={seed}", "compute.threads=1", *overrides]
    config: TrainConfig = compose_config(options)
    return config


def fingerprint(config: TrainConfig) -> str:
    """Return a hash of the options that differ from their defaults; the folder and new options do not change it."""
    options, defaults = (OmegaConf.to_container(OmegaConf.structured(settings)) for settings in (config, TrainConfig()))
    assert isinstance(options, dict) and isinstance(defaults, dict)
    changed = {
        name: {k: v for k, v in value.items() if defaults[name][k] != v} if isinstance(value, dict) else value
        for name, value in options.items()
        if name != "out" and defaults[name] != value
    }
    return hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:12]


@torch.no_grad()
def evaluate(
    model: UNet, language: Language, actor: Any, *, num_rows: int, num_steps: int, num_batches: int, seed: int = _SEED
) -> dict[str, float]:
    """Evaluate a policy on fresh texts: the share of the optimal return, and where its boundaries lie.

    Returns ``share`` of the optimal return and its ``standard_error`` over batches; ``rate``, boundaries per byte;
    ``hits``, the share of the best boundaries that is drawn; ``in_sight``, the share that is drawn there or up to
    ``window - 1`` bytes later; ``elsewhere``, the share of all other places with a boundary.
    """
    training = model.training
    model.eval()
    actor = LearnedBoundaryActor(model) if actor is None else actor
    env = ByteBoundaryEnv(model, language, num_steps=num_steps, batch_size=(num_rows,), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    shares, counts, marks = [], Counter[str](), model.config.num_marks
    for _ in range(num_batches):
        rollout = env.parallel_rollout(actor, generator=generator, exclude=("encoder_state",))
        byte_ids, log_prob = read_bytes(rollout, marks)  # [B, T + 1], [B, T]
        shares.append(language.share_captured(byte_ids, log_prob))
        drawn = rollout["action"].bool()[:, marks:]  # [B, T]
        soon = drawn.clone()
        for later in range(1, model.config.window):
            soon[:, :-later] |= drawn[:, later:]
        best = language.optimal_boundaries(byte_ids)[:, 1:-1]  # [B, T - 1]: the first boundary is forced
        drawn, soon = drawn[:, 1:], soon[:, 1:]
        places = {
            "best": best,
            "hits": best & drawn,
            "in_sight": best & soon,
            "other": ~best,
            "elsewhere": ~best & drawn,
        }
        counts.update({name: int(mask.sum()) for name, mask in places.items()})
    model.train(training)
    return {
        "share": fmean(shares),
        "standard_error": stdev(shares) / math.sqrt(len(shares)) if len(shares) > 1 else math.nan,
        "rate": (counts["hits"] + counts["elsewhere"]) / (counts["best"] + counts["other"]),
        "hits": counts["hits"] / counts["best"],
        "in_sight": counts["in_sight"] / counts["best"],
        "elsewhere": counts["elsewhere"] / counts["other"],
    }


@torch.no_grad()
def sample_boundaries(model: UNet, language: Language) -> dict[str, Any]:
    """Return a fresh text with the policy's boundaries, their probabilities, and the best boundaries."""
    training = model.training
    model.eval()
    byte_ids = language.draw(1, _SAMPLE_BYTES, torch.Generator().manual_seed(_SEED)).byte_ids
    out, marks = model(model.mark(byte_ids), generator=torch.Generator().manual_seed(_SEED)), model.config.num_marks
    model.train(training)
    best = language.optimal_boundaries(byte_ids)[0]
    return {
        "text": bytes(byte_ids[0].tolist()).decode("latin-1"),  # a character per byte
        "best": "".join(str(int(b)) for b in best.tolist()),
        "boundaries": "".join(str(int(b)) for b in out.boundaries[0, marks:].tolist()),
        "probabilities": [round(p, 3) for p in out.boundary_logits.sigmoid()[0, marks:].tolist()],
    }


@torch.no_grad()
def policy_signal(trainer: Trainer, num_batches: int) -> float | None:
    """Return signal to noise of the policy's gradient on fresh batches.

    None without a policy that learns by rewards, and with ``boundary_bias``, which ``policy_gradient`` does not cover.
    Texts, random numbers and the memory of the estimator are as before afterwards.
    """
    learned = "policy" in trainer.loss.terms and trainer.segmenter is None
    if not learned or trainer.model.config.boundary_bias:
        return None
    gradients = []
    with unchanged(trainer):
        for _ in range(num_batches):
            rollout, advantages = trainer.step.draw_judged()
            gradients.append(policy_gradient(trainer.model, rollout, advantages))
    return signal_to_noise(torch.stack(gradients).double()).ratio


def train_and_evaluate(
    config: TrainConfig,
    *,
    num_evaluations: int,
    signal_batches: int = 0,
    num_rows: int = FINAL_ROWS,
    num_batches: int = FINAL_BATCHES,
    equal_rates: bool = False,
    after_evaluation: Callable[[dict[str, Any], float], None] = lambda *_: None,
) -> dict[str, Any]:
    """Train a run with evenly spaced evaluations on fresh texts, and evaluate its end on others.

    Evaluations are spaced by updates, or by FLOPs if ``optim.total_flops`` ends the run. They have two batches of
    ``num_rows`` texts, the last one ``num_batches``, and with ``signal_batches`` the ``signal`` of
    :func:`policy_signal`. Calls ``after_evaluation`` with each evaluation and the share of the training that is done.
    With ``equal_rates`` the last evaluation is at the target rate (:mod:`~rltok_rl.experiments.studies.equal_rates`),
    on texts of the run's seed, and its ``offset`` of the policy's logits is returned; thresholds of entropies are set
    anew at each evaluation. Returns ``looks``, the evaluations; ``final`` (:func:`evaluate` on more texts); ``sample``;
    and the CPU seconds of building and training.
    """
    torch.set_num_threads(config.compute.threads or 1)
    start, spent = time.process_time(), 0.0
    trainer, texts = make_trainer(config)
    language = texts.language
    if language is None:
        raise ValueError(f"data.source must be a language with a known answer, got {config.data.source!r}")
    trainer.leave_out_shares()  # evaluations measure them
    fixed = config.actor.name != "learned" or trainer.segmenter is not None
    actor = trainer.actor if fixed else None
    total = -(-config.optim.total_bytes // trainer.bytes_per_update)
    due = set(snapshot_updates(total, num_evaluations, spacing="linear"))
    by_flops = config.optim.total_flops is not None
    evaluations: list[dict[str, float]] = []
    sizes: Any = {"num_rows": num_rows, "num_steps": config.data.num_steps}

    target, calibration = trainer.model.config.target_rate, {"seed": _SEED + 2, "num_batches": num_batches, **sizes}

    def add_evaluation() -> None:
        nonlocal start, spent
        spent += time.process_time() - start
        if equal_rates:
            calibrate_threshold(trainer.segmenter, trainer.model, language, target, **calibration)
        metrics = evaluate(trainer.model, language, actor, num_batches=2, seed=_SEED + 1, **sizes)
        evaluations.append({"bytes": trainer.bytes_done, "cpu_seconds": round(spent, 2)} | _rounded(metrics))
        if by_flops:
            evaluations[-1]["total_flops"] = trainer.total_flops_done
        if signal_batches and (signal := policy_signal(trainer, signal_batches)) is not None:
            evaluations[-1]["signal"] = round(signal, 4)
        after_evaluation(evaluations[-1], trainer.fraction_done if by_flops else trainer.updates / total)
        start = time.process_time()

    def is_due() -> bool:
        if by_flops:
            return trainer.done or trainer.fraction_done * num_evaluations >= len(evaluations)
        return trainer.updates in due

    def after_update(_: dict[str, float]) -> None:
        if is_due() and trainer.last_update is not None and trainer.last_update.update == trainer.updates:
            add_evaluation()

    add_evaluation()
    trainer.run(after_update, fetch_when=is_due)
    result: dict[str, Any] = {} if actor is not None else {"sample": sample_boundaries(trainer.model, language)}
    if equal_rates and actor is None:
        policy = policy_at_rate(trainer.model, language, target, **calibration)
        actor, result["offset"] = policy, round(policy.offset, 4)
    seed = _SEED + 10 * config.seed if equal_rates else _SEED
    final = evaluate(trainer.model, language, actor, num_batches=num_batches, seed=seed, **sizes)
    return {
        "updates": trainer.updates,
        "bytes": trainer.bytes_done,
        "flops": trainer.flops_done,
        **({"total_flops": trainer.total_flops_done} if by_flops else {}),
        "cpu_seconds": round(spent, 2),
        "final": _rounded(final),
        "looks": evaluations,
        **result,
    }


def _rounded(metrics: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in metrics.items()}

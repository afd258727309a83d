"""One training on a language with a known answer: how far it came, in how much time, and where its boundaries are."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import Any

import torch
from omegaconf import OmegaConf
from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.experiments.commands.overrides import compose_config
from rltok_rl.experiments.config import TrainConfig
from rltok_rl.experiments.runs.build import make_trainer

from rltok_rl.data.languages import Language
from rltok_rl.models.unet import UNet
from rltok_rl.training.snapshots import snapshot_updates

_PAPER = (
    "estimator=discounted_return",
    "baseline=batch_mean",
    "loss.policy=0.01",
    "rate.coefficient=0.01",
)  # Section 2.5, Table 2
SYSTEMS: dict[str, tuple[str, ...]] = {
    "learned": (),
    "uniform": ("actor=uniform", "actor.warm_start_bytes=0"),
    "random": ("actor=random", "actor.warm_start_bytes=0"),
    "paper": _PAPER,
    "no_early_exit": (*_PAPER, "estimator.reward=log_likelihood", "loss.early_exit=0.0"),
}
"""What is changed in ``experiment=recall`` or ``experiment=lexicon``, by the name of the system."""
_FIXED = ("uniform", "random")  # whose boundaries no training moves
JUDGED_ROWS, JUDGED_BATCHES = 128, 16
"""Fresh texts that a finished training is judged on."""
_SEED = 1_000_003  # of texts to judge by; trainings have small ones
_SAMPLE_BYTES = 64


def course_config(
    language: str, system: str, seed: int, *, rate: float | None = None, overrides: Sequence[str] = ()
) -> TrainConfig:
    """The training of one system.

    Args:
        language: an experiment, ``recall`` or ``lexicon``.
        system: a key of :data:`SYSTEMS`.
        seed: of weights, texts and boundaries.
        rate: boundaries per byte; None is the experiment's.
        overrides: further ones, as on the command line of a training.

    Example:
        >>> course_config("recall", "uniform", seed=0, rate=0.25).actor.rate
        0.25
    """
    if system not in SYSTEMS:
        raise ValueError(f"system must be one of {list(SYSTEMS)}, got {system!r}")
    own = list(SYSTEMS[system])
    if rate is not None:
        own.append(f"actor.rate={rate}" if system in _FIXED else f"model.overrides.target_rate={rate}")
    given = [f"experiment={language}", *own, f"seed={seed}", "compute.threads=1", *overrides]
    config = compose_config(given)
    assert isinstance(config, TrainConfig)
    return config


def fingerprint(config: TrainConfig) -> str:
    """A few letters that change with what a training sets, and not with options that others gain; the folder aside.

    Args:
        config: of the training.
    """
    options, usual = (OmegaConf.to_container(OmegaConf.structured(one)) for one in (config, TrainConfig()))
    assert isinstance(options, dict) and isinstance(usual, dict)
    changed = {
        name: {k: v for k, v in value.items() if usual[name][k] != v} if isinstance(value, dict) else value
        for name, value in options.items()
        if name != "out" and usual[name] != value
    }
    return hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:12]


@torch.no_grad()
def judge(
    model: UNet, language: Language, actor: Any, *, num_rows: int, num_steps: int, num_batches: int, seed: int = _SEED
) -> dict[str, float]:
    """What a policy earns on fresh texts, and where it draws boundaries.

    Args:
        model: the U-Net; its mode is left as it was.
        language: that it was trained on.
        actor: draws the boundaries; None is the model's own policy.
        num_rows: texts of a batch.
        num_steps: decisions per text.
        num_batches: batches.
        seed: of texts and boundaries.

    Returns:
        ``share`` of the optimal return and its ``standard_error`` over batches; ``rate``, boundaries per byte;
        ``hits``, the part of the best boundaries that is drawn, and ``in_sight``, there or up to ``window - 1`` bytes
        later; ``elsewhere``, the part of all other places that has one.
    """
    training = model.training
    model.eval()
    actor = LearnedBoundaryActor(model) if actor is None else actor
    env = ByteBoundaryEnv(model, language, num_steps=num_steps, batch_size=(num_rows,), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    shares = []
    counts = dict.fromkeys(("best", "hits", "in_sight", "other", "elsewhere"), 0.0)
    for _ in range(num_batches):
        rollout = env.parallel_rollout(actor, generator=generator, exclude=("encoder_state",))
        byte_ids = torch.cat((rollout["byte"], rollout["next", "byte"][:, -1:]), 1)  # [B, T + 1]
        shares.append(language.share_captured(byte_ids, rollout["next", "final_log_prob"].squeeze(-1)))
        drawn = rollout["action"].bool()  # [B, T]
        best = language.optimal_boundaries(byte_ids)[:, :-1]
        soon = drawn.clone()
        for later in range(1, model.config.window):
            soon[:, :-later] |= drawn[:, later:]
        free = torch.ones_like(best)
        free[:, 0] = False  # forced: the first byte of a text
        for name, found in (
            ("best", best & free),
            ("hits", best & free & drawn),
            ("in_sight", best & free & soon),
            ("other", ~best & free),
            ("elsewhere", ~best & free & drawn),
        ):
            counts[name] += float(found.sum())
    model.train(training)
    drawn_in_all, places = counts["hits"] + counts["elsewhere"], counts["best"] + counts["other"]
    return {
        "share": fmean(shares),
        "standard_error": stdev(shares) / math.sqrt(len(shares)) if len(shares) > 1 else math.nan,
        "rate": drawn_in_all / places,
        "hits": counts["hits"] / counts["best"],
        "in_sight": counts["in_sight"] / counts["best"],
        "elsewhere": counts["elsewhere"] / counts["other"],
    }


@torch.no_grad()
def show(model: UNet, language: Language, *, num_bytes: int = _SAMPLE_BYTES) -> dict[str, Any]:
    """One fresh text, how likely the model's policy makes each boundary, and which are the best.

    Args:
        model: the U-Net.
        language: that it was trained on.
        num_bytes: length of the text.
    """
    training = model.training
    model.eval()
    byte_ids = language.draw(1, num_bytes, torch.Generator().manual_seed(_SEED)).byte_ids
    out = model(byte_ids, generator=torch.Generator().manual_seed(_SEED))
    model.train(training)
    best = language.optimal_boundaries(byte_ids)[0]
    return {
        "text": bytes(byte_ids[0].tolist()).decode("ascii"),
        "best": "".join(str(int(b)) for b in best.tolist()),
        "boundaries": "".join(str(int(b)) for b in out.boundaries[0].tolist()),
        "probabilities": [round(p, 3) for p in out.boundary_logits.sigmoid()[0].tolist()],
    }


def take_course(
    config: TrainConfig, *, num_looks: int, after_look: Callable[[dict[str, Any], float], None] | None = None
) -> dict[str, Any]:
    """Train, look at fresh texts now and then, and judge the end on others.

    Args:
        config: of the training, on a language.
        num_looks: looks at few texts on the way, equally far apart.
        after_look: called with each of them, and the share of the training that is done.

    Returns:
        ``looks``, ``final`` (:func:`judge` on more texts, none of them seen before), ``sample``, and the CPU seconds of
        the process that building and updates took; looks are not counted.
    """
    torch.set_num_threads(config.compute.threads or 1)
    start, spent = time.process_time(), 0.0
    trainer, texts = make_trainer(config)
    language = texts.language
    if language is None:
        raise ValueError(f"data.source must be a language with a known answer, got {config.data.source!r}")
    actor = None if config.actor.name == "learned" else trainer.actor
    total = -(-config.optim.total_bytes // trainer.bytes_per_update)
    due = set(snapshot_updates(total, num_looks, spacing="linear"))
    looks: list[dict[str, float]] = []
    rows: Any = {"num_rows": JUDGED_ROWS, "num_steps": config.data.num_steps}

    def look() -> None:
        nonlocal start, spent
        spent += time.process_time() - start
        found = judge(trainer.model, language, actor, num_batches=2, seed=_SEED + 1, **rows)
        looks.append({"bytes": trainer.bytes_done, "cpu_seconds": round(spent, 1)} | _rounded(found))
        if after_look is not None:
            after_look(looks[-1], trainer.updates / total)
        start = time.process_time()

    def look_due() -> bool:
        return trainer.updates in due

    def after_update(_: dict[str, float]) -> None:
        if look_due() and trainer.last_update is not None and trainer.last_update.update == trainer.updates:
            look()

    look()
    trainer.run(after_update, fetch_when=look_due)
    return {
        "updates": trainer.updates,
        "bytes": trainer.bytes_done,
        "flops": trainer.flops_done,
        "cpu_seconds": round(spent, 1),
        "final": _rounded(judge(trainer.model, language, actor, num_batches=JUDGED_BATCHES, **rows)),
        "looks": looks,
        **({} if actor is not None else {"sample": show(trainer.model, language)}),
    }


def _rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in figures.items()}

"""Train a boundary policy and its language model.

    python -m rltok_rl.experiments.train estimator=siblings optim.total_bytes=4_000_000 out=runs/mine

Options are those of :class:`~rltok_rl.experiments.config.TrainConfig`; groups (``model=``, ``data=``, ``estimator=``,
``rate=``, ``optim=``, ``compute=``, ``experiment=``) are the yaml files in ``conf``.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import hydra
import torch
from omegaconf import OmegaConf
from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.experiments.bench.harness import keep_memory, machine
from rltok_rl.experiments.config import LossConfig, RateConfig, TrainConfig, register

from rltok_rl.data import RepeatedSource, TextSource, local_code, local_prose
from rltok_rl.models import UNet, preset
from rltok_rl.objectives import (
    BoundaryReinforceLoss,
    EarlyExitLoss,
    EntropyBonus,
    JointLoss,
    LanguageModelLoss,
    LocalFlips,
    RateLoss,
    make_estimator,
)
from rltok_rl.training.alarms import Alarms
from rltok_rl.training.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from rltok_rl.training.loop import LoopOptions, Trainer
from rltok_rl.training.progress import MetricsTable, Progress
from rltok_rl.training.signals import StopRequest
from rltok_rl.viz import boundary_text
from rltok_rl.viz.curves import draw_curves

register()
BUILT_IN = {"python-code": local_code, "python-docs": local_prose}
NOTED = ("loss", "bits_per_byte", "early_bits_per_byte", "rate", "entropy", "advantage_spread", "grad_norm", "lr")


def read_text(source: str) -> bytes:
    """The text of a source, by name or from a file."""
    if source in BUILT_IN:
        return BUILT_IN[source]()
    path = Path(source)
    if not path.is_file():
        raise FileNotFoundError(f"data.source must be one of {list(BUILT_IN)} or a file, got {source!r}")
    text = path.read_bytes()
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"data.source must be UTF-8 text, got {source!r}: {error}") from None
    return text


def split(text: bytes, held_out: float) -> tuple[TextSource, TextSource]:
    """The beginning of a text to train on, and its end."""
    if not 0.0 < held_out < 1.0:
        raise ValueError(f"data.held_out must lie strictly between 0 and 1, got {held_out}")
    cut = int(len(text) * (1 - held_out))
    return TextSource(text[:cut]), TextSource(text[cut:])


def make_loss(config: TrainConfig, model: UNet) -> JointLoss:
    """The joint loss that a configuration describes."""
    options = dict(config.estimator.options)
    if config.estimator.name == "local_flips":
        estimator = LocalFlips(model, gamma=config.estimator.gamma, **options)
    else:
        if config.estimator.name == "group_centred":
            options.setdefault("group_size", config.estimator.rows_per_text)
        if config.estimator.name == "running_mean":
            options.setdefault("num_steps", config.data.num_steps)
        estimator = make_estimator(config.estimator.name, gamma=config.estimator.gamma, **options)
    rate: RateConfig = config.rate
    weights: LossConfig = config.loss
    terms: dict[str, Any] = {
        "language_model": LanguageModelLoss(),
        "policy": BoundaryReinforceLoss(estimator),
        "rate": RateLoss(model.config.target_rate, control=rate.control, **rate.options),
        "early_exit": EarlyExitLoss(),
    }
    coefficients = {"policy": weights.policy, "rate": rate.coefficient, "early_exit": weights.early_exit}
    if weights.entropy:
        terms["entropy"], coefficients["entropy"] = EntropyBonus(), weights.entropy
    return JointLoss(terms, coefficients)


def make_trainer(config: TrainConfig) -> tuple[Trainer, TextSource]:
    """The trainer that a configuration describes, and the text that it will not see."""
    torch.manual_seed(config.seed)
    model = UNet(preset(config.model.preset, **config.model.overrides)).to(config.compute.device)
    train, held = split(read_text(config.data.source), config.data.held_out)
    source = RepeatedSource(train, config.estimator.rows_per_text)
    data, optim = config.data, config.optim
    env = ByteBoundaryEnv(model, source, num_steps=data.num_steps, batch_size=(data.num_rows,), seed=config.seed)
    options = LoopOptions(
        total_bytes=optim.total_bytes,
        lr=optim.lr,
        warm_up_bytes=optim.warm_up_bytes,
        lr_floor=optim.lr_floor,
        betas=(optim.beta1, optim.beta2),
        weight_decay=optim.weight_decay,
        clip_norm=optim.clip_norm,
        micro_batches=config.compute.micro_batches,
        precision=config.compute.precision,
    )
    loss = make_loss(config, model).to(config.compute.device)
    alarms = Alarms(target_rate=model.config.target_rate)
    return Trainer(model, env, loss, options, alarms=alarms, seed=config.seed), held


@torch.no_grad()
def held_out_bits(model: UNet, held: TextSource, config: TrainConfig, *, batches: int = 8) -> dict[str, float]:
    """Bits per byte on text that was never trained on, with boundaries drawn from the policy."""
    env = ByteBoundaryEnv(model, held, num_steps=config.data.num_steps, batch_size=(config.data.num_rows,), seed=1)
    generator = torch.Generator(model.embedding.weight.device).manual_seed(1)
    actor = LearnedBoundaryActor(model)
    rollouts = [env.parallel_rollout(actor, generator=generator, exclude=("encoder_state",)) for _ in range(batches)]
    means = {
        name: -torch.stack([r["next", f"{name}_log_prob"].mean() for r in rollouts]).mean().item() / math.log(2)
        for name in ("final", "early")
    }
    rate = torch.stack([r["action"].float().mean() for r in rollouts]).mean().item()
    return {
        "held_out_bits_per_byte": means["final"],
        "held_out_early_bits_per_byte": means["early"],
        "held_out_rate": rate,
    }


@torch.no_grad()
def sample(model: UNet, held: TextSource, *, num_bytes: int = 240, colour: bool) -> str:
    """Text that was never trained on, with the boundaries that the policy draws."""
    window = held.draw(1, num_bytes, torch.Generator().manual_seed(2)).byte_ids.to(model.embedding.weight.device)
    out = model(window, generator=torch.Generator(window.device).manual_seed(2))
    probs = out.boundary_logits.sigmoid()[0].tolist()
    return boundary_text(bytes(window[0].tolist()), out.boundaries[0].tolist(), probs, colour=colour)


def check_same_run(config: TrainConfig, path: Path) -> None:
    """Refuse to go on with a run under another configuration."""
    mine = OmegaConf.to_container(OmegaConf.structured(config))
    theirs = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(mine, dict) and isinstance(theirs, dict)
    free = ("out", "resume", "checkpoint_every")
    differing = [key for key in mine if key not in free and mine[key] != theirs.get(key)]
    if differing:
        shown = ", ".join(f"{key!s}: {theirs.get(key)!r} there, {mine[key]!r} here" for key in differing)
        raise ValueError(f"{path} is of a run with another configuration ({shown}); choose another folder")


def run(config: TrainConfig, command: str) -> dict[str, Any]:
    """Train, write the run's folder, and return its summary."""
    keep_memory()
    if config.compute.threads:
        torch.set_num_threads(config.compute.threads)
    out = Path(config.out)
    out.mkdir(parents=True, exist_ok=True)
    resuming = config.resume and (out / "config.yaml").exists()
    if resuming:
        check_same_run(config, out / "config.yaml")
    trainer, held = make_trainer(config)
    checkpoints = out / "checkpoints"
    if resuming and list_checkpoints(checkpoints):
        _, state = load_checkpoint(checkpoints)
        trainer.load_state_dict(state)
        print(f"resuming {out} after update {trainer.updates}", file=sys.stderr)
    table = MetricsTable(out / "metrics.csv", resume_after=trainer.updates if resuming else None)
    (out / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.structured(config)))
    progress = Progress(config.optim.total_bytes, done=trainer.bytes_done)

    with StopRequest() as stop:

        def after_update(figures: dict[str, float]) -> bool:
            table.add(trainer.updates, trainer.bytes_done, {name: figures[name] for name in NOTED})
            progress.show(figures, trainer.bytes_done)
            if stop or trainer.done or trainer.updates % config.checkpoint_every == 0:
                save_checkpoint(checkpoints, trainer.updates, trainer.state_dict())
            return bool(stop)

        trainer.run(after_update)
    if not trainer.done:
        print(f"\n{stop.name}: saved after update {trainer.updates}; go on with resume=true", file=sys.stderr)
        return {"updates": trainer.updates, "bytes": trainer.bytes_done}
    trainer.model.save_pretrained(out / "model")
    summary = {
        "command": command,
        "machine": machine(trainer.model.embedding.weight.device.type),
        "updates": trainer.updates,
        "bytes": trainer.bytes_done,
        **held_out_bits(trainer.model, held, config),
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    target = trainer.model.config.target_rate
    draw_curves(table.read(), out / "curves.png", target_rate=target)
    (out / "sample.txt").write_text(sample(trainer.model, held, colour=False) + "\n")
    print(sample(trainer.model, held, colour=sys.stdout.isatty()))
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in summary.items()}, indent=1))
    for name in ("curves.png", "metrics.csv", "sample.txt", "model"):
        print(out / name)
    return summary


@hydra.main(version_base="1.3", config_path=str(Path(__file__).resolve().parent / "conf"), config_name="train")
def main(config: Any) -> None:
    """Command line."""
    made = OmegaConf.to_object(config)
    assert isinstance(made, TrainConfig)
    run(made, " ".join(["python -m rltok_rl.experiments.train", *sys.argv[1:]]))


if __name__ == "__main__":
    main()

"""Train a boundary policy and its language model.

    python -m rltok_rl.experiments.train estimator=siblings optim.total_bytes=4_000_000 out=runs/mine

In several processes, with the same figures:

    torchrun --nproc-per-node 2 -m rltok_rl.experiments.train compute.strategy=ddp out=runs/mine

Options are those of :class:`~rltok_rl.experiments.config.TrainConfig`; groups (``model=``, ``data=``, ``estimator=``,
``rate=``, ``optim=``, ``compute=``, ``logger=``, ``experiment=``) are the yaml files in ``conf``.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import hydra
import torch
from omegaconf import OmegaConf
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.experiments.bench.harness import keep_memory, machine
from rltok_rl.experiments.config import LossConfig, RateConfig, TrainConfig, register
from rltok_rl.experiments.recording import Recorder
from rltok_rl.experiments.report import write_report

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
from rltok_rl.training import LoopOptions, Trainer
from rltok_rl.training.alarms import Alarms
from rltok_rl.training.checkpoint import list_checkpoints, load_checkpoint
from rltok_rl.training.distributed import Processes, init_processes, main_speaks
from rltok_rl.training.loggers import check_logger
from rltok_rl.training.record import bytes_per_second, peak_memory, without_folders
from rltok_rl.training.sharding import whole_model
from rltok_rl.training.signals import StopRequest
from rltok_rl.training.snapshots import sample_parts
from rltok_rl.viz import boundary_text

register()
BUILT_IN = {"python-code": local_code, "python-docs": local_prose}


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


def make_loss(config: TrainConfig, model: UNet, processes: Processes) -> JointLoss:
    """The joint loss that a configuration describes."""
    together: dict[str, Any] = {"process_group": processes.group}
    options = {**together, **config.estimator.options}
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
        "language_model": LanguageModelLoss(**together),
        "policy": BoundaryReinforceLoss(estimator, **together),
        "rate": RateLoss(model.config.target_rate, control=rate.control, **together, **rate.options),
        "early_exit": EarlyExitLoss(**together),
    }
    coefficients = {"policy": weights.policy, "rate": rate.coefficient, "early_exit": weights.early_exit}
    if weights.entropy:
        terms["entropy"], coefficients["entropy"] = EntropyBonus(**together), weights.entropy
    return JointLoss(terms, coefficients)


def make_trainer(config: TrainConfig, processes: Processes | None = None) -> tuple[Trainer, TextSource]:
    """The trainer that a configuration describes, and the text that it will not see."""
    processes = Processes(device=torch.device(config.compute.device)) if processes is None else processes
    num_rows = processes.share(config.data.num_rows, name="data.num_rows")
    if num_rows % config.estimator.rows_per_text:
        raise ValueError(
            f"data.num_rows must be a multiple of estimator.rows_per_text, {config.estimator.rows_per_text}, in each "
            f"of {processes.world_size} processes, got {config.data.num_rows}"
        )
    torch.manual_seed(config.seed)
    model = UNet(preset(config.model.preset, **config.model.overrides)).to(processes.device)
    train, held = split(read_text(config.data.source), config.data.held_out)
    source = RepeatedSource(train, config.estimator.rows_per_text)
    data, optim = config.data, config.optim
    env = ByteBoundaryEnv(model, source, num_steps=data.num_steps, batch_size=(num_rows,), seed=config.seed)
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
    loss = make_loss(config, model, processes).to(processes.device)
    alarms = Alarms(target_rate=model.config.target_rate)
    many: dict[str, Any] = {"processes": processes, "strategy": config.compute.strategy}
    return Trainer(model, env, loss, options, alarms=alarms, seed=config.seed, **many), held


def check_same_run(config: TrainConfig, path: Path) -> None:
    """Refuse to go on with a run under another configuration; processes may be more or fewer."""
    mine = OmegaConf.to_container(OmegaConf.structured(config))
    theirs = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(mine, dict) and isinstance(theirs, dict)
    for compute in (mine["compute"], theirs["compute"]):
        compute.pop("strategy", None)
    free = ("out", "resume", "checkpoint_every", "logger")
    differing = [key for key in mine if key not in free and mine[key] != theirs.get(key)]
    if differing:
        shown = ", ".join(f"{key!s}: {theirs.get(key)!r} there, {mine[key]!r} here" for key in differing)
        raise ValueError(f"{path} is of a run with another configuration ({shown}); choose another folder")


def last_state(config: TrainConfig) -> tuple[bool, dict[str, Any] | None]:
    """Whether a folder's run is to be gone on with, and the state of its newest checkpoint."""
    out = Path(config.out)
    if not (config.resume and (out / "config.yaml").exists()):
        return False, None
    check_same_run(config, out / "config.yaml")
    checkpoints = out / "checkpoints"
    return True, load_checkpoint(checkpoints)[1] if list_checkpoints(checkpoints) else None


def run(config: TrainConfig, command: str, processes: Processes | None = None) -> dict[str, Any]:
    """Train, write the run's folder, and return its summary; of several processes the main one writes."""
    keep_memory()
    check_logger(config.logger.name)
    if config.compute.threads:
        torch.set_num_threads(config.compute.threads)
    out = Path(config.out)
    trainer, held = make_trainer(config, processes)
    processes = trainer.processes
    resuming, state = processes.broadcast(last_state(config) if processes.main else None)
    if state is not None:
        trainer.load_state_dict(state)
    if processes.main and state is not None:
        print(f"resuming {out} after update {trainer.updates}", file=sys.stderr)
    recorder = Recorder(config, trainer, held, resuming=resuming, command=command)

    with StopRequest() as stop, recorder:

        def after_update(figures: dict[str, float]) -> bool:
            recorder.after_update(figures)
            stopping = processes.any(bool(stop))  # the signal may not have reached all yet
            if stopping or trainer.done or trainer.updates % config.checkpoint_every == 0:
                recorder.save()
            return stopping

        trainer.run(after_update)
    model = whole_model(trainer.model)
    reached = {"updates": trainer.updates, "bytes": trainer.bytes_done}
    if not processes.main:
        return reached
    if not trainer.done:
        asked = stop.name or "another process was asked to stop"
        print(f"\n{asked}: saved after update {trainer.updates}; go on with resume=true", file=sys.stderr)
        return reached
    model.save_pretrained(out / "model")
    look = recorder.last_look(model)
    summary = {
        "command": without_folders(command),
        "machine": machine(processes.device.type),
        "processes": processes.world_size,
        **reached,
        "flops": trainer.flops_done,
        "bytes_per_second": bytes_per_second(recorder.starts.entries),
        "threads": torch.get_num_threads(),
        **peak_memory(processes.device),
        **{name: look[name] for name in look if name.startswith("held_out_")},
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    text, boundaries, probabilities = sample_parts(look)
    (out / "sample.txt").write_text(boundary_text(text, boundaries, colour=False) + "\n")
    report = write_report(out)
    print(boundary_text(text, boundaries, probabilities, colour=sys.stdout.isatty()))
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in summary.items()}, indent=1))
    for path in (report, out / "metrics.csv", out / "sample.txt", out / "model"):
        print(path)
    return summary


@hydra.main(version_base="1.3", config_path=str(Path(__file__).resolve().parent / "conf"), config_name="train")
def configured(config: Any) -> None:
    """Train what Hydra has put together."""
    made = OmegaConf.to_object(config)
    assert isinstance(made, TrainConfig)
    with contextlib.redirect_stderr(sys.__stderr__):
        try:
            processes = init_processes(made.compute.device)
        except RuntimeError as error:
            sys.exit(str(error))
        launcher = f"torchrun --nproc-per-node {processes.world_size}" if processes.group else "python"
        with processes:
            run(made, " ".join([launcher, "-m rltok_rl.experiments.train", *sys.argv[1:]]), processes)


def main() -> None:
    """Command line."""
    if main_speaks():
        configured()
        return
    # Options are the same in all processes: the main one notes them, and says what is wrong with them.
    sys.argv += ["hydra.output_subdir=null", "hydra/job_logging=disabled"]
    with contextlib.redirect_stderr(io.StringIO()):
        configured()


if __name__ == "__main__":
    main()

"""Train several systems with equal total FLOPs on one text, and evaluate them on the same held-out documents.

    rltok train experiment=compare data.source=books/ compare.systems=[learned,uniform,hnet]

Each system is a run in a subfolder. The same command resumes a stopped comparison, and trains no system twice; run in
the same folder at the same time, it trains the remaining systems in parallel.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from rltok_rl.agents.segmenters import MagnetSegmenter, load_segmenter
from rltok_rl.agents.segmenters.saved import names_code
from rltok_rl.experiments.compare.systems import budget, check_system, system_config, system_names, variants
from rltok_rl.experiments.reports.markdown import without_nan
from rltok_rl.experiments.reports.run_report import write_report
from rltok_rl.experiments.reports.systems_page import write_page
from rltok_rl.experiments.reports.table import COMPARED_TOLERANCE, off_target, run_row
from rltok_rl.experiments.run_config import TrainConfig
from rltok_rl.experiments.runs.folder import EVALUATION, read_run
from rltok_rl.experiments.runs.resume import check_same_run
from rltok_rl.experiments.runs.revision import pinned_revision
from rltok_rl.experiments.runs.run import run as run_training
from rltok_rl.experiments.runs.segmenters import configured_rate, rows_per_text
from rltok_rl.experiments.texts import held_out_texts, read_texts

from rltok_rl.data.disk import claim_folder, replace_text
from rltok_rl.evaluation import Reading, document_nats, group_documents, read_text, summarise
from rltok_rl.models import UNet
from rltok_rl.ranges import check_fields
from rltok_rl.training.progress import clock
from rltok_rl.training.signals import StopRequest
from rltok_rl.utils import keep_memory

_SEED = 0x6A7564  # of boundaries drawn in the evaluation
NUM_RATES = 5
"""Rates at which a model of several rates is evaluated, evenly spaced in logarithm."""


def run(config: TrainConfig, command: str) -> Path | None:
    """Train the remaining systems and write the page of all; return its path, or None if no system is done.

    After a signal the page is written, and the process exits with the signal's status.
    """
    systems = config.compare.systems
    _check_common(config)
    revision = pinned_revision(config.data, [Path(config.out) / system for system in systems])
    config = replace(config, data=replace(config.data, revision=revision))
    configs = {system: system_config(config, system) for system in systems}  # rejects unknown names
    for system, system_run in configs.items():
        check_system(system_run, system)
    read_texts(config.data, seed=config.seed)  # writes the cache once
    out = Path(config.out)
    out.mkdir(parents=True, exist_ok=True)
    print(f"{len(systems)} systems, {budget(config):.3g} FLOPs each: {', '.join(systems)}", file=sys.stderr)
    start, fresh, stopped = time.perf_counter(), 0, 0
    for place, (system, system_run) in enumerate(configs.items()):
        label = f"{place + 1}/{len(systems)} {system}"
        if done(Path(system_run.out)):
            check_same_run(system_run, Path(system_run.out) / "config.yaml")
            print(f"{label}: already trained", file=sys.stderr)
            _warn_off_target(Path(system_run.out))
            continue
        remaining = sum(not done(Path(other.out)) for other in list(configs.values())[place:])
        eta = f"; ETA of all: {clock((time.perf_counter() - start) / fresh * remaining)}" if fresh else ""
        print(f"{label}{eta}", file=sys.stderr, flush=True)
        try:
            stopped = _train(system_run, command, config.compare.windows, apart=config.compare.apart)
        except BlockingIOError:
            print(f"{label}: already training in another process; skipped", file=sys.stderr)
            continue
        if stopped:
            break
        _warn_off_target(Path(system_run.out))
        fresh += 1
        write_page(out, command)
    page = write_page(out, command)
    if page is not None:
        print(page.read_text())
        print(page)
    if stopped:
        sys.exit(128 + stopped)  # a multirun does not go on
    return page


def done(folder: Path) -> bool:
    """Whether a system is trained and evaluated."""
    return (folder / "summary.json").exists() and (folder / EVALUATION).exists()


def _warn_off_target(folder: Path) -> None:
    """Print a line if the rate of an evaluated system is too far from its target to be compared."""
    row = run_row(read_run(folder))
    rate, target = row["rate"], row["target_rate"]
    if target and not row["target_rates"] and off_target(rate, target, COMPARED_TOLERANCE):
        print(
            f"warning: {folder.name}: boundaries per byte on held-out text must be within "
            f"{100 * COMPARED_TOLERANCE:g} % of the target {target:g} to be compared, got {rate:.4f} "
            f"({100 * (rate / target - 1):+.1f} %); use a stronger rate control or another weight of the rate loss",
            file=sys.stderr,
        )


def train_system(config: TrainConfig, command: str, windows: int) -> int:
    """Train and evaluate one system, unless that is done; return the signal that stopped it before its end, or 0."""
    out = Path(config.out)
    if (out / "summary.json").exists():
        check_same_run(config, out / "config.yaml")
    else:
        summary = run_training(config, command, report=write_report)
        if "stopped" in summary:
            return int(summary["stopped"])
    with claim_folder(out):
        replace_text(out / EVALUATION, json.dumps(evaluate(config, windows)) + "\n")
    return 0


def evaluate(config: TrainConfig, windows: int) -> dict[str, Any]:
    """Return a system's metrics on evenly spaced held-out windows, and each document's bytes and nats."""
    if config.compute.threads:
        torch.set_num_threads(config.compute.threads)
    folder = Path(config.out) / "model"
    model = UNet.from_pretrained(folder, device=config.compute.device)
    segmenter = load_segmenter(folder, model, trust_code=names_code(folder, config.segmenter.name))
    texts = read_texts(config.data, seed=config.seed)
    held = held_out_texts(texts, windows, config.data.num_steps + 1)

    def read(rate: float | None) -> Reading:
        reading = read_text(
            model,
            held,
            context=config.data.num_steps,
            most=windows,
            generator=torch.Generator().manual_seed(_SEED),
            segmenter=segmenter,
            target_rate=rate,
        )
        return reading if texts.held_out_groups is None else group_documents(reading, texts.held_out_groups)

    reading = read(None)
    counts, nats = document_nats(reading)
    at_rates = []
    if config.actor.rates is not None:
        low, high = config.actor.rates
        for rate in [low * (high / low) ** (step / (NUM_RATES - 1)) for step in range(NUM_RATES)]:
            metrics = summarise(read(rate))
            loss, error = metrics["corpus_bits_per_byte"], metrics["corpus_standard_error"]
            at_rates.append({"target_rate": rate, "rate": metrics["rate"], "bits_per_byte": loss, "error": error})
    return {
        **without_nan(summarise(reading)),
        "target_rate": configured_rate(config, model, segmenter),
        "target_rates": segmenter.by_script if isinstance(segmenter, MagnetSegmenter) else None,
        "at_rates": at_rates,
        "rows_per_text": rows_per_text(config),
        "split_by": None if texts.held_out_groups is None else config.data.split_by,
        "oracle": segmenter is not None and segmenter.looks_ahead,
        "counts": counts.tolist(),
        "nats": nats.tolist(),
    }


def _check_common(config: TrainConfig) -> None:
    """Reject options of a single run's boundaries, and systems that are missing, repeated or unknown."""
    check_fields(config)
    systems = list(config.compare.systems)
    if not systems:
        raise ValueError("compare.systems must name at least one system, got none")
    if len(set(systems)) < len(systems):
        raise ValueError(f"compare.systems must name each system once, got {systems}")
    if config.actor.name != "learned" or config.segmenter.name != "learned" or config.segmenter.options:
        raise ValueError(
            "actor and segmenter must be left out of a comparison, whose systems replace them (options: "
            f"compare.options.SYSTEM.NAME), got actor={config.actor.name!r} and segmenter={config.segmenter.name!r} "
            f"with {config.segmenter.options}"
        )
    names = system_names(variants(config))
    for option in ("options", "learning_rates"):
        if unknown := sorted(set(getattr(config.compare, option)) - set(names)):
            raise ValueError(f"compare.{option} must be by system, among {names}, got {unknown}")
    if clashing := sorted(set(config.compare.variants) & set(system_names())):
        raise ValueError(f"compare.variants must have other names than systems, got {clashing}")


def _train(config: TrainConfig, command: str, windows: int, *, apart: bool) -> int:
    """Train a system in this process or in a child process; return the signal that stopped it, or 0."""
    if not apart:
        return train_system(config, command, windows)
    with claim_folder(Path(config.out)):
        pass  # refuse another run's folder before a process starts
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    settings = OmegaConf.to_container(OmegaConf.structured(config))
    child = context.Process(target=_child, args=(settings, command, windows, os.getpid(), send))
    with StopRequest() as stop:
        child.start()
        send.close()
        terminated = False
        while child.is_alive():
            child.join(0.2)
            if stop and not terminated:
                child.terminate()  # SIGTERM: it finishes the update, saves and exits
                terminated = True
    try:
        answer: Any = receive.recv()
    except EOFError:
        raise RuntimeError(f"the process that trained {config.out} ended with code {child.exitcode}") from None
    if isinstance(answer, BaseException):
        raise answer
    return answer and (stop.signal or int(answer))  # the child got SIGTERM, whatever this process got


def _child(settings: Any, command: str, windows: int, parent: int, send: Any) -> None:
    """Train one system in a child process, and send the result; exit if the parent does."""
    os.setsid()  # Ctrl-C in the terminal goes to the parent, which stops this process
    threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()
    keep_memory()
    config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TrainConfig), OmegaConf.create(settings)))
    assert isinstance(config, TrainConfig)
    try:
        send.send(train_system(config, command, windows))
    except (ValueError, TypeError, OSError, ImportError, RuntimeError) as error:
        send.send(type(error)(*error.args) if isinstance(error, (OSError, ValueError)) else RuntimeError(str(error)))


def _exit_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)

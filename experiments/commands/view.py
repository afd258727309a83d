r"""Write an HTML page of a text, its boundaries and their rewards.

    rltok view runs/mine notes.txt
    rltok view runs/learned runs/spacebyte somebody/a-model notes.txt --out compared.html
    rltok view runs/mine --text "to be or not to be"
    rltok view runs/mine

The page is one HTML file that loads nothing. MODEL may also be a checkpoint, RUN/checkpoints/update-N. The last
argument is the text if it is a file, -, python-docs, python-code, or held-out (of the first run); else the page shows a
run's own sample over training.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rltok_rl.agents.segmenters import Segmenter
from rltok_rl.experiments.commands.arguments import (
    check_rate,
    find_documents,
    load_with_segmenter,
    run_config,
    typed_bytes,
    without_subject,
)
from rltok_rl.experiments.commands.parsers import BUILT_IN, CONTEXT, GAMMA, HELD_OUT, MOST, Parser, command
from rltok_rl.experiments.commands.views import read_snapshot, reading_note, sample_views, short_names
from rltok_rl.experiments.run_config import EstimatorConfig
from rltok_rl.experiments.runs.folder import RunFolder, is_checkpoint, load_checkpointed, read_run
from rltok_rl.experiments.runs.saved_options import read_options

from rltok_rl.data.disk import replace_text
from rltok_rl.evaluation.detail import read_detail
from rltok_rl.foreign import check_trust
from rltok_rl.models import UNet
from rltok_rl.models.pretrained import model_folder
from rltok_rl.utils import printable
from rltok_rl.viz.viewer import Segmented, TextView, is_viewer_page, viewer_page

_DEFAULT = EstimatorConfig(gamma=GAMMA)  # returns of models that are no runs
Runs = list[RunFolder | None]
"""The run of each model; None for models that are no runs."""


def _split_arguments(parser: Parser, options: argparse.Namespace) -> None:
    """Set ``options.data`` to the last argument if it is a text, and check ``--out``."""
    *models, last = options.models
    options.data = last if last in ("-", HELD_OUT, *BUILT_IN) or Path(last).is_file() else None
    if options.data is not None:
        options.models = models
        if not models:
            parser.error(f"the following arguments are required: MODEL ({last} is a text)")
        if options.text is not None:
            parser.error(f"argument --text: not allowed with a TEXT, got {last} too")
    out = options.out
    if out.is_dir():
        parser.error(f"argument --out: must be a file, got the folder {out}")
    if out.exists() and out.stat().st_size and not is_viewer_page(out):
        parser.error(f"argument --out: {out} is there and no page of this command; name another, or remove it")


def _find_run(path: str) -> RunFolder | None:
    """Read the run of a folder or a checkpoint; None if the model is no run."""
    folder = Path(path)
    if not folder.exists():
        model_folder(path)  # raises an error unless it may be an id of the hub
    folder = folder.resolve().parent.parent if is_checkpoint(folder) else folder
    return read_run(folder) if os.path.lexists(folder / "config.yaml") else None


def _find_text(parser: Parser, options: argparse.Namespace, runs: Runs) -> tuple[str, bytes] | None:
    """Return the name and bytes of the text; None if only the samples of runs are shown."""
    if options.text is not None:
        name, text = "a text", typed_bytes(parser, "--text", options.text)
    elif options.data is None:
        return None
    else:
        source, config = {"column": None, "model": options.models[0]}, None
        if options.data == HELD_OUT:
            run = next((run for run in runs if run is not None), None)
            if run is None:
                parser.error(f"{HELD_OUT}: none of {options.models} is the folder of a run, which holds out a text")
            source |= {"model": str(run.path), "data": None}
            config = run_config(parser, str(run.path))
        name, documents = find_documents(parser, argparse.Namespace(**{**vars(options), **source}), config)
        text = b"".join(documents)
        if options.data != HELD_OUT:
            name = "standard input" if name == "-" else Path(name).name
    if len(text) < 2:
        parser.error(f"argument --text: must have at least 2 bytes (one to read, one to predict), got {len(text)}")
    if options.bytes is None and len(text) > MOST:
        slow = f"a page of more than {MOST:,} is slow; --bytes shows so many from the start"
        parser.error(f"{name} has {len(text):,} bytes, and {slow}")
    return name, text[: options.bytes]


def _load(parser: Parser, options: argparse.Namespace, path: str) -> tuple[UNet, Segmenter | None]:
    """Load a model, or the model of a checkpoint, and its segmenter."""
    if not is_checkpoint(Path(path)):
        return load_with_segmenter(parser, argparse.Namespace(**{**vars(options), "model": path}))
    try:
        model, segmenter = load_checkpointed(Path(path), torch.device(options.device), trust_code=options.trust_code)
    except (OSError, ValueError, TypeError, RuntimeError, ImportError) as error:
        parser.error(f"argument MODEL: {error}")
    check_rate(parser, options, model, segmenter)
    return model, segmenter


def _read(parser: Parser, options: argparse.Namespace, runs: Runs, name: str, text: bytes) -> TextView:
    """Read the text with every model, in equal windows."""
    contexts = [run.option("data.num_steps") for run in runs if run is not None]
    context = options.context or min((context for context in contexts if context), default=CONTEXT)
    names, loaded = short_names(options.models), [_load(parser, options, path) for path in options.models]
    segmenters = []
    for number, ((model, segmenter), run, label) in enumerate(zip(loaded, runs, names, strict=True), 1):
        try:
            trained = _DEFAULT if run is None else read_options(run.path / "config.yaml").estimator
        except ValueError as error:
            parser.error(f"argument MODEL: {error}")
        rewards: dict[str, Any] = {
            "gamma": options.gamma if options.gamma is not None else trained.gamma,
            "reward": options.reward or trained.reward,
            "baseline": options.baseline,
            "draws": options.draws,
        }
        price = 0.0 if options.reward else trained.price
        policy = {"greedy": options.greedy, "target_rate": options.rate, "segmenter": segmenter}
        generator = torch.Generator().manual_seed(options.seed)
        if len(text) > 20_000:
            print(f"reading {len(text):,} bytes with {label} ({number} of {len(names)})", file=sys.stderr)
        try:
            if run is not None and not options.reward:
                check_trust(run.path / "config.yaml", rewards["reward"], options.trust_code)
            detail = read_detail(model, text, context=context, price=price, generator=generator, **policy, **rewards)
        except (ValueError, TypeError, ImportError) as error:
            parser.error(f"{label}: {error}")
        how = "greedily" if options.greedy else f"seed {options.seed}"
        about = reading_note(segmenter, context=context, how=how, **rewards)
        segmenters.append(Segmented(label, [read_snapshot(detail, "as saved")], about))
    return TextView(name, text, segmenters)


@command("view", __doc__)
def main(parser: Parser, options: argparse.Namespace) -> None:
    """Command line."""
    start = time.perf_counter()
    _split_arguments(parser, options)
    try:
        runs = [_find_run(path) for path in options.models]
    except (OSError, ValueError) as error:
        parser.error(f"argument MODEL: {without_subject(error, 'source')}")
    text = _find_text(parser, options, runs)
    named = zip(short_names(options.models), runs, options.models, strict=True)
    views = sample_views([(name, run) for name, run, path in named if run and not is_checkpoint(Path(path))])
    if text is not None:
        views.insert(0, _read(parser, options, runs, *text))
    if not views:
        missing = f"TEXT (none of {options.models} is the folder of a run with a sample of its own)"
        parser.error(f"the following arguments are required: {missing}")
    page = viewer_page(views)
    try:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        replace_text(options.out, page)
    except OSError as error:
        parser.error(f"argument --out: {options.out} cannot be written: {error.strerror or error}")
    size = f"{len(page.encode()) / 1e6:.2f} MB, {len(views)} text{'s' * (len(views) > 1)}"
    print(f"{printable(str(options.out))}: {size}, {time.perf_counter() - start:.1f} s; open it in any browser")

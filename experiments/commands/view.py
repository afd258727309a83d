r"""Make a page to look around in: a text, its boundaries, and what each was worth.

    rltok view runs/mine notes.txt
    rltok view runs/learned runs/spacebyte somebody/a-model notes.txt --out compared.html
    rltok view runs/mine --text "to be or not to be"
    rltok view runs/mine

The page is one HTML file that fetches nothing. MODEL may also be a checkpoint, RUN/checkpoints/update-N. The last
argument is the text if it is a file, -, or the name of a text; else a run's own text is shown, as training went on.
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
from rltok_rl.experiments.commands import parsers
from rltok_rl.experiments.commands.arguments import (
    check_rate,
    command,
    load_with_segmenter,
    without_subject,
)
from rltok_rl.experiments.commands.documents import find_texts, read_given, run_config
from rltok_rl.experiments.commands.parsers import BUILT_IN, CONTEXT, GAMMA, HELD_OUT, MOST
from rltok_rl.experiments.commands.views import detail_look, how_made, sample_views, seeded, short_names
from rltok_rl.experiments.runs.checkpointed import is_checkpoint, load_checkpointed
from rltok_rl.experiments.runs.folder import RunFolder, read_run

from rltok_rl.evaluation.detail import read_detail
from rltok_rl.models import UNet
from rltok_rl.models.pretrained import model_folder
from rltok_rl.training.atomic_files import replace_text
from rltok_rl.viz.viewer import Segmented, TextView, is_viewer_page, viewer_page


def split_arguments(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Tell the text from the models: it is last, and a file, ``-`` or a name; sets ``models`` and ``data``."""
    given = options.models
    options.data = None
    if given[-1] in ("-", HELD_OUT, *BUILT_IN) or Path(given[-1]).is_file():
        *options.models, options.data = given
    if not options.models:
        parser.error(f"the following arguments are required: MODEL ({given[-1]} is a text)")
    if options.data is not None and options.text is not None:
        parser.error(f"argument --text: not allowed with a TEXT, got {options.data} too")


def find_run(path: str) -> RunFolder | None:
    """The run whose folder, or checkpoint, this is; None where it is no run, and an error where it is nothing."""
    folder = Path(path)
    if not folder.exists():
        model_folder(path)  # raises what is wrong with it, if it can be no id of the hub either
    folder = folder.resolve().parent.parent if is_checkpoint(folder) else folder
    return read_run(folder) if (folder / "config.yaml").is_file() else None


def find_text(
    parser: argparse.ArgumentParser, options: argparse.Namespace, runs: list[RunFolder | None]
) -> tuple[str, bytes] | None:
    """Name and bytes of the text to read; None where there is none but those of the runs."""
    if options.text is not None:
        name, text = "a text", os.fsencode(options.text)
    elif options.data is None:
        return None
    elif options.data == HELD_OUT:
        name, text = _held_out(parser, options, runs)
    elif options.data in BUILT_IN:
        from rltok_rl.experiments.texts import BUILT_IN as READERS

        name, text = options.data, READERS[options.data]()
    else:
        name = "standard input" if options.data == "-" else Path(options.data).name
        text = b"".join(read_given(parser, options.data, options.bytes))
    if len(text) < 2:
        parser.error(f"argument --text: must have at least 2 bytes (one to read, one to predict), got {len(text)}")
    if options.bytes is None and len(text) > MOST:
        parser.error(
            f"{name} has {len(text):,} bytes, and a page of more than {MOST:,} is slow: say how many to show, "
            f"from the start, with --bytes"
        )
    return name, text[: options.bytes]


def _held_out(
    parser: argparse.ArgumentParser, options: argparse.Namespace, runs: list[RunFolder | None]
) -> tuple[str, bytes]:
    number = next((n for n, run in enumerate(runs) if run is not None), None)
    if number is None:
        parser.error(f"{HELD_OUT}: none of {options.models} is the folder of a run, which has held out a text")
    asked = argparse.Namespace(**{**vars(options), "model": str(runs[number].path), "data": None, "column": None})  # type: ignore[union-attr]
    name, documents = find_texts(parser, asked, run_config(parser, asked.model))
    return name, b"".join(documents)


def load_all(
    parser: argparse.ArgumentParser, options: argparse.Namespace, runs: list[RunFolder | None]
) -> list[tuple[UNet, Segmenter | None]]:
    """Every model and who draws its boundaries; what is wrong with one ends the command."""
    found: list[tuple[UNet, Segmenter | None]] = []
    for path in options.models:
        one = argparse.Namespace(**{**vars(options), "model": path})
        if is_checkpoint(Path(path)):
            try:
                model, segmenter = load_checkpointed(
                    Path(path), torch.device(options.device), trust_code=options.trust_code
                )
            except (OSError, ValueError, RuntimeError, ImportError) as error:
                parser.error(f"argument MODEL: {error}")
            check_rate(parser, one, model, segmenter)
        else:
            model, segmenter = load_with_segmenter(parser, one)
        found.append((model, segmenter))
    return found


def read_all(
    parser: argparse.ArgumentParser, options: argparse.Namespace, runs: list[RunFolder | None], name: str, text: bytes
) -> TextView:
    """The text as every model reads it, in the same windows."""
    contexts = [run.option("data.num_steps") for run in runs if run is not None]
    context = options.context or min((c for c in contexts if c), default=CONTEXT)
    names = short_names(options.models)
    segmenters = []
    loaded = load_all(parser, options, runs)
    for number, ((model, segmenter), run, called) in enumerate(zip(loaded, runs, names, strict=True)):
        judging: dict[str, Any] = {
            "gamma": _chosen(options.gamma, run, "estimator.gamma", GAMMA),
            "reward": _chosen(options.reward, run, "estimator.reward", "early_exit"),
            "baseline": options.baseline,
            "draws": options.draws,
        }
        if len(text) > 20_000:
            print(f"reading {len(text):,} bytes with {called} ({number + 1} of {len(names)})", file=sys.stderr)
        try:
            detail = read_detail(
                model,
                text,
                context=context,
                price=_chosen(None, run, "estimator.price", 0.0) if options.reward is None else 0.0,
                greedy=options.greedy,
                generator=seeded(options.seed),
                segmenter=segmenter,
                target_rate=options.rate,
                **judging,
            )
            how = "greedily" if options.greedy else f"seed {options.seed}"
            about = how_made(segmenter, context=context, how=how, **judging)
            segmenters.append(Segmented(called, [detail_look(detail, "as saved")], about))
        except ValueError as error:
            parser.error(f"{called}: {error}")
    return TextView(name, text, segmenters)


def _chosen(given: Any, run: RunFolder | None, option: str, otherwise: Any) -> Any:
    """What was asked for, or what the run was trained with."""
    if given is not None:
        return given
    trained = run.option(option) if run is not None else None
    return otherwise if trained is None else trained


def write_page(parser: argparse.ArgumentParser, out: Path, page: str) -> None:
    """Write the page; a file that is no such page is left alone."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        replace_text(out, page)
    except OSError as error:
        parser.error(f"argument --out: {out} cannot be written: {error.strerror or error}")


def check_out(parser: argparse.ArgumentParser, out: Path) -> None:
    """Refuse to replace what is not a page of this command, before anything is read."""
    if out.is_dir():
        parser.error(f"argument --out: must be a file, got the folder {out}")
    if out.exists() and out.stat().st_size and not is_viewer_page(out):
        parser.error(f"argument --out: {out} is there and no page of this command; name another, or remove it")


@command
def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = parsers.view()
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    split_arguments(parser, options)
    check_out(parser, options.out)
    try:
        runs = [find_run(path) for path in options.models]
    except (OSError, ValueError) as error:
        parser.error(f"argument MODEL: {without_subject(error, 'source')}")
    given = find_text(parser, options, runs)
    named = zip(short_names(options.models), runs, options.models, strict=True)
    views = sample_views(
        [(name, run) for name, run, path in named if run is not None and not is_checkpoint(Path(path))]
    )
    if given is not None:
        views.insert(0, read_all(parser, options, runs, *given))
    if not views:
        parser.error(
            f"the following arguments are required: TEXT (none of {options.models} is the folder of a run that has "
            f"looked at a text of its own)"
        )
    page = viewer_page(views)
    write_page(parser, options.out, page)
    size = len(page.encode())
    print(
        f"{options.out}: {size / 1e6:.2f} MB, {len(views)} text{'s' * (len(views) > 1)}, "
        f"{time.perf_counter() - start:.1f} s; open it in any browser"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

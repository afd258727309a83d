"""Report of one run, from its folder alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rltok_rl.experiments.reports.comparison import marked_text
from rltok_rl.experiments.reports.markdown import fenced, markdown, with_unit
from rltok_rl.experiments.reports.seeds import values_of
from rltok_rl.experiments.reports.table import NO_HELP, digits, figures_of, shown, tokens_do_not_help
from rltok_rl.experiments.runs.folder import RunFolder, read_run

from rltok_rl.training.snapshots import sample_parts
from rltok_rl.viz import boundary_text
from rltok_rl.viz.curves import draw_curves, draw_loss_flops
from rltok_rl.viz.over_time import Snapshot, draw_over_time
from rltok_rl.viz.text_figures import draw_texts


def write_report(folder: Path, *, formats: Sequence[str] = ("png",)) -> Path:
    """Write ``report.md`` and ``figures/`` of a run.

    Args:
        folder: of the run, finished or not.
        formats: of the figures; the page shows the PNG, which is among them always.
    """
    run = read_run(folder)
    figures = draw_figures(run, formats=formats)
    parts = [
        f"# {run.name}",
        _standing(run),
        f"## What was trained\n\n{_trained(run)}",
        f"## Results\n\n{results(run)}",
        *(["## Figures\n\n" + "\n\n".join(_embedded(figures))] if figures else []),
        *([f"## Sample\n\n{_sample(run)}"] if run.looks else []),
        f"## Alarms\n\n{_alarms(run)}",
        f"## Where it ran\n\n{_where(run)}",
        "## What was not done\n\n" + "\n".join(f"- {text}" for text in not_done(run)),
    ]
    page = folder / "report.md"
    page.write_text("\n\n".join(parts) + "\n")
    return page


def draw_figures(run: RunFolder, *, formats: Sequence[str] = ("png",)) -> list[str]:
    """Draw what the run has figures for.

    Args:
        run: as far as it came.
        formats: of the files.

    Returns:
        Names of the figures, without the suffix.
    """
    out = run.path / "figures"
    out.mkdir(exist_ok=True)
    draw: dict[str, Callable[[Path], Path]] = {}
    if run.history:
        held = run.held_out
        draw["curves"] = lambda path: draw_curves(run.history, path, target_rate=run.target_rate, held_out=held)
        if "flops" in run.history:
            draw["loss-flops"] = lambda path: draw_loss_flops(run.history, path, held_out=held)
    if run.looks:
        looks, headings = [_snapshot(look) for look in run.looks], ("bits/byte", "rate")
        draw["boundaries"] = lambda path: draw_over_time(looks, path, headings=headings)
        last = marked_text(f"trained on {with_unit(run.looks[-1]['bytes'], 'B')}", run)
        draw["text"] = lambda path: draw_texts([last], path)
    for name, one in draw.items():
        for suffix in formats:
            one(out / f"{name}.{suffix}")
    return list(draw)


def _standing(run: RunFolder) -> str:
    updates = int(run.history["update"][-1]) if run.history else 0
    total = run.option("optim.total_bytes") or 0
    done = f"{updates:,} updates, {with_unit(run.bytes_done, 'B')} of {with_unit(total, 'B')}"
    return f"{'Finished' if run.summary else '**Unfinished**'}: {done}."


_GROUPS = (
    ("actor", "actor.name", ("rate", "warm_start_bytes")),
    ("estimator", "estimator.name", ("gamma", "reward", "price")),
    ("baseline", "baseline.name", ("rows_per_text",)),
    ("loss", "loss.objective", ("policy_epochs", "language_model", "policy", "early_exit", "entropy")),
    ("rate control", "rate.control", ("coefficient",)),
)
"""What a training is made of: what to call it, the option that names it, and those of its options that are shown."""


def _trained(run: RunFolder) -> str:
    option = run.option
    parameters = run.model.get("parameters")
    lines = [
        ["model", f"`{option('model.preset')}`{_options(option('model.overrides'))}"],
        *([["begun with", f"the weights of `{weights}`"]] if (weights := option("model.weights")) else []),
        ["parameters", f"{parameters:,}" if parameters else "-"],
        [
            "data",
            f"`{option('data.source')}`{_options(option('data.options'))}, {option('data.num_rows')} rows of "
            f"{option('data.num_steps')} bytes; {option('data.held_out')} of it held out",
        ],
    ]
    segmenter = option("segmenter.name") or "learned"  # older runs had none
    if segmenter != "learned":
        lines.append(["segmenter", f"`{segmenter}`{_options(option('segmenter.options'))}"])
    for title, named, keys in _GROUPS:
        if segmenter != "learned" and title != "loss":
            continue  # of rewards, which nothing was learned by
        group = named.partition(".")[0]
        if (name := option(named)) is not None:
            if segmenter != "learned":
                name, keys = "next bytes", ("language_model", "early_exit")
            given = {key: value for key in keys if (value := option(f"{group}.{key}")) is not None}
            lines.append([title, f"`{name}`{_options(given)}{_options(option(f'{group}.options'))}"])
    lines += [["optimizer", f"AdamW, learning rate {option('optim.lr')}"], ["seed", str(option("seed"))]]
    command = run.starts[0]["command"] if run.starts else (run.summary or {}).get("command", "")
    return markdown(["option", "value"], lines) + (f"\n\n{fenced(command)}" if command else "")


_CAPTIONS = {
    "curves": "Loss, rate, entropy, advantage spread, gradient norm and learning rate against bytes",
    "loss-flops": "Loss against FLOPs",
    "boundaries": "The same text with its boundaries as training goes on",
    "text": "Held-out text coloured by the probability of a boundary",
}


_BELOW = {
    "curves": "Lines are training, dots looks at held-out text. That is other text, easier or harder than what is "
    "trained on, and its boundaries are drawn without the cap that training has on their logits: dots compare with "
    "dots.",
    "loss-flops": "The distance between the early exit and the whole model is what tokens are worth at so many FLOPs.",
}
"""What has to be known to read a figure."""


def _embedded(figures: list[str]) -> list[str]:
    found = []
    for name in figures:
        found += [f"![{_CAPTIONS[name]}](figures/{name}.png)", *([_BELOW[name]] if name in _BELOW else [])]
    return found


def _sample(run: RunFolder) -> str:
    text, boundaries, _ = sample_parts(run.looks[-1])
    own = " Bars that the text has itself look the same." if b"|" in text else ""
    shown = fenced(boundary_text(text, boundaries, colour=False))
    return f"Held-out text after update {run.looks[-1]['update']:,}, a `|` after each boundary.{own}\n\n{shown}"


def _alarms(run: RunFolder) -> str:
    if not run.alarms:
        return "None went off."
    return "\n".join(f"- update {line['update']:,}: {line['warning']}" for line in run.alarms)


def _where(run: RunFolder) -> str:
    if not run.starts:
        return "Not noted."
    header = ["updates", "device", "torch", "Python", "processes x threads", "revision", "system"]
    rows = []
    for start in run.starts:
        git = start.get("git")
        revision = f"`{git['revision'][:10]}`{' with changes' if git['dirty'] else ''}" if git else "none"
        device = start.get("gpu", start["processor"])
        updates = f"{start['from_update']} to {start['to_update']}"
        work = f"{start['num_processes']} x {start['threads']}"
        rows.append([updates, device, start["packages"]["torch"], start["python"], work, revision, start["system"]])
    return markdown(header, rows) + "\n\nAll versions are in [environment.json](environment.json)."


def _snapshot(look: dict[str, Any]) -> Snapshot:
    text, boundaries, probabilities = sample_parts(look)
    notes = (f"{look['held_out_bits_per_byte']:.2f}", f"{look['held_out_rate']:.3f}")
    return Snapshot(with_unit(look["bytes"], "B"), text, boundaries, probabilities, notes)


def _options(options: dict[str, Any] | None) -> str:
    return "".join(f", {key} {shown(value)}" for key, value in (options or {}).items())


def has_page(folder: Path) -> bool:
    """Whether a run is finished, and has its page."""
    return all((folder / name).is_file() for name in ("config.yaml", "summary.json", "report.md"))


_APART = 0.05
"""Bits per byte by which held-out text and the first batch differ before it is worth a line."""


def results(run: RunFolder) -> str:
    """The section of results.

    Args:
        run: as far as it came.
    """
    look = run.looks[-1] if run.looks else {}
    loss, early = look.get("held_out_bits_per_byte"), look.get("held_out_early_bits_per_byte")
    rate = look.get("held_out_rate")
    rows = list(figures_of(run).items())
    if (error := look.get("held_out_standard_error")) is not None:
        sure = f"± {error:.3f}"
        rows[0] = (rows[0][0], rows[0][1].replace(sure, f"{sure} over batches"))
    rows.insert(2, ("bits per byte, training", digits(run.last("bits_per_byte"))))
    if loss is not None and early is not None:
        rows.insert(2, ("what tokens are worth (early exit less whole model)", f"{early - loss:.3f}"))
    if run.looks and run.looks[0]["update"] == 0 and len(run.looks) > 1:
        at_first = digits(run.looks[0].get("held_out_bits_per_byte"))
        rows.insert(1, ("bits per byte, held out, before the first update", at_first))
    if (share := look.get("held_out_share")) is not None:
        rows.append(("share of what tokens can earn, held out", digits(share)))
    if rate:
        rows.append(("bytes per token, held out", f"{1 / rate:.2f}"))
    if (padded := look.get("padded_flops")) is not None:
        rows.append(("FLOPs, padding of tokens included", with_unit(padded, "FLOPs")))
    rows.append(("peak memory", with_unit((run.summary or {}).get("peak_memory"), "B")))
    table = markdown(["figure", "value"], [list(row) for row in rows])
    notes = _how_to_take_them(run)
    return table + ("\n\n" + "\n".join(f"- {note}" for note in notes) if notes else "")


def _how_to_take_them(run: RunFolder) -> list[str]:
    found = []
    if run.looks and run.looks[-1].get("held_out_standard_error") is not None:
        batches = run.option("snapshots.batches")
        found.append(
            f"± is the standard error over {batches} batches of windows of the same held-out text: how well that was "
            "measured. The error over documents, which `rltok eval` tells, is as a rule larger."
        )
    if tokens_do_not_help([values_of(run)]):
        found.append(NO_HELP)
    if run.looks and run.looks[0]["update"] == 0 and run.history.get("bits_per_byte"):
        held, trained = run.looks[0]["held_out_bits_per_byte"], run.history["bits_per_byte"][0]
        if abs(held - trained) > _APART:
            found.append(
                f"The weights that the run began with gave {held:.3f} bits per byte on held-out text and {trained:.3f} "
                "on the first batch of training: so far apart were they before anything was learned."
            )
    return found


def not_done(run: RunFolder) -> list[str]:
    """What the run does not tell.

    Args:
        run: as far as it came.
    """
    found = []
    if run.summary is None:
        found.append("The run is unfinished: go on with `resume=true`.")
    found.append(f"One seed ({run.option('seed')}): nothing here tells how much another would differ.")
    if run.looks and (batches := run.option("snapshots.batches")):
        count = batches * run.option("data.num_rows") * run.option("data.num_steps")
        found.append(
            f"Held-out figures are means over {count:,} predicted bytes, windows drawn with replacement, boundaries "
            "drawn from the policy; no other text and no task was tried."
        )
    if run.history:
        found.append(
            "FLOPs count matrix products of forward and backward passes, not attention scores, nor what an "
            "estimator tries besides, nor further epochs of the policy."
        )
    if any((start.get("git") or {}).get("dirty") for start in run.starts):
        found.append("Files differed from the revision: the code that ran is not all in it.")
    elif run.starts and any(start.get("git") is None for start in run.starts):
        found.append("The package was not run from a checkout: only its version is known.")
    return found

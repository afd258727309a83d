"""What came of a run, as its report says it: a table of figures, how to take them, and what was not done."""

from __future__ import annotations

from rltok_rl.experiments.comparison_table import NO_HELP, digits, figures_of, tokens_do_not_help
from rltok_rl.experiments.markdown import markdown, with_unit
from rltok_rl.experiments.run_folder import RunFolder
from rltok_rl.experiments.seeds import values_of

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

"""Figure of leads over a reference against total FLOPs, with bands over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rltok_rl.viz.style import INK, plain_figures, plain_label, run_style, save_figure


@dataclass(frozen=True)
class SizedLead:
    """A system's losses minus those of the reference at one size, by seed, with their mean and its 95 % interval."""

    system: str
    flops: float
    by_seed: Sequence[float]
    mean: float
    half_width: float
    """Infinite for one seed."""


def draw_leads(leads: Sequence[SizedLead], path: Path, *, reference: str) -> Path:
    """Draw a line per system over the total FLOPs; the axis of FLOPs is logarithmic.

    A band leaves the picture where two seeds alone make its interval wider than all seeds are spread.
    """
    if not leads:
        raise ValueError("leads must be at least one, got none")
    dots = [value for lead in leads for value in lead.by_seed]
    margin = 0.15 * (max([*dots, 0.0]) - min([*dots, 0.0]))
    with plain_figures() as plt:
        figure, axes = plt.subplots(figsize=(4.6, 3.0), layout="constrained")
        axes.axhline(0.0, color=INK, lw=0.8, zorder=1)
        for number, system in enumerate(dict.fromkeys(lead.system for lead in leads)):
            of_system = sorted((lead for lead in leads if lead.system == system), key=lambda lead: lead.flops)
            style, flops = run_style(number), [lead.flops for lead in of_system]
            line = {"color": style.colour, "marker": style.marker, "ls": style.dashes, "lw": 1.6, "ms": 5}
            axes.plot(flops, [lead.mean for lead in of_system], label=plain_label(system), zorder=4, **line)
            known = [lead for lead in of_system if lead.half_width < float("inf")]
            ends = [[lead.mean + sign * lead.half_width for lead in known] for sign in (-1, 1)]
            axes.fill_between([lead.flops for lead in known], *ends, color=style.colour, alpha=0.15, lw=0, zorder=2)
            for lead in of_system:
                places = [lead.flops] * len(lead.by_seed)
                axes.plot(places, lead.by_seed, ".", color=style.colour, ms=4, alpha=0.6, mew=0, zorder=3)
        axes.set(xscale="log", xlabel="total TFLOPs", ylim=(min([*dots, 0.0]) - margin, max([*dots, 0.0]) + margin))
        sizes = sorted({lead.flops for lead in leads})
        axes.set_xlim(0.85 * sizes[0], 1.15 * sizes[-1])
        axes.set_xticks(sizes, [f"{flops / 1e12:.3g}" for flops in sizes])
        axes.minorticks_off()
        axes.set_title(f"bits per byte minus {reference}: lower is better")
        axes.legend(loc="best", fontsize=7.5)
        return save_figure(figure, path)

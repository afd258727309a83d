"""Names of systems in the tables of :mod:`compare_page`, and which systems each table has."""

from __future__ import annotations

_STANDARD = (
    "`standard-init`: [`ours` with standard initial weights](places.md#where-a-fresh-policy-is-undecided), target 0.196"
)
SYSTEMS = {
    "third-letter": "`third-letter`: SpaceByte's boundaries three bytes later",
    "imitation": "`imitation`: `fast` that begins with `third-letter`",
    "ours": "[`ours`](../recipes.md#why-ours), target 0.196",
    "standard-init": _STANDARD,
    "normed": "[`normed`](../recipes.md#why-normed): `standard-init` with gamma 0.95, a norm, target 0.2",
    "unscaled": "[`unscaled`](../recipes.md#why-unscaled)",
    "hnet": "H-Net, ratio weight 10",
    "entropy-spike": "entropy spikes",
    "bpe": "BPE, an oracle",
    "fast": "`tuned` with `boundary_scale` 0.25 (`fast`)",
    "spacebyte": "SpaceByte",
    "tuned": "`tuned`",
    "paper-0.9": "`paper` with gamma 0.9",
    "uniform": "evenly spaced",
    "tuned-0.99": "`tuned` with gamma 0.99",
    "paper": "`paper`",
    "released": "`released`",
    "gumbel": "Gumbel-sigmoid",
    "random": "random",
    "siblings": "two rows per text (`siblings`)",
    "local-flips": "local flips",
}
"""Systems of ``compare-main`` by name."""
_OURS = "natural gradients after a warm start of 250 kB, undecided at first"
_FEW = "in a quarter of the rows until settled"
_SECOND_ROWS = "counterfactuals.md#second-rows-that-run-forward-only"
CHANGES = {
    "unscaled": "`unscaled`: gamma 0.9, policy weight 0.1, rate weight 1, batch mean, eight lags",
    "natural-gradient": "natural gradients",
    "ours": f"[`recipe=ours`](../recipes.md#why-ours): {_OURS}, target 0.196",
    "standard-init": _STANDARD,
    "standard-init-95": "`standard-init` with gamma 0.95, target 0.2",
    "standard-init-95-lower": "`standard-init` with gamma 0.95, target 0.196",
    "policy-0.3": "policy weight 0.3",
    "policy-and-target": "policy weight 0.3, target 0.193",
    "rate-0.3": "rate weight 0.3",
    "normed": "[`recipe=normed`](../recipes.md#why-normed): `standard-init` with gamma 0.95, a norm, target 0.2",
    "running-mean": "running mean",
    "normed-0.197": "`recipe=normed` with a target of 0.197",
    "leave-one-out": "leave-one-out",
    "disarm": f"[DisARM](counterfactuals.md#disarm) with gamma 0.99 and a warm start of 250 kB, {_FEW}",
    "gamma-0.95": "gamma 0.95",
    "sibling-trial": f"[second rows]({_SECOND_ROWS}) that run forward only, {_FEW}",
    "warm-90": "a warm start of 250 kB",
    "scaled-by-position": "returns over their standard deviation at each position",
    "scaled-by-row": "returns over their standard deviation in each row",
    "sibling-blocks": f"[second rows in blocks]({_SECOND_ROWS}), {_FEW}",
    "control-variate": "control variate",
    "one-lag": "one lag",
    "doubly-robust": f"[doubly robust flips]({_SECOND_ROWS}), as `budgeted_flips`",
    "policy-and-pi": "policy weight 0.3, rate held by `pi`",
    "gamma-0.8": "gamma 0.8",
    "budgeted-flips": "`budgeted_flips`",
    "gamma-0.7": "gamma 0.7",
    "warm-99": "gamma 0.99 and a warm start of 250 kB",
    "norm-95": "gamma 0.95 and the norm",
    "norm": "with the norm",
    "token-gain": f"`token_gain`, gamma 1, {_FEW}",
    "token-gain-90": f"`token_gain`, gamma 0.9, {_FEW}",
    "z-score": "z-score",
    "warm-start": "1.5 MB with random boundaries first (before revision 32b6ab12)",
    "both-weights": "policy weight 0.3 and rate weight 3",
    "gamma-0.99": "gamma 0.99",
    "critic-1": "a critic (lambda 1) instead of the batch mean",
    "critic": "a critic (lambda 0.95) instead of the batch mean",
    "pooled-critic-1": "a critic that pools tokens (lambda 1) instead of the batch mean",
    "pooled-critic": "a critic that pools tokens (lambda 0.95) instead of the batch mean",
    "rate-3": "rate weight 3",
    "policy-0.03": "policy weight 0.03",
    "flips": "`local_flips` in every row, two per 16 bytes",
}
"""Variants of ``compare-grid`` by name."""

SHORT = {
    "uniform": "evenly spaced",
    "hnet": "H-Net",
    "spacebyte": "SpaceByte",
    "bpe": "BPE",
    "entropy-spike": "entropy spikes",
    "paper-0.9": "`paper`, gamma 0.9",
    "tuned-0.99": "`tuned`, gamma 0.99",
    "normed-0.19": "`normed`, target 0.19",
}
"""Short names that are not those of recipes or experiments."""
PAIRED_ROWS = ("standard-init", "normed", "unscaled", "ours", "hnet", "fast", "spacebyte", "tuned", "paper-0.9")
PAIRED_COLUMNS = ("unscaled", "hnet", "fast", "spacebyte", "tuned", "paper-0.9", "tuned-0.99", "paper")
"""Systems with five seeds whose pairs a table has, rows before columns in the order of the table of systems."""
FRESH_ROWS = ("ours", "standard-init", "unscaled", "normed", "warm-99", "tuned", "spacebyte", "uniform", "paper-0.9")
FRESH_COLUMNS = ("unscaled", "normed", "warm-99", "tuned", "spacebyte", "uniform", "paper-0.9", "paper")
"""The same for systems with seeds 5 to 9."""
TEXTS = {
    "books without spaces": "no-spaces",
    "newspaper": "newspaper",
    "words": "words",
    "code": "code",
    "mixture": "mixture",
}
"""Tables of other-texts.md, and the folders of their pages, after ``compare-``."""
ON_TEXTS = (
    *("ours", "standard-init", "unscaled", "normed", "normed-0.19", "fast", "paper", "paper-0.9"),
    *("hnet", "spacebyte", "bpe", "entropy-spike", "uniform"),
)
"""Systems of these tables, where a page has them; pages have others, too."""

IN_README = ("ours", "unscaled", "hnet", "spacebyte")
"""Systems of the table of other texts in the README."""
WIDTHS = {
    "compare-width-32": "0.07 M, 3.4 T, 0.005",
    "compare-width-32-double": "0.07 M, 3.4 T, 0.01",
    "compare-main": "0.24 M, 10.5 T, 0.005",
    "compare-width-128": "0.86 M, 36.1 T, 0.005",
    "compare-width-128-half": "0.86 M, 36.1 T, 0.0025",
}
"""Comparisons of different sizes by folder: parameters, total FLOPs, learning rate."""
AT_WIDTHS = ("ours", "unscaled", "normed", "spacebyte", "paper")
"""Systems of their table."""


def short(name: str) -> str:
    """Return the name of a system in tables of pairs."""
    return SHORT.get(name, f"`{name}`")

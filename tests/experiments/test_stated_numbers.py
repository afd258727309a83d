"""Numbers that pages state by hand are those of the committed results."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rltok_rl.experiments.reports.markdown import score_text, with_error
from rltok_rl.experiments.reports.paired import interval, paired_over_seeds
from rltok_rl.experiments.reports.seed_table import SeedTable
from rltok_rl.experiments.studies import suite_scores
from rltok_rl.experiments.studies.suite_further import seed_interval
from rltok_rl.experiments.studies.suite_scores import (
    interquartile_mean,
    paired_difference,
    read_archive,
    read_other_entries,
    score_cells,
)
from rltok_rl.experiments.studies.suite_tables import PAIRS, SEED_PAIRS

from .results import RESULTS

ROOT = Path(__file__).resolve().parents[2]
README, COMPARE, CLAIMS = ROOT / "README.md", ROOT / "docs/results/compare.md", ROOT / "docs/claims.md"
OTHER_TEXTS, RECIPES = ROOT / "docs/results/other-texts.md", ROOT / "docs/recipes.md"
PLACES, SUITE = ROOT / "docs/results/places.md", ROOT / "docs/results/suite.md"
COUNTERFACTUALS, ESTIMATORS = ROOT / "docs/results/counterfactuals.md", ROOT / "docs/results/estimators.md"

OURS = ("ours", "standard-init")
"""Ours, and the same with standard initial weights."""
MAIN = ("imitation", "third-letter", *OURS, "unscaled", "hnet", "spacebyte", "tuned", "uniform")
"""Systems of the main table that README states; it states those of the paper, too."""
TEN = ("normed", "unscaled", "spacebyte", "uniform")
"""Systems with ten seeds."""
SIZES = ("small", "small, fast", "large")
TEXTS = ("no-spaces", "newspaper", "code", "mixture")
"""Other texts on which ours is ahead."""
MIXED = ("ours", "bpe", "unscaled", "normed", "spacebyte", "hnet")
AT_95 = ("standard-init-95", "standard-init-95-lower")
"""standard-init with gamma 0.95, which is normed without the norm, with targets of 0.2 and 0.196."""
POOLED = ("pooled-critic", "pooled-critic-1")
GRID = (
    *("normed", "normed-0.197", "unscaled", "gamma-0.99", "disarm", "warm-99", "critic", "critic-1"),
    *("natural-gradient", "policy-0.3", *POOLED, "warm-90", "sibling-blocks", *OURS),
)
CODE = ("ours", "hnet", "normed", "normed-0.19", "unscaled")
OTHERS = ("normed", "fast", "gumbel", "bpe", "tuned-0.99")
PAPER = ("paper", "paper-0.9")
RIVALS = {
    "main uniform": "evenly spaced boundaries",
    "main paper": "the paper's policy, gamma 0.99",
    "main paper-0.9": "the paper's policy, gamma 0.9",
    "paper-0.9": "the whole recipe `paper`, gamma 0.9, with its optimizer and its control of the rate",
    "main tuned": "`tuned` (gamma 0.9, policy weight 0.1)",
    "main tuned-0.99": "`tuned` with gamma 0.99",
    "grid gamma-0.99": "`unscaled` with gamma 0.99",
    "grid warm-99": "`unscaled` with gamma 0.99 and a warm start of 250 kB",
    "grid unscaled": "`unscaled` (gamma 0.9)",
    "grid warm-90": "`unscaled` with a warm start of 250 kB",
    "paper": "the whole recipe `paper`, gamma 0.99 (three seeds)",
}
"""What the page of recipes compares with ours and normed, and the names of its rows."""
TEN_RIVALS = {
    "ten unscaled": "`unscaled`",
    "ten normed": "`normed` (with the norm)",
    "ten spacebyte": "SpaceByte",
    "ten uniform": "evenly spaced boundaries",
}
"""What the page of counterfactuals compares with ours at gamma 0.95 over ten seeds, and the names of its rows."""
SYSTEMS = {
    **{f"main {name}": (("compare-main", name),) for name in (*MAIN, *PAPER, *OTHERS)},
    "tuned": (("compare-recipes", "gamma-0.9-weight-0.1"),),
    "ablations' tuned": (("compare-ablations", "learned"),),
    **{
        name: (("compare-ablations", name),)
        for name in ("no-batch-mean", "no-discount", "no-early-exit", "one-lag", "no-rate-loss")
    },
    **{f"fresh {name}": (("compare-fresh", name),) for name in ("tuned", *OURS, *TEN, *AT_95, *PAPER, "warm-99")},
    **{f"ten {name}": (("compare-main", name), ("compare-fresh", name)) for name in (*TEN, *OURS, "tuned")},
    **{f"ten {name}": (("compare-grid", name), ("compare-fresh", name)) for name in (*AT_95, "warm-99")},
    **{f"ten {name}": (("compare-main", name), ("compare-fresh", name)) for name in PAPER},
    **{f"no-spaces {name}": (("compare-no-spaces", name),) for name in ("ours", "unscaled", "uniform")},
    **{f"newspaper {name}": (("compare-newspaper", name),) for name in ("ours", "uniform")},
    **{f"words {name}": (("compare-words", name),) for name in OURS},
    **{
        f"{size} {name}": ((f"compare-width-{folder}", name),)
        for size, folder in (("small", "32"), ("small, fast", "32-double"), ("large", "128-half"))
        for name in ("ours", "uniform", "paper", "spacebyte")
    },
    "all unscaled": (("compare-main", "unscaled"), ("compare-fresh-scale", "unscaled")),
    "all spacebyte": (("compare-main", "spacebyte"), ("compare-fresh-scale", "spacebyte")),
    "fast": (("compare-fresh-scale", "factor-0.25"),),
    **{f"fresh-scale {name}": (("compare-fresh-scale", name),) for name in (*OURS, "unscaled", "warm-90")},
    **{
        f"all {name}": (("compare-main", name), ("compare-fresh", name), ("compare-fresh-scale", name)) for name in OURS
    },
    "all warm-90": (("compare-grid", "warm-90"), ("compare-fresh-scale", "warm-90")),
    "equal standard-init-95": (("compare-fresh-scale", "middle"),),
    "fast spacebyte": (("compare-fresh-scale", "spacebyte"),),
    "paper": (("compare-whole", "paper"),),
    "paper-0.9": (("compare-whole", "paper-gamma-0.9"),),
    "released": (("compare-whole", "released"),),
    **{f"code {name}": (("compare-code", name),) for name in (*CODE, "uniform")},
    **{f"grid {name}": (("compare-grid", name),) for name in GRID},
    **{f"mixture {name}": (("compare-mixture", name),) for name in (*MIXED, "uniform")},
}
"""Folder and system of each result; seeds of several folders are joined."""
MEANS = [
    *(("tuned", page) for page in (COMPARE, CLAIMS)),
    *((f"main {name}", README) for name in (*MAIN, *PAPER)),
    ("paper", COMPARE),
    *(("paper-0.9", page) for page in (COMPARE, CLAIMS)),
    ("released", COMPARE),
]
OF_CLAIMS = [
    *(("ten uniform", f"ten {name}") for name in ("ours", "unscaled")),
    *(("ten spacebyte", f"ten {name}") for name in ("ours", "tuned")),
    ("all spacebyte", "all unscaled"),
    *(("main uniform", name) for name in ("paper", "paper-0.9")),
    *((f"ten {name}", "ten unscaled") for name in PAPER),
    ("ten paper", "ten uniform"),
    ("paper-0.9", "main unscaled"),
    *((name, "main hnet") for name in ("main paper", "main paper-0.9", "paper-0.9")),
    *(("main hnet", f"main {name}") for name in ("ours", "unscaled")),
    ("code hnet", "code ours"),
    *((f"code {name}", "code hnet") for name in ("normed", "unscaled")),
    *(("main gumbel", f"main {name}") for name in ("unscaled", "tuned", "paper-0.9", "uniform")),
    ("main paper", "main gumbel"),
    ("main unscaled", "main bpe"),
    ("main spacebyte", "main third-letter"),
    *(("fresh-scale unscaled", f"fresh-scale {name}") for name in OURS),
    ("ten unscaled", "ten normed"),
    *((f"grid {name}", "grid unscaled") for name in ("critic", "critic-1")),
]
"""What the page of claims compares."""
DIFFERENCES = [
    *((name, other, CLAIMS) for name, other in OF_CLAIMS),
    *((f"code {name}", "code normed-0.19", OTHER_TEXTS) for name in ("normed", "unscaled")),
    ("code unscaled", "code hnet", OTHER_TEXTS),
    ("grid warm-99", "grid normed-0.197", RECIPES),
    ("tuned", "main uniform", COMPARE),
    *((name, "main uniform", COMPARE) for name in ("paper", "released")),
    *((f"main {name}", "main uniform", README) for name in (*MAIN[:-1], *PAPER)),
    ("main unscaled", "main third-letter", COUNTERFACTUALS),
    ("main imitation", "main third-letter", PLACES),
    *((name, "main imitation", PLACES) for name in ("main spacebyte", "main fast")),
    ("main spacebyte", "main third-letter", PLACES),
    ("paper-0.9", "main unscaled", COMPARE),
    *(("paper-0.9", name, COMPARE) for name in ("tuned", "main uniform")),
    *(("all spacebyte", "all unscaled", page) for page in (README, PLACES)),
    ("fast", "fresh-scale unscaled", PLACES),
    *(("fresh-scale unscaled", "equal standard-init-95", page) for page in (RECIPES, COMPARE)),
    *(
        ("fresh-scale unscaled", "fresh-scale standard-init", page)
        for page in (README, RECIPES, COMPARE, COUNTERFACTUALS)
    ),
    ("equal standard-init-95", "fresh-scale standard-init", COUNTERFACTUALS),
    *(("fresh-scale unscaled", "fresh-scale ours", page) for page in (README, RECIPES, COUNTERFACTUALS)),
    ("all warm-90", "all ours", RECIPES),
    ("all warm-90", "all standard-init", RECIPES),
    ("fresh-scale warm-90", "fresh-scale standard-init", RECIPES),
    ("fresh-scale standard-init", "fresh-scale ours", PLACES),
    ("all ours", "all standard-init", PLACES),
    *((f"fresh {name}", "fresh ours", RECIPES) for name in ("uniform", *PAPER, "tuned", "spacebyte")),
    *((f"fresh {name}", "fresh ours", README) for name in ("uniform", *PAPER, "spacebyte")),
    ("fresh ours", "fresh standard-init", PLACES),
    ("ten spacebyte", "ten ours", COMPARE),
    *(("fast spacebyte", name, PLACES) for name in ("fresh-scale standard-init", "fresh-scale ours")),
    ("fast spacebyte", "fast", PLACES),
    ("fresh uniform", "fresh normed", RECIPES),
    *((f"fresh {name}", "fresh normed", RECIPES) for name in PAPER),
    *(("ten warm-99", "ten normed", page) for page in (RECIPES, SUITE)),
    ("ten warm-99", "ten unscaled", SUITE),
    ("no-spaces uniform", "no-spaces unscaled", OTHER_TEXTS),
    *((f"grid {name}", "grid unscaled", COUNTERFACTUALS) for name in POOLED),
    *(
        ("grid natural-gradient", name, COUNTERFACTUALS)
        for name in (
            *(f"main {name}" for name in ("unscaled", "spacebyte", "hnet", "tuned", "uniform", *PAPER)),
            *("grid unscaled", "grid gamma-0.99"),
        )
    ),
    ("grid policy-0.3", "grid natural-gradient", COUNTERFACTUALS),
    ("main ours", "main third-letter", README),
    ("main ours", "main unscaled", RECIPES),
    *(("main unscaled", f"main {name}", RECIPES) for name in ("standard-init", "normed")),
    ("paper-0.9", "main unscaled", RECIPES),
    ("paper-0.9", "grid normed-0.197", RECIPES),
    ("main uniform", "grid unscaled", ESTIMATORS),
    ("grid sibling-blocks", "grid unscaled", COUNTERFACTUALS),
    ("grid warm-90", "grid standard-init", COMPARE),
    *(("grid ours", "grid standard-init", page) for page in (PLACES, COMPARE)),
    *((name, "grid disarm", COUNTERFACTUALS) for name in ("main uniform", "grid gamma-0.99", "grid unscaled")),
    ("grid disarm", "grid normed", COUNTERFACTUALS),
    ("grid warm-99", "grid disarm", COUNTERFACTUALS),
    ("grid gamma-0.99", "grid warm-99", COUNTERFACTUALS),
    *(("fresh unscaled", f"fresh {name}", COUNTERFACTUALS) for name in AT_95),
    ("ten standard-init-95-lower", "ten standard-init-95", COUNTERFACTUALS),
    ("ten normed", "ten standard-init-95", RECIPES),
    *(("mixture uniform", f"mixture {name}", OTHER_TEXTS) for name in ("normed", "spacebyte", "unscaled", "hnet")),
    ("mixture ours", "mixture bpe", OTHER_TEXTS),
    *((f"{text} uniform", f"{text} ours", page) for text in TEXTS for page in (OTHER_TEXTS, CLAIMS)),
    *(("words ours", "words standard-init", page) for page in (OTHER_TEXTS, RECIPES)),
    *((f"{size} uniform", f"{size} ours", page) for size in SIZES for page in (README, COMPARE, CLAIMS)),
    *((f"{size} {name}", f"{size} ours", COMPARE) for size in ("small", "large") for name in ("paper", "spacebyte")),
    *(("large paper", "large uniform", page) for page in (COMPARE, CLAIMS)),
    *((name, "ablations' tuned", README) for name in ("no-batch-mean", "no-discount", "no-early-exit", "one-lag")),
]


def losses(name: str) -> pd.Series:
    return pd.concat([seed_table(folder).losses[system].dropna() for folder, system in SYSTEMS[name]])


def rates(name: str) -> pd.Series:
    return pd.concat([seed_table(folder).rows.query("system == @system").rate for folder, system in SYSTEMS[name]])


def difference(name: str, other: str) -> str:
    """Bits per byte of one system minus those of another, paired over seeds, as pages write it."""
    return plain(interval(paired_over_seeds(losses(name).to_dict(), losses(other).to_dict())))


@cache  # hundreds of tests read them
def seed_table(folder: str) -> SeedTable:
    return SeedTable(json.loads((RESULTS / folder / "compare-seeds.json").read_text()))


def plain(text: str) -> str:
    """A text on one line, without plus signs, which pages write in tables alone."""
    return " ".join(text.replace("+", "").split())


@pytest.mark.parametrize(("name", "page"), MEANS)
def test_means_over_seeds(name, page):
    values = losses(name)
    assert plain(with_error(values.mean(), values.std())) in plain(page.read_text())


@pytest.mark.parametrize(("name", "other", "page"), DIFFERENCES)
def test_differences_over_seeds(name, other, page):
    assert difference(name, other) in plain(page.read_text())


@pytest.mark.parametrize(("name", "row"), RIVALS.items())
def test_what_ours_and_normed_are_ahead_of(name, row):
    firsts = ("main ours", "main standard-init", "main normed", "grid normed-0.197")
    gaps = [difference(name, first) for first in firsts]
    expected = f"| {row} | {rates(name).mean():.3f} | {' | '.join(gaps)} |"
    assert expected in plain(RECIPES.read_text())


@pytest.mark.parametrize(("name", "row"), TEN_RIVALS.items())
def test_what_ours_with_gamma_0_95_is_ahead_of(name, row):
    gaps = [difference(name, f"ten {system}") for system in AT_95]
    assert f"| {row} minus this | {' | '.join(gaps)} |" in plain(COUNTERFACTUALS.read_text())


def test_losses_and_rates_of_ours_with_gamma_0_95():
    page = plain(COUNTERFACTUALS.read_text())
    of_seeds = [losses(f"ten {name}") for name in AT_95]
    for row, low, high in (("bits per byte, seeds 0 to 4", 0, 4), ("seeds 5 to 9", 5, 9)):
        texts = [", ".join(f"{value:.3f}" for value in values.loc[low:high]) for values in of_seeds]
        assert f"| {row} | {' | '.join(texts)} |" in page
    means = [with_error(values.mean(), values.std()) for values in of_seeds]
    assert f"| mean | {' | '.join(means)} |" in page
    ranges = [f"{rates(f'ten {name}').min():.3f} to {rates(f'ten {name}').max():.3f}" for name in AT_95]
    assert f"| boundaries per byte | {' | '.join(ranges)} |" in page


def test_what_ours_with_gamma_0_95_is_ahead_of_at_equal_rates():
    page = plain(COUNTERFACTUALS.read_text())
    equal, unscaled = (
        losses("equal standard-init-95"),
        pd.concat([losses("ten unscaled"), losses("fresh-scale unscaled").loc[10:]]),
    )
    both = sum(losses(f"ten {name}") for name in AT_95) / len(AT_95)  # one target above 0.198 and one below
    assert list(equal.index) == list(range(10, 25))
    for first in (5, 0):
        ours = pd.concat([both.loc[first:], equal])
        gap = paired_over_seeds(unscaled.loc[:24].to_dict(), ours.to_dict())
        assert gap.pairs == 25 - first and f"| {first} to 24 | {plain(interval(gap))} |" in page


def test_losses_with_three_learning_rates():
    table = pd.DataFrame(json.loads((RESULTS / "compare-lr" / "compare-lr.json").read_text())["rows"])
    losses_at = table.pivot(index="system", columns="lr", values="bits_per_byte")
    names = {"hnet": "H-Net", "spacebyte": "SpaceByte", "uniform": "evenly spaced", "paper": "the paper's policy"}
    page = COMPARE.read_text().partition("## Learning rates")[2]
    for system, row in losses_at.iterrows():
        assert f"| {names.get(system, f'`{system}`')} | {' | '.join(f'{loss:.3f}' for loss in row)} |" in page
    behind = losses_at[0.005] - losses_at.min(axis=1)
    assert len(behind) == 7 and f"0.005 is within {behind.max():.3f} of the best of three" in page


def test_losses_and_rates_of_standard_init_in_fresh_seeds():
    page, rows = plain(COUNTERFACTUALS.read_text()), seed_table("compare-fresh-scale").rows.query("seed > 9")

    def losses_in(first: int, last: int) -> pd.DataFrame:
        columns = rows.query("@first <= seed <= @last").pivot(index="seed", columns="system", values="bits_per_byte")
        return columns.astype(float)

    for start, name, first, last in (
        ("`standard-init`: gamma 0.9, target 0.196", "standard-init", 10, 24),
        ("the same, nothing chosen any more", "standard-init", 25, 39),
        ("both", "standard-init", 10, 39),
        ("`ours`, target 0.196", "ours", 10, 24),
        ("the same, in seeds that had no part in choosing it", "ours", 25, 39),
        ("both halves of `ours`", "ours", 10, 39),
        ("`standard-init` with gamma 0.95, target 0.198", "middle", 10, 24),
    ):
        values = losses_in(first, last)
        gap = paired_over_seeds(*(values[system].to_dict() for system in ("unscaled", name)))
        rate = rows.query("system == @name and @first <= seed <= @last").rate.mean()
        assert gap.pairs == last - first + 1
        assert f"| {start} | {rate:.3f} | {first} to {last} | {plain(interval(gap))} |" in page
    values = losses_in(10, 39)
    spaces = rows.query("system == 'standard-init'").set_index("seed").space_recall.astype(float)
    losses = values["standard-init"]
    means = {name: with_error(values[name].mean(), values[name].std()) for name in ("standard-init", "unscaled")}
    assert f"It ends at {means['standard-init']} bits per byte, `unscaled` at {means['unscaled']}." in page
    assert f"in {(losses < values.unscaled).sum()} of the 30 seeds" in page
    found = spaces > 0.5
    assert f"Most spaces have a boundary in {found.sum()} of the 30 seeds ({spaces[found].min():.2f} to 1.00" in page
    ends = [f"{losses[chosen].mean():.3f}" for chosen in (found, ~found)]
    assert f"Those {found.sum()} end at {ends[0]} on average, the others at {ends[1]}." in page
    assert f"It ends at {with_error(values.ours.mean(), values.ours.std())} bits per byte, so its own" in page
    assert f"({(values.ours < values.unscaled).sum()} of 30, p of 0.06)" in page
    middle = losses_in(10, 24).middle
    assert f"it ends at {with_error(middle.mean(), middle.std())} in seeds 10 to 24" in page
    usual = rows.query("system == 'unscaled'").rate.mean()
    assert f"({usual:.3f} boundaries per byte on average)" in page


SUITE_SCORES = [
    *(
        ("knapsack", entry)
        for entry in ("discounted_return", "local_flips", "budgeted_flips", "critic_advantage", "z_score")
    ),
    *(("pair", entry) for entry in ("discounted_return", "local_flips", "critic_advantage", "z_score")),
]
"""Mean scores of a task that the page of the suite states in sentences."""
AHEAD = "batch_mean@0.95"
WARM_99 = "batch_mean@0.99, warm start"
STANDARD_INIT = "natural_gradient@0.9, warm start, no norm"
"""Entries whose cells are not in the archive."""
RETURN = "discounted_return@0.9"
SUITE_DIFFERENCES = [
    *((None, RETURN, f"{other}@0.9") for other in ("local_flips", "critic_advantage", "budgeted_flips", "token_gain")),
    (None, "batch_mean@0.9", "ppo_batch_mean@0.9"),
    (None, "critic_advantage@0.9", "ppo@0.9"),
    (None, "uniform", "entropy-threshold"),
    (None, "batch_mean@0.99", "batch_mean@0.9"),
    *(
        ("knapsack", RETURN, f"{other}@0.9")
        for other in ("local_flips", "budgeted_flips", "token_gain", "group_mean", "critic_advantage")
    ),
    *(("pair", RETURN, f"{other}@0.9") for other in ("local_flips", "budgeted_flips", "critic_advantage")),
    *(("pair", other, RETURN) for other in ("unscaled", "z_score@0.9")),
    *((task, "paper", "uniform") for task in ("recall-tight", "nest", "noise", "garden-path", "pair", "knapsack")),
]
"""Differences of mean scores that the page of the suite states, over all tasks or within one."""


def test_scores_of_the_suite():
    content, page = json.loads((RESULTS / "suite" / "suite.json").read_text()), SUITE.read_text()
    for entry, scores in content["summary"].items():
        middle, (low, high) = scores["iqm"], scores["interval"]
        row = f"| `{entry}` | {middle:.3f} [{low:.3f}, {high:.3f}] | {scores['mean']:.3f} |"
        assert row in page or entry == "entropy-spike", row  # which forfeits all cells
    for entry in ("local_flips@0.9", "critic_advantage@0.9", "paper"):
        scores = content["summary"][entry]
        text = f"{scores['iqm']:.3f} [{scores['interval'][0]:.3f}, {scores['interval'][1]:.3f}]"
        assert text in README.read_text(), (entry, text)
    all_grades = json.loads((RESULTS / "suite-full" / "suite.json").read_text())["summary"]
    for entry in ("batch_mean@0.99", "unscaled", "control_variate@0.9", "leave_one_out@0.9"):
        middle, (low, high) = all_grades[entry]["iqm"], all_grades[entry]["interval"]
        assert f"| `{entry}` | {middle:.3f} [{low:.3f}, {high:.3f}] | {all_grades[entry]['mean']:.3f} |" in page, entry
    for entry, scores in content["further"].items():
        texts = [
            f"{scores[part]['iqm']:.3f} [{scores[part]['interval'][0]:.3f}, {scores[part]['interval'][1]:.3f}]"
            for part in ("first", "further", "all")
        ]
        means = f"{scores['mean']:.3f} | {min(scores['seeds']):.2f}, {max(scores['seeds']):.2f} |"
        assert f"| `{entry}` | {' | '.join(texts)} | {means}" in page, entry
        if entry in ("normed", "batch_mean@0.99", "unscaled"):
            assert texts[2] in README.read_text(), entry
    cells = pd.DataFrame(**content["cells"]).query("seed < 5")
    means = cells.groupby(["task", "entry"]).score.mean()
    for task, entry in SUITE_SCORES:
        assert f"{means[task, f'{entry}@0.9']:.2f}" in page, (task, entry)
    for task, entry, other in SUITE_DIFFERENCES:
        rows, by = (cells, PAIRS) if task is None else (cells[cells.task == task], SEED_PAIRS)
        gap = paired_difference(rows.assign(learnable=True), entry, other, by)
        assert f"{gap.mean:.2f} ± {gap.half_width:.2f}" in page, (task, entry, other, gap)


def test_scores_of_the_discount_that_is_ahead_in_the_suite():
    """Those of batch_mean@0.95, which are not in the archive, beside the others."""
    page = SUITE.read_text().partition("## A warm start")[0]
    ahead, entries = AHEAD, ["batch_mean@0.99", "leave_one_out@0.9", "control_variate@0.9", "unscaled"]
    cells = cells_of(ahead)
    assert len(cells) == 200
    kept = [cell for cell in archived("suite") if cell["entry"] in (*entries, "batch_mean@0.9", "uniform", "oracle")]
    rows = score_cells([*kept, *cells], references=[cell for cell in kept if cell["seed"] < 5])
    means = {seeds: rows.query(seeds).groupby("entry").score.mean() for seeds in ("seed < 5", "seed >= 5", "seed < 10")}
    for entry in (ahead, *entries):
        scores = " | ".join(f"{mean[entry]:.3f}" for mean in means.values())
        gaps = [paired_difference(rows, entry, ahead, by) for by in (SEED_PAIRS, PAIRS)] if entry != ahead else []
        texts = [f"{gap.mean:.2f} ± {gap.half_width:.2f}" for gap in gaps]
        if entry == "control_variate@0.9":
            texts[0] = f"{gaps[0].mean:.3f} ± {gaps[0].half_width:.3f}"
        texts.append(middle_over_seeds(table_of_seeds(rows, entry)))
        lines = [line for line in page.splitlines() if line.startswith(f"| `{entry}` |") and scores in line]
        assert len(lines) == 1 and all(text in lines[0] for text in texts), (entry, scores, texts)
    assert [*failures(rows).loc[[ahead, *entries]].itertuples(index=False, name=None)] == [
        (count, 140) for count in (3, 9, 4, 5, 17)
    ]
    assert (
        "below 0.1 in 3 of 140 cells, all in seed 9; the others do in 4 (`leave_one_out`), 5, 9 and 17 (`unscaled`)"
        in page
    )
    gap = paired_difference(rows.query("seed < 5"), ahead, "batch_mean@0.9", SEED_PAIRS)
    assert f"it is {gap.mean:.2f} ± {gap.half_width:.2f} ahead of" in page


def test_scores_of_ours_in_the_suite():
    """Beside the entries with ten seeds, some of which are not in the archive."""
    page = plain(SUITE.read_text())
    labels = {
        "ours": "`ours`",
        WARM_99: "`batch_mean@0.99` after this warm start",
        "normed": "`normed`",
        STANDARD_INIT: "`ours` with standard initial weights",
        **{entry: f"`{entry}`" for entry in (AHEAD, "batch_mean@0.99", "leave_one_out@0.9", "control_variate@0.9")},
        "unscaled": "`unscaled`",
    }
    rows, first = ten_seeds(*labels), first_seeds()
    assert rows.groupby("entry").score.mean().drop("oracle").idxmax() == "ours"
    for entry, label in labels.items():
        table = table_of_seeds(rows, entry)
        assert table.shape == (20, 10) and table.notna().all(axis=None)
        means = [table.loc[:, low:high].stack().mean() for low, high in ((0, 4), (5, 9), (0, 9))]
        parts = [middle_over_seeds(table), *(f"{mean:.3f}" for mean in means)]
        if entry != "ours":
            gaps = [paired_difference(rows, entry, "ours", by) for by in (SEED_PAIRS, PAIRS)]
            parts += [f"{gap.mean:.3f} ± {gap.half_width:.3f}" for gap in gaps]
        assert f"| {label} | {' | '.join(parts)} |" in page.replace(" | | |", " |"), (entry, parts)
    failed = failures(rows).loc[[*labels]]
    assert [*failed.itertuples(index=False, name=None)] == [(count, 140) for count in (0, 3, 3, 9, 3, 9, 4, 5, 17)]
    assert failures(rows, below=0.5).loc["ours"].iloc[0] == 0
    text = "[`normed`](docs/recipes.md#why-normed) has 3, `standard-init` 9 and `unscaled` 17."
    assert text in README.read_text()
    assert (*failures(rows.query("seed == 9")).loc[STANDARD_INIT],) == (6, 14)
    others = rows.query("seed != 9")  # which led to the initial weights of ours
    assert [*failures(others).loc[["ours", "normed", STANDARD_INIT]]["sum"]] == [0, 0, 3]
    for other, name in ((STANDARD_INIT, "standard initial weights"), ("normed", "`normed`")):
        gap = paired_difference(others, "ours", other, SEED_PAIRS)
        assert f"with {name} ({-gap.mean:.3f} ± {gap.half_width:.3f} behind)" in page
    alone = others.groupby("entry").score.mean()
    text = f"without it `ours` has {alone['ours']:.3f}, `standard-init` {alone[STANDARD_INIT]:.3f} and `normed`"
    assert f"{text} {alone['normed']:.3f}." in plain(README.read_text())
    table = table_of_seeds(rows, "ours")
    assert middle_over_seeds(table) in README.read_text()
    assert f"the mean of a seed is {table.mean().min():.3f} to {table.mean().max():.3f}" in page
    means = rows.groupby(["entry", "task"]).score.mean()
    for task, words in {"nest": "they have ", "garden-path": "", "knapsack": ""}.items():
        shown = f"{means['ours', task]:.2f}, {words}{means[STANDARD_INIT, task]:.2f}"
        assert f"`{task}` {shown}" in page or f"`{task}` ({shown})" in page
    for entry in (AHEAD, "leave_one_out@0.9", "control_variate@0.9"):
        gap = paired_difference(rows, "normed", entry, SEED_PAIRS)
        assert f"`{entry.removesuffix('@0.9')}` ({gap.mean:.3f} ± {gap.half_width:.3f})" in page
    assert score_cells(first).groupby("entry").score.mean().drop("oracle").idxmax() == "normed"


def test_scores_of_disarm_in_the_suite():
    page, entry = SUITE.read_text(), "disarm@0.99, warm start"
    first = first_seeds()
    rows = score_cells([*first, *cells_of(entry), *(cell for cell in cells_of(AHEAD) if cell["seed"] < 5)])
    table = table_of_seeds(rows, entry)
    assert table.shape == (20, 5) and table.notna().all(axis=None)
    assert f"its mean is {table.stack().mean():.3f} and its interquartile mean {middle_over_seeds(table)}" in page
    over_seeds, over_places = (paired_difference(rows, "normed", entry, by) for by in (SEED_PAIRS, PAIRS))
    below = f"{over_seeds.mean:.3f} ± {over_seeds.half_width:.3f} below `normed` paired over seeds"
    assert f"{below} (± {over_places.half_width:.3f} over places)" in page
    ahead = paired_difference(rows, entry, "batch_mean@0.9", SEED_PAIRS)
    assert f"{ahead.mean:.3f} ± {ahead.half_width:.3f} ahead of `batch_mean@0.9`" in page
    assert all(
        abs(gap.mean) < gap.half_width
        for other in (AHEAD, "batch_mean@0.99")
        for gap in (paired_difference(rows, entry, other, by) for by in (SEED_PAIRS, PAIRS))
    )
    means = rows.groupby(["entry", "task"]).score.mean()
    for task in ("garden-path", "knapsack"):
        assert f"`{task}` ({means[entry, task]:.2f}, " in page and f"{means['normed', task]:.2f})" in page
    assert (*failures(rows).loc[entry],) == (0, 70)


def test_scores_of_returns_after_a_warm_start_in_the_suite():
    """Those of gamma 0.99, level with normed."""
    page, entry = plain(SUITE.read_text()), WARM_99
    others = (entry, "batch_mean@0.95", "disarm@0.99, warm start")
    cells = [*archived("suite"), *(cell for other in others for cell in cells_of(other))]
    rows = score_cells(cells, references=first_seeds())
    table = table_of_seeds(rows, entry)
    assert table.shape == (20, 10) and table.notna().all(axis=None)
    parts = [rows.query(seeds) for seeds in ("seed < 5", "seed >= 5")]
    assert [(*failures(part).loc[entry],) for part in parts] == [(0, 70), (3, 70)]
    over_seeds, over_places = (paired_difference(rows, entry, "normed", by) for by in (SEED_PAIRS, PAIRS))
    gaps = [f"{gap.mean:.3f} ± {gap.half_width:.3f}" for gap in (over_seeds, over_places)]
    assert f"ahead of it by {gaps[0]} over seeds, ± {over_places.half_width:.3f} over places" in page
    assert middle_over_seeds(table) in README.read_text()
    for other, text in (
        ("batch_mean@0.99", "ahead of those without it (± {places:.3f} over places)"),
        ("batch_mean@0.95", "of `batch_mean@0.95` (± {places:.3f})"),
        ("disarm@0.99, warm start", "of DisARM"),
    ):
        ahead, places = (paired_difference(rows, entry, other, by) for by in (SEED_PAIRS, PAIRS))
        expected = f"{ahead.mean:.3f} ± {ahead.half_width:.3f} " + text.format(places=places.half_width)
        assert expected in page, expected
    means = rows.groupby(["entry", "task"]).score.mean()
    for task, words in {"garden-path": "`normed` has ", "knapsack": "", "pair": ""}.items():
        assert f"`{task}` ({means[entry, task]:.2f}, {words}{means['normed', task]:.2f})" in page


def test_scores_of_the_control_of_normed_that_lacks_natural_gradients():
    page, entry = plain(SUITE.read_text()), "batch_mean@0.95, warm start"
    rows = score_cells([*first_seeds(), *cells_of(entry), *(cell for cell in cells_of(AHEAD) if cell["seed"] < 5)])
    table = table_of_seeds(rows, entry)
    assert table.shape == (20, 5) and table.notna().all(axis=None)
    gaps = {
        name: [paired_difference(rows, entry, name, by) for by in (SEED_PAIRS, PAIRS)] for name in ("normed", AHEAD)
    }
    (seeds, places), (same, other) = gaps["normed"], gaps[AHEAD]
    text = (
        f"have a mean of {table.stack().mean():.3f} in seeds 0 to 4, {-seeds.mean:.3f} ± {seeds.half_width:.3f} behind"
    )
    assert f"{text} `normed` over seeds (± {places.half_width:.3f} over places)" in page
    gain = f"{abs(same.mean):.3f} ± {same.half_width:.3f}"
    assert f"{gain} (± {other.half_width:.3f} over places)" in page and f"{gain} from it" in RECIPES.read_text()
    means = rows.groupby(["entry", "task"]).score.mean()
    for task, words in {"knapsack": "returns have ", "pair": "", "garden-path": ""}.items():
        assert f"`{task}` ({means['normed', task]:.2f}, {words}{means[entry, task]:.2f})" in page


def test_scores_of_natural_gradients_without_a_warm_start_in_the_suite():
    entry = "natural_gradient@0.95"
    rows = score_cells([*first_seeds(), *cells_of(entry)]).query("seed < 3")
    means = rows.groupby("entry").score.mean()
    texts = [f"a mean of {means[entry]:.3f}, where `normed` has {means['normed']:.3f}, and 4 cells of 42 below 0.1"]
    assert [*failures(rows).loc[[entry, "normed"]].itertuples(index=False, name=None)] == [(4, 42), (0, 42)]
    seeds, places = (paired_difference(rows, "normed", entry, by) for by in (SEED_PAIRS, PAIRS))
    gap = f"{seeds.mean:.3f} ± {seeds.half_width:.3f} over"
    texts += [f"{gap} three seeds and ± {places.half_width:.3f} over places"]
    assert all(text in plain(SUITE.read_text()) for text in texts)
    assert f"({gap} seeds, ± {places.half_width:.3f} over places)" in plain(RECIPES.read_text())


def test_scores_of_gamma_0_95_and_standard_initial_weights_in_the_suite():
    page, entry = plain(SUITE.read_text()), "natural_gradient@0.95, warm start, no norm"
    rows = score_cells([*archived("suite"), *cells_of(entry)], references=first_seeds())
    table = table_of_seeds(rows, entry)
    assert table.shape == (20, 10) and table.notna().all(axis=None)
    first, last, both = (table.loc[:, low:high].stack().mean() for low, high in ((0, 4), (5, 9), (0, 9)))
    assert first > rows[(rows.seed < 5) & ~rows.entry.isin([entry, "oracle"])].groupby("entry").score.mean().max()
    middle = f"Their interquartile mean is {middle_over_seeds(table)}, their mean {first:.3f} in seeds 0 to 4"
    assert middle in page and f"{last:.3f} in seeds 5 to 9, and {both:.3f} over all ten" in page
    for other, words in (
        ("normed", "{:.3f} ± {:.3f} behind `normed` over seeds"),
        ("unscaled", "{:.3f} ± {:.3f} ahead of `unscaled`"),
    ):
        over_seeds, over_places = (paired_difference(rows, entry, other, by) for by in (SEED_PAIRS, PAIRS))
        assert words.format(abs(over_seeds.mean), over_seeds.half_width) in page
        assert f"(± {over_places.half_width:.3f} over places)" in page
    eight = rows.query("seed < 8")
    gap = paired_difference(eight, entry, "normed", SEED_PAIRS)
    mean = eight[eight.entry == entry].score.mean()
    assert f"the mean is {mean:.3f}, {gap.mean:.3f} ± {gap.half_width:.3f} ahead of `normed`" in page
    failed = failures(rows).loc[[entry, "normed", "unscaled"]]
    assert [*failed.itertuples(index=False, name=None)] == [(10, 140), (3, 140), (17, 140)]
    assert (*failures(rows.query("seed == 9")).loc[entry],) == (6, 14)
    means = rows.groupby(["entry", "task"]).score.mean()
    for task, words in {"knapsack": "`normed` has ", "garden-path": "", "nest": ""}.items():
        assert f"`{task}` ({means[entry, task]:.2f}, {words}{means['normed', task]:.2f})" in page


def scored_beside_first_seeds(entry: str) -> tuple[pd.DataFrame, float, str]:
    """Scores of an entry beside those of the suite in seeds 0 to 4, its mean, and its interquartile mean."""
    rows = score_cells([*first_seeds(), *cells_of(entry)])
    return rows, rows[rows.entry == entry].score.mean(), middle_over_cells(rows, entry)


def test_scores_of_token_gains_with_gamma_1_in_the_suite():
    page, entry = plain(COUNTERFACTUALS.read_text()), "token_gain@1, few rows"
    rows, mean, middle = scored_beside_first_seeds(entry)
    assert f"{middle} and a mean of {mean:.3f}, " in page
    seeds, places = (paired_difference(rows, entry, "batch_mean@0.9", by) for by in (SEED_PAIRS, PAIRS))
    assert f"{-seeds.mean:.3f} ± {seeds.half_width:.3f} behind `batch_mean@0.9` (± {places.half_width:.3f}" in page


def test_scores_of_a_critic_with_lambda_1_in_the_suite():
    page, entry = plain(COUNTERFACTUALS.read_text()), "critic_advantage@0.9, lambda 1"
    rows, mean, middle = scored_beside_first_seeds(entry)
    assert f"has a mean of {mean:.3f} and an interquartile mean of {middle} on states" in page
    for other, sign, words in (
        ("critic_advantage@0.9", 1, "ahead of lambda 0.95"),
        ("batch_mean@0.9", -1, "behind `batch_mean@0.9`"),
    ):
        seeds, places = (paired_difference(rows, entry, other, by) for by in (SEED_PAIRS, PAIRS))
        gap = f"{sign * seeds.mean:.3f} ± {seeds.half_width:.3f} {words} (± {places.half_width:.3f}"
        assert gap in page, gap


INTERQUARTILE = {
    WARM_99: (1, "`batch_mean@0.99` after the warm start is {} ahead"),
    "normed": (1, "`normed` {}"),
    STANDARD_INIT: (-1, "standard initial weights {} behind"),
    "leave_one_out@0.9": (-1, "`leave_one_out` (by {})"),
    "control_variate@0.9": (-1, "`control_variate` (by {})"),
}
"""What the page of the suite says of interquartile means beside that of ours, and their sign."""


@pytest.mark.parametrize("entry", INTERQUARTILE)
def test_interquartile_means_of_seeds_beside_those_of_ours(entry):
    rows, (sign, text) = ten_seeds("ours", entry), INTERQUARTILE[entry]
    other, ours = (table_of_seeds(rows, name).apply(interquartile_mean) for name in (entry, "ours"))
    gap = paired_over_seeds(other.to_dict(), ours.to_dict())
    assert gap.pairs == 10
    assert text.format(f"{sign * gap.mean:.3f} ± {gap.half_width:.3f}") in plain(SUITE.read_text())


@pytest.mark.parametrize(
    ("entry", "label"),
    [
        ("sibling_trial@0.9", "`sibling_trial`: "),
        ("sibling_trial@0.9, blocks", "`sibling_trial` with `coupling=blocks`"),
        ("doubly_robust@0.9", "`doubly_robust`: "),
    ],
)
def test_scores_of_second_rows_and_predicted_flips_in_the_suite(entry, label):
    rows = score_cells([*first_seeds(), *cells_of(entry)])
    table = table_of_seeds(rows, entry)
    assert table.shape == (20, 5) and table.notna().all(axis=None)
    scores = table.stack()
    gaps = [paired_difference(rows, entry, other, SEED_PAIRS) for other in ("batch_mean@0.9", "normed")]
    texts = [f"{scores.mean():.3f}", f"{interquartile_mean(scores):.3f}"]
    texts += [f"{gap.mean:.3f} ± {gap.half_width:.3f}" for gap in gaps]
    lines = [line for line in COUNTERFACTUALS.read_text().splitlines() if line.startswith(f"  | {label}")]
    assert len(lines) == 1 and lines[0].endswith(f" | {' | '.join(texts)} |")


def test_scores_of_the_critic_that_pools_tokens():
    entry, page = "pooled_critic@0.9", plain(COUNTERFACTUALS.read_text())
    rows = score_cells([*first_seeds(), *cells_of(entry)])
    table = table_of_seeds(rows, entry)
    assert table.shape == (20, 5) and table.notna().all(axis=None)
    means = rows.groupby("entry").score.mean()
    texts = [f"its mean is {means[entry]:.3f} with lambda 0.95"]
    for other, words in (("critic_advantage@0.9", " over places"), ("batch_mean@0.9", "")):
        gap, places = (paired_difference(rows, entry, other, by) for by in (SEED_PAIRS, PAIRS))
        start = f"{-gap.mean:.3f} ± {gap.half_width:.3f} behind `{other}`"
        texts.append(f"{start} ({means[other]:.3f}; ± {places.half_width:.3f}{words})")
    switch = rows.query("task == 'switch'").groupby("entry").score.mean()
    texts.append(f"on `switch`, too ({switch[entry]:.2f} and {switch['critic_advantage@0.9']:.2f})")
    for text in texts:
        assert text in page, text


def cells_of(entry: str) -> list[dict[str, Any]]:
    """The cells of an entry that the archive lacks."""
    return [cell for cell in read_other_entries(RESULTS / "suite") if cell["entry"] == entry]


def first_seeds() -> list[dict[str, Any]]:
    """The archive's cells of seeds 0 to 4."""
    return [cell for cell in archived("suite") if cell["seed"] < 5]


def ten_seeds(*entries: str) -> pd.DataFrame:
    """Scores of entries with ten seeds, from the archive or beside it."""
    kept = [cell for cell in archived("suite") if cell["entry"] in (*entries, "uniform", "oracle")]
    return score_cells([*kept, *(cell for entry in entries for cell in cells_of(entry))], references=first_seeds())


def table_of_seeds(rows: pd.DataFrame, entry: str) -> pd.DataFrame:
    """Scores of an entry: a row per task and grade, a column per seed."""
    return rows[rows.entry == entry].pivot_table("score", ["task", "grade"], "seed")


def middle_over_cells(rows: pd.DataFrame, entry: str) -> str:
    """The interquartile mean, with its interval over the seeds of each task and grade, as pages write it."""
    scores = suite_scores.strata(rows, entry)
    return score_text(suite_scores.pooled_iqm(scores), suite_scores.interval(scores))


def middle_over_seeds(table: pd.DataFrame) -> str:
    """The interquartile mean, with its interval over whole seeds, as the page writes it."""
    return score_text(interquartile_mean(table.stack()), seed_interval(table))


def failures(rows: pd.DataFrame, *, below: float = 0.1) -> pd.DataFrame:
    """Cells of each entry below a score, and all, without the tasks and grades that nobody learns."""
    easy = rows[~rows.task.isin(["decoy", "clock"]) & ~(rows.task.isin(["delay", "switch"]) & (rows.grade == 3))]
    return (easy.score < below).groupby(easy.entry).agg(["sum", "size"])


@cache  # several tests read it
def archived(folder: str) -> list[dict[str, Any]]:
    return read_archive(RESULTS / folder)


def test_the_pages_of_the_suite_have_the_shares_of_their_archives():
    for folder, count in (("suite", 3300), ("suite-full", 570)):
        cells = archived(folder)
        saved = json.loads((RESULTS / folder / "suite.json").read_text())["cells"]
        known = {(*row[:4],): dict(zip(saved["columns"], row, strict=True)) for row in saved["data"]}
        assert len(cells) == count
        for cell in cells:
            row = known[tuple(cell[name] for name in ("task", "grade", "entry", "seed"))]
            assert row["share"] == pytest.approx(cell["final"]["share"], abs=1e-4), row

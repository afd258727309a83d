"""Whether training in bfloat16 comes to what training in float32 does.

    python -m rltok_rl.experiments.studies.precision source=books out=experiments/results/precision

One small model on one text, from the same seeds, three ways: in float32; in bfloat16; and in float32 with a learning
rate that differs in its eighth digit. The third is a yardstick: boundaries are drawn, so that trainings part sooner or
later whatever moved them first, and what rounding does anyway cannot be held against bfloat16. The second yardstick is
how far seeds lie apart. Ways of one seed read the same windows at every update: losses can be compared update by
update. Boundaries cannot, nor can the policy's signal that hangs on them; their figures are compared on average.

Every training is a run (``rltok train``) with a folder in ``runs``: the same command goes on where it was stopped.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rltok_rl.experiments.reports.markdown import markdown
from rltok_rl.experiments.runs.folder import RunFolder, read_run
from rltok_rl.experiments.studies.precision_figure import draw_precision

from rltok_rl.training.record import machine

LR = 4e-3
WAYS: dict[str, tuple[str, ...]] = {
    "float32": (f"optim.lr={LR}",),
    "bfloat16": (f"optim.lr={LR}", "compute.precision=bfloat16"),
    "nudged": (f"optim.lr={LR * (1 + 1e-7)!r}",),
}
"""What sets the three ways apart."""
MODEL = (
    "model=tiny",
    "model.overrides.num_token_layers=2",
    "model.overrides.attention_cap=50.0",  # as the paper's sizes: scores are capped in the narrow type as well
    "estimator=discounted_return",
    "baseline=batch_mean",
)
"""A model that a processor without bfloat16 products trains in minutes, and the paper's estimator."""
ROWS, STEPS = 8, 256
TRAINED = ("bits_per_byte", "early_bits_per_byte", "rate", "entropy", "advantage_spread", "grad_norm")
"""Figures of updates, averaged over the last of them."""
HELD_OUT = ("held_out_bits_per_byte", "held_out_early_bits_per_byte", "held_out_rate")
"""Figures of the last look."""


@dataclass
class Study:
    """Options of the study."""

    source: str = MISSING
    """A file or a folder of documents of 4,096 bytes and more."""
    seeds: int = 3
    """Seeds 0, 1, ...: of weights, texts and boundaries."""
    updates: int = 300
    last: int = 50
    """Updates at the end that figures are averaged over."""
    overrides: list[str] = field(default_factory=list)
    """Options of every training, as on its command line."""
    runs: str = "runs/precision"
    """Folder of the trainings."""
    out: str = "runs/precision"
    """Folder of table and figure."""


@dataclass(frozen=True)
class Parity:
    """What another way does to one figure, beside what other seeds do."""

    figure: str
    mean: float
    """Of float32, over seeds."""
    differences: list[float]
    """The other way minus float32, a seed each."""
    between_seeds: float
    """Mean distance of two seeds in float32."""

    @property
    def within(self) -> bool:
        """Whether the mean difference is smaller than what seeds differ by."""
        return abs(fmean(self.differences)) < self.between_seeds


def read_study(arguments: Sequence[str]) -> Study:
    """Options from a command line.

    Args:
        arguments: ``name=value``.

    Example:
        >>> read_study(["source=books", "seeds=2"]).updates
        300
    """
    try:
        merged = OmegaConf.merge(OmegaConf.structured(Study), OmegaConf.from_dotlist(list(arguments)))
        study = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        names = list(Study.__dataclass_fields__)
        raise ValueError(f"options are {names}, source must be given, got {list(arguments)}: {error.msg}") from None
    assert isinstance(study, Study)
    for name, least in (("seeds", 2), ("updates", 2), ("last", 1)):
        if getattr(study, name) < least:
            raise ValueError(f"{name} must be at least {least}, got {getattr(study, name)}")
    if study.last > study.updates:
        raise ValueError(f"last must be at most updates={study.updates}, got {study.last}")
    return study


def training(study: Study, way: str, seed: int) -> list[str]:
    """The command line of one training.

    Args:
        study: options.
        way: a key of ``WAYS``.
        seed: of everything.
    """
    num_bytes = ROWS * STEPS * study.updates
    return [
        *MODEL,
        *WAYS[way],
        "data=books",
        f"data.source={study.source}",
        f"data.num_rows={ROWS}",
        f"data.num_steps={STEPS}",
        f"optim.total_bytes={num_bytes}",
        "optim.warm_up=0.1",
        "compute.threads=1",
        "checkpoint_every=20",
        "snapshots.count=2",
        f"seed={seed}",
        *study.overrides,
        f"out={folder(study, way, seed)}",
        "resume=true",
    ]


def folder(study: Study, way: str, seed: int) -> Path:
    """Of one training."""
    return Path(study.runs) / f"{way}-{seed}"


def train_all(study: Study) -> dict[str, list[RunFolder]]:
    """All runs, a seed each, by their way; what is not finished is trained."""
    cells = [(way, seed) for seed in range(study.seeds) for way in WAYS]
    for place, (way, seed) in enumerate(cells, 1):
        if (folder(study, way, seed) / "summary.json").exists():
            continue
        print(f"{place}/{len(cells)} {way}, seed {seed}", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "rltok_rl.experiments.train", *training(study, way, seed)]
        ended = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
        if ended or not (folder(study, way, seed) / "summary.json").exists():
            raise RuntimeError(f"{way}, seed {seed}, was not trained to its end (exit code {ended})")
    return {way: [read_run(folder(study, way, seed)) for seed in range(study.seeds)] for way in WAYS}


def value(run: RunFolder, name: str, last: int) -> float:
    """A figure of a run: the mean of its last updates, or that of its last look.

    Args:
        run: a finished one.
        name: one of ``TRAINED`` or ``HELD_OUT``.
        last: updates to average over.
    """
    return float(run.snapshots[-1][name]) if name in HELD_OUT else fmean(run.history[name][-last:])


def compare(
    ours: Sequence[RunFolder], theirs: Sequence[RunFolder], *, last: int, names: Sequence[str] = (*TRAINED, *HELD_OUT)
) -> list[Parity]:
    """Every figure of one way against float32's.

    Args:
        ours: runs of the way, a seed each.
        theirs: runs in float32, of the same seeds.
        last: updates to average over.
        names: figures to compare.
    """
    found = []
    for name in names:
        mine, usual = ([value(run, name, last) for run in runs] for runs in (ours, theirs))
        pairs = [abs(a - b) for place, a in enumerate(usual) for b in usual[place + 1 :]]
        found.append(Parity(name, fmean(usual), [a - b for a, b in zip(mine, usual, strict=True)], fmean(pairs)))
    return found


def table(narrow: Sequence[Parity], nudged: Sequence[Parity]) -> str:
    """A line per figure: mean differences and their spread over seeds, beside what seeds differ by."""
    header = [
        "figure",
        "float32",
        "bfloat16 minus float32",
        "of each seed",
        "nudged minus float32",
        "two seeds differ",
    ]
    lines = [
        [
            f"`{one.figure}`",
            f"{one.mean:.4f}",
            f"{fmean(one.differences):+.4f} ± {stdev(one.differences):.4f}",
            " ".join(f"{x:+.4f}" for x in one.differences),
            f"{fmean(other.differences):+.4f} ± {stdev(other.differences):.4f}",
            f"{one.between_seeds:.4f}{'' if one.within else ' (less than bfloat16 does)'}",
        ]
        for one, other in zip(narrow, nudged, strict=True)
    ]
    return markdown(header, lines)


def write(study: Study, command: str, runs: dict[str, list[RunFolder]]) -> str:
    """Table, figure and what they are made of; returns the page."""
    out = Path(study.out)
    out.mkdir(parents=True, exist_ok=True)
    narrow, nudged = (compare(runs[way], runs["float32"], last=study.last) for way in ("bfloat16", "nudged"))
    about = (
        f"{study.updates} updates of {ROWS} x {STEPS} bytes, {study.seeds} seeds; figures of updates are means over "
        f"the last {study.last}, ± is the standard deviation over seeds; *nudged* is float32 with a learning rate that "
        f"differs in its eighth digit; *two seeds differ* is the mean distance of two in float32."
    )
    model = f"{runs['float32'][0].model['parameters']:,} parameters, `{' '.join(MODEL)}`"
    page = "\n\n".join([f"`{command}`", machine("cpu"), about, model, table(narrow, nudged)]) + "\n"
    (out / "precision.md").write_text(page)
    courses = {
        way: {name: [[round(x, 5) for x in run.history[name]] for run in mine] for name in TRAINED}
        for way, mine in runs.items()
    }
    content = {
        "command": command,
        "machine": machine("cpu"),
        "bfloat16": [asdict(one) for one in narrow],
        "nudged": [asdict(one) for one in nudged],
        "courses": courses,
    }
    (out / "precision.json").write_text(json.dumps(content) + "\n")
    draw_precision(courses, out / "precision.png")
    return page


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        study = read_study(given)
        print(write(study, " ".join(["python -m rltok_rl.experiments.studies.precision", *given]), train_all(study)))
    except (ValueError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2
    print(Path(study.out) / "precision.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())

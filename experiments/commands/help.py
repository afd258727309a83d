"""Help pages of the commands that take Hydra options, and of ``rltok lm-eval``; nothing here imports torch or Hydra."""

from __future__ import annotations

import shutil
import textwrap

from rltok_rl.experiments.commands import schema
from rltok_rl.experiments.commands.schema import CONF, HERE

_TRAIN = """\
usage: rltok train [GROUP=CHOICE | GROUP.OPTION=VALUE ...]

Train a boundary policy and its language model. A choice sets a whole group of options; the command line overrides
experiment=. Write null for no value, [a,b] for a list, and quote special characters: "out='my run'". --cfg job prints
the configuration, --multirun runs every combination of comma-separated values, --hydra-help lists Hydra's own flags.

examples:
  rltok train experiment=recall
  rltok train data.source=notes.txt optim.total_bytes=4_000_000 out=runs/mine
  rltok train experiment=recall segmenter=gumbel optim.lr=2e-3 seed=1 out=runs/gumbel
  rltok train experiment=books recipe=paper data.source=books/
  rltok train experiment=gamma-grid --multirun"""
_ESTIMATORS = """\
usage: rltok estimators [OPTION=VALUE ...]

{about}

examples:
  rltok estimators
  rltok estimators estimators=[paper,group_mean_4] gamma=0.95 out=runs/two
  rltok estimators num_batches=20 reference_batches=20 samples=0 exact_texts=0"""


_SUITE = """\
usage: rltok suite [OPTION=VALUE ...]

{about}

examples:
  rltok suite
  rltok suite estimator=local_flips,batch_mean gamma=0.9,0.99 seeds=5 budget=small out=runs/mine
  rltok suite estimator=my_file:MyEstimator entries=paper,ours tasks=delay,pair seeds=3"""

_SWEEP = """\
usage: rltok sweep [OPTION=VALUE ...] [GROUP=CHOICE,... | GROUP.OPTION=VALUE,... ...]

{about}

examples:
  rltok sweep experiment=recall estimator.gamma=0.9,0.99 seeds=5
  rltok sweep experiment=recall estimator=discounted_return baseline=batch_mean,leave_one_out out=runs/baselines

Options of the runs are those of rltok train."""


def train() -> str:
    """Return the help of ``rltok train``: groups with their choices, options, examples."""
    known, groups = schema.schemas(HERE / "run_config.py"), schema.group_schemas()
    parts = [_TRAIN]
    whole = schema.constant(HERE / "run_config.py", "WHOLE")
    for group in [*[name for name in groups if (CONF / name).is_dir()], *whole]:
        description = known[groups[group]].description if group in groups else whole[group]
        comments = {word: schema.comment(CONF / group / f"{word}.yaml") for word in schema.choices(group)}
        lines = [_paragraph(text, f"  {word:<24}") for word, text in comments.items()]
        parts.append("\n".join([f"{group}=CHOICE  {_plain(description)}", *lines]))
    for group, kind in groups.items():
        title = f"{group}.OPTION=VALUE  {_plain(known[kind].description)}"
        parts.append("\n".join([title, *(_option(f"{group}.", option) for option in known[kind].options)]))
    loose = [option for option in known["TrainConfig"].options if option.name not in groups]
    parts.append("\n".join(["options of no group", *(_option("", option) for option in loose)]))
    return "\n\n".join(parts)


def estimators() -> str:
    """Return the help of ``rltok estimators``."""
    return _study(_ESTIMATORS, "studies/estimators", "studies/estimator_options", "EstimatorOptions")


def suite() -> str:
    """Return the help of ``rltok suite``."""
    return _study(_SUITE, "studies/suite", "studies/suite_options", "SuiteOptions")


def sweep() -> str:
    """Return the help of ``rltok sweep``."""
    return _study(_SWEEP, "sweep", "sweep", "SweepOptions")


def _study(page: str, module: str, options_module: str, schema_name: str) -> str:
    """Fill the page of a command: the first line of its module, and its options."""
    options = schema.schemas(HERE / f"{options_module}.py")[schema_name].options
    about = schema.module_doc(HERE / f"{module}.py").partition("\n")[0]
    return "\n".join([page.format(about=about), "", "options", *(_option("", option) for option in options)])


def lm_eval() -> str:
    """Return the help of ``rltok lm-eval``."""
    about = schema.module_doc(HERE / "commands" / "lm_eval.py")
    return f"usage: rltok lm-eval [options of the harness]\n\n{about}\n\nrltok lm-eval run --help lists the harness's."


PAGES = {"train": train, "sweep": sweep, "estimators": estimators, "suite": suite, "lm-eval": lm_eval}
"""Help pages by command."""


def _option(prefix: str, option: schema.Option) -> str:
    """An option: name, type and default in one line, its description below."""
    default = " (set by the choice)" if option.default == schema.REQUIRED else f" = {option.default}"
    limits = f" in {option.range}" if option.range else ""
    return f"  {prefix}{option.name}: {option.kind}{limits}{default}\n" + _paragraph(option.description, "      ")


def _paragraph(text: str, start: str) -> str:
    """Wrap text at the width of the terminal, indented by the length of its start."""
    width = max(60, min(shutil.get_terminal_size().columns, 120) - 1)
    indent = " " * len(start)
    return textwrap.fill(_plain(text), width, initial_indent=start, subsequent_indent=indent) or start.rstrip()


def _plain(text: str) -> str:
    return " ".join(text.replace("``", "").split())

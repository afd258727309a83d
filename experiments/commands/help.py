"""Help pages of the commands that take Hydra options, and of ``rltok lm-eval``; nothing here imports torch or Hydra."""

from __future__ import annotations

import shutil
import textwrap

from rltok_rl.experiments.commands.schema import (
    CONF,
    HERE,
    Option,
    choices,
    comment,
    group_schemas,
    module_doc,
    schemas,
)

_TRAIN_EXAMPLES = """\
examples:
  rltok train experiment=recall
  rltok train data.source=notes.txt optim.total_bytes=4_000_000 out=runs/mine
  rltok train experiment=recall segmenter=gumbel optim.lr=2e-3 seed=1 out=runs/gumbel
  rltok train experiment=gamma-grid --multirun"""
_ESTIMATORS_EXAMPLES = """\
examples:
  rltok estimators
  rltok estimators estimators=[paper,group_mean_4] gamma=0.95 out=runs/two
  rltok estimators num_batches=20 reference_batches=20 samples=0 exact_texts=0"""


def train() -> str:
    """Return the help of ``rltok train``: groups with their choices, options, examples."""
    known, groups = schemas(HERE / "config.py"), group_schemas()
    parts = [
        "usage: rltok train [GROUP=CHOICE | GROUP.OPTION=VALUE ...]",
        _paragraph(
            "Train a boundary policy and its language model. A choice sets the options of a whole group; options and "
            "choices on the command line win over those of experiment=. null is no value; lists are [a,b], and values "
            "with special characters stand between quotes: \"out='my run'\". --cfg job prints the configuration, "
            "--multirun runs every combination of comma-separated values, --hydra-help lists Hydra's own flags.",
            "",
        ),
        _TRAIN_EXAMPLES,
    ]
    for group in [*[name for name in groups if (CONF / name).is_dir()], "experiment"]:
        description = known[groups[group]].description if group in groups else "Options of several groups at once."
        lines = [_choice(word, comment(CONF / group / f"{word}.yaml")) for word in choices(group)]
        parts.append("\n".join([f"{group}=CHOICE  {_plain(description)}", *lines]))
    for group, schema in groups.items():
        options = [_option(f"{group}.", one) for one in known[schema].options]
        parts.append("\n".join([f"{group}.OPTION=VALUE  {_plain(known[schema].description)}", *options]))
    loose = [one for one in known["TrainConfig"].options if one.name not in groups]
    parts.append("\n".join(["Options of no group", *(_option("", one) for one in loose)]))
    return "\n\n".join(parts)


def estimators() -> str:
    """Return the help of ``rltok estimators``."""
    path = HERE / "studies" / "options.py"
    options = [_option("", one) for one in schemas(path)["EstimatorOptions"].options]
    about = module_doc(HERE / "studies" / "estimators.py").partition("\n")[0]
    return "\n\n".join(
        ["usage: rltok estimators [OPTION=VALUE ...]", about, _ESTIMATORS_EXAMPLES, "\n".join(["options", *options])]
    )


def lm_eval() -> str:
    """Return the help of ``rltok lm-eval``."""
    about = module_doc(HERE / "commands" / "lm_eval.py")
    return f"usage: rltok lm-eval [options of the harness]\n\n{about}\n\nrltok lm-eval run --help lists the harness's."


PAGES = {"train": train, "estimators": estimators, "lm-eval": lm_eval}
"""Help pages by command."""


def _choice(word: str, about: str) -> str:
    return _hang(f"  {word:<24}", about)


def _option(prefix: str, option: Option) -> str:
    """An option: name, type and default in one line, its description below."""
    default = "" if option.default.startswith("(") else f" = {option.default}"
    required = " (set by the choice)" if option.default.startswith("(") else ""
    return f"  {prefix}{option.name}: {option.kind}{default}{required}\n" + _paragraph(option.description, "      ")


def _hang(start: str, text: str) -> str:
    shown = textwrap.fill(_plain(text), _width(), initial_indent=start, subsequent_indent=" " * len(start))
    return shown if text else start.rstrip()


def _paragraph(text: str, indent: str) -> str:
    return textwrap.fill(_plain(text), _width(), initial_indent=indent, subsequent_indent=indent)


def _plain(text: str) -> str:
    return " ".join(text.replace("``", "").split())


def _width() -> int:
    return max(60, min(shutil.get_terminal_size().columns, 120) - 1)

"""Multiple-choice tasks: bits per byte of the right answer, and accuracies.

Bits per byte are a mean over examples, all of the same weight. Tasks with a single choice, such as LAMBADA, have no
accuracy, but ``likeliest``: whether a model that takes the likeliest byte, one by one, writes the answer.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rltok_rl.evaluation.bits import mean_and_error
from rltok_rl.evaluation.continuations import Continuations, continuation_log_likelihood
from rltok_rl.models import UNet
from rltok_rl.renamed import renamed_names
from rltok_rl.utils import check_count

__getattr__ = renamed_names(globals(), {"choice_figures": "choice_metrics"})


@dataclass(frozen=True)
class Example:
    """A question with its choices."""

    context: bytes
    choices: tuple[bytes, ...]  # what may follow the context, each with its delimiter, usually a space
    gold: int  # number of the right choice, from 0

    def __post_init__(self) -> None:
        if not self.choices:
            raise ValueError(f"choices must hold at least one, got none after {self.context[-40:]!r}")
        for number, choice in enumerate(self.choices):
            if not choice:
                raise ValueError(f"choices must have at least 1 byte each, got an empty one as number {number}")
        if check_count("gold", self.gold, minimum=0) >= len(self.choices):
            raise ValueError(f"gold must lie in 0..{len(self.choices) - 1}, got {self.gold}")


def score_examples(model: UNet, examples: Sequence[Example], **options: Any) -> Continuations:
    """Score all choices of all examples, one after the other.

    Options are those of :func:`~rltok_rl.evaluation.continuations.continuation_log_likelihood`.
    """
    contexts = [example.context for example in examples for _ in example.choices]
    choices = [choice for example in examples for choice in example.choices]
    return continuation_log_likelihood(model, contexts, choices, **options)


def choice_metrics(examples: Sequence[Example], scores: Continuations) -> dict[str, Any]:
    """Compute bits per byte of the right answers, and accuracies, from the ``scores`` of :func:`score_examples`.

        bits_i = -log p(y_gold | c) / (ln 2 * bytes of y_gold),    its delimiter included

    Means over examples have a standard error, ``<name>_error`` (None for one example): ``bits_per_byte``, the mean of
    bits_i; ``one_draw_bits_per_byte``, the same for single draws of the boundaries; ``accuracy``, how often the right
    choice has the largest log-likelihood; ``accuracy_per_byte``, the same per byte; ``likeliest``, how often each byte
    of the right choice is the likeliest. ``cut`` counts examples with a context that was cut; ``chance`` is the
    accuracy of guessing. If no example has two choices, ``chance`` and the accuracies are None. The first of equal
    choices counts.
    """
    if not examples:
        raise ValueError("examples must hold at least one, got none")
    counts = [len(example.choices) for example in examples]
    if sum(counts) != len(scores.log_likelihood):
        raise ValueError(
            f"scores must be of all choices of all examples, {sum(counts)}, got {len(scores.log_likelihood)}"
        )
    per_byte = scores.log_likelihood / scores.num_bytes
    gold = torch.tensor([example.gold for example in examples])
    at = gold + torch.tensor([0, *counts[:-1]]).cumsum(0)  # places of the right choices
    several = max(counts) > 1
    values: dict[str, Tensor | None] = {
        "bits_per_byte": -per_byte[at] / math.log(2),
        "one_draw_bits_per_byte": -(scores.one_draw / scores.num_bytes)[at] / math.log(2),
        "accuracy": _best(scores.log_likelihood, counts) == gold if several else None,
        "accuracy_per_byte": _best(per_byte, counts) == gold if several else None,
        "likeliest": scores.likeliest[at],
    }
    metrics: dict[str, Any] = {
        "examples": len(examples),
        "choices": sum(counts),
        "cut": sum(bool(part.any()) for part in scores.cut.split(counts)),
        "chance": mean_and_error([1 / count for count in counts])[0] if several else None,
    }
    for name, of_examples in values.items():
        metrics[name], metrics[f"{name}_error"] = (None, None) if of_examples is None else mean_and_error(of_examples)
    return metrics


def _best(scores: Tensor, counts: list[int]) -> Tensor:
    """The best choice of each example, the first of equal ones."""
    return torch.tensor([int((part == part.max()).nonzero()[0]) for part in scores.split(counts)])


Row = Mapping[str, Any]
Question = tuple[str, list[str], int]
"""Context, choices with their delimiters, number of the right one."""


def piqa(row: Row) -> Question:
    """Ask for the better of two ways to reach a goal."""
    return "Question: " + row["goal"] + "\nAnswer:", [" " + row["sol1"], " " + row["sol2"]], _label(row)


def hellaswag(row: Row) -> Question:
    """Ask for the right one of four endings of a scene."""
    context = row["activity_label"] + ": " + row["ctx_a"] + " " + row["ctx_b"].capitalize()
    return clean_hellaswag(context), [" " + clean_hellaswag(end) for end in _texts(row, "endings")], _label(row)


def _texts(row: Row, column: str) -> list[str]:
    """The texts of a column, checked."""
    texts = row[column]
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        raise TypeError(f"{column} must be a list of texts, got {texts!r}")
    return list(texts)


def _label(row: Row) -> int:
    """The number of the right choice; some datasets write it as a text."""
    label = row["label"]
    return int(label) if isinstance(label, str) and label.isdecimal() else check_count("label", label, minimum=0)


def clean_hellaswag(text: str) -> str:
    """Clean a text as lm-evaluation-harness does: many come from WikiHow, with marks in brackets.

    Example:
        >>> clean_hellaswag(" How to knit [title] Buy wool [step] Soft  wool. ")
        'How to knit. Buy wool Soft wool.'
    """
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def arc_easy(row: Row) -> Question:
    """Ask a question of a school exam."""
    texts, labels, key = _texts(row["choices"], "text"), _texts(row["choices"], "label"), row["answerKey"]
    if key not in labels:
        raise ValueError(f"answerKey must be one of {labels}, got {key!r}")
    return "Question: " + row["question"] + "\nAnswer:", [" " + text for text in texts], labels.index(key)


def lambada_openai(row: Row) -> Question:
    """Ask for the last word of a passage."""
    context, _, last = row["text"].rpartition(" ")
    return context, [" " + last], 0


@dataclass(frozen=True)
class Task:
    """A dataset and the function that turns its rows into questions."""

    path: str  # name on the Hugging Face hub
    split: str
    columns: tuple[str, ...]
    format: Callable[[Row], Question]
    configuration: str | None = None
    revision: str | None = None  # commit on the hub


TASKS = {
    "piqa": Task(  # 1,838 examples
        *("baber/piqa", "validation", ("goal", "sol1", "sol2", "label"), piqa),
        revision="142f6d7367fd9877f0fb3b5734ea6a545f54cdd1",
    ),
    "hellaswag": Task(  # 10,042
        *("Rowan/hellaswag", "validation", ("activity_label", "ctx_a", "ctx_b", "endings", "label"), hellaswag),
        revision="218ec52e09a7e7462a5400043bb9a69a41d06b76",
    ),
    "arc_easy": Task(  # 2,376
        *("allenai/ai2_arc", "test", ("question", "choices", "answerKey"), arc_easy, "ARC-Easy"),
        revision="210d026faf9955653af8916fad021475a3f00453",
    ),
    "lambada_openai": Task(  # 5,153
        *("EleutherAI/lambada_openai", "test", ("text",), lambada_openai, "default"),
        revision="900124bf3b8235c6daf21033af9948b3f07346c4",
    ),
}
"""Tasks by the names that lm-evaluation-harness gives them."""
ENDINGS = (".parquet", ".jsonl", ".json")
"""Endings of local files, in order of preference."""


def read_task(name: str, folder: str | Path | None = None, *, limit: int | None = None) -> list[Example]:
    """Read the first ``limit`` questions of a task (None: all) from the Hugging Face hub or from local files.

    ``folder`` holds ``<name>.parquet``, ``<name>.jsonl``, ``<name>.json``, or a folder ``<name>`` with a copy of the
    hub's repository; None reads from the hub.
    """
    if name not in TASKS:
        raise ValueError(f"name must be one of {list(TASKS)}, got {name!r}")
    limit = None if limit is None else check_count("limit", limit)
    task = TASKS[name]
    path = None if folder is None else _local_path(name, task, Path(folder))
    source = f"the hub ({task.path})" if path is None else str(path)
    from datasets.exceptions import DatasetsError  # takes seconds to import

    try:
        rows = list(itertools.islice(_load(task, path), limit))
    except StopIteration:  # datasets raises it for an empty JSON file
        rows = []
    except (OSError, ValueError, DatasetsError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        hint = f"; a folder of local files (--data FOLDER) must hold {_expected(name, task)}" if folder is None else ""
        raise OSError(f"{name} cannot be read from {source}: {reason}{hint}") from error
    if not rows:
        raise ValueError(f"{name} must have at least one example, got none in {source}")
    return [_example(task, row, f"row {number} of {source}") for number, row in enumerate(rows)]


def _load(task: Task, path: Path | None) -> Iterable[Row]:
    """The rows of a task on the hub, or of local files, which are streamed to keep no copy."""
    from datasets import load_dataset

    if path is None:
        return load_dataset(task.path, task.configuration, split=task.split, revision=task.revision)
    if path.is_dir():
        return load_dataset(str(path), task.configuration, split=task.split, streaming=True)
    kind = "parquet" if path.suffix == ".parquet" else "json"
    return load_dataset(kind, data_files=str(path), split="train", streaming=True)


def _local_path(name: str, task: Task, folder: Path) -> Path:
    """The file or folder of a task in a folder of local files."""
    if not folder.is_dir():
        raise FileNotFoundError(f"folder must be an existing folder, got {str(folder)!r}")
    for path in (*(folder / f"{name}{ending}" for ending in ENDINGS), folder / name):
        if path.exists():
            return path
    raise FileNotFoundError(f"folder must hold {_expected(name, task)}, got {str(folder)!r} without any")


def _expected(name: str, task: Task) -> str:
    """Description of the files that a folder must hold."""
    files = ", ".join(f"{name}{ending}" for ending in ENDINGS)
    return f"one of {files} (columns {', '.join(task.columns)}), or in {name}/ a copy of {task.path}"


def _example(task: Task, row: Row, place: str) -> Example:
    """A row as a question; errors name its place."""
    missing = [column for column in task.columns if column not in row]
    if missing:
        raise ValueError(f"{place} must have the columns {list(task.columns)}, got {list(row)}")
    try:
        context, choices, gold = task.format(row)
        return Example(context.encode(), tuple(choice.encode() for choice in choices), gold)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"column {error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{place} is no question of {task.path}: {reason}") from None

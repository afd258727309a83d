"""Questions with choices: how many bits a model pays for the right one, and how often it finds that the likeliest.

Bits per byte here are a mean over examples, each of which weighs the same, whatever its length. What is measured of a
single choice is whether a model that takes the likeliest byte, one by one, writes it.
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

from rltok_rl.data.files import encode_value
from rltok_rl.evaluation.continuations import Continuations, continuation_log_likelihood
from rltok_rl.models import UNet
from rltok_rl.utils import check_count


@dataclass(frozen=True)
class Example:
    """One question."""

    context: bytes
    choices: tuple[bytes, ...]
    """What may follow the context, each with its delimiter, a space as a rule."""
    gold: int
    """Which of them is right, from 0."""

    def __post_init__(self) -> None:
        if not isinstance(self.context, bytes):
            raise TypeError(f"context must be bytes, got {type(self.context).__name__}")
        if not self.choices:
            raise ValueError(f"choices must hold at least one, got none after {self.context[-40:]!r}")
        for number, choice in enumerate(self.choices):
            if not isinstance(choice, bytes):
                raise TypeError(f"choices must be bytes, got {type(choice).__name__} as number {number}")
            if not choice:
                raise ValueError(f"choices must have at least 1 byte each, got an empty one as number {number}")
        if check_count("gold", self.gold, minimum=0) >= len(self.choices):
            raise ValueError(f"gold must lie in 0..{len(self.choices) - 1}, got {self.gold}")


def mean_and_error(values: Sequence[float] | Tensor) -> tuple[float, float | None]:
    """The mean of n values and its standard error, None for one value.

        SE = s / sqrt(n),        s^2 = sum_i (v_i - mean)^2 / (n - 1)

    Args:
        values: [n], at least one.

    Example:
        >>> mean_and_error([1.0, 0.0, 1.0, 0.0, 1.0])
        (0.6, 0.24494897427831783)
    """
    numbers = [float(value) for value in values]
    if not numbers:
        raise ValueError("values must hold at least one, got none")
    mean = math.fsum(numbers) / len(numbers)
    if len(numbers) == 1:
        return mean, None
    spread = math.fsum((number - mean) ** 2 for number in numbers) / (len(numbers) - 1)
    return mean, math.sqrt(spread / len(numbers))


def score_examples(model: UNet, examples: Sequence[Example], **how: Any) -> Continuations:
    """Log-likelihoods of all choices of all examples, one after the other.

    Args:
        model: the U-Net, in the mode it should run in.
        examples: at least one.
        **how: as :func:`~rltok_rl.evaluation.continuations.continuation_log_likelihood` takes it: ``context_bytes``,
            ``samples``, ``greedy``, ``seed``, ``segmenter``, ``target_rate``, ``batch_rows``, ``progress``.
    """
    contexts = [example.context for example in examples for _ in example.choices]
    choices = [choice for example in examples for choice in example.choices]
    return continuation_log_likelihood(model, contexts, choices, **how)


def choice_figures(examples: Sequence[Example], scores: Continuations) -> dict[str, Any]:
    """Bits per byte of the right answers, and accuracies.

        bits_i = -log p(y_gold | c) / (ln 2 * bytes of y_gold),    its delimiter among them

    Args:
        examples: at least one.
        scores: of all their choices, as :func:`score_examples` gives them.

    Returns:
        ``examples``; ``choices`` in all; ``cut``, examples of which some context was cut; ``chance``, the accuracy of
        guessing. Each of the following with a standard error over examples, ``<name>_error`` (None for one example):
        ``bits_per_byte``, the mean of bits_i; ``one_draw_bits_per_byte``, the same of single draws of the boundaries;
        ``accuracy``, how often the right choice has the largest log-likelihood; ``accuracy_per_byte``, how often it has
        the largest log-likelihood per byte; ``likeliest``, how often each of its bytes is the likeliest. Where no
        example has two choices, ``chance`` and the accuracies are None. The first of equal choices counts.

    Example:
        >>> examples = [Example(b"2 + 2 =", (b" 4", b" 22"), gold=0)]
        >>> bits = torch.tensor([4.0, 3.0], dtype=torch.float64)
        >>> yes = torch.tensor([True, False])
        >>> scores = Continuations(-bits * math.log(2), -bits * math.log(2), torch.tensor([2, 3]), yes, ~yes)
        >>> figures = choice_figures(examples, scores)
        >>> figures["bits_per_byte"], figures["accuracy"], figures["accuracy_per_byte"], figures["likeliest"]
        (2.0, 0.0, 0.0, 1.0)
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
    figures: dict[str, Any] = {
        "examples": len(examples),
        "choices": sum(counts),
        "cut": sum(bool(part.any()) for part in scores.cut.split(counts)),
    }
    measured: dict[str, Tensor | None] = {
        "bits_per_byte": -per_byte[at] / math.log(2),
        "one_draw_bits_per_byte": -(scores.one_draw / scores.num_bytes)[at] / math.log(2),
        "accuracy": _found(scores.log_likelihood, counts) == gold,
        "accuracy_per_byte": _found(per_byte, counts) == gold,
        "likeliest": scores.likeliest[at],
    }
    several = max(counts) > 1
    if not several:
        measured["accuracy"] = measured["accuracy_per_byte"] = None
    figures["chance"] = mean_and_error([1 / count for count in counts])[0] if several else None
    for name, values in measured.items():
        figures[name], figures[f"{name}_error"] = (None, None) if values is None else mean_and_error(values)
    return figures


def _found(scores: Tensor, counts: list[int]) -> Tensor:
    """The best choice of each example, the first of equal ones."""
    return torch.tensor([int((part == part.max()).nonzero()[0]) for part in scores.split(counts)])


Row = Mapping[str, Any]
Question = tuple[str, list[str], int]
"""Context, choices with their delimiters, number of the right one."""
ENDINGS = (".parquet", ".jsonl", ".json")
"""Of local files, by their task's name, in the order they are looked for."""


def piqa(row: Row) -> Question:
    """Two ways to reach a goal.

    Args:
        row: with ``goal``, ``sol1``, ``sol2`` and ``label``, 0 or 1.
    """
    return f"Question: {_text(row, 'goal')}\nAnswer:", [f" {_text(row, 'sol1')}", f" {_text(row, 'sol2')}"], _label(row)


def hellaswag(row: Row) -> Question:
    """Four ends of a scene.

    Args:
        row: with ``activity_label``, ``ctx_a``, ``ctx_b``, ``endings`` and ``label``, "0" to "3".
    """
    context = f"{_text(row, 'activity_label')}: {_text(row, 'ctx_a')} {_text(row, 'ctx_b').capitalize()}"
    return clean_hellaswag(context), [f" {clean_hellaswag(end)}" for end in _texts(row, "endings")], _label(row)


def clean_hellaswag(text: str) -> str:
    """What lm-evaluation-harness makes of HellaSwag's texts, of which many come from WikiHow with marks in brackets.

    Args:
        text: of a row.

    Example:
        >>> clean_hellaswag(" How to knit [title] Buy wool [step] Soft  wool. ")
        'How to knit. Buy wool Soft wool.'
    """
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ")


def arc_easy(row: Row) -> Question:
    """A question of a school exam.

    Args:
        row: with ``question``, ``choices`` (``text`` and ``label``, lists of one length) and ``answerKey``, a label.
    """
    choices = row["choices"]
    if not isinstance(choices, Mapping) or not {"text", "label"} <= set(choices):
        raise ValueError(f"choices must have text and label, got {choices!r}")
    labels, key = _texts(choices, "label"), _text(row, "answerKey")
    if key not in labels:
        raise ValueError(f"answerKey must be one of {labels}, got {key!r}")
    return f"Question: {_text(row, 'question')}\nAnswer:", [f" {t}" for t in _texts(choices, "text")], labels.index(key)


def lambada_openai(row: Row) -> Question:
    """The last word of a passage.

    Args:
        row: with ``text``.
    """
    context, _, last = _text(row, "text").rpartition(" ")
    return context, [f" {last}"], 0


@dataclass(frozen=True)
class Task:
    """Where a data set lies, and how a row of it becomes a question."""

    path: str
    """Name on the Hugging Face hub."""
    split: str
    columns: tuple[str, ...]
    format: Callable[[Row], Question]
    configuration: str | None = None


TASKS = {
    "piqa": Task("baber/piqa", "validation", ("goal", "sol1", "sol2", "label"), piqa),  # 1,838 examples
    "hellaswag": Task(  # 10,042
        "Rowan/hellaswag", "validation", ("activity_label", "ctx_a", "ctx_b", "endings", "label"), hellaswag
    ),
    "arc_easy": Task(  # 2,376
        "allenai/ai2_arc", "test", ("question", "choices", "answerKey"), arc_easy, configuration="ARC-Easy"
    ),
    "lambada_openai": Task("EleutherAI/lambada_openai", "test", ("text",), lambada_openai, "default"),  # 5,153
}
"""Tasks by the names that lm-evaluation-harness gives them."""


def read_task(name: str, folder: str | Path | None = None, *, limit: int | None = None) -> list[Example]:
    """The questions of a task, from the Hugging Face hub or from local files.

    Args:
        name: a key of :data:`TASKS`.
        folder: holds ``<name>.parquet``, ``<name>.jsonl``, ``<name>.json``, or a copy of the hub's repository in a
            folder ``<name>``; None reads from the hub.
        limit: the first so many; None takes all.

    Example:
        >>> TASKS["piqa"].path
        'baber/piqa'
    """
    if name not in TASKS:
        raise ValueError(f"name must be one of {list(TASKS)}, got {name!r}")
    limit = None if limit is None else check_count("limit", limit)
    task = TASKS[name]
    source, load = _hub(name, task) if folder is None else _local(name, task, Path(folder))
    from datasets.exceptions import DatasetsError  # seconds to import

    try:
        rows = list(itertools.islice(load(), limit))
    except StopIteration:  # what datasets raises for an empty file of JSON
        rows = []
    except (OSError, ValueError, DatasetsError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        hint = f"; a folder of local files (--data FOLDER) must hold {_expected(name, task)}" if folder is None else ""
        raise OSError(f"{name} cannot be read from {source}: {reason}{hint}") from error
    if not rows:
        raise ValueError(f"{name} must have at least one example, got none in {source}")
    return [_example(task, row, f"row {number} of {source}") for number, row in enumerate(rows)]


def _hub(name: str, task: Task) -> tuple[str, Callable[[], Iterable[Row]]]:
    def load() -> Iterable[Row]:
        from datasets import load_dataset

        return load_dataset(task.path, task.configuration, split=task.split)

    return f"the hub ({task.path})", load


def _local(name: str, task: Task, folder: Path) -> tuple[str, Callable[[], Iterable[Row]]]:
    """What is read of a folder; streamed, so that no copy is kept."""
    if not folder.is_dir():
        raise FileNotFoundError(f"folder must be an existing folder, got {str(folder)!r}")
    files = [folder / f"{name}{ending}" for ending in ENDINGS]
    there = [path for path in (*files, folder / name) if path.exists()]
    if not there:
        raise FileNotFoundError(f"folder must hold {_expected(name, task)}, got {str(folder)!r} without any")
    path = there[0]

    def load() -> Iterable[Row]:
        from datasets import load_dataset

        if path.is_dir():
            return load_dataset(str(path), task.configuration, split=task.split, streaming=True)
        kind = "parquet" if path.suffix == ".parquet" else "json"
        return load_dataset(kind, data_files=str(path), split="train", streaming=True)

    return str(path), load


def _example(task: Task, row: Row, where: str) -> Example:
    """A row as a question; what is wrong with it is told with its place."""
    missing = [column for column in task.columns if column not in row]
    if missing:
        raise ValueError(f"{where} must have the columns {list(task.columns)}, got {list(row)}")
    try:
        context, choices, gold = task.format(row)
        return Example(encode_value(context, where), tuple(encode_value(choice, where) for choice in choices), gold)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where} is no question of {task.path}: {error}") from None


def _text(row: Row, column: str) -> str:
    if not isinstance(row[column], str):
        raise TypeError(f"{column} must be a text, got {row[column]!r}")
    text: str = row[column]
    return text


def _texts(row: Row, column: str) -> list[str]:
    held = row[column]
    if not isinstance(held, (list, tuple)) or not all(isinstance(text, str) for text in held):
        raise TypeError(f"{column} must be a list of texts, got {held!r}")
    return list(held)


def _label(row: Row) -> int:
    """The number of the right choice, which some data sets write as a text; those of test sets are often empty."""
    held = row["label"]
    if isinstance(held, str) and held.isdecimal():
        return int(held)
    return check_count("label", held, minimum=0)


def _expected(name: str, task: Task) -> str:
    """What a folder of local files has to hold."""
    files = ", ".join(f"{name}{ending}" for ending in ENDINGS)
    return f"one of {files} (columns {', '.join(task.columns)}), or in {name}/ a copy of {task.path}"

r"""PIQA, HellaSwag, ARC-Easy and LAMBADA as questions in bytes, without examples before them (0-shot).

Words and spaces are those of EleutherAI's lm-evaluation-harness, so that both score the same bytes:

piqa            "Question: {goal}\nAnswer:"                                 " {sol1}", " {sol2}"
hellaswag       "{activity_label}: {ctx_a} {ctx_b, capitalised}", cleaned   " {ending}", cleaned, of four
arc_easy        "Question: {question}\nAnswer:"                             " {text}" of three to five
lambada_openai  all words but the last                                      " {last word}", alone
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltok_rl.data.files import encode_value
from rltok_rl.evaluation.choices import Example
from rltok_rl.functional.numbers import check_count

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

"""The four tasks from small data sets with the columns of the real ones; the texts that come of them by hand."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rltok_rl.evaluation.tasks import TASKS, Example, clean_hellaswag, read_task

ROWS = {
    "piqa": [
        {"goal": "How do I open a jar?", "sol1": "Twist the lid.", "sol2": "Twist the bottom é.", "label": 1},
        {"goal": "Boil water.", "sol1": "In a pot.", "sol2": "In a sock.", "label": 0},
    ],
    "hellaswag": [
        {
            "ind": 24,
            "activity_label": "Roof shingle removal",
            "ctx_a": "A man is sitting on a roof.",
            "ctx_b": "he THEN",
            "ctx": "A man is sitting on a roof. he THEN",
            "endings": ["is using wrap.", "[substeps] starts  pulling.", " rips [title] a level.", "sits."],
            "source_id": "activitynet~v_-JhWjGDPHMY",
            "split": "val",
            "split_type": "indomain",
            "label": "3",
        },
        {
            "ind": 25,
            "activity_label": "Cars",
            "ctx_a": "[header] How to drive [title] Start.",
            "ctx_b": "",
            "ctx": "",
            "endings": ["a", "b", "c", "d"],
            "source_id": "wikihow~1",
            "split": "val",
            "split_type": "zeroshot",
            "label": "0",
        },
    ],
    "arc_easy": [
        {
            "id": "Mercury_1",
            "question": "Which is a gas?",
            "choices": {"text": ["iron", "air", "salt"], "label": ["A", "B", "C"]},
            "answerKey": "B",
        },
        {
            "id": "NYSED_2",
            "question": "What is hot?",
            "choices": {"text": ["ice", "fire", "snow", "rain"], "label": ["1", "2", "3", "4"]},
            "answerKey": "2",
        },
    ],
    "lambada_openai": [
        {"text": "in my palm is a clear stone, inside it a small\nivory statue"},
        {"text": "word"},
    ],
}
EXPECTED = {
    "piqa": [
        Example(b"Question: How do I open a jar?\nAnswer:", (b" Twist the lid.", " Twist the bottom é.".encode()), 1),
        Example(b"Question: Boil water.\nAnswer:", (b" In a pot.", b" In a sock."), 0),
    ],
    "hellaswag": [
        Example(
            b"Roof shingle removal: A man is sitting on a roof. He then",  # capitalised: the rest becomes small
            (b" is using wrap.", b"  starts pulling.", b" rips. a level.", b" sits."),
            3,
        ),
        Example(b"Cars: How to drive. Start.", (b" a", b" b", b" c", b" d"), 0),
    ],
    "arc_easy": [
        Example(b"Question: Which is a gas?\nAnswer:", (b" iron", b" air", b" salt"), 1),
        Example(b"Question: What is hot?\nAnswer:", (b" ice", b" fire", b" snow", b" rain"), 1),
    ],
    "lambada_openai": [
        Example(b"in my palm is a clear stone, inside it a small\nivory", (b" statue",), 0),
        Example(b"", (b" word",), 0),
    ],
}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path_factory, monkeypatch):
    """Whatever ``datasets`` keeps, it keeps in a folder of the test; and there is no network."""
    import datasets
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))
    monkeypatch.setattr(datasets.config, "HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
    for module in (datasets.config, huggingface_hub.constants):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", True)


def write_lines(path, rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.mark.parametrize("name", list(TASKS))
@pytest.mark.parametrize("ending", ["parquet", "jsonl", "json"])
def test_texts_by_hand(tmp_path, name, ending):
    path = tmp_path / f"{name}.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS[name]), path)
    else:
        write_lines(path, ROWS[name])
    assert read_task(name, tmp_path) == EXPECTED[name]
    assert read_task(name, tmp_path, limit=1) == EXPECTED[name][:1]


def test_a_copy_of_the_repository_is_read_with_its_configuration_and_split(tmp_path):
    """As ARC lies on the hub: a folder for each configuration, a file for each split."""
    for configuration, split, rows in (
        ("ARC-Easy", "test", ROWS["arc_easy"]),
        ("ARC-Easy", "train", ROWS["arc_easy"][1:]),
        ("ARC-Challenge", "test", ROWS["arc_easy"][:1]),
    ):
        folder = tmp_path / "arc_easy" / configuration
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{split}-00000-of-00001.parquet")
    told = [
        {"config_name": name, "data_files": [{"split": split, "path": f"{name}/{split}-*"} for split in splits]}
        for name, splits in (("ARC-Challenge", ["test"]), ("ARC-Easy", ["train", "test"]))
    ]
    (tmp_path / "arc_easy" / "README.md").write_text(f"---\nconfigs: {json.dumps(told)}\n---\n")
    assert read_task("arc_easy", tmp_path) == EXPECTED["arc_easy"]


def test_where_the_data_sets_lie():
    """Names, configurations and splits by which their numbers of examples are known."""
    told = {name: (task.path, task.configuration, task.split) for name, task in TASKS.items()}
    assert told == {
        "piqa": ("baber/piqa", None, "validation"),
        "hellaswag": ("Rowan/hellaswag", None, "validation"),
        "arc_easy": ("allenai/ai2_arc", "ARC-Easy", "test"),
        "lambada_openai": ("EleutherAI/lambada_openai", "default", "test"),
    }


def test_marks_of_hellaswag_go_in_their_order():
    assert clean_hellaswag("  a [title] b  ") == "a. b"  # ". " and a space: two, of which one stays
    assert clean_hellaswag("[a] x [b]") == " x "  # stripped before, not after
    assert clean_hellaswag("a   b") == "a  b"  # pairs, once


def test_without_the_hub_a_folder_is_asked_for():
    with pytest.raises(OSError, match=r"^piqa cannot be read from the hub \(baber/piqa\): .*") as raised:
        read_task("piqa")
    told = str(raised.value)
    assert "--data FOLDER" in told and "piqa.parquet" in told and "goal, sol1, sol2, label" in told
    assert "\n" not in told


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"name must be one of \['piqa', .*\], got 'mmlu'"):
        read_task("mmlu")
    with pytest.raises(ValueError, match="limit must be an integer of at least 1, got 0"):
        read_task("piqa", tmp_path, limit=0)
    with pytest.raises(FileNotFoundError, match="folder must be an existing folder, got"):
        read_task("piqa", tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="folder must hold one of piqa.parquet, .*baber/piqa"):
        read_task("piqa", tmp_path)
    (tmp_path / "piqa.jsonl").write_bytes(b'{"goal": "\xff"}\n')
    with pytest.raises(OSError, match="piqa cannot be read from .*piqa.jsonl"):
        read_task("piqa", tmp_path)
    (tmp_path / "piqa.parquet").write_bytes(b"no table")
    with pytest.raises(OSError, match="piqa cannot be read from .*piqa.parquet"):
        read_task("piqa", tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("piqa", {"label": 2}, "gold must lie in 0..1, got 2"),
        ("piqa", {"label": -1}, "label must be an integer of at least 0, got -1"),  # as in test sets
        ("piqa", {"sol1": None}, "sol1 must be a text, got None"),
        ("hellaswag", {"label": ""}, "label must be an integer of at least 0, got ''"),
        ("hellaswag", {"endings": []}, "choices must hold at least one, got none"),
        ("hellaswag", {"endings": "abcd"}, "endings must be a list of texts, got 'abcd'"),
        ("arc_easy", {"answerKey": "E"}, r"answerKey must be one of \['A', 'B', 'C'\], got 'E'"),
        ("arc_easy", {"choices": {"text": ["a"], "label": ["A", "B"]}}, "gold must lie in 0..0, got 1"),
        ("arc_easy", {"choices": ["a", "b"]}, "choices must have text and label, got"),
        ("lambada_openai", {"text": 5}, "text must be a text, got 5"),
        ("lambada_openai", {"text": "a \ud800"}, "text must be UTF-8, got surrogates not allowed"),
    ],
)
def test_a_wrong_row_is_told_with_its_place(name, change, message):
    from rltok_rl.evaluation.tasks import _example

    with pytest.raises(ValueError, match=f"^row 7 of x is no question of {re.escape(TASKS[name].path)}: .*{message}"):
        _example(TASKS[name], {**ROWS[name][0], **change}, "row 7 of x")


def test_wrong_columns_name_those_there(tmp_path):
    write_lines(tmp_path / "piqa.jsonl", [{"goal": "a", "sol1": "b", "label": 0}])
    with pytest.raises(ValueError, match=r"row 0 of .*piqa.jsonl must have the columns .*'sol2'.*, got \['goal',"):
        read_task("piqa", tmp_path)


def test_files_without_rows_are_refused(tmp_path):
    write_lines(tmp_path / "piqa.jsonl", [])
    with pytest.raises(ValueError, match="piqa must have at least one example, got none in .*piqa.jsonl"):
        read_task("piqa", tmp_path)
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "lambada_openai.parquet")
    with pytest.raises(OSError, match="lambada_openai cannot be read from .*lambada_openai.parquet"):
        read_task("lambada_openai", tmp_path)

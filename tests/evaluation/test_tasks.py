"""Metrics of choices by hand; the four tasks, read from small datasets with the columns of the real ones."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rltok_rl.evaluation.continuations import Continuations, continuation_log_likelihood
from rltok_rl.evaluation.tasks import TASKS, Example, choice_metrics, clean_hellaswag, read_task, score_examples

ROWS = {
    "piqa": [
        {"goal": "How do I open a jar?", "sol1": "Twist the lid.", "sol2": "Twist the bottom é.", "label": 1},
        {"goal": "Boil water.", "sol1": "In a pot.", "sol2": "In a sock.", "label": 0},
    ],
    "hellaswag": [
        {
            "activity_label": "Roof",
            "ctx_a": "[header] A man [title] sits.",
            "ctx_b": "he THEN",
            "endings": ["is using wrap.", "[substeps] starts  pulling.", " rips [title] a level.", "[a] x [b]"],
            "label": "3",
        },
    ],
    "arc_easy": [
        {"question": "Gas?", "choices": {"text": ["iron", "air"], "label": ["A", "B"]}, "answerKey": "B"},
        {"question": "Hot?", "choices": {"text": ["ice", "fire"], "label": ["1", "2"]}, "answerKey": "2"},
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
            b"Roof: A man. sits. He then",  # capitalised: the rest becomes small
            (b" is using wrap.", b"  starts pulling.", b" rips. a level.", b"  x "),
            3,
        ),
    ],
    "arc_easy": [
        Example(b"Question: Gas?\nAnswer:", (b" iron", b" air"), 1),
        Example(b"Question: Hot?\nAnswer:", (b" ice", b" fire"), 1),
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


def kept_copies() -> list[Path]:
    import datasets

    return [*Path(datasets.config.HF_DATASETS_CACHE).rglob("*.arrow")]


def write_lines(path, rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


QUESTIONS = [
    Example(b"Two and two is", (b" four", b" fivefive"), 0),
    Example(b"Water is", (b" wet", b" dry", b" a metal"), 2),
    Example(b"", (" é".encode(), b" e"), 1),
]


def scores(bits: list[float], num_bytes: list[int], likeliest=(), cut=()) -> Continuations:
    nats = -math.log(2) * torch.tensor(bits, dtype=torch.float64)
    flags = (torch.tensor(list(flags) or [0] * len(bits)).bool() for flags in (likeliest, cut))
    return Continuations(nats, nats.flip(0), torch.tensor(num_bytes), *flags)


def test_metrics_by_hand():
    """Bits of the choices: 10 of 5 bytes, 9 of 9; 4 of 4, 8 of 4, 27 of 9; 3 of 3, 4 of 2. The right ones: 0, 2, 1."""
    metrics = choice_metrics(
        QUESTIONS,
        scores([10, 9, 4, 8, 27, 3, 4], [5, 9, 4, 4, 9, 3, 2], [1, 0, 0, 0, 1, 0, 0], [0, 0, 0, 1, 1, 0, 0]),
    )
    assert (metrics["examples"], metrics["choices"], metrics["cut"]) == (3, 7, 1)
    assert metrics["chance"] == pytest.approx((1 / 2 + 1 / 3 + 1 / 2) / 3)
    # Bits per byte of the right ones: 2, 3, 2; deviations -1/3, 2/3, -1/3; variance (6/9)/2 = 1/3; error sqrt(1/9).
    assert (metrics["bits_per_byte"], metrics["bits_per_byte_error"]) == pytest.approx((7 / 3, 1 / 3))
    assert metrics["one_draw_bits_per_byte"] == pytest.approx((4 / 5 + 4 / 9 + 10 / 2) / 3)
    # The fewest bits: 9 (wrong), 4 (wrong), 3 (wrong). Per byte: 1 (wrong), 1 (wrong), 1 (wrong).
    assert (metrics["accuracy"], metrics["accuracy_error"], metrics["accuracy_per_byte"]) == (0.0, 0.0, 0.0)
    # One of three: sqrt(2/3 * 1/3 * 3/2 / 3) = 1/3.
    assert (metrics["likeliest"], metrics["likeliest_error"]) == pytest.approx((2 / 3, 1 / 3))
    metrics = choice_metrics(QUESTIONS, scores([8, 9, 28, 28, 27, 4, 3], [5, 9, 4, 4, 9, 4, 2]))
    # The fewest bits: 8, 27, 3, all right. Per byte: 1.6 against 1 (wrong), 3 against 7 (right), 1.5 against 1 (wrong).
    assert (metrics["accuracy"], metrics["accuracy_per_byte"]) == pytest.approx((1.0, 1 / 3))
    # The first of equal choices counts, which is right in the first question only.
    assert choice_metrics(QUESTIONS, scores([1.0] * 7, [2] * 7))["accuracy"] == pytest.approx(1 / 3)
    metrics = choice_metrics([Example(b"a", (b" b",), 0)], scores([6.0], [2], [1]))
    assert metrics["bits_per_byte"] == pytest.approx(3.0) and metrics["bits_per_byte_error"] is None
    assert metrics["accuracy"] is metrics["accuracy_error"] is metrics["accuracy_per_byte"] is metrics["chance"] is None
    assert metrics["likeliest"] == 1.0
    # A question with a single choice counts as right, and guessing is right in it.
    mixed = choice_metrics([Example(b"a", (b" b",), 0), QUESTIONS[0]], scores([6.0, 9.0, 5.0], [2, 5, 9]))
    assert (mixed["accuracy"], mixed["accuracy_per_byte"], mixed["chance"]) == (0.5, 0.5, 0.75)


def test_examples_are_scored_choice_by_choice(model):
    options = {"samples": 2, "seed": 3, "context_bytes": 10}
    together = score_examples(model, QUESTIONS, **options)
    pairs = [(example.context, choice) for example in QUESTIONS for choice in example.choices]
    for place, (context, choice) in enumerate(pairs):
        alone = continuation_log_likelihood(model, [context], [choice], **options)
        torch.testing.assert_close(together.log_likelihood[place], alone.log_likelihood[0], atol=1e-4, rtol=0)
    assert choice_metrics(QUESTIONS, together)["cut"] == 2


def test_texts_by_hand(tmp_path):
    for name in TASKS:
        for ending in ("json", "jsonl", "parquet"):  # each is preferred to the ones before
            path = tmp_path / f"{name}.{ending}"
            if ending == "parquet":
                pq.write_table(pa.Table.from_pylist(ROWS[name]), path)
            else:
                write_lines(path, ROWS[name])
            assert read_task(name, tmp_path) == EXPECTED[name], path
        assert read_task(name, tmp_path, limit=1) == read_task(name, str(tmp_path), limit=1) == EXPECTED[name][:1]
    assert kept_copies() == []
    assert clean_hellaswag(" [title] Buy [title] wool ") == " Buy. wool"  # a mark that opens the text ends no sentence


def test_a_copy_of_the_repository_is_read_with_its_configuration_and_split(tmp_path):
    """As ARC lies on the hub: a folder for each configuration, a file for each split."""
    easy = ROWS["arc_easy"]
    for name, split, rows in (("Easy", "test", easy), ("Easy", "train", easy[1:]), ("Challenge", "test", easy[:1])):
        folder = tmp_path / "arc_easy" / f"ARC-{name}"
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{split}-00000-of-00001.parquet")
    configs = [
        {"config_name": name, "data_files": [{"split": split, "path": f"{name}/{split}-*"} for split in splits]}
        for name, splits in (("ARC-Challenge", ["test"]), ("ARC-Easy", ["train", "test"]))
    ]
    (tmp_path / "arc_easy" / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")
    assert read_task("arc_easy", tmp_path) == EXPECTED["arc_easy"]
    assert kept_copies() == []


def test_the_hub_is_asked_for_one_revision_configuration_and_split(monkeypatch):
    import datasets

    asked: list[tuple] = []
    for name, (path, configuration, split) in {
        "piqa": ("baber/piqa", None, "validation"),
        "hellaswag": ("Rowan/hellaswag", None, "validation"),
        "arc_easy": ("allenai/ai2_arc", "ARC-Easy", "test"),
        "lambada_openai": ("EleutherAI/lambada_openai", "default", "test"),
    }.items():
        rows = ROWS[name]
        monkeypatch.setattr(datasets, "load_dataset", lambda *a, rows=rows, **o: asked.append((*a, o)) or rows)
        assert read_task(name) == EXPECTED[name] and read_task(name, limit=1) == EXPECTED[name][:1]
        revision = TASKS[name].revision
        assert asked[-1] == (path, configuration, {"split": split, "revision": revision})
        assert re.fullmatch("[0-9a-f]{40}", revision or "")


def test_without_the_hub_a_folder_is_asked_for():
    words = r"^piqa cannot be read from the hub \(baber/piqa\): .*--data FOLDER.*piqa.parquet.*goal, sol1, sol2, label"
    with pytest.raises(OSError, match=words) as raised:
        read_task("piqa")
    assert "\n" not in str(raised.value)


def test_errors_of_the_hub_are_told_in_a_line(monkeypatch):
    import datasets

    for error, reason in ((OSError("first\nsecond"), "first"), (ConnectionError(), "ConnectionError")):

        def fail(*_, error=error, **__):
            raise error

        monkeypatch.setattr(datasets, "load_dataset", fail)
        with pytest.raises(OSError, match=f"{reason}; a folder of local files") as raised:
            read_task("piqa")
        assert "\n" not in str(raised.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    def refused(error, words, name="piqa", folder=tmp_path, **options):
        with pytest.raises(error, match=words):
            read_task(name, folder, **options)

    refused(ValueError, r"name must be one of \['piqa', .*\], got 'mmlu'", "mmlu")
    refused(ValueError, "limit must be an integer of at least 1, got 0", limit=0)
    refused(FileNotFoundError, "folder must be an existing folder, got", folder=tmp_path / "nowhere")
    refused(FileNotFoundError, "folder must hold one of piqa.parquet, .*baber/piqa")
    path = tmp_path / "piqa.jsonl"
    path.write_bytes(b'{"goal": "\xff"}\n')
    refused(OSError, "piqa cannot be read from .*piqa.jsonl")
    write_lines(path, [{"goal": "a", "sol1": "b", "label": 0}])
    refused(ValueError, r"row 0 of .*piqa.jsonl must have the columns .*'sol2'.*, got \['goal',")
    write_lines(path, [])
    refused(ValueError, "piqa must have at least one example, got none in .*piqa.jsonl")
    (tmp_path / "piqa.parquet").write_bytes(b"no table")
    refused(OSError, "piqa cannot be read from .*piqa.parquet")
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "lambada_openai.parquet")
    refused(OSError, "lambada_openai cannot be read from .*lambada_openai.parquet", "lambada_openai")


def test_errors_of_rows_name_their_place(tmp_path):
    for name, change, words in (
        ("piqa", {"label": 2}, "gold must lie in 0..1, got 2"),
        ("piqa", {"label": -1}, "label must be an integer of at least 0, got -1"),  # as in test sets
        ("piqa", {"label": 0.7}, "label must be an integer of at least 0, got 0.7"),
        ("hellaswag", {"endings": "a"}, "endings must be a list of texts, got 'a'"),
        ("piqa", {"sol1": None}, "can only concatenate str"),
        ("hellaswag", {"label": ""}, "label must be an integer of at least 0, got ''"),
        ("hellaswag", {"endings": []}, "choices must hold at least one, got none"),
        ("arc_easy", {"answerKey": "E"}, r"answerKey must be one of \['A', 'B'\], got 'E'"),
        ("arc_easy", {"choices": {"text": ["a"], "label": ["A", "B"]}}, "gold must lie in 0..0, got 1"),
        ("arc_easy", {"choices": {"text": ["a"]}}, "column 'label' is missing"),
        ("arc_easy", {"choices": {"text": "ab", "label": ["A", "B"]}}, "text must be a list of texts, got 'ab'"),
        ("arc_easy", {"choices": {"text": ["a", "b"], "label": "AB"}}, "label must be a list of texts, got 'AB'"),
        ("arc_easy", {"choices": ["a", "b"]}, "list indices must be integers"),
        ("lambada_openai", {"text": 5}, "'int' object has no attribute 'rpartition'"),
    ):
        write_lines(tmp_path / f"{name}.jsonl", [{**ROWS[name][0], **change}])
        place = f"^row 0 of .*{name}.jsonl is no question of {re.escape(TASKS[name].path)}: "
        with pytest.raises(ValueError, match=place + words):
            read_task(name, tmp_path)

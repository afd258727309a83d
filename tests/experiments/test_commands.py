"""The commands segment, generate and tasks: their output is the functions', and mistakes are refused."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from rltok_rl.agents.segmenters import GumbelSegmenter
from rltok_rl.experiments.commands import boundaries, evaluate, generate, segment, tasks, view

from rltok_rl import UNet, stream, text_to_ids
from rltok_rl.data import local_prose
from rltok_rl.evaluation.tasks import choice_metrics, read_task, score_examples
from rltok_rl.models import segment as segment_function
from rltok_rl.models.segmentation import segment_parts
from rltok_rl.viz import boundary_text

from ..states import seeded
from .conftest import save_ruled

TEXT = "To be, or not to be,\nthat is the question: é €"
ROWS = {
    "piqa": [
        {"goal": "Open a jar", "sol1": "Twist the lid.", "sol2": "Twist it.", "label": 1},
        {"goal": "Boil water", "sol1": "In a pot.", "sol2": "In a sock.", "label": 0},
        {"goal": "Sit", "sol1": "Down.", "sol2": "Up.", "label": 0},
    ],
    "lambada_openai": [{"text": "to be or not to be"}, {"text": "all that glitters is not gold"}],
}


def test_segment_shows_the_boundaries_of_the_model(model, folder, file, stdin, output):
    out = model(text_to_ids(TEXT)[None], generator=seeded(4))
    probabilities = out.boundary_logits.sigmoid()[0].tolist()
    probabilities[0] = 1.0
    for colour in (False, True):
        options = ["--model", folder, "--seed", "4", "--colour", "always" if colour else "never"]
        expected = boundary_text(TEXT.encode(), out.boundaries[0].tolist(), probabilities, colour=colour)
        assert output(segment, "--file", file, *options) == expected + "\n"
    greedy = model(text_to_ids(TEXT)[None], greedy=True).boundaries[0].tolist()
    for arguments in ([], ["-"]):
        stdin(TEXT.encode())
        shown = output(segment, *arguments, "--model", folder, "--greedy")
        assert shown == boundary_text(TEXT.encode(), greedy, colour=False) + "\n"


def test_segment_streams_parts(model):
    """Tokens and characters that a part cuts are whole, and equal those of one part."""
    content = TEXT.encode() * 3
    whole = segment_function(model, content, generator=seeded(), piece=5)
    for size in (1, 7, 1000):
        parts = list(segment_parts(model, content, generator=seeded(), piece=5, part=size))
        tokens = [(start, token.content, token.ended) for start, token, _ in segment.tokens_of(parts)]
        assert tokens == [(token.start, token.content, token.ended) for token in whole.tokens()]
        chances = [chance for *_, row in segment.tokens_of(parts) for chance in row]
        assert chances == pytest.approx(whole.probabilities.tolist(), abs=1e-5)
        characters = [part.text.decode() for part in segment.whole_characters(parts)]
        assert "".join(characters).encode() == content


def test_segment_writes_while_a_segmenter_reads(model, tmp_path, monkeypatch):
    """Tokens of the first part are written before the second is encoded, unless the segmenter needs the whole text."""
    content = (TEXT.encode() * 200)[:9_000]
    (tmp_path / "text").write_bytes(content)
    saved = save_ruled(tmp_path / "model", model, "gumbel", hidden=8)
    written: list[str] = []
    encoded: list[int] = []  # lines written before each part is encoded
    encode = UNet.encode
    monkeypatch.setattr(UNet, "encode", lambda *a, **k: encoded.append(len(written)) or encode(*a, **k))
    monkeypatch.setattr("builtins.print", lambda line, **_: written.append(line))
    for in_parts in (True, False):
        monkeypatch.setattr(GumbelSegmenter, "draws_parts", in_parts)
        segment.main(["--file", str(tmp_path / "text"), "--model", str(saved), "--format", "json"])
        lines = [json.loads(line) for line in written]
        assert b"".join(bytes.fromhex(line["hex"]) for line in lines) == content
        assert len(encoded) == 3 and encoded[0] == 0 and (encoded[1] > 100) == in_parts
        encoded.clear()
        written.clear()


def test_segment_escapes_control_characters_in_json(folder, tmp_path, output):
    content = ("\x7f" + "a" * 60 + "\x9b2J\u202e é").encode()
    (tmp_path / "bytes").write_bytes(content)
    lines = output(segment, "--file", tmp_path / "bytes", "--model", folder, "--format", "json").splitlines()
    assert all(line.isprintable() for line in lines) and "\\u007f" in lines[0]
    assert b"".join(bytes.fromhex(json.loads(line)["hex"]) for line in lines) == content


def test_names_of_files_cannot_steer_the_terminal(capsys):
    for command, arguments in ((segment, ["--file", "a\x1b[2J\nb"]), (evaluate, ["a\x9b2J", "\x7f"])):
        with pytest.raises(SystemExit):
            command.main(arguments)
        assert all(line.isprintable() for line in capsys.readouterr().err.splitlines())


def test_halves_of_characters_are_refused(folder, refused):
    for command, argument, arguments in (
        (segment, "TEXT", ["a\ud800"]),
        (generate, "PROMPT", ["a\ud800"]),
        (view, "--text", [folder, "--text", "a\ud800"]),
    ):
        assert f"argument {argument}: must be UTF-8, got surrogates" in refused(command, *arguments)


def test_names_of_models_cannot_steer_the_terminal(folder, file, tmp_path, output):
    models = [shutil.copytree(folder, tmp_path / name) for name in ("r\x1b[31m", "s\x1b[31m")]
    for several in (models[:1], models):
        shown = output(boundaries, *several, "--text", file)
        assert "r\\u001b[31m" in shown and "\x1b" not in shown


def test_name_of_a_text_cannot_steer_the_terminal(folder, tmp_path, output):
    (tmp_path / "a\x1b[2J").write_text(TEXT)
    shown = output(evaluate, folder, tmp_path / "a\x1b[2J", "--bytes", 20)
    assert "\\u001b[2J" in shown and all(line.isprintable() for line in shown.splitlines())


def test_segment_writes_tokens_as_json_lines(model, folder, tmp_path, output):
    content = TEXT.encode() + b"\xff\x00" + TEXT.encode()
    (tmp_path / "bytes").write_bytes(content)
    lines = output(segment, "--file", tmp_path / "bytes", "--model", folder, "--format", "json").splitlines()
    records = [json.loads(line) for line in lines]
    assert b"".join(bytes.fromhex(r["hex"]) for r in records) == content
    assert [r["start"] for r in records] == [0, *(r["end"] for r in records[:-1])]
    assert records[-1]["end"] == len(content)
    out = model(torch.tensor(list(content))[None], generator=seeded())
    assert [r["end"] - 1 for r in records if r["ended"]] == out.boundaries[0].nonzero().squeeze(1).tolist()
    probabilities = torch.tensor([p for r in records for p in r["probabilities"]])
    torch.testing.assert_close(probabilities[1:], out.boundary_logits.sigmoid()[0, 1:], atol=1e-5, rtol=0)
    for record in records:
        inside = bytes.fromhex(record["hex"])
        assert len(record["probabilities"]) == len(inside)
        assert record["token"] is None or record["token"].encode() == inside
    assert any(r["token"] is None for r in records) and any(r["token"] for r in records)


def test_colours_are_for_terminals(folder, file, output, monkeypatch):
    for name, coloured in (("FORCE_COLOR", True), ("NO_COLOR", False)):  # both: the second wins
        monkeypatch.setenv(name, "1")
        assert ("\x1b[" in output(segment, "--file", file, "--model", folder)) is coloured
    monkeypatch.delenv("FORCE_COLOR")
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b[" not in output(segment, "--file", file, "--model", folder)


def test_generate_writes_the_bytes_of_stream(model, folder, capsysbinary):
    def written(prompt: bytes, seed: int = 0, **options) -> bytes:
        return bytes(int(step.byte_ids) for step in stream(model, prompt, generator=seeded(seed), **options))

    prompt = "To be é".encode()
    assert generate.main(["To be é", "--model", folder, "--bytes", "60", "--seed", "3", "--top-k", "30"]) == 0
    content = prompt + written(prompt, max_bytes=60, top_k=30, seed=3)
    shown = boundary_text(content, [0] * len(content), colour=False)
    assert capsysbinary.readouterr().out == shown.encode() + b"\n"
    assert generate.main(["To be", "--model", folder, "--bytes", "50", "--raw", "--temperature", "2"]) == 0
    content = written(b"To be", max_bytes=50, temperature=2.0)
    assert capsysbinary.readouterr().out == content
    with pytest.raises(UnicodeDecodeError):
        content.decode()


def test_generate_shows_the_boundaries_that_it_drew(model, folder, output):
    prompt = b"To be, or not to be"
    for greedy in (False, True):
        options = ["--model", folder, "--bytes", "40", "--top-p", "0.9", "--show-boundaries"]
        shown = output(generate, prompt.decode(), *options, *["--greedy"] * greedy)
        steps = list(stream(model, prompt, max_bytes=40, top_p=0.9, greedy=greedy, generator=seeded()))
        out = model(torch.tensor(list(prompt))[None], greedy=greedy, generator=None if greedy else seeded())
        content = prompt + bytes(int(step.byte_ids) for step in steps)
        marks = out.boundaries[0].tolist() + [bool(step.boundaries) for step in steps]
        assert shown == boundary_text(content, marks, colour=False) + "\n"


def test_generate_streams_and_takes_any_bytes_as_a_prompt(folder, stdin, output, monkeypatch):
    stdin(b"\xff a")
    assert output(generate, "-", "--model", folder, "--bytes", "0") == "\\xff a\n"
    assert output(generate, os.fsdecode(b"\xff a"), "--model", folder, "--bytes", "0") == "\\xff a\n"
    seen = []

    class Out(io.StringIO):
        def flush(self) -> None:
            seen.append(self.getvalue())

    monkeypatch.setattr(sys, "stdout", Out())
    generate.main(["ab", "--model", folder, "--bytes", "5"])
    assert seen[0] == "ab" and len({len(s) for s in seen}) >= 5


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("questions")
    for name, rows in ROWS.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_tasks_are_scored_as_by_the_functions(model, folder, questions, tmp_path, metrics_of, refused):
    data = ["--data", questions]
    results = metrics_of(tasks, folder, *ROWS, *data, "--samples", 2, "--seed", 3, "--context", 20)
    assert (results["context"], results["samples"], results["seed"]) == (20, 2, 3)
    assert results["boundaries"] == "drawn from the policy" and list(results["tasks"]) == [*ROWS]
    for name, metrics in results["tasks"].items():
        examples = read_task(name, questions)
        expected = choice_metrics(examples, score_examples(model, examples, samples=2, seed=3, context_bytes=20))
        assert {key: value if value is None else pytest.approx(value) for key, value in expected.items()} == metrics
    examples = read_task("piqa", questions)
    results = metrics_of(tasks, folder, "piqa", *data, "--limit", 2)
    scores = score_examples(model, examples, context_bytes=results["context"])
    bits = -scores.log_likelihood / scores.num_bytes / torch.log(torch.tensor(2.0, dtype=torch.float64))
    assert results["tasks"]["piqa"]["examples"] == 2 and results["context"] == 256
    # The third example changes nothing about the first two.
    assert results["tasks"]["piqa"]["bits_per_byte"] == pytest.approx(
        float(bits[torch.tensor([1, 2])].mean()), abs=1e-5
    )
    ruled = save_ruled(tmp_path / "ruled", model, "uniform", rate=0.5)
    results = metrics_of(tasks, ruled, "piqa", *data)
    assert results["boundaries"] == "ActorSegmenter"
    message = "argument --samples: belongs to random boundaries, got ActorSegmenter"
    assert message in refused(tasks, ruled, "piqa", *data, "--samples", 2)


def test_table_of_tasks_has_errors_and_cut_contexts(folder, questions, capsys):
    assert tasks.main([folder, *ROWS, "--data", str(questions), "--greedy", "--context", "20"]) == 0
    shown = capsys.readouterr()
    header, piqa, lambada, *rest = shown.out.splitlines()
    assert "bits per byte" in header and "likeliest bytes" in header
    assert piqa.startswith("piqa") and piqa.count("±") == 4 and piqa.endswith("0.500")
    assert lambada.split()[:2] == ["lambada_openai", "2"] and lambada.count("±") == 2 and lambada.endswith("-")
    assert "boundaries: greedy, draws: 1, bytes read at most: 20" in rest
    assert "piqa: contexts of 3 of 3 examples were cut; --context reads more" in rest
    assert "piqa: 3 examples" in shown.err and "100%" in shown.err and "left" in shown.err


def test_mistakes_are_refused(folder, file, questions, tmp_path, stdin, refused, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name, content in (("empty", b""), ("one", b"a")):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    data = ["--data", questions]
    common = {segment: ["--file", file, "--model", folder], generate: ["To", "--model", folder]}
    common |= {evaluate: [folder, file], tasks: [folder, "piqa"]}
    for command, options, message in (
        (segment, ["--device", "cuda:99"], "argument --device: 'cuda:99' cannot be used"),
        (segment, ["--device", "abacus"], "argument --device: 'abacus' cannot be used"),
        (segment, ["--seed", 1, "--greedy"], "not allowed with argument"),
        (segment, ["--seed", -1], "argument --seed: must be an integer of at least 0, got '-1'"),
        (segment, ["--rate", 0.3], "argument --rate: needs a model with rate_embedding, got one of a single rate"),
        (generate, ["--bytes", "x"], "argument --bytes: must be an integer of at least 0, got 'x'"),
        (generate, ["--temperature", -1], "argument --temperature: must be a number of at least 0, got '-1'"),
        (generate, ["--top-k", 0], "argument --top-k: must be an integer of at least 1, got '0'"),
        (generate, ["--raw", "--show-boundaries"], "--show-boundaries: not allowed with argument --raw"),
        (evaluate, ["--column", "x"], "argument --column: belongs to tables"),
        (evaluate, ["--bytes", 1], "argument --bytes: must be an integer of at least 2, got '1'"),
        (tasks, ["mmlu"], "invalid choice: 'mmlu'"),
        (tasks, ["--greedy", "--samples", 2], "--samples: not allowed with argument --greedy"),
        (tasks, ["--data", tmp_path / "no"], "argument --data: must be an existing folder"),
        (tasks, ["hellaswag", *data], "argument --data: must hold one of hellaswag"),
        (tasks, ["--limit", 0], "argument --limit: must be an integer of at least 1"),
        (tasks, [*data, "--rate", 0.2], "argument --rate"),
    ):
        assert message in refused(command, *common[command], *options), message
    for command, arguments, message in (
        (segment, ["--file", tmp_path / "empty"], "empty must hold at least 1 byte, got 0"),
        (segment, ["--file", tmp_path / "none"], "none cannot be read: No such file or directory"),
        (segment, ["--file", tmp_path], f"{tmp_path} cannot be read: Is a directory"),
        (segment, ["", "--model", folder], "argument TEXT: must have at least 1 byte, got none"),
        (segment, ["--model", folder], "standard input must hold at least 1 byte, got 0"),
        (generate, ["", "--model", folder], "argument PROMPT: must have at least 1 byte, got none"),
        (generate, ["-", "--model", folder], "standard input must hold at least 1 byte, got 0"),
        (evaluate, [folder, tmp_path / "one"], "one must hold at least 2 bytes, got 1"),
        (evaluate, [folder], "arguments are required: DATA"),
        (segment, ["a", "--model", tmp_path / "folder"], "argument --model: "),
        (generate, ["a", "--model", tmp_path / "none"], "argument --model: must be a folder of save_pretrained"),
        (evaluate, [tmp_path / "folder", file], "must hold config.json"),
        (evaluate, [tmp_path / "none", file], "there is no such folder"),
    ):
        stdin(b"")
        error = refused(command, *arguments)
        assert message in error and "Traceback" not in error


def test_segment_ends_quietly_if_its_reader_does(folder, tmp_path):
    """``rltok segment ... | head -1``: no traceback, and the first line arrived."""
    (tmp_path / "long").write_bytes(local_prose(60_000))
    command = [sys.executable, "-W", "ignore", "-m", "rltok_rl.experiments.cli", "segment", "--model", folder]
    command += ["--file", str(tmp_path / "long"), "--format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        first = json.loads(process.stdout.readline())
        process.stdout.close()
        errors = process.stderr.read()
    assert first["start"] == 0 and process.returncode == 0
    assert b"Traceback" not in errors and b"BrokenPipe" not in errors  # a slow machine prints its progress there

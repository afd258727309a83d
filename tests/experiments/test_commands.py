"""The commands segment, generate and eval: what they write, and what they refuse."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys

import pytest
import torch
from omegaconf import OmegaConf
from rltok_rl.experiments import cli
from rltok_rl.experiments.commands import evaluate, generate, segment
from rltok_rl.experiments.reports import markdown

from rltok_rl import UNet, stream, text_to_ids
from rltok_rl.data import local_prose
from rltok_rl.evaluation import read_text, summarise
from rltok_rl.viz import boundary_text

from .configured import configured

TEXT = "To be, or not to be,\nthat is the question: é €"


@pytest.fixture
def file(tmp_path) -> str:
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT.encode())
    return str(path)


@pytest.fixture
def stdin(monkeypatch):
    def give(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return give


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def refused(command, arguments, capsys) -> str:
    with pytest.raises(SystemExit) as ended:
        command.main([str(argument) for argument in arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err


def named(command, folder, file) -> list:
    """A model and a text as the command wants them."""
    return [folder, file] if command is evaluate else [file, "--model", folder]


# segment


def test_segment_shows_the_boundaries_of_the_model(model, folder, file, capsys):
    out = model(text_to_ids(TEXT)[None], generator=seeded(4))
    probabilities = out.boundary_logits.sigmoid()[0].tolist()
    probabilities[0] = 1.0
    for colour in (False, True):
        options = ["--model", folder, "--seed", "4", "--colour", "always" if colour else "never"]
        assert segment.main(["--file", file, *options]) == 0
        expected = boundary_text(TEXT.encode(), out.boundaries[0].tolist(), probabilities, colour=colour)
        assert capsys.readouterr().out == expected + "\n"


def test_segment_reads_standard_input_and_draws_greedily(model, folder, stdin, capsys):
    out = model(text_to_ids(TEXT)[None], greedy=True)
    expected = boundary_text(TEXT.encode(), out.boundaries[0].tolist(), colour=False)
    for arguments in (["--model", folder, "--greedy"], ["-", "--model", folder, "--greedy"]):
        stdin(TEXT.encode())
        assert segment.main(arguments) == 0
        assert capsys.readouterr().out == expected + "\n"


def test_segment_writes_tokens_as_json_lines(model, folder, tmp_path, capsys):
    content = TEXT.encode() + b"\xff\x00" + TEXT.encode()
    (tmp_path / "bytes").write_bytes(content)
    assert segment.main(["--file", str(tmp_path / "bytes"), "--model", folder, "--format", "json"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert b"".join(bytes.fromhex(r["hex"]) for r in records) == content
    assert [r["start"] for r in records] == [0, *(r["end"] for r in records[:-1])]
    assert records[-1]["end"] == len(content)
    out = model(torch.tensor(list(content))[None], generator=seeded())
    assert [r["end"] - 1 for r in records if r["ended"]] == out.boundaries[0].nonzero().squeeze(1).tolist()
    probabilities = [p for r in records for p in r["probabilities"]]
    torch.testing.assert_close(torch.tensor(probabilities[1:]), out.boundary_logits.sigmoid()[0, 1:], atol=1e-5, rtol=0)
    for record in records:
        inside = bytes.fromhex(record["hex"])
        assert len(record["probabilities"]) == len(inside)
        assert record["token"] is None or record["token"].encode() == inside
    assert any(r["token"] is None for r in records) and any(r["token"] for r in records)


def test_colours_are_for_terminals(folder, file, capsys, monkeypatch):
    for name, value, coloured in (("FORCE_COLOR", "1", True), ("NO_COLOR", "1", False)):  # both: the second wins
        monkeypatch.setenv(name, value)
        segment.main(["--file", file, "--model", folder])
        assert ("\x1b[" in capsys.readouterr().out) is coloured
    monkeypatch.delenv("FORCE_COLOR")
    monkeypatch.delenv("NO_COLOR")
    segment.main(["--file", file, "--model", folder])
    assert "\x1b[" not in capsys.readouterr().out


# generate


def written(model: UNet, prompt: bytes, **options) -> bytes:
    return bytes(int(s.byte_ids) for s in stream(model, prompt, generator=seeded(options.pop("seed", 0)), **options))


def test_generate_writes_what_stream_gives(model, folder, capsysbinary):
    assert generate.main(["To be é", "--model", folder, "--bytes", "60", "--seed", "3", "--top-k", "30"]) == 0
    prompt = "To be é".encode()
    content = prompt + written(model, prompt, max_bytes=60, top_k=30, seed=3)
    shown = boundary_text(content, [0] * len(content), colour=False)
    assert capsysbinary.readouterr().out == shown.encode() + b"\n"


def test_generate_writes_bytes_as_they_are(model, folder, capsysbinary):
    assert generate.main(["To be", "--model", folder, "--bytes", "50", "--raw", "--temperature", "2"]) == 0
    content = written(model, b"To be", max_bytes=50, temperature=2.0)
    assert capsysbinary.readouterr().out == content
    with pytest.raises(UnicodeDecodeError):  # so that the claim is not empty
        content.decode()


def test_generate_shows_the_boundaries_that_it_drew(model, folder, capsys):
    prompt = b"To be, or not to be"
    for greedy in (False, True):
        options = ["--model", folder, "--bytes", "40", "--top-p", "0.9", "--show-boundaries"]
        assert generate.main([prompt.decode(), *options, *["--greedy"] * greedy]) == 0
        steps = list(stream(model, prompt, max_bytes=40, top_p=0.9, greedy=greedy, generator=seeded()))
        out = model(torch.tensor(list(prompt))[None], greedy=greedy, generator=None if greedy else seeded())
        content = prompt + bytes(int(step.byte_ids) for step in steps)
        marks = out.boundaries[0].tolist() + [bool(step.boundaries) for step in steps]
        assert capsys.readouterr().out == boundary_text(content, marks, colour=False) + "\n"


def test_generate_streams(folder, monkeypatch):
    """Each byte is handed on before the next is asked for."""
    seen = []

    class Out(io.StringIO):
        def flush(self) -> None:
            seen.append(self.getvalue())

    monkeypatch.setattr(sys, "stdout", Out())
    generate.main(["ab", "--model", folder, "--bytes", "5"])
    assert seen[0] == "ab" and len({len(s) for s in seen}) >= 5


def test_generate_takes_any_bytes_as_a_prompt(folder, stdin, capsys):
    stdin(b"\xff a")
    assert generate.main(["-", "--model", folder, "--bytes", "0"]) == 0
    assert generate.main([os.fsdecode(b"\xff a"), "--model", folder, "--bytes", "0"]) == 0
    assert capsys.readouterr().out == "\\xff a\n" * 2


# eval


def test_eval_writes_the_figures_of_the_reading(model, folder, file, capsys):
    assert evaluate.main([folder, file, "--context", "16", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    expected = summarise(read_text(model, TEXT, context=16, generator=seeded()))
    assert figures.pop("bytes_per_second") > 0
    assert (figures.pop("text"), figures.pop("context"), figures.pop("stride")) == (file, 16, 16)
    assert figures.pop("target_rate") == 0.3
    assert figures == json.loads(json.dumps(markdown.without_nan(expected)))
    assert figures["bytes"] == len(TEXT.encode()) - 1


def test_eval_shows_a_table(folder, file, capsys):
    assert evaluate.main([folder, file, "--greedy"]) == 0
    shown = capsys.readouterr().out
    for expected in (
        "bits per byte      ",
        "early exit",
        "rate ",
        "(target 0.3)",
        "last letter",
        "in 1 window of 256",
    ):
        assert expected in shown


def test_eval_reads_a_part(model, folder, file, capsys):
    options = ["--bytes", "30", "--windows", "2", "--context", "5", "--seed", "9", "--json"]
    assert evaluate.main([folder, file, *options]) == 0
    figures = json.loads(capsys.readouterr().out)
    reading = read_text(model, TEXT.encode()[:30], context=5, most=2, generator=seeded(9))
    assert (figures["bytes"], figures["windows"]) == (10, 2)
    assert figures["corpus_bits_per_byte"] == summarise(reading)["corpus_bits_per_byte"]


def test_eval_measures_a_run_on_what_it_held_out(model, tmp_path, capsys):
    config = configured()
    (tmp_path / "text.txt").write_bytes(local_prose(20_000))
    config.data.source, config.data.held_out, config.data.num_steps = str(tmp_path / "text.txt"), 0.1, 128
    config.data.cache = str(tmp_path / "cache")
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.structured(config)))
    model.save_pretrained(tmp_path / "model")
    assert evaluate.main([str(tmp_path), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    expected = summarise(read_text(model, local_prose(20_000)[18_000:], context=128, generator=seeded()))
    assert figures["text"] == f"held out of {tmp_path / 'text.txt'}"
    assert (figures["bytes"], figures["context"]) == (1999, 128)
    assert figures["corpus_bits_per_byte"] == expected["corpus_bits_per_byte"]
    (tmp_path / "text.txt").unlink()
    assert "cannot be read again" in refused(evaluate, [tmp_path], capsys)


def test_eval_knows_texts_by_name(folder, capsys):
    assert evaluate.main([folder, "python-docs", "--bytes", "300", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == 299


# all


def test_missing_models_are_refused(tmp_path, file, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "empty").mkdir()
    for command in (segment, generate, evaluate):
        error = refused(command, named(command, tmp_path / "empty", file), capsys)
        option = "MODEL" if command is evaluate else "--model"
        assert f"argument {option}: " in error and "must hold config.json" in error
        error = refused(command, named(command, tmp_path / "none", file), capsys)
        assert f"argument {option}: must be a folder of save_pretrained" in error
        assert "there is no such folder" in error and "Traceback" not in error


def test_wrong_options_are_named(folder, file, capsys):
    for command, options, message in (
        (segment, ["--device", "cuda:99"], "argument --device: 'cuda:99' cannot be used"),
        (segment, ["--device", "abacus"], "argument --device: 'abacus' cannot be used"),
        (segment, ["--seed", "1", "--greedy"], "not allowed with argument"),
        (segment, ["--seed", "-1"], "argument --seed: must be an integer of at least 0, got '-1'"),
        (generate, ["--bytes", "x"], "argument --bytes: must be an integer of at least 0, got 'x'"),
        (generate, ["--temperature", "-1"], "argument --temperature: must be a number of at least 0, got '-1'"),
        (generate, ["--top-k", "0"], "argument --top-k: must be an integer of at least 1, got '0'"),
        (generate, ["--top-p", "2"], "argument --top-p: must be a number in (0, 1], got '2'"),
        (segment, ["--rate", "5"], "argument --rate: must be a number between 0 and 1, got '5'"),
        (segment, ["--rate", "0.3"], "argument --rate: needs a model with rate_embedding, got one of a single rate"),
        (evaluate, ["--column", "x"], "argument --column: belongs to tables"),
        (generate, ["--raw", "--show-boundaries"], "--show-boundaries: not allowed with argument --raw"),
        (evaluate, ["--bytes", "1"], "argument --bytes: must be an integer of at least 2, got '1'"),
        (evaluate, ["--context", "0"], "argument --context: must be an integer of at least 1, got '0'"),
        (evaluate, ["--windows", "0"], "argument --windows: must be an integer of at least 1, got '0'"),
    ):
        assert message in refused(command, [*named(command, folder, file), *options], capsys)


def test_text_that_is_not_there_is_named(folder, tmp_path, stdin, capsys):
    (tmp_path / "empty").touch()
    (tmp_path / "one").write_bytes(b"a")
    assert "empty must hold at least 1 byte, got 0" in refused(segment, ["--file", tmp_path / "empty"], capsys)
    assert "one must hold at least 2 bytes, got 1" in refused(evaluate, [folder, tmp_path / "one"], capsys)
    assert "none cannot be read: No such file or directory" in refused(segment, ["--file", tmp_path / "none"], capsys)
    assert f"{tmp_path} cannot be read: Is a directory" in refused(segment, ["--file", tmp_path], capsys)
    assert "argument PROMPT: must have at least 1 byte, got none" in refused(generate, ["", "--model", folder], capsys)
    for command, arguments in ((segment, []), (generate, ["-"])):
        stdin(b"")
        said = refused(command, ["--model", folder, *arguments], capsys)
        assert "standard input must hold at least 1 byte, got 0" in said
    assert "arguments are required: DATA" in refused(evaluate, [folder], capsys)


def test_the_command_line_ends_quietly_where_its_reader_does(folder, tmp_path):
    """``rltok segment ... | head -1``: no traceback, and what was asked for arrived."""
    path = tmp_path / "long"
    path.write_bytes(local_prose(60_000))
    command = [sys.executable, "-W", "ignore", "-m", "rltok_rl.experiments.commands.segment", "--model", folder]
    command += ["--file", str(path), "--format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        first = json.loads(process.stdout.readline())
        process.stdout.close()
        said = process.stderr.read()
    assert first["start"] == 0 and process.returncode == 0
    assert b"Traceback" not in said and b"BrokenPipe" not in said  # a slow machine prints its progress there


def test_every_command_has_a_module():
    for module, _ in cli.COMMANDS.values():
        assert importlib.util.find_spec(f"rltok_rl.experiments.{module}") is not None

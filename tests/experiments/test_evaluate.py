"""The command eval: its metrics are the functions', its tables show them, and mistakes are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf
from rltok_rl.experiments.commands import arguments, boundaries, evaluate
from rltok_rl.experiments.commands.tables import evaluation_table
from rltok_rl.experiments.reports.markdown import without_nan
from rltok_rl.experiments.studies import credit
from rltok_rl.experiments.texts import remember_texts

from rltok_rl.data import local_prose
from rltok_rl.evaluation import (
    particle_nats,
    read_samples,
    read_streamed,
    read_text,
    summarise,
    summarise_samples,
    window_losses,
)

from ..states import seeded
from .configured import configured
from .conftest import save_ruled

TEXT = "To be, or not to be,\nthat is the question: é €" * 3


@pytest.fixture
def file(tmp_path) -> str:
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT.encode())
    return str(path)


def test_metrics_are_those_of_a_reading(model, folder, file, metrics_of, output):
    metrics = metrics_of(evaluate, folder, file, "--context", 16)
    expected = summarise(read_text(model, TEXT, context=16, generator=seeded()))
    assert metrics.pop("bytes_per_second") > 0
    assert (metrics.pop("text"), metrics.pop("context"), metrics.pop("stride")) == (file, 16, 16)
    assert metrics.pop("target_rate") == 0.3
    assert metrics == json.loads(json.dumps(without_nan(expected))) and metrics["bytes"] == len(TEXT.encode()) - 1
    options = ["--bytes", 30, "--windows", 2, "--context", 5, "--seed", 9]
    metrics = metrics_of(evaluate, folder, file, *options)
    reading = read_text(model, TEXT.encode()[:30], context=5, most=2, generator=seeded(9))
    assert (metrics["bytes"], metrics["windows"]) == (10, 2)
    assert metrics["corpus_bits_per_byte"] == summarise(reading)["corpus_bits_per_byte"]
    assert metrics_of(evaluate, folder, "python-docs", "--bytes", 300)["bytes"] == 299
    shown = output(evaluate, folder, file, "--greedy")
    for expected in ("bits per byte      ", "early exit", "(target 0.3)", "last letter", "in 1 window of 256"):
        assert expected in shown


def test_samples_are_three_losses(model, folder, file, metrics_of, output):
    options = ["--context", 32, "--seed", 3]
    metrics = metrics_of(evaluate, folder, file, *options, "--samples", 4)
    expected = summarise_samples(read_samples(model, TEXT, samples=4, context=32, generator=seeded(3)))
    assert metrics["samples"] == json.loads(json.dumps(expected))
    one = metrics["corpus_bits_per_byte"]
    assert one == pytest.approx(expected["one_sample"]["corpus_bits_per_byte"])
    assert one == metrics_of(evaluate, folder, file, *options)["corpus_bits_per_byte"]
    lines = output(evaluate, folder, file, *options, "--samples", 4).splitlines()
    for label, name in (("one sample", "one_sample"), ("4 samples", "k_samples"), ("thresholded", "thresholded")):
        (line,) = (line for line in lines if line.strip().startswith(label))
        assert f"{expected[name]['corpus_bits_per_byte']:.4f}" in line
    assert f"at {expected['thresholded']['rate']:.4f} boundaries per byte" in "\n".join(lines)


def test_particles_are_one_more_loss(model, folder, file, metrics_of):
    metrics = metrics_of(evaluate, folder, file, "--context", 32, "--windows", 2, "--particles", 3, "--seed", 3)
    where = {"context": 32, "most": 2}
    nats = particle_nats(model, TEXT, particles=3, generator=seeded(3), **where)
    reading = read_text(model, TEXT, generator=seeded(3), **where)
    assert metrics["particles"] == {"count": 3, **window_losses(reading, nats)}
    assert metrics["corpus_bits_per_byte"] == summarise(reading)["corpus_bits_per_byte"]
    assert f"  3 particles      {metrics['particles']['corpus_bits_per_byte']:.4f}" in evaluation_table(metrics)


def test_windows_slide_and_texts_are_streamed(model, folder, file, metrics_of, output):
    metrics = metrics_of(evaluate, folder, file, "--context", 32, "--stride", 5)
    reading = read_text(model, TEXT, context=32, stride=5, generator=seeded())
    assert (metrics["context"], metrics["stride"], metrics["windows"]) == (32, 5, reading.num_windows)
    assert metrics["bytes"] == len(TEXT.encode()) - 1
    assert metrics["corpus_bits_per_byte"] == summarise(reading)["corpus_bits_per_byte"]
    assert f"in {reading.num_windows} windows of 32, 5 apart" in evaluation_table(metrics)
    metrics = metrics_of(evaluate, folder, file, "--streamed", "--bytes", 60)
    assert metrics["context"] is None and metrics["windows"] == 1
    streamed = summarise(read_streamed(model, TEXT.encode()[:60], generator=seeded()))
    assert metrics["corpus_bits_per_byte"] == streamed["corpus_bits_per_byte"]
    whole = metrics_of(evaluate, folder, file, "--context", 1000, "--bytes", 60)
    assert metrics["corpus_bits_per_byte"] == pytest.approx(whole["corpus_bits_per_byte"], abs=1e-5)
    assert "59 byte by byte, each after all before it" in evaluation_table(metrics)


def test_many_documents_have_two_means_with_errors(model, folder, metrics_of, refused, monkeypatch):
    texts = [TEXT.encode(), b"x", b"", TEXT.encode()[:30], b"\xff\xfe\x00"]  # a byte alone cannot be measured
    monkeypatch.setattr(arguments, "_documents", lambda *_: ("three", texts))
    metrics = metrics_of(evaluate, folder, "--context", 32)
    expected = summarise(read_text(model, [texts[0], texts[3], texts[4]], context=32, generator=seeded()))
    assert metrics["documents"] == 3 and metrics["bytes"] == len(texts[0]) - 1 + 29 + 2
    shown = evaluation_table(metrics)
    assert "of the corpus      mean of 3 documents" in shown
    for kind in ("corpus", "document"):
        loss, error = (expected[f"{kind}_{name}"] for name in ("bits_per_byte", "standard_error"))
        assert (metrics[f"{kind}_bits_per_byte"], metrics[f"{kind}_standard_error"]) == (loss, error)
        assert f"{loss:.4f} ± {error:.4f}" in shown
    monkeypatch.setattr(arguments, "_documents", lambda *_: ("three", texts[1:3]))
    assert "three must hold a document of at least 2 bytes, got none" in refused(evaluate, folder)


def test_rows_of_tables_are_documents(model, folder, tmp_path, metrics_of, refused):
    rows = ["to be or not to be", "x", "that is the question é"]
    lines = tmp_path / "rows.jsonl"
    lines.write_text("".join(json.dumps({"words": row}) + "\n" for row in rows))
    assert "argument --column: must be one of ['words']" in refused(evaluate, folder, lines)
    options = ["--column", "words", "--context", 16]
    metrics = metrics_of(evaluate, folder, lines, *options)
    expected = summarise(read_text(model, [rows[0].encode(), rows[2].encode()], context=16, generator=seeded()))
    assert metrics["documents"] == 2 and metrics["corpus_bits_per_byte"] == expected["corpus_bits_per_byte"]
    of_folder = metrics_of(evaluate, folder, tmp_path, *options)
    assert of_folder | {name: metrics[name] for name in ("text", "bytes_per_second")} == metrics
    pq.write_table(pa.table({"text": rows}), tmp_path / "rows.parquet")
    metrics = metrics_of(evaluate, folder, tmp_path / "rows.parquet", "--bytes", 20, "--context", 16)
    assert metrics["documents"] == 2 and metrics["bytes"] == 17 + 1  # all of the first, two bytes of the third


def test_a_run_is_measured_on_its_held_out_text(model, tmp_path, metrics_of, refused):
    config = configured()
    (tmp_path / "text.txt").write_bytes(local_prose(20_000))
    config.data.source, config.data.held_out, config.data.num_steps = str(tmp_path / "text.txt"), 0.1, 128
    config.data.cache = str(tmp_path / "cache")
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.structured(config)))
    model.save_pretrained(tmp_path / "model")
    remember_texts(config.data)
    metrics = metrics_of(evaluate, tmp_path)
    expected = summarise(read_text(model, local_prose(20_000)[18_000:], context=128, generator=seeded()))
    assert metrics["text"] == f"held out of {tmp_path / 'text.txt'}"
    assert (metrics["bytes"], metrics["context"]) == (1999, 128)
    assert metrics["corpus_bits_per_byte"] == expected["corpus_bits_per_byte"]
    (tmp_path / "text.txt").unlink()
    for command, argument in ((evaluate, "DATA"), (boundaries, "--text"), (credit, "--file")):
        message = refused(command, tmp_path)
        assert "cannot be read again" in message and f"; name another as {argument}\n" in message


def test_any_bytes_are_measured_and_missing_numbers_are_dashes(folder, tmp_path, metrics_of, output):
    (tmp_path / "bytes").write_bytes(b"caf\xe9 \xff\xfe\x00 \xe2\x82")
    assert metrics_of(evaluate, folder, tmp_path / "bytes")["bytes"] == 10
    (tmp_path / "dots").write_bytes(b"...... !!!")
    assert metrics_of(evaluate, folder, tmp_path / "dots")["word_edges"]["any"]["covered"] is None
    shown = output(evaluate, folder, tmp_path / "dots")
    assert "nan" not in shown and [line.split()[-1] for line in shown.splitlines()[-4:]] == ["-"] * 4


def test_slow_readings_show_progress(folder, file, capsys, monkeypatch):
    monkeypatch.setattr(arguments, "_PATIENCE", 1e9)
    evaluate.main([folder, file])
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(arguments, "_PATIENCE", 0.0)
    monkeypatch.setattr("rltok_rl.evaluation.windowed.BATCH_BYTES", 32)
    evaluate.main([folder, file, "--context", "32", "--samples", "3"])
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].lstrip().startswith("3% ") and lines[-1].lstrip().startswith("100% ")
    assert all("bits/byte" in line and "B/s, " in line and " left" in line for line in (lines[0], lines[-1])), lines


def test_options_that_a_segmenter_ignores_are_refused(model, file, tmp_path, metrics_of, refused, output):
    rule = save_ruled(tmp_path / "rule", model, "spacebyte")
    assert "argument --samples: SpaceByte draws nothing at random" in refused(evaluate, rule, file, "--samples", 2)
    assert metrics_of(evaluate, rule, file, "--streamed")["segmenter"] == "SpaceByte"
    random = save_ruled(tmp_path / "random", model, "random")
    metrics = metrics_of(evaluate, random, file, "--samples", 2)
    assert metrics["samples"]["thresholded"] is None and metrics["samples"]["count"] == 2
    assert "thresholded      none: boundaries have no probability" in output(evaluate, random, file, "--samples", 2)


def test_mistakes_are_refused(model, folder, file, tmp_path, refused):
    for options, message in (
        (["--stride", "300"], "argument --stride: must be at most the context, 256, got 300"),
        (["--context", "20", "--stride", "21"], "argument --stride: must be at most the context, 20, got 21"),
        (["--samples", "2", "--greedy"], "argument --samples: not allowed with argument --greedy"),
        (["--particles", "2", "--greedy"], "argument --particles: not allowed with argument --greedy"),
        (["--streamed", "--particles", "2"], "argument --particles: not allowed with argument --streamed"),
        (["--streamed", "--context", "9"], "argument --context: not allowed with argument --streamed"),
        (["--streamed", "--stride", "9"], "argument --stride: not allowed with argument --streamed"),
        (["--streamed", "--windows", "9"], "argument --windows: not allowed with argument --streamed"),
        (["--column", "text"], "argument --column: belongs to tables, got"),
    ):
        assert message in refused(evaluate, folder, file, *options)
    assert "got python-docs" in refused(evaluate, folder, "python-docs", "--column", "text")
    (tmp_path / "broken.jsonl").write_text('{"text": "to be"}\nno JSON\n')
    assert "one JSON object per line" in refused(evaluate, folder, tmp_path / "broken.jsonl")
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("data:\n  num_steps: 32\n")
    assert "is a run without a model yet; it is written when the run ends" in refused(evaluate, run, file)
    (run / "summary.json").write_text("{}")  # as results are kept
    assert f"{run} is a run whose model was left out" in refused(evaluate, run, file)
    other = Path(model.save_pretrained(tmp_path / "other"))
    values = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**values, "num_special": 7}))
    assert "the shape in current model is torch.Size([263, 64])" in refused(evaluate, other, file)
    (other / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": 50257}))
    assert "must be of model_type 'rltok_rl-unet', got 'gpt2'" in refused(evaluate, other, file)

"""The options of ``rltok eval``: samples, strides, streams, many documents, progress, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from rltok_rl.agents.segmenters import make_segmenter, save_segmenter
from rltok_rl.experiments.commands import arguments, evaluate
from rltok_rl.experiments.commands.tables import table

from rltok_rl.evaluation import (
    particle_nats,
    read_samples,
    read_streamed,
    read_text,
    summarise,
    summarise_samples,
    window_losses,
)

TEXT = "To be, or not to be,\nthat is the question: é €" * 3


@pytest.fixture
def file(tmp_path) -> str:
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT.encode())
    return str(path)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def metrics_of(arguments, capsys) -> dict:
    assert evaluate.main([str(argument) for argument in arguments] + ["--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(arguments, capsys) -> str:
    with pytest.raises(SystemExit) as ended:
        evaluate.main([str(argument) for argument in arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_samples_are_three_figures_together(model, folder, file, capsys):
    figures = metrics_of([folder, file, "--context", 32, "--samples", 4, "--seed", 3], capsys)
    expected = summarise_samples(read_samples(model, TEXT, samples=4, context=32, generator=seeded(3)))
    assert figures["samples"] == json.loads(json.dumps(expected))
    assert figures["corpus_bits_per_byte"] == pytest.approx(expected["one_sample"]["corpus_bits_per_byte"])
    assert (
        figures["corpus_bits_per_byte"]
        == metrics_of([folder, file, "--context", 32, "--seed", 3], capsys)["corpus_bits_per_byte"]
    )
    assert evaluate.main([folder, file, "--context", "32", "--samples", "4", "--seed", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for label, name in (("one sample", "one_sample"), ("4 samples", "k_samples"), ("thresholded", "thresholded")):
        (line,) = (line for line in lines if line.strip().startswith(label))
        assert f"{expected[name]['corpus_bits_per_byte']:.4f}" in line
    assert f"at {expected['thresholded']['rate']:.4f} boundaries per byte" in "\n".join(lines)


def test_particles_are_one_more_figure(model, folder, file, capsys):
    options = ["--context", 32, "--windows", 2, "--particles", 3, "--seed", 3]
    figures = metrics_of([folder, file, *options], capsys)
    where = {"context": 32, "most": 2}
    nats = particle_nats(model, TEXT, particles=3, generator=seeded(3), **where)
    reading = read_text(model, TEXT, generator=seeded(3), **where)
    assert figures["particles"] == {"count": 3, **window_losses(reading, nats)}
    assert figures["corpus_bits_per_byte"] == summarise(reading)["corpus_bits_per_byte"]
    shown = f"  3 particles      {figures['particles']['corpus_bits_per_byte']:.4f}"
    assert shown in table(figures)


def test_windows_slide(model, folder, file, capsys):
    figures = metrics_of([folder, file, "--context", 32, "--stride", 5], capsys)
    reading = read_text(model, TEXT, context=32, stride=5, generator=seeded())
    assert (figures["context"], figures["stride"], figures["windows"]) == (32, 5, reading.num_windows)
    assert figures["bytes"] == len(TEXT.encode()) - 1
    assert figures["corpus_bits_per_byte"] == summarise(reading)["corpus_bits_per_byte"]
    evaluate.main([folder, file, "--context", "32", "--stride", "5"])
    assert f"in {reading.num_windows} windows of 32, 5 apart" in capsys.readouterr().out


def test_texts_are_streamed(model, folder, file, capsys):
    figures = metrics_of([folder, file, "--streamed", "--bytes", 60], capsys)
    assert figures["context"] is None and figures["windows"] == 1
    streamed = summarise(read_streamed(model, TEXT.encode()[:60], generator=seeded()))
    assert figures["corpus_bits_per_byte"] == streamed["corpus_bits_per_byte"]
    whole = metrics_of([folder, file, "--context", 1000, "--bytes", 60], capsys)
    assert figures["corpus_bits_per_byte"] == pytest.approx(whole["corpus_bits_per_byte"], abs=1e-5)
    evaluate.main([folder, file, "--streamed", "--bytes", "40"])
    assert "39 byte by byte, each after all before it" in capsys.readouterr().out


def test_many_documents_have_two_means_with_errors(model, folder, capsys, monkeypatch):
    texts = [TEXT.encode(), b"x", b"", TEXT.encode()[:30], b"\xff\xfe\x00"]  # a byte alone cannot be measured
    monkeypatch.setattr(arguments, "_documents", lambda *_: ("three", texts))
    figures = metrics_of([folder, "--context", 32], capsys)
    reading = read_text(model, [texts[0], texts[3], texts[4]], context=32, generator=seeded())
    expected = summarise(reading)
    assert figures["documents"] == 3 and figures["bytes"] == len(texts[0]) - 1 + 29 + 2
    for kind in ("corpus", "document"):
        for name in ("bits_per_byte", "standard_error"):
            assert figures[f"{kind}_{name}"] == expected[f"{kind}_{name}"]
    shown = table(figures)
    assert "of the corpus      mean of 3 documents" in shown
    for kind in ("corpus", "document"):
        assert f"{expected[f'{kind}_bits_per_byte']:.4f} ± {expected[f'{kind}_standard_error']:.4f}" in shown
    monkeypatch.setattr(arguments, "_documents", lambda *_: ("three", texts[1:3]))
    assert "three must hold a document of at least 2 bytes, got none" in refused([folder], capsys)


def test_bytes_that_are_no_utf8_are_measured(folder, tmp_path, capsys):
    (tmp_path / "bytes").write_bytes(b"caf\xe9 \xff\xfe\x00 \xe2\x82")
    assert metrics_of([folder, tmp_path / "bytes"], capsys)["bytes"] == 10


def test_what_has_no_figure_has_a_dash(folder, tmp_path, capsys):
    (tmp_path / "dots").write_bytes(b"...... !!!")
    assert metrics_of([folder, tmp_path / "dots"], capsys)["word_edges"]["any"]["covered"] is None
    evaluate.main([folder, str(tmp_path / "dots")])
    shown = capsys.readouterr().out
    assert "nan" not in shown and [line.split()[-1] for line in shown.splitlines()[-4:]] == ["-"] * 4


def test_what_takes_long_tells_how_far_it_is(folder, file, capsys, monkeypatch):
    evaluate.main([folder, file])
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(arguments, "_PATIENCE", 0.0)
    monkeypatch.setattr("rltok_rl.evaluation.windowed.BATCH_BYTES", 32)
    evaluate.main([folder, file, "--context", "32", "--samples", "3"])
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].lstrip().startswith("3% ") and lines[-1].lstrip().startswith("100% ")
    assert all("bits/byte" in line and "B/s, " in line and " left" in line for line in lines)


def test_a_run_without_a_model_is_told_from_a_folder_that_is_none(tmp_path, file, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("data:\n  num_steps: 32\n")
    assert "is a run without a model yet; it is written when the run ends" in refused([tmp_path / "run", file], capsys)
    (tmp_path / "run" / "summary.json").write_text("{}")  # as results are kept
    assert f"{tmp_path / 'run'} is a run whose model was left out" in refused([tmp_path / "run", file], capsys)


def test_a_model_of_other_ids_is_refused(model, file, tmp_path, capsys):
    folder = Path(model.save_pretrained(tmp_path / "other"))
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "num_special": 7}))
    assert "got embedding.weight of shape [256, 64] instead of [263, 64]" in refused([folder, file], capsys)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": 50257}))
    assert "must be of model_type 'rltok_rl-unet', got 'gpt2'" in refused([folder, file], capsys)


def test_wrong_options_are_named(folder, file, capsys):
    for options, message in (
        (["--stride", "300"], "argument --stride: must be at most the context, 256, got 300"),
        (["--context", "20", "--stride", "21"], "argument --stride: must be at most the context, 20, got 21"),
        (["--stride", "0"], "argument --stride: must be an integer of at least 1, got '0'"),
        (["--samples", "0"], "argument --samples: must be an integer of at least 1, got '0'"),
        (["--samples", "2", "--greedy"], "argument --samples: not allowed with argument --greedy"),
        (["--particles", "2", "--greedy"], "argument --particles: not allowed with argument --greedy"),
        (["--streamed", "--particles", "2"], "argument --particles: not allowed with argument --streamed"),
        (["--streamed", "--context", "9"], "argument --context: not allowed with argument --streamed"),
        (["--streamed", "--stride", "9"], "argument --stride: not allowed with argument --streamed"),
        (["--streamed", "--windows", "9"], "argument --windows: not allowed with argument --streamed"),
    ):
        assert message in refused([folder, file, *options], capsys)


def test_options_that_a_segmenter_cannot_follow_are_named(model, file, tmp_path, capsys):
    folder = model.save_pretrained(tmp_path / "rule")
    save_segmenter(folder, make_segmenter("spacebyte", model), model, name="spacebyte", options={})
    assert "argument --samples: SpaceByte draws nothing at random" in refused([folder, file, "--samples", 2], capsys)
    assert metrics_of([folder, file, "--streamed"], capsys)["segmenter"] == "SpaceByte"
    save_segmenter(folder, make_segmenter("random", model), model, name="random", options={})
    figures = metrics_of([folder, file, "--samples", 2], capsys)
    assert figures["samples"]["thresholded"] is None and figures["samples"]["count"] == 2
    evaluate.main([str(folder), file, "--samples", "2"])
    assert "thresholded      none: boundaries have no probability" in capsys.readouterr().out


def test_rows_of_tables_are_documents(model, folder, tmp_path, capsys):
    rows = ["to be or not to be", "x", "that is the question é"]
    lines = tmp_path / "rows.jsonl"
    lines.write_text("".join(json.dumps({"words": row}) + "\n" for row in rows))
    assert "argument --column: must be one of ['words']" in refused([folder, lines], capsys)
    figures = metrics_of([folder, lines, "--column", "words", "--context", 16], capsys)
    texts = [rows[0].encode(), rows[2].encode()]  # a byte alone cannot be measured
    expected = summarise(read_text(model, texts, context=16, generator=seeded()))
    assert figures["documents"] == 2 and figures["corpus_bits_per_byte"] == expected["corpus_bits_per_byte"]
    assert (
        metrics_of([folder, tmp_path, "--column", "words", "--context", 16], capsys)
        | {
            "text": figures["text"],
            "bytes_per_second": figures["bytes_per_second"],
        }
        == figures
    )  # a folder of documents
    table_ = pa.table({"text": rows})
    pq.write_table(table_, tmp_path / "rows.parquet")
    found = metrics_of([folder, tmp_path / "rows.parquet", "--bytes", 20, "--context", 16], capsys)
    assert found["documents"] == 2 and found["bytes"] == 17 + 1  # all of the first, two bytes of the third


def test_a_column_of_what_has_none_is_refused(folder, file, tmp_path, capsys):
    assert "argument --column: belongs to tables, got" in refused([folder, file, "--column", "text"], capsys)
    assert "got python-docs" in refused([folder, "python-docs", "--column", "text"], capsys)
    (tmp_path / "broken.jsonl").write_text('{"text": "to be"}\nno JSON\n')
    assert "one JSON object per line" in refused([folder, tmp_path / "broken.jsonl"], capsys)

"""BPE for a run: on text apart from the text that it is measured on, trained once and kept."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.experiments.runs import bpe_training
from rltok_rl.experiments.runs.bpe_training import bpe_of_rate, cached_bpe, tokenizer_text
from rltok_rl.experiments.runs.build import make_model
from rltok_rl.experiments.runs.segmenters import check_segmenter_options, train_tokenizer
from rltok_rl.experiments.texts import read_texts

from rltok_rl.data import TextSource, disk, local_prose, write_cache
from rltok_rl.data.byte_cache import CachedSource
from rltok_rl.data.files import GroupedDocument
from rltok_rl.data.languages import Recall

from .configured import QUICK, configured

WORDS = "all happy families are alike; every unhappy family is unhappy in its own way. "
DOCUMENTS = [f"{number} {WORDS[number:]}{WORDS[:number]}" for number in range(40)]


def test_text_that_is_measured_is_not_trained_on():
    text = tokenizer_text(TextSource(DOCUMENTS), 30, seed=0)
    seen = "".join(text.first(10**6))
    assert len(seen.encode()) == text.num_bytes and 0 < len(text.aside)
    hidden = [document for document in DOCUMENTS if document not in seen]
    assert len(hidden) == 2 and all(any(w.decode() in d for d in hidden) for w in text.aside)
    assert seen.startswith("".join(text.first(100))) and len("".join(text.first(100))) == 100  # growth adds text
    one = tokenizer_text(TextSource(WORDS * 9), 40, seed=0)
    assert len("".join(one.first(10**6))) == one.num_bytes == 9 * len(WORDS) - 40
    assert {w.decode() for w in one.aside} == {(WORDS * 9)[-40:]}
    same = tokenizer_text(TextSource([WORDS] * 3), 20, seed=0)  # documents that are all equal
    assert same.num_bytes == len(WORDS) - 20
    short = tokenizer_text(TextSource(WORDS), 60, seed=0)  # too short for two windows
    assert short.num_bytes == len(WORDS) and len(short.aside) == 1
    fresh = tokenizer_text(Recall(), 40, seed=0)
    assert len("".join(fresh.first(400))) == 400 and fresh.aside[0] not in "".join(fresh.first(400)).encode()


def test_a_group_stays_on_one_side(tmp_path):
    grouped = [GroupedDocument(text.encode(), b"%d" % (place % 4)) for place, text in enumerate(DOCUMENTS)]
    write_cache(grouped, tmp_path / "cache", settings={"source": {"split_by": "book"}})
    text = tokenizer_text(CachedSource(tmp_path / "cache"), 30, seed=0)
    seen = "".join(text.first(10**6))
    hidden = {place % 4 for place, document in enumerate(DOCUMENTS) if document not in seen}
    assert len(hidden) == 1 and sum(document in seen for document in DOCUMENTS) == 30


def test_a_second_run_trains_nothing(tmp_path, monkeypatch, capsys):
    source, how = TextSource(DOCUMENTS), {"length": 30, "folder": tmp_path / "caches"}
    first = bpe_of_rate(source, 0.6, num_bytes=200, **how)
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"{first} (pre_tokenizer=gpt2)" and first.met
    files = sorted((tmp_path / "caches").iterdir())
    assert [file.suffix for file in files] == [".json"] * len(files) and files
    monkeypatch.setattr(bpe_training, "train_bpe", lambda *args, **options: pytest.fail("trained again"))
    again = bpe_of_rate(source, 0.6, num_bytes=200, **how)
    assert again.split(WORDS.encode()) == first.split(WORDS.encode()) and again.rate == first.rate
    bpe_of_rate(source, 0.7, num_bytes=200, **how)  # another size of the same training
    for change in ({"seed": 1}, {"num_bytes": 201}, {"pre_tokenizer": "spaces"}):
        with pytest.raises(pytest.fail.Exception, match="trained again"):
            bpe_of_rate(source, 0.6, **{"num_bytes": 200, **how, **change})


def test_a_file_is_complete_or_absent(tmp_path, monkeypatch):
    def options(vocabulary: int):
        return tmp_path / "new", lambda: [WORDS * 4], {"vocabulary": vocabulary, "pre_tokenizer": "gpt2"}

    def cached(vocabulary: int):
        folder, texts, how = options(vocabulary)
        return cached_bpe(folder, texts, **how)

    def killed(path):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(disk, "flush", killed)
        cached(280)
    assert [*(tmp_path / "new").iterdir()] == []
    split = cached(280)
    (file,) = (tmp_path / "new").iterdir()
    assert cached(280)(WORDS.encode()) == split(WORDS.encode())
    assert cached_bpe(None, lambda: [WORDS * 4], vocabulary=280)(WORDS.encode()) == split(WORDS.encode())
    file.write_text(file.read_text()[:100])
    with pytest.raises(ValueError, match=r"bpe-.*json is not what was written .*; delete it to train again"):
        cached(280)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="must be a folder that can be written"):
        cached_bpe(tmp_path / "file", lambda: [WORDS], vocabulary=280)


def test_a_rate_that_cannot_be_met_is_one_line(capsys):
    rated = bpe_of_rate(TextSource(DOCUMENTS), 0.05, length=30)
    (line,) = capsys.readouterr().err.splitlines()
    assert not rated.met and line.endswith("(pre_tokenizer=spaces)") and "the target is 0.05" in line
    bpe_of_rate(TextSource(DOCUMENTS), 0.05, length=30, pre_tokenizer="gpt2")
    assert capsys.readouterr().err.endswith("(pre_tokenizer=gpt2); pre_tokenizer=spaces has a lower limit\n")


def test_runs_on_files_keep_their_tokenizer_next_to_the_text(tmp_path, monkeypatch, capsys):
    (tmp_path / "text.txt").write_bytes(local_prose(60_000))
    files = ["data=files", f"data.source={tmp_path / 'text.txt'}", f"data.cache={tmp_path / 'kept/bytes'}"]
    config = configured(*QUICK[:-1], *files, "segmenter=bpe", "segmenter.options.most_bytes=50000")
    config.segmenter.options["rate"] = 0.45
    texts, model = read_texts(config.data), make_model(config, torch.device("cpu"))
    split = train_tokenizer(config, model, texts)
    (file,) = (path for path in (tmp_path / "kept").iterdir() if path.is_file())
    assert file.name.startswith("bpe-") and "50,000 bytes" in capsys.readouterr().err
    monkeypatch.setattr(bpe_training, "train_bpe", lambda *args, **options: pytest.fail("trained again"))
    assert train_tokenizer(config, model, texts)(WORDS.encode()) == split(WORDS.encode())


def test_refusals():
    for options, message in [
        (["rate=0.3", "vocabulary=300"], "must have vocabulary or rate, not both"),
        (["vocabulary=300", "most_bytes=5"], "most_bytes belongs to rate, not to vocabulary"),
        (["pieces=3"], r"of 'bpe' must be among \['vocabulary', .*'most_bytes', 'pre_tokenizer'\], got \['pieces'\]"),
    ]:
        config = configured(*QUICK, "segmenter=bpe", *(f"+segmenter.options.{option}" for option in options))
        with pytest.raises(ValueError, match=message):
            check_segmenter_options(config)
    unigram = configured(*QUICK, "segmenter=unigram", "+segmenter.options.pre_tokenizer=gpt2")
    with pytest.raises(ValueError, match=r"of 'unigram' must be among .* got \['pre_tokenizer'\]"):
        check_segmenter_options(unigram)
    source = TextSource(DOCUMENTS)
    for how, message in [
        ({"rate": 1.5}, r"rate must lie in \(0, 1\], got 1.5"),
        ({"rate": 0.5, "num_bytes": 3, "most_bytes": 2}, "num_bytes must be at most most_bytes, 2, got 3"),
    ]:
        with pytest.raises(ValueError, match=message):
            bpe_of_rate(source, **how, length=30)

"""Tokenizers as segmenters: boundaries one byte after each token, and how far they look ahead."""

from __future__ import annotations

import json

import pytest
import torch
from rltok_rl.agents.segmenters import (
    BPESegmenter,
    TrainedPieces,
    UnigramSegmenter,
    make_segmenter,
    starts_of_pieces,
    train_bpe,
    train_unigram,
)

from rltok_rl.data import local_prose
from rltok_rl.models import UNet, preset
from rltok_rl.text import text_to_ids

from .definition import PIECES, TEXT, WORDS


def boundaries_of(segmenter, text) -> list[int]:
    ids = text_to_ids(text)[None]
    return segmenter(torch.zeros(*ids.shape, 1), ids).boundaries[0].int().tolist()


def leaked_share(segmenter, text: bytes) -> float:
    """Share of prefixes whose boundaries differ from those of the whole text."""
    whole = boundaries_of(segmenter, text)
    return sum(boundaries_of(segmenter, text[:n]) != whole[:n] for n in range(1, len(text))) / (len(text) - 1)


def pieces_of(split, text: str) -> list[str]:
    raw, out, place = text.encode(), [], 0
    for length in split(raw):
        out.append(raw[place : place + length].decode(errors="replace"))
        place += length
    return out


def test_hello_tokenization():
    """Appendix D.1: hello|_token|ization has boundaries one byte after each token; the first byte is forced."""
    drawn = boundaries_of(BPESegmenter(lambda text: [5, 6, 7]), b"hello_tokenization")
    published = [int(a) for a in "0 0 0 0 0 1 0 0 0 0 0 1 0 0 0 0 0 0".split()]
    assert drawn[1:] == published[1:] and drawn[0] == 1


def test_positions_are_bytes_for_any_characters():
    bpe = train_bpe([TEXT], vocabulary=300)
    texts = [TEXT.encode(), "日本語".encode()[1:], "é".encode()[:1], b"\xff\x80 a\xc3", bytes(range(256)), b" "]
    for split in (bpe, PIECES):
        for text in texts:
            lengths = split(text)
            assert sum(lengths) == len(text) and min(lengths) >= 1
    assert bpe(TEXT.encode()) == [len(piece) for piece in bpe.tokenizer.encode(TEXT).tokens]
    assert bpe.tokenizer.decode(bpe.tokenizer.encode(TEXT).ids) == TEXT


def test_larger_vocabularies_have_fewer_boundaries():
    text = WORDS.encode()
    bpe = [len(train_bpe([WORDS * 3], vocabulary=size)(text)) for size in (256, 280, 340)]
    unigram = [len(train_unigram([WORDS * 3], vocabulary=size)(text)) for size in (258, 265, 400)]
    assert bpe[0] == len(text)
    for sizes in (bpe, unigram):
        assert sizes == sorted(sizes, reverse=True) and sizes[2] < sizes[0]
    assert max(map(len, PIECES.tokenizer.get_vocab())) <= 16
    assert max(map(len, train_unigram([WORDS * 3], vocabulary=400, longest=3).tokenizer.get_vocab())) == 3


def test_spaces_belong_to_the_word_before():
    assert pieces_of(PIECES, "singing token\n\tsings") == ["sing", "ing ", "token\n\t", "sing", "s"]
    assert pieces_of(PIECES, "  token  token") == ["  ", "token  ", "token"]
    assert all(" " not in piece[:-1] for piece in pieces_of(PIECES, WORDS))
    drawn = boundaries_of(UnigramSegmenter(PIECES), "singing token")
    assert "".join("_|"[a] for a in drawn) == "|___|___|____"


def test_released_targets_differ():
    """a|b c|d e|f: the released code adds each space to the last token of the word after it, as written out here."""
    words = [[1, 1], [1, 1], [1, 1]]
    released = [size + (i > 0 and j == 1) for i, word in enumerate(words) for j, size in enumerate(word)]
    ends = torch.tensor(released).cumsum(0)[:-1].tolist()
    assert ["ab cd ef"[t] for t in ends] == ["b", " ", "c", " ", "e"]  # c and e are last bytes of tokens
    ours = boundaries_of(UnigramSegmenter(lambda text: [1, 2, 1, 2, 1, 1]), "ab cd ef")
    assert ["ab cd ef"[t] for t, a in enumerate(ours) if a][1:] == ["b", "c", "d", "e", "f"]


def test_unigram_splits_a_word_in_the_likeliest_way():
    """Against dynamic programming over the vocabulary."""
    tokenizer = PIECES.tokenizer
    score = dict(map(tuple, json.loads(tokenizer.to_str())["model"]["vocab"]))
    for word in ("singing", "walkers", "tokenization", "boundless", "zebra", "наука"):
        letters = "".join(tokenizer.pre_tokenizer.pre_tokenize_str(word)[0][0])
        best = [0.0] + [-float("inf")] * len(letters)
        for end in range(1, len(letters) + 1):
            for begin in range(end):
                if letters[begin:end] in score:
                    best[end] = max(best[end], best[begin] + score[letters[begin:end]])
        assert sum(score[piece] for piece in PIECES.pieces(word.encode())) == pytest.approx(best[-1], abs=1e-9)


def test_tokenizers_look_ahead():
    """In prose about a third of all prefixes have other boundaries than the whole text."""
    assert leaked_share(BPESegmenter(lambda text: [1] * len(text)), WORDS.encode()) == 0
    assert 0.2 < leaked_share(UnigramSegmenter(PIECES), WORDS.encode()) < 0.6
    prose = local_prose(100_000)
    documents = prose[:-300].decode(errors="ignore").split(". ")
    for train, segmenter in ((train_unigram, UnigramSegmenter), (train_bpe, BPESegmenter)):
        assert 0.15 < leaked_share(segmenter(train(documents, vocabulary=3000)), prose[-300:]) < 0.5


@pytest.mark.parametrize("fidelity", ["paper", "released"])
def test_predictor_learns_from_tokens_alone(fidelity):
    segmenter = TrainedPieces(8, PIECES, hidden=4, fidelity=fidelity).double()
    byte_ids = text_to_ids("singing sings")[None]
    final = torch.randn(1, 13, 256, dtype=torch.float64, requires_grad=True)
    segments = segmenter(torch.randn(1, 13, 8, dtype=torch.float64), byte_ids)
    (loss,) = segmenter.losses(segments, byte_ids, final).values()
    target = torch.tensor([[0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1]], dtype=torch.float64)  # sing|ing |sing|s from byte 1
    p = segments.logits[:, 1:].sigmoid()
    p = p if fidelity == "paper" else p.sigmoid()
    torch.testing.assert_close(loss, -(target * p.log() + (1 - target) * (1 - p).log()).mean())
    loss.backward()
    assert final.grad is None and segmenter.predictor[0].weight.grad.abs().max() > 0
    assert segmenter.losses(segments, byte_ids[:, :1], final) == {}


def test_trained_predictor_draws_token_starts_causally():
    """States that hold the last bytes are enough for most boundaries of a small language."""
    byte_ids = text_to_ids(WORDS[:90])[None]
    recent = torch.cat([torch.nn.functional.pad(byte_ids, (back, 0))[:, :90, None] for back in range(4)], -1)
    states = torch.nn.functional.one_hot(recent, 256).flatten(-2).float()
    segmenter = TrainedPieces(4 * 256, PIECES, hidden=32)
    assert not segmenter.looks_ahead
    optimizer = torch.optim.Adam(segmenter.parameters(), lr=0.01)
    for _ in range(60):
        (loss,) = segmenter.losses(segmenter(states, byte_ids), byte_ids, states).values()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    drawn = segmenter(states, byte_ids).boundaries[0].int().tolist()
    agree = sum(a == b for a, b in zip(drawn, boundaries_of(UnigramSegmenter(PIECES), WORDS[:90]), strict=True))
    assert agree >= 85


def test_refusals():
    model = UNet(preset("tiny"))
    for call, message in [
        (lambda: make_segmenter("bpe", model), "tokenizer must be a function from bytes to lengths of pieces"),
        (lambda: make_segmenter("unigram", model), r"tokenizer must be a .* \(train_unigram makes one\), got None"),
        (
            lambda: make_segmenter("unigram", model, tokenizer=PIECES, predictor="early_exit"),
            r"predictor must be one of \['oracle', 'trained'\], got 'early_exit'",
        ),
        (
            lambda: make_segmenter("unigram", model, tokenizer=PIECES, hidden=8),
            "hidden and fidelity belong to predictor 'trained', got 8 and 'paper'",
        ),
        (
            lambda: make_segmenter("unigram", model, tokenizer=PIECES, predictor="trained", fidelity="code"),
            "fidelity must be one of",
        ),
        (lambda: boundaries_of(BPESegmenter(lambda text: [1]), b"abc"), "split must give lengths that add up to 3"),
        (lambda: starts_of_pieces([2, 0]), "lengths must be an integer of at least 1, got 0"),
        (lambda: train_bpe(["a"], vocabulary=10), "vocabulary must be an integer of at least 256, got 10"),
        (lambda: train_unigram(["a"], vocabulary=10), "vocabulary must be an integer of at least 257, got 10"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()

"""Tokenizers as segmenters: boundaries one byte after each token, and how far they look ahead."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.agents.segmenters import (
    BPESegmenter,
    TokenizerSplit,
    TrainedPieces,
    UnigramSegmenter,
    make_segmenter,
    starts_of_pieces,
    train_bpe,
    train_unigram,
)
from rltok_rl.agents.segmenters.tokenizers import split_rows
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from rltok_rl.models import UNet, preset
from rltok_rl.text import text_to_ids

from .definition import BPE, PIECES, TEXT, WORDS, of_width


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
    texts = [TEXT.encode(), "日本語".encode()[1:], "é".encode()[:1], b"\xff\x80 a\xc3", bytes(range(256)), b" "]
    for split in (BPE, PIECES):
        for text in texts:
            lengths = split(text)
            assert sum(lengths) == len(text) and min(lengths) >= 1
    encoding = BPE.tokenizer.encode(TEXT)
    assert BPE(TEXT.encode()) == list(map(len, encoding.tokens)) and BPE.tokenizer.decode(encoding.ids) == TEXT
    marking = Tokenizer.from_str(BPE.tokenizer.to_str())  # puts a special token of no byte before a text
    marking.add_special_tokens(["<s>"])
    marking.post_processor = TemplateProcessing("<s> $A", special_tokens=[("<s>", marking.token_to_id("<s>"))])
    assert TokenizerSplit(marking)(TEXT.encode()) == BPE(TEXT.encode())
    words = torch.tensor([256, *WORDS.encode()])  # a begin-of-text mark stands for the first byte's boundary
    first = torch.tensor([[255, *b"ab"]])  # the largest byte is none
    assert split_rows(lambda text: [1] * len(text), first).tolist() == [[True] * 3]
    for length in range(1, 9):
        expected = [True, False, *starts_of_pieces(BPE(WORDS.encode()[: length - 1]))[1:]][:length]
        assert split_rows(BPE, words[None, :length]).tolist() == [expected]


def test_larger_vocabularies_have_fewer_boundaries():
    text = WORDS.encode()
    for train, sizes in ((train_bpe, (256, 280, 340)), (train_unigram, (258, 265, 400))):
        counts = [len(train([WORDS * 3], vocabulary=size)(text)) for size in sizes]
        assert counts == sorted(counts, reverse=True) and counts[2] < counts[0] <= len(text)
    assert max(map(len, PIECES.tokenizer.get_vocab())) <= 16
    long = train_unigram([" ".join(f"abcdefghijklmnop{letter}" for letter in "qrstuvw") * 30], vocabulary=400)
    assert max(map(len, long.tokenizer.get_vocab())) == 16
    assert max(map(len, train_unigram([WORDS * 3], vocabulary=400, longest=3).tokenizer.get_vocab())) == 3


def test_spaces_belong_to_the_word_before():
    assert pieces_of(PIECES, "singing token\n\tsings") == ["sing", "ing ", "token\n\t", "sing", "s"]
    assert pieces_of(PIECES, "  token  token") == ["  ", "token  ", "token"]
    assert all(" " not in piece[:-1] for piece in pieces_of(PIECES, WORDS))
    kinds = " \t\n\r\f\v"
    assert all(PIECES(f"singing{space}sing".encode()) == [4, 4, 4] for space in kinds)
    vocabulary = train_unigram(["singing".join(2 * kinds) * 9], vocabulary=300).tokenizer.get_vocab()
    letters = {chr(256 + ord(space)) for space in kinds}  # in the byte-level alphabet
    assert "ing" in vocabulary and not any(len(piece) > 1 and {*piece} & letters for piece in vocabulary)
    drawn = boundaries_of(UnigramSegmenter(PIECES), "singing token")
    assert "".join("_|"[a] for a in drawn) == "|___|___|____"


def test_tokenizers_look_ahead():
    """A later byte changes the boundaries of many prefixes."""
    assert leaked_share(BPESegmenter(lambda text: [1] * len(text)), WORDS.encode()) == 0
    for segmenter in (UnigramSegmenter(PIECES), BPESegmenter(BPE)):
        assert 0.15 < leaked_share(segmenter, WORDS.encode()) < 0.6


@pytest.mark.parametrize("fidelity", ["paper", "released"])
def test_predictor_learns_from_tokens_alone(fidelity):
    segmenter = TrainedPieces(of_width(8), PIECES, hidden=4, fidelity=fidelity).double()
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
    assert segmenter.losses(segments, byte_ids[:, :1], final) == {} and not segmenter.looks_ahead


def test_refusals():
    def unigram(**options):
        return make_segmenter("unigram", UNet(preset("tiny")), **options)

    for call, message in [
        (
            lambda: make_segmenter("bpe", UNet(preset("tiny"))),
            "tokenizer must be a function from bytes to lengths of pieces",
        ),
        (unigram, r"tokenizer must be a .* \(train_unigram makes one\), got None"),
        (
            lambda: unigram(tokenizer=PIECES, predictor="early_exit"),
            r"predictor must be one of \['oracle', 'trained'\], got 'early_exit'",
        ),
        (
            lambda: unigram(tokenizer=PIECES, hidden=8),
            "hidden and fidelity belong to predictor 'trained', got 8 and 'paper'",
        ),
        (lambda: unigram(tokenizer=PIECES, predictor="trained", fidelity="code"), "fidelity must be one of"),
        *(
            (
                lambda length=length: boundaries_of(BPESegmenter(lambda text: [length]), b"abc"),
                f"split must give lengths that add up to 3 bytes, got {length}",
            )
            for length in (1, 4)
        ),
        (lambda: starts_of_pieces([2, 0]), "lengths must be an integer of at least 1, got 0"),
        (lambda: train_bpe(["a"], vocabulary=10), "vocabulary must be an integer of at least 256, got 10"),
        (lambda: train_unigram(["a"], vocabulary=10), "vocabulary must be an integer of at least 257, got 10"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()

"""A unigram model's pieces: inside words, spaces with the word before, one byte to the right, known too late."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.agents.segmenters import (
    BPESegmenter,
    TrainedPieces,
    UnigramSegmenter,
    make_segmenter,
    train_bpe,
    train_unigram,
)

from rltok_rl.data import local_prose
from rltok_rl.models import UNet, preset
from rltok_rl.text import text_to_ids

from .definition import PIECES, TEXT, WORDS
from .test_bpe import boundaries_of, leaked_share


def pieces_of(split, text: str) -> list[str]:
    raw, out, place = text.encode(), [], 0
    for length in split(raw):
        out.append(raw[place : place + length].decode(errors="replace"))
        place += length
    return out


def likeliest(split, word: str) -> float:
    """The best score of any split of a word, by dynamic programming over the trained vocabulary."""
    tokenizer = split.tokenizer
    score = dict(vocabulary_of(tokenizer))
    letters = "".join(tokenizer.pre_tokenizer.pre_tokenize_str(word)[0][0])
    best = [0.0] + [-float("inf")] * len(letters)
    for end in range(1, len(letters) + 1):
        for begin in range(end):
            if letters[begin:end] in score:
                best[end] = max(best[end], best[begin] + score[letters[begin:end]])
    return best[-1]


def vocabulary_of(tokenizer) -> list[tuple[str, float]]:
    import json

    return [(piece, score) for piece, score in json.loads(tokenizer.to_str())["model"]["vocab"]]


def test_spaces_belong_to_the_word_before():
    assert pieces_of(PIECES, "singing token\n\tsings") == ["sing", "ing ", "token\n\t", "sing", "s"]
    assert pieces_of(PIECES, "  token  token") == ["  ", "token  ", "token"]
    assert all(" " not in piece[:-1] for piece in pieces_of(PIECES, WORDS))


def test_boundaries_stand_at_the_first_byte_of_the_next_piece():
    text = "singing token"
    drawn = boundaries_of(UnigramSegmenter(PIECES), text)
    assert "".join("_|"[a] for a in drawn) == "|___|___|____"
    assert [text[t] for t, a in enumerate(drawn) if a] == ["s", "i", "t"]


def test_the_released_targets_are_others():
    """Of a|b c|d e|f: the released code adds each space to the last piece of the word after it, as written out here."""
    words = [[1, 1], [1, 1], [1, 1]]
    released = [size + (i > 0 and j == 1) for i, word in enumerate(words) for j, size in enumerate(word)]
    ends = torch.tensor(released).cumsum(0)[:-1].tolist()
    assert ["ab cd ef"[t] for t in ends] == ["b", " ", "c", " ", "e"]  # c and e are last bytes of pieces
    ours = boundaries_of(UnigramSegmenter(lambda text: [1, 2, 1, 2, 1, 1]), "ab cd ef")
    assert ["ab cd ef"[t] for t, a in enumerate(ours) if a][1:] == ["b", "c", "d", "e", "f"]


def test_a_word_is_split_in_the_likeliest_way():
    score = dict(vocabulary_of(PIECES.tokenizer))
    for word in ("singing", "walkers", "tokenization", "boundless", "zebra", "наука"):
        found = sum(score[piece] for piece in PIECES.pieces(word.encode()))
        assert found == pytest.approx(likeliest(PIECES, word), abs=1e-9)


def test_later_bytes_change_boundaries_and_the_audit_counts_them():
    assert 0.2 < leaked_share(UnigramSegmenter(PIECES), WORDS.encode()) < 0.6
    assert leaked_share(UnigramSegmenter(lambda text: [1] * len(text)), WORDS.encode()) == 0


@pytest.mark.parametrize(("train", "segmenter"), [(train_unigram, UnigramSegmenter), (train_bpe, BPESegmenter)])
def test_in_prose_about_a_third_of_prefixes_change(train, segmenter):
    prose = local_prose(200_000)
    split = train(prose[:-500].decode(errors="ignore").split(". "), vocabulary=5000)
    assert 0.2 < leaked_share(segmenter(split), prose[-500:]) < 0.45


def test_places_are_bytes_whatever_the_characters():
    for text in (TEXT.encode(), "日本語".encode()[1:], "é".encode()[:1], b"\xff\x80 a\xc3", bytes(range(256)), b" "):
        lengths = PIECES(text)
        assert sum(lengths) == len(text) and min(lengths) >= 1


def test_a_larger_vocabulary_means_fewer_boundaries():
    sizes = [len(train_unigram([WORDS * 3], vocabulary=size)(WORDS.encode())) for size in (258, 265, 400)]
    assert sizes == sorted(sizes, reverse=True) and sizes[2] < sizes[0]
    assert max(map(len, PIECES.tokenizer.get_vocab())) <= 16
    assert max(map(len, train_unigram([WORDS * 3], vocabulary=400, longest=3).tokenizer.get_vocab())) == 3


@pytest.mark.parametrize("fidelity", ["paper", "released"])
def test_the_predictor_learns_from_the_pieces_alone(fidelity):
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


def test_a_predictor_that_has_learned_draws_the_pieces_without_looking_ahead():
    """States that hold the last bytes are enough for most boundaries of a small language."""
    torch.manual_seed(0)
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


def test_misuse_is_said_by_name():
    model = UNet(preset("tiny"))
    with pytest.raises(ValueError, match=r"tokenizer must be a function .* \(train_unigram makes one\), got None"):
        make_segmenter("unigram", model)
    with pytest.raises(ValueError, match=r"predictor must be one of \['oracle', 'trained'\], got 'early_exit'"):
        make_segmenter("unigram", model, tokenizer=PIECES, predictor="early_exit")
    with pytest.raises(ValueError, match="hidden and fidelity belong to predictor 'trained', got 8 and 'paper'"):
        make_segmenter("unigram", model, tokenizer=PIECES, hidden=8)
    with pytest.raises(ValueError, match="vocabulary must be an integer of at least 257, got 10"):
        train_unigram(["a"], vocabulary=10)
    with pytest.raises(ValueError, match="fidelity must be one of"):
        make_segmenter("unigram", model, tokenizer=PIECES, predictor="trained", fidelity="code")

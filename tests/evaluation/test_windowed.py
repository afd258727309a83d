"""Every byte but the first is predicted once, at the cost that one forward pass over its window gives it."""

from __future__ import annotations

import math

import pytest
import torch

from rltok_rl.evaluation import Reading, cut_windows, read_text, summarise
from rltok_rl.evaluation import windowed as reading
from rltok_rl.models import UNet, preset
from rltok_rl.text import text_to_ids

TEXT = "It is a truth universally acknowledged, that a single man must be in want of a wife. é" * 2


@pytest.fixture
def model() -> UNet:
    return UNet(preset("tiny", boundary_scale=1.0, target_rate=0.3)).eval()


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


@pytest.mark.parametrize(
    ("most", "starts"), [(3, [0, 30, 60]), (1, [0]), (10, [*range(0, 100, 10)]), (99, [*range(0, 100, 10)])]
)
def test_fewer_windows_are_spread_over_the_text(model, most, starts):
    read = read_text(model, "a" * 101, context=10, most=most)
    assert read.at[read.forced].tolist() == starts and read.num_windows == len(starts)
    assert len(read.at) == 10 * len(starts)


@torch.no_grad()
def test_costs_are_those_of_the_windows_one_by_one(model):
    read = read_text(model, TEXT, context=16, generator=generator())
    byte_ids, draws = text_to_ids(TEXT), generator()
    final, early, boundaries = [], [], []
    for start, end in cut_windows(len(byte_ids), 16):
        window = byte_ids[None, start:end]
        uniforms = torch.rand(1, end - start - 1, generator=draws)
        out = model(window[:, :-1], uniforms=uniforms)
        for logits, costs in ((out.final_logits, final), (out.early_logits, early)):
            costs += [-float(logits[0, t].log_softmax(-1)[window[0, t + 1]]) for t in range(end - start - 1)]
        boundaries += out.boundaries[0].tolist()
    assert read.at.tolist() == list(range(len(byte_ids) - 1))
    torch.testing.assert_close(read.final_nats, torch.tensor(final, dtype=torch.float64), atol=1e-5, rtol=0)
    torch.testing.assert_close(read.early_nats, torch.tensor(early, dtype=torch.float64), atol=1e-5, rtol=0)
    assert read.boundaries.tolist() == boundaries
    assert read.forced.nonzero().squeeze(1).tolist() == list(range(0, len(byte_ids) - 1, 16))


def test_batches_change_nothing(model, monkeypatch):
    many = read_text(model, TEXT, context=16, generator=generator())
    monkeypatch.setattr(reading, "BATCH_BYTES", 33)
    few = read_text(model, TEXT, context=16, generator=generator())
    assert torch.equal(many.boundaries, few.boundaries) and torch.equal(many.at, few.at)
    torch.testing.assert_close(many.final_nats, few.final_nats, atol=1e-5, rtol=0)


def test_progress_counts_every_byte_once(model, monkeypatch):
    monkeypatch.setattr(reading, "BATCH_BYTES", 64)
    told: list[tuple[int, int, float]] = []
    read = read_text(model, TEXT, context=16, stride=4, progress=lambda *figures: told.append(figures))
    assert [done for done, *_ in told] == sorted(done for done, *_ in told) and len(told) > 5
    assert {total for _, total, _ in told} == {len(read.at)} == {told[-1][0]}
    assert told[-1][2] == pytest.approx(float(read.final_nats.sum()))


def test_bytes_that_are_no_utf8_are_bytes(model):
    """As many are counted as the text has, and a character costs what its bytes do."""
    broken = b"caf\xc3\xa9 \xff\xfe\x00 \xe2\x82"  # the last character is cut off
    read = read_text(model, broken, context=8, greedy=True)
    assert read.byte_ids.tolist() == list(broken) and summarise(read)["bytes"] == len(broken) - 1
    same = read_text(model, ["café", b"caf\xc3\xa9"], context=8, greedy=True)
    assert same.final_nats[:4].tolist() == same.final_nats[4:].tolist() and summarise(same)["bytes"] == 8


def test_an_indifferent_model_pays_eight_bits_for_each_byte(model):
    for head in (model.final_head, model.early_head):
        torch.nn.init.zeros_(head.projection.weight)
    for size, context in ((2, 5), (7, 3), (len(TEXT), 16)):
        figures = summarise(read_text(model, TEXT[:size], context=context, generator=generator()))
        assert figures["bytes"] == len(TEXT[:size].encode()) - 1
        for name in ("corpus", "document", "early_corpus", "early_document"):
            assert figures[f"{name}_bits_per_byte"] == pytest.approx(8.0)


def test_figures_by_hand():
    """Six predictions of "the cat" in windows of three, boundaries after t (forced), e, space (forced) and a."""
    bits = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], dtype=torch.float64)
    made = Reading(
        byte_ids=text_to_ids("the cat"),
        at=torch.arange(6),
        final_nats=bits * math.log(2),
        early_nats=2 * bits * math.log(2),
        boundaries=torch.tensor([1, 0, 1, 1, 0, 1], dtype=torch.bool),
        forced=torch.tensor([1, 0, 0, 1, 0, 0], dtype=torch.bool),
        num_windows=2,
    )
    figures = summarise(made)
    assert figures["corpus_bits_per_byte"] == pytest.approx(3.5) == figures["document_bits_per_byte"]
    assert figures["early_corpus_bits_per_byte"] == pytest.approx(7.0)
    assert figures["corpus_standard_error"] is None and figures["document_standard_error"] is None
    assert (figures["tokens"], figures["rate"], figures["bytes_per_token"]) == (4, pytest.approx(2 / 3), 1.5)
    # Decisions after h, e, c, a; the last byte is never read. Boundaries after e (a last letter) and a (nothing).
    edges = figures["word_edges"]
    assert edges["last_letter"] == {"share": 0.5, "chance": 0.25, "covered": 1.0, "lift": 2.0}
    assert edges["first_letter"]["chance"] == 0.25 and edges["first_letter"]["share"] == 0.0
    assert math.isnan(edges["space"]["covered"]) and edges["space"]["chance"] == 0.0  # its boundary was forced


def test_windows_of_one_byte_have_no_decisions(model):
    figures = summarise(read_text(model, "abc", context=1))
    assert figures["rate"] == 1.0 and figures["word_edges"] == {}


def test_greedy_draws_nothing(model):
    before = torch.get_rng_state()
    one, two = (read_text(model, TEXT, context=20, greedy=True) for _ in range(2))
    assert torch.equal(one.boundaries, two.boundaries) and torch.equal(before, torch.get_rng_state())


def test_what_cannot_be_read_is_refused(model):
    with pytest.raises(ValueError, match="text must have at least 2 bytes .*, got 1"):
        read_text(model, "a", context=4)
    with pytest.raises(ValueError, match="context must be an integer of at least 1, got 0"):
        read_text(model, "abc", context=0)
    with pytest.raises(ValueError, match="most must be an integer of at least 1, got 0"):
        read_text(model, "abcde", context=2, most=0)
    with pytest.raises(ValueError, match="text must have at least 2 bytes .*, got 0 in text 1"):
        read_text(model, ["abc", ""], context=2)
    with pytest.raises(ValueError, match="text must hold at least one text, got none"):
        read_text(model, [], context=2)


def test_texts_do_not_touch(model):
    """Several texts are read as each alone would be, with the random numbers that are left for it."""
    texts = ["the cat sat on the mat", TEXT, "ab", "é" * 20]
    together, draws = read_text(model, texts, context=16, generator=generator()), generator()
    alone = [read_text(model, text, context=16, generator=draws) for text in texts]
    offsets = [sum(len(t.encode()) + 1 for t in texts[:n]) for n in range(len(texts))]
    assert together.at.tolist() == [p + offset for r, offset in zip(alone, offsets, strict=True) for p in r.at.tolist()]
    for name in ("boundaries", "forced"):
        assert torch.equal(getattr(together, name), torch.cat([getattr(r, name) for r in alone]))
    for name in ("final_nats", "early_nats"):
        torch.testing.assert_close(
            getattr(together, name), torch.cat([getattr(r, name) for r in alone]), atol=1e-5, rtol=0
        )
    figures, parts = summarise(together), [summarise(r) for r in alone]
    assert figures["bytes"] == sum(len(t.encode()) - 1 for t in texts) == sum(p["bytes"] for p in parts)
    assert figures["tokens"] == sum(p["tokens"] for p in parts)


def test_words_end_where_texts_do(model):
    """Both texts are one word each, though nothing but their end says so."""
    edges = summarise(read_text(model, ["abc", "def"], context=8, greedy=True))["word_edges"]
    assert edges["last_letter"]["chance"] == 0.0 and edges["first_letter"]["chance"] == 0.0
    assert edges["any"]["chance"] == 0.0  # decisions after b and e alone; after c and f nothing is predicted

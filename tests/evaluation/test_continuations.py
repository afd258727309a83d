"""Log-likelihoods of continuations are those of the definition, in any batch."""

from __future__ import annotations

import itertools
import math
from functools import partial

import pytest
import torch
from rltok_rl.agents.segmenters import Segmenter, Segments, make_segmenter, read_window, train_bpe

from rltok_rl.evaluation import continuations, read_text
from rltok_rl.evaluation.continuations import (
    Continuations,
    continuation_log_likelihood,
    continuation_seed,
    continuation_windows,
    mixture_log_likelihood,
)
from rltok_rl.evaluation.windowed import SegmentedModel
from rltok_rl.functional.policy import boundary_log_prob
from rltok_rl.models import UNet
from rltok_rl.models.generation import generate
from rltok_rl.text import text_to_bytes, text_to_ids

from .conftest import small_model

PAIRS = [
    ("The cat sat on", " the mat"),
    ("Question: where is é?\nAnswer:", " here"),
    ("", "no context"),
    ("a", "b"),
    ("", "x"),
    (b"\xff\x00" * 9, b" \xfe"),
    ("long " * 8, " words, more than the window holds"),
]
CONTEXTS, ANSWERS = [context for context, _ in PAIRS], [answer for _, answer in PAIRS]


@pytest.fixture(scope="module")
def model(mild_model) -> UNet:
    """With a weak final head, so that sums over all boundary strings are estimated well."""
    return mild_model


def by_definition(
    model: UNet, context, answer, *, samples=1, greedy=False, seed=0, segmenter=None, piece=0, key=None, likeliest=None
) -> list[float]:
    """Log p of each draw, byte by byte, from passes over this text alone.

    The text may be a ``piece`` of one whose random numbers are those of ``key``. The list ``likeliest`` takes whether
    each byte is the likeliest.
    """
    context, answer = text_to_bytes(context), text_to_bytes(answer)
    text = text_to_ids(context + answer)
    key = torch.Generator().manual_seed(continuation_seed(seed, piece, key or context or answer))
    uniforms = torch.rand(len(text) - 1, samples, generator=key)
    costs = []
    for draw in range(samples):
        total = 0.0 if context else -math.log(256)
        if len(text) > 1:
            drawn = {} if greedy else {"uniforms": uniforms[None, :, draw]}
            run = partial(model, greedy=greedy) if segmenter is None else partial(read_window, model, segmenter)
            out = run(text[None, :-1], **drawn)
            log_probs = out.final_logits[0].log_softmax(-1)
            places = range(max(len(context), 1), len(text))
            total += sum(float(log_probs[t - 1, text[t]]) for t in places)
            if likeliest is not None:
                likeliest += [int(log_probs[t - 1].argmax()) == int(text[t]) for t in places]
        costs.append(total)
    return costs


def assert_close(scores: torch.Tensor, expected) -> None:
    torch.testing.assert_close(scores, torch.as_tensor(expected, dtype=torch.float64), atol=1e-5, rtol=0)


def same(first: Continuations, second: Continuations, order: list[int] | None = None) -> bool:
    at = slice(None) if order is None else torch.tensor(order)
    pairs = [(getattr(first, name)[at], getattr(second, name)) for name in ("log_likelihood", "one_draw")]
    return all(torch.allclose(a, b, atol=1e-5, rtol=0) for a, b in pairs) and torch.equal(first.cut[at], second.cut)


@torch.no_grad()
def test_log_likelihoods_are_those_of_the_definition(model):
    for samples, greedy in ((1, False), (3, False), (1, True)):
        options = {"samples": samples, "greedy": greedy, "seed": 4}
        scores = continuation_log_likelihood(model, CONTEXTS, ANSWERS, **options)
        draws = torch.tensor([by_definition(model, c, y, **options) for c, y in PAIRS], dtype=torch.float64)  # [n, K]
        assert_close(scores.log_likelihood, draws.logsumexp(-1) - math.log(samples))
        assert_close(scores.one_draw, draws.mean(-1))
        assert scores.num_bytes.tolist() == [len(text_to_bytes(y)) for y in ANSWERS]
        assert not scores.cut.any()
        if samples > 1:
            assert bool((draws.std(-1)[torch.tensor([0, 1, 6])] > 1e-6).all())  # draws differ
    assert continuation_log_likelihood(model, [], []).log_likelihood.tolist() == []


@torch.no_grad()
def test_pieces_have_random_numbers_of_their_own_and_all_must_be_likeliest(model):
    """Answers longer than what may be read, of which some are what the model would write."""
    long, short = generate(model, ["The cat", "a"], max_bytes=8, temperature=0, greedy=True).texts
    pairs = [("The cat", long), ("a", short), ("The cat", long[:7] + b"~"), ("a", b"~" + short[1:])]
    last = generate(model, "~~~~", max_bytes=1, temperature=0, greedy=True).texts[0]
    pairs += [("", "x"), ("", "no context"), PAIRS[0], ("a", b"~~~~" + last)]  # read four by four, only its end is
    contexts, answers = zip(*pairs, strict=True)
    found = set()
    for greedy, read in ((True, None), (True, 30), (True, 4), (False, 4), (False, None)):
        options = {"greedy": greedy, "seed": 4}
        scores = continuation_log_likelihood(model, contexts, answers, context_bytes=read, **options)
        for number, (context, answer) in enumerate(pairs):
            context, answer = text_to_bytes(context), text_to_bytes(answer)
            total, best = (0.0, []) if context else (-math.log(256), [False])  # nothing predicts the first byte
            for piece, (text, scored) in enumerate(continuation_windows(context, answer, read)):
                given = text[:-scored], text[-scored:]
                total += by_definition(model, *given, piece=piece, key=context or answer, likeliest=best, **options)[0]
            assert float(scores.log_likelihood[number]) == pytest.approx(total, abs=1e-4), (pairs[number], read)
            assert bool(scores.likeliest[number]) == all(best), (pairs[number], read)
            found.add((number, all(best)))
    assert {(0, True), (1, True), (2, False), (3, False), (4, False)} <= found


def test_every_seed_piece_and_text_has_a_seed_of_its_own():
    texts = (b"a", b"b", b"1 a")
    assert len({continuation_seed(*key) for key in itertools.product(range(3), range(3), texts)}) == 27


def test_passes_are_as_large_as_allowed(model, monkeypatch):
    """Rows are continuations times draws; bytes are those that are read."""
    shapes, run = [], SegmentedModel.run
    monkeypatch.setattr(
        SegmentedModel, "run", lambda self, ids, *rest: shapes.append(ids.shape) or run(self, ids, *rest)
    )
    for samples, rows, num_bytes in ((1, 2, 10_000), (3, 2, 10_000), (2, None, 100)):
        shapes.clear()
        monkeypatch.setattr(continuations, "BATCH_BYTES", num_bytes)
        continuation_log_likelihood(model, CONTEXTS * 2, ANSWERS * 2, samples=samples, batch_rows=rows)
        assert all(count % samples == 0 for count, _ in shapes)
        if rows is not None:
            assert max(count for count, _ in shapes) == rows * samples
        assert all(count == samples or count * length <= num_bytes for count, length in shapes)
        assert sum(count for count, _ in shapes) == 2 * samples * len([pair for pair in PAIRS if pair != ("", "x")])
    for num_bytes, counts in ((20, [2, 2]), (19, [1] * 4)):  # of ten bytes each
        shapes.clear()
        monkeypatch.setattr(continuations, "BATCH_BYTES", num_bytes)
        continuation_log_likelihood(model, ["ten bytes"] * 4, ["ab"] * 4)
        assert [count for count, _ in shapes] == counts


@torch.no_grad()
def test_segmenters_score_as_they_do_alone(model):
    for name in ("learned", "uniform", "random", "spacebyte", "entropy-spike", "hnet", "bpe"):
        options = {"tokenizer": train_bpe(["the cat sat on the mat " * 3], vocabulary=290)} if name == "bpe" else {}
        segmenter = make_segmenter(name, model, **options).eval()
        scores = continuation_log_likelihood(model, CONTEXTS, ANSWERS, segmenter=segmenter, seed=4)
        alone = [by_definition(model, c, y, segmenter=segmenter, seed=4)[0] for c, y in PAIRS]
        assert_close(scores.log_likelihood, alone)


@torch.no_grad()
def test_many_draws_come_close_to_the_sum_over_all_boundaries(model):
    context, answer = b"ab", b"cde"
    read = text_to_ids(context + answer)[:-1]  # 4 bytes, the first of which has a boundary: 8 strings
    strings = torch.tensor([(1, *rest) for rest in itertools.product((0, 1), repeat=3)])
    out = model(read.expand(8, -1), strings)
    weights = boundary_log_prob(out.boundary_logits, strings)[:, 1:].sum(-1).double().exp()  # [8]
    assert float(weights.sum()) == pytest.approx(1.0)
    each = out.final_logits.log_softmax(-1)[:, torch.tensor([1, 2, 3]), text_to_ids(answer)].sum(-1).double()  # [8]
    exact = float((weights * each.exp()).sum())
    spread = float((weights * (each.exp() - exact).square()).sum().sqrt())
    samples = 4000
    scores = continuation_log_likelihood(model, [context], [answer], samples=samples)
    assert abs(float(scores.log_likelihood.exp()) - exact) < 5 * spread / samples**0.5  # false once in 10^6 seeds
    alone = float((weights * each).sum())  # the expectation of one draw, below log p
    spread = float((weights * (each - alone).square()).sum().sqrt())
    assert abs(float(scores.one_draw) - alone) < 5 * spread / samples**0.5
    assert alone < math.log(exact) and float(scores.one_draw) < float(scores.log_likelihood)


def test_probabilities_of_all_bytes_sum_to_one(model):
    """With shared random numbers after a context, and uniform after none."""
    every = [bytes([byte]) for byte in range(256)]
    for context in (b"The cat ", b""):
        scores = continuation_log_likelihood(model, [context] * 256, every, samples=3)
        assert float(scores.log_likelihood.exp().sum()) == pytest.approx(1.0, abs=1e-5)
    assert scores.log_likelihood.tolist() == [-math.log(256)] * 256
    equal = continuation_log_likelihood(model, ["The cat"] * 2, [" sat"] * 2, samples=2, seed=7)
    assert equal.log_likelihood[0] == equal.log_likelihood[1]  # equal choices tie


def test_batches_change_nothing_and_progress_counts_bytes_up_to_all(model, monkeypatch):
    for samples in (1, 3):
        options = {"samples": samples, "context_bytes": 20}
        together = continuation_log_likelihood(model, CONTEXTS, ANSWERS, **options)
        alone = continuation_log_likelihood(model, CONTEXTS, ANSWERS, batch_rows=1, seed=0, **options)
        assert same(together, alone) and torch.equal(together.likeliest, alone.likeliest)
        order = [3, 0, 6, 2, 5, 1, 4]
        moved = continuation_log_likelihood(model, [CONTEXTS[n] for n in order], [ANSWERS[n] for n in order], **options)
        assert same(together, moved, order)
    monkeypatch.setattr(continuations, "BATCH_BYTES", 64)
    reports: list[tuple[int, int]] = []
    options["progress"] = lambda *report: reports.append(report)
    assert same(together, continuation_log_likelihood(model, CONTEXTS, ANSWERS, **options))
    assert reports[0][0] == 0 and reports[-1][0] == reports[0][1] == reports[-1][1] > 0 and len(reports) > 3
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)


class FromTheEnd(Segmenter):
    """Depends on the length of a text."""

    looks_ahead = True

    def _window(self, states, byte_ids, uniforms) -> Segments:
        left = byte_ids.shape[1] - torch.arange(byte_ids.shape[1])
        return Segments((left % 3 == 0).expand(byte_ids.shape))


def test_segmenters_that_look_ahead_see_no_padding(model, monkeypatch):
    def score(rows: int | None) -> Continuations:
        return continuation_log_likelihood(model, CONTEXTS, ANSWERS, segmenter=FromTheEnd(), batch_rows=rows)

    assert same(score(None), score(1))
    monkeypatch.setattr(FromTheEnd, "looks_ahead", False)
    assert not same(score(None), score(1))  # the test would find padding


def test_windows_predict_each_byte_once_from_as_much_as_may_be_read():
    for read in (1, 2, 5, 8, 9, 10, 30, None):
        for context, answer in ((b"", b"abcdefgh"), (b"z", b"ab"), (b"0123456789", b"abcdefgh")):
            text = context + answer
            windows = continuation_windows(context, answer, read)
            assert sum(scored for _, scored in windows) == len(answer) - (not context)
            end = len(text) - len(answer) + (not context)
            for window, scored in windows:
                end += scored
                begin = end - len(window)
                assert text[begin:end] == window and scored < len(window)
                assert read is None or len(window) - 1 == min(read, end - 1)  # full, unless the text begins there
            assert end == len(text), (read, context, answer)


def test_a_context_that_just_fits_is_not_cut(model):
    """All bytes but the last are read; a mark is no byte of the context."""
    marked = small_model(begin_of_text=True, num_special=1)
    for read, cut in ((5, True), (6, False), (7, False)):
        for reader in (model, marked):
            scores = continuation_log_likelihood(reader, ["abcd"], ["efg"], context_bytes=read)
            assert scores.cut.tolist() == [cut], read


@torch.no_grad()
def test_costs_of_a_model_in_bfloat16_are_computed_in_float32():
    half = small_model(head=0.5).bfloat16()
    text = text_to_ids("The cat sat on the mat")
    log_probs = half(text[None, :-1], greedy=True).final_logits[0].float().log_softmax(-1).double()
    expected = log_probs.gather(-1, text[1:, None]).squeeze(-1)
    scores = continuation_log_likelihood(half, ["The cat"], [" sat on the mat"], greedy=True)
    assert_close(scores.log_likelihood, expected[6:].sum().view(1))
    assert_close(-read_text(half, "The cat sat on the mat", context=30, greedy=True).final_nats, expected)


def test_a_mixture_writes_greedily_what_its_own_probabilities_say():
    torch.manual_seed(1)
    best = 0
    for _ in range(40):
        log_probs = (3 * torch.randn(3, 4, 5)).log_softmax(-1)
        targets: list[int] = []
        for place in range(4):  # greedily, by p(y_1..t): the next byte that makes it largest
            begun = log_probs[:, : place + 1]
            tried = [mixture_log_likelihood(begun, torch.tensor([*targets, byte]))[0] for byte in range(5)]
            targets.append(int(torch.stack(tried).argmax()))
        assert bool(mixture_log_likelihood(log_probs, torch.tensor(targets))[2])
        for place in range(4):
            other = [*targets]
            other[place] = (other[place] + 1) % 5
            assert not bool(mixture_log_likelihood(log_probs, torch.tensor(other))[2])
        unlikely = torch.full((3, 1, 5), -2e7)  # weights are compared after unlikely bytes, too
        unlikely[..., 0] = -1e7
        assert bool(mixture_log_likelihood(torch.cat((unlikely, log_probs), 1), torch.tensor([0, *targets]))[2])
        best += targets == log_probs.logsumexp(0).argmax(-1).tolist()
    assert best < 40  # weights matter: bytes that are likeliest place by place are not the same


def test_a_target_rate_reaches_the_policy():
    model = small_model(rate_embedding=True)
    low, high, configured, default = (
        float(continuation_log_likelihood(model, ["The cat sat"], [" on the mat"], target_rate=rate).log_likelihood)
        for rate in (0.05, 0.9, model.config.target_rate, None)
    )
    assert len({low, high, default}) == 3 and default == configured

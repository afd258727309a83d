"""Models with a begin-of-text mark: wherever a text or a window enters, the model reads the mark before it."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.agents.segmenters import (
    SEGMENTERS,
    make_segmenter,
    read_byte,
    read_window,
    segment_text,
    start_reading,
    write_on,
)
from rltok_rl.agents.segmenters.tokenizers import split_rows
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.envs.gym_env import ByteBoundaryGym
from torch import Tensor

from rltok_rl.data import OrderedSource, TextSource
from rltok_rl.diagnostics.enumeration import enumerate_rollouts
from rltok_rl.evaluation import read_streamed, read_text, summarise
from rltok_rl.evaluation.continuations import continuation_log_likelihood
from rltok_rl.evaluation.detail import read_detail
from rltok_rl.evaluation.marginal import particle_nats, read_samples, summarise_samples, window_nats
from rltok_rl.evaluation.windowed import lay_windows
from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.models import UNet, preset, segment
from rltok_rl.models.generation import generate
from rltok_rl.text import text_to_ids
from rltok_rl.training.snapshots import Snapshots

from .each import each
from .states import seeded

TEXT = b"the quick brown fox jumps over the lazy dog"
SPACED = {"bpe": {"tokenizer": lambda text: [1] * len(text)}, "unigram": {"tokenizer": lambda text: [1] * len(text)}}


def marked(text: bytes) -> Tensor:
    """[1, 1 + T] ids as a person would write them down."""
    return torch.tensor([[256, *text]])


def nats_of(logits: Tensor, text: bytes) -> Tensor:
    """Costs [T] of a text under logits [1, T, 256], each of the byte after it."""
    return -byte_log_prob(logits, torch.tensor([[*text]]))[0].double()


@pytest.fixture
def model() -> UNet:
    torch.manual_seed(0)
    model = UNet(preset("tiny", begin_of_text=True, num_special=1, window=6)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


@torch.no_grad()
def test_training_windows_have_as_many_bytes_as_decisions_and_the_first_is_predicted(model):
    env = ByteBoundaryEnv(model, TextSource(TEXT), num_steps=len(TEXT), batch_size=(1,))
    rollout = env.parallel_rollout(generator=seeded())
    assert torch.equal(rollout["byte"], marked(TEXT)[:, :-1])
    assert torch.equal(rollout["next", "byte"][0], text_to_ids(TEXT))
    assert rollout["forced"][0].tolist() == [True] + [False] * (len(TEXT) - 1)
    out = model(marked(TEXT)[:, :-1], rollout["action"])
    nats = -rollout["next", "final_log_prob"][0, :, 0].double()
    torch.testing.assert_close(nats, nats_of(out.final_logits, TEXT), rtol=1e-6, atol=1e-6)
    assert bool(rollout["next", "terminated"][0, -1])
    assert enumerate_rollouts(model, "abc")["byte"][0, 0].tolist() == [256, 97, 98]


def test_every_byte_of_an_epoch_is_predicted_once():
    source = OrderedSource(TextSource([b"abcdefgh", b"ijklmnop"]), length=4, seed=0, shared=0)
    assert sorted(bytes(row.tolist()) for row in source.draw(4, 4).byte_ids) == [b"abcd", b"efgh", b"ijkl", b"mnop"]


@each(context=[5, 16, 100], stride=[None, 5])
@torch.no_grad()
def test_every_window_of_an_evaluation_begins_with_the_mark(context, stride, model):
    """The mark comes before the same bytes that other models read, and the same bytes are predicted."""
    documents = [TEXT, TEXT[::-1]]
    reading = read_text(model, documents, context=context, stride=stride, greedy=True)
    expected, tokens = [], 0
    for text in documents:
        known = 1
        windows = lay_windows([(0, len(text))], context, stride)
        for start, end in zip(windows.start.tolist(), windows.end.tolist(), strict=True):
            out = model(marked(text[start : end - 1]), greedy=True)
            expected.append(nats_of(out.final_logits[:, 1:], text[start + 1 : end])[known - start - 1 :])
            tokens += int(out.boundaries[0, known - start :].sum()) + (known == start + 1)
            known = end
    torch.testing.assert_close(reading.final_nats, torch.cat(expected), atol=1e-5, rtol=1e-5)
    plain = read_text(UNet(preset("tiny")).eval(), documents, context=context, stride=stride)
    assert torch.equal(reading.at, plain.at) and torch.equal(reading.begins, plain.begins)
    assert reading.num_tokens == tokens and not reading.forced.any()
    drawn = read_text(model, documents, context=context, generator=seeded())
    one = particle_nats(model, documents, context=context, particles=1, generator=seeded())
    torch.testing.assert_close(one, window_nats(drawn), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_readers_of_a_whole_text_agree(model):
    out = model(marked(TEXT), greedy=True)
    every = nats_of(out.final_logits[:, :-1], TEXT)  # the first byte's, which the mark predicts, among them
    expected = every[1:]
    for reading in (read_streamed(model, TEXT, greedy=True), read_text(model, TEXT, context=99, greedy=True)):
        torch.testing.assert_close(reading.final_nats, expected, atol=1e-5, rtol=1e-5)
        assert torch.equal(reading.boundaries, out.boundaries[0, 1:-1])
    detail = read_detail(model, TEXT, context=99, gamma=0.9, greedy=True, generator=seeded())
    torch.testing.assert_close(detail.final_bits[1:] * torch.tensor(2.0).log(), expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(detail.boundaries[:-1], out.boundaries[0, 1:-1]) and not detail.forced.any()
    assert detail.summary["tokens"] == int(out.boundaries[0, :-1].sum()) and detail.final_bits[0].isnan()
    for context, rest in ((b"", TEXT), (TEXT[:7], TEXT[7:])):
        scores = continuation_log_likelihood(model, [context], [rest], greedy=True)
        assert float(scores.log_likelihood) == pytest.approx(-float(every[len(context) :].sum()), rel=1e-5)
    cut = continuation_log_likelihood(model, [TEXT[:20]], [TEXT[20:24]], context_bytes=9, greedy=True)
    window = TEXT[14:24]  # nine bytes that are read, after the mark, and the last, which is predicted only
    nats = nats_of(model(marked(window[:-1]), greedy=True).final_logits, window)
    assert float(cut.log_likelihood) == pytest.approx(-float(nats[-4:].sum()), rel=1e-5) and bool(cut.cut)


@torch.no_grad()
def test_rates_of_several_draws_count_the_token_of_the_mark(model):
    options = {"context": 8, "stride": 5}
    samples = read_samples(model, [TEXT, TEXT[::-1]], samples=1, generator=seeded(), **options)
    metrics, greedy = summarise_samples(samples), read_text(model, [TEXT, TEXT[::-1]], greedy=True, **options)
    assert metrics["one_sample"]["rate"] == summarise(samples.first)["rate"]
    assert metrics["thresholded"]["rate"] == summarise(greedy)["rate"] > 0


@each(name=["learned", "gumbel"])
@torch.no_grad()
def test_greedy_segmenters_draw_no_random_number_at_the_mark(name, model):
    segmenter, state = make_segmenter(name, model).eval(), torch.get_rng_state()
    streamed = read_streamed(model, TEXT, segmenter=segmenter, greedy=True)
    assert torch.equal(torch.get_rng_state(), state)
    whole = read_text(model, TEXT, segmenter=segmenter, greedy=True, context=99)
    torch.testing.assert_close(streamed.final_nats, whole.final_nats, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_single_byte_is_scored_from_the_mark_alone(model):
    options = {"samples": 2, "context_bytes": 1}
    scores = continuation_log_likelihood(model, ["", "a"], ["t", "bc"], **options).log_likelihood
    logits = model(torch.tensor([[256]]), greedy=True).final_logits
    assert float(scores[0]) == pytest.approx(-float(nats_of(logits, b"t")), rel=1e-5)
    best = int(logits.argmax())
    letters = [bytes([best]), bytes([best ^ 1])]
    assert continuation_log_likelihood(model, [b"", b""], letters, **options).likeliest.tolist() == [True, False]


@torch.no_grad()
def test_boundaries_of_a_text(model):
    out = model(marked(TEXT), generator=seeded())
    for piece in (7, 100):
        drawn = segment(model, TEXT, generator=seeded(), piece=piece)
        assert drawn.text == TEXT and torch.equal(drawn.boundaries, out.boundaries[0, 1:])
        torch.testing.assert_close(drawn.probabilities, out.boundary_logits.sigmoid()[0, 1:])
    again = segment_text(model, make_segmenter("learned", model).eval(), TEXT, generator=seeded())
    assert torch.equal(again.boundaries, drawn.boundaries)
    held = TextSource(TEXT)
    sample = Snapshots(held=held, num_rows=1, num_steps=8, batches=1, num_bytes=len(TEXT)).take(model)
    assert sample["text"].encode() == TEXT and len(sample["boundaries"]) == len(sample["probabilities"]) == len(TEXT)


@torch.no_grad()
def test_written_texts_continue_the_mark_and_the_prompt(model):
    """The likeliest byte after each prefix, by a forward pass over all of it."""
    written = generate(model, [TEXT[:4], TEXT[:9]], max_bytes=6, temperature=0.0, greedy=True).texts
    segmenter = make_segmenter("uniform", model).eval()
    by_rule = bytes(int(s.byte_ids) for s in write_on(model, segmenter, TEXT[:4], max_bytes=6, temperature=0.0))
    for prompt, text in ((TEXT[:4], written[0]), (TEXT[:9], written[1])):
        for size in range(6):
            logits = model(marked(prompt + text[:size]), greedy=True).final_logits[0, -1]
            assert int(logits.argmax()) == text[size]
    for size in range(6):
        ids = marked(by_rule[: 4 + size])
        assert int(read_window(model, segmenter, ids).final_logits[0, -1].argmax()) == by_rule[4 + size]
    assert by_rule[:4] == TEXT[:4] and len(by_rule) == 10


@each(name=SEGMENTERS)
@torch.no_grad()
def test_segmenters_read_the_mark_as_the_first_id(name, model):
    """Boundaries step by step are those of the window; a tokenizer's first token begins at the mark."""
    segmenter = make_segmenter(name, model, **SPACED.get(name, {})).eval()
    ids, uniforms = marked(TEXT), torch.rand(1, len(TEXT) + 1)
    segments = read_window(model, segmenter, ids, uniforms=uniforms).segments
    assert segments.boundaries.shape == ids.shape and bool(segments.boundaries[0, 0])
    if not segmenter.looks_ahead:
        reader, drawn = start_reading(model, segmenter, 1), []
        for t in range(ids.shape[1]):
            drawn.append(read_byte(model, segmenter, reader, ids[:, t], uniforms=uniforms[:, t]).segments.boundaries)
        assert torch.equal(torch.stack(drawn, 1), segments.boundaries)


def test_pieces_after_the_mark():
    """One byte to the right of a token's end, except the first, which begins at the mark."""
    starts = split_rows(lambda text: [3, 2, len(text) - 5], marked(b"abcdefgh"))
    assert starts[0].tolist() == [True, False, False, False, True, False, True, False, False]


def test_gymnasium_shows_the_bytes_alone(model):
    env = ByteBoundaryGym(model, TEXT, num_steps=5, render_mode="ansi")
    seen, _ = env.reset(seed=0, options={"text": TEXT})
    assert seen["byte"] == 256 and env.render().strip("|") == ""
    for action in (0, 0, 1, 0, 0):
        seen, _, _, truncated, _ = env.step(action)
    assert seen["byte"] == TEXT[4] and truncated and env.render().replace("|", "") == "the q"


def test_a_saved_model_remembers(model, tmp_path):
    model.save_pretrained(tmp_path)
    again = UNet.from_pretrained(tmp_path)
    assert again.config.begin_of_text and again.mark(text_to_ids("a")).tolist() == [256, 97]
    plain = UNet(preset("tiny"))
    ids = text_to_ids("a")
    assert plain.mark(ids) is ids

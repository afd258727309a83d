"""Generation equals a slow loop over full forward passes, and stops on request."""

from __future__ import annotations

import pytest
import torch

from rltok_rl.functional.likelihood import next_byte_log_prob
from rltok_rl.models.generation import generate, stream
from rltok_rl.text import ids_to_bytes, text_to_ids


def sharpen(model):
    """Make predictions and boundaries decided, so that the likeliest choice is not a tie of rounding."""
    with torch.no_grad():
        model.final_head.projection.weight.mul_(30)
        model.boundary_head.projection.weight.mul_(100)
    return model


@torch.no_grad()
def test_greedy_generation_equals_a_loop_of_full_forwards(build):
    model = sharpen(build())
    prompt = b"The quick brown"
    written = generate(model, prompt, max_bytes=60, temperature=0.0, greedy=True)
    text = list(prompt)
    for _ in range(60):
        out = model(torch.tensor([text]), greedy=True)
        text.append(int(out.final_logits[0, -1].argmax()))
    assert written.texts[0] == bytes(text[len(prompt) :])
    full = model(torch.tensor([text]), greedy=True)
    assert torch.equal(written.boundaries[0], full.boundaries[0, len(prompt) :])
    assert 0 < written.boundaries[0].sum() < 60
    log_probs = next_byte_log_prob(full.final_logits, torch.tensor([text]))[0, len(prompt) - 1 :]
    torch.testing.assert_close(written.log_probs[0], log_probs, rtol=0, atol=1e-4)


@torch.no_grad()
def test_prompts_of_different_lengths_are_written_on_as_if_alone(build):
    model = sharpen(build())
    prompts = ["a", "some longer text that wraps the window", b"\xff\x00mid"]
    options = {"max_bytes": 25, "temperature": 0.0, "greedy": True}
    together = generate(model, prompts, **options)
    for row, prompt in enumerate(prompts):
        alone = generate(model, prompt, **options)
        assert together.texts[row] == alone.texts[0]
        assert torch.equal(together.boundaries[row], alone.boundaries[0])
        torch.testing.assert_close(together.log_probs[row], alone.log_probs[0], rtol=0, atol=1e-4)


@torch.no_grad()
def test_sampled_boundaries_and_log_probs_are_those_of_the_full_forward(build):
    """Whatever was drawn: replay text and boundaries through one forward pass and find the same likelihoods."""
    model, prompt = build(), text_to_ids("x")
    steps = list(stream(model, "x", max_bytes=80, generator=torch.Generator().manual_seed(0)))
    byte_ids = torch.cat([prompt] + [s.byte_ids for s in steps])[None]
    boundaries = torch.cat([torch.ones(1, dtype=torch.bool)] + [s.boundaries for s in steps])[None]
    expected = next_byte_log_prob(model(byte_ids, boundaries).final_logits, byte_ids)[0]
    torch.testing.assert_close(torch.cat([s.log_probs for s in steps]), expected, rtol=0, atol=1e-4)


def test_same_seed_same_text(build):
    model = build()
    options = {"max_bytes": 40, "top_k": 50, "top_p": 0.9}
    texts = [generate(model, "x", generator=torch.Generator().manual_seed(s), **options).texts[0] for s in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]


def test_sampling_options_reach_the_draw(build):
    """What leaves one byte to choose from writes the greedy text; heat writes another one."""
    model = sharpen(build())
    base = {"max_bytes": 30, "greedy": True}

    def text(**options) -> bytes:
        return generate(model, "x", generator=torch.Generator().manual_seed(0), **base, **options).texts[0]

    greedy = text(temperature=0.0)
    for options in ({"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-5}):
        assert text(**options) == greedy, options
    assert len({greedy, text(), text(temperature=2.0), text(top_k=2), text(top_p=0.3)}) == 5


def test_boundary_rate_of_sampled_text_is_the_policy_rate(build):
    """1600 draws at a rate of about 0.2: three standard errors are 0.03, a false alarm of 0.3 %; the seed is fixed."""
    model = build(target_rate=0.2)
    with torch.no_grad():
        model.boundary_head.projection.weight.zero_()
    written = generate(model, ["x"] * 16, max_bytes=100, generator=torch.Generator().manual_seed(0))
    assert torch.cat(written.boundaries).float().mean().item() == pytest.approx(0.2, abs=0.03)


def test_stop_ends_each_row_by_itself(build):
    model = sharpen(build())
    free = generate(model, ["ab", "cd"], max_bytes=30, temperature=0.0, greedy=True).texts
    stop = free[0][4:6]
    stopped = generate(model, ["ab", "cd"], max_bytes=30, temperature=0.0, greedy=True, stop=stop)
    for text, full in zip(stopped.texts, free, strict=True):
        end = full.find(stop)
        assert text == (full if end < 0 else full[: end + len(stop)])
    assert [len(b) for b in stopped.boundaries] == [len(t) for t in stopped.texts]


def test_stream_hands_out_bytes_one_by_one(build):
    steps = stream(build(), "hello", max_bytes=10**9)  # would not come back if it were not lazy
    assert ids_to_bytes(next(steps).byte_ids) != b""
    assert next(steps).new.tolist() == [True]


def test_nothing_to_write(build):
    written = generate(build(), "x", max_bytes=0)
    assert written.texts == [b""]
    assert len(written.boundaries[0]) == 0


@pytest.mark.parametrize(
    ("prompts", "options", "error", "message"),
    [
        ("", {}, ValueError, "prompts must not be empty .* got an empty text at 0"),
        (["a", b""], {}, ValueError, "got an empty text at 1"),
        ([], {}, ValueError, "prompts must hold at least one text"),
        ([3], {}, TypeError, "prompts must be str or bytes, or a list of them, got int at 0"),
        ("a", {"max_bytes": -1}, ValueError, "max_bytes must be an integer of at least 0, got -1"),
        ("a", {"temperature": -0.5}, ValueError, "temperature must be at least 0, got -0.5"),
        ("a", {"top_k": 0}, ValueError, "top_k must be at least 1 or None, got 0"),
        ("a", {"top_p": 1.5}, ValueError, r"top_p must lie in \(0, 1\] or be None, got 1.5"),
        ("a", {"boundaries": "always"}, ValueError, r"boundaries must be one of \['sample', 'greedy'\], got 'always'"),
        ("a", {"stop": ""}, ValueError, "stop must be a non-empty bytes object or None, got ''"),
    ],
)
def test_wrong_arguments_are_refused_before_any_byte(build, prompts, options, error, message):
    with pytest.raises(error, match=message):
        generate(build(), prompts, **{"max_bytes": 3, **options})


def test_the_former_name_of_greedy_warns_and_means_the_same(build):
    model = build()
    now = generate(model, "ab", max_bytes=8, temperature=0.0, greedy=True)
    with pytest.warns(DeprecationWarning, match="boundaries='greedy' is greedy=True now") as warned:
        before = generate(model, "ab", max_bytes=8, temperature=0.0, boundaries="greedy")
    assert warned[0].filename == __file__
    assert before.texts == now.texts and torch.equal(before.boundaries[0], now.boundaries[0])
    with pytest.warns(DeprecationWarning, match="boundaries='sample' is greedy=False now"):
        stream(model, "ab", max_bytes=8, boundaries="sample")
    with pytest.raises(ValueError, match="former name of greedy, got boundaries='sample' and greedy=True"):
        generate(model, "ab", max_bytes=8, boundaries="sample", greedy=True)

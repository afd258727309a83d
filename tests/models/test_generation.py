"""Generation equals a slow loop over full forward passes, and stops on request."""

from __future__ import annotations

import pytest
import torch

from rltok_rl.functional.likelihood import next_byte_log_prob
from rltok_rl.models.generation import generate, stream
from rltok_rl.text import ids_to_bytes, text_to_ids

from .conftest import seeded

GREEDY = {"temperature": 0.0, "greedy": True}


@pytest.fixture
def sharp(build):
    """A model with decided predictions and boundaries, so that the likeliest choice is not a tie of rounding."""
    model = build()
    with torch.no_grad():
        model.final_head.projection.weight.mul_(30)
        model.boundary_head.projection.weight.mul_(100)
    return model


@torch.no_grad()
def test_greedy_generation_equals_a_loop_of_full_forwards(sharp):
    prompt = b"The quick brown"
    written, text = generate(sharp, prompt, max_bytes=60, **GREEDY), list(prompt)
    for _ in range(60):
        text.append(int(sharp(torch.tensor([text]), greedy=True).final_logits[0, -1].argmax()))
    assert written.texts[0] == bytes(text[len(prompt) :])
    full = sharp(torch.tensor([text]), greedy=True)
    assert torch.equal(written.boundaries[0], full.boundaries[0, len(prompt) :])
    assert 0 < written.boundaries[0].sum() < 60
    log_probs = next_byte_log_prob(full.final_logits, torch.tensor([text]))[0, len(prompt) - 1 :]
    torch.testing.assert_close(written.log_probs[0], log_probs, rtol=0, atol=1e-4)


@torch.no_grad()
def test_prompts_of_different_lengths_are_written_on_as_if_alone(sharp):
    prompts = ["a", "some longer text that wraps the window", b"\xff\x00mid"]
    together = generate(sharp, prompts, max_bytes=25, **GREEDY)
    for row, prompt in enumerate(prompts):
        alone = generate(sharp, prompt, max_bytes=25, **GREEDY)
        assert together.texts[row] == alone.texts[0]
        assert torch.equal(together.boundaries[row], alone.boundaries[0])
        torch.testing.assert_close(together.log_probs[row], alone.log_probs[0], rtol=0, atol=1e-4)


@torch.no_grad()
def test_log_probs_are_those_of_the_full_forward(build):
    """Text and boundaries that were drawn, replayed through one forward pass, have the same likelihoods."""
    model = build()
    steps = list(stream(model, "x", max_bytes=80, generator=seeded(0)))
    byte_ids = torch.cat([text_to_ids("x")] + [s.byte_ids for s in steps])[None]
    boundaries = torch.cat([torch.ones(1, dtype=torch.bool)] + [s.boundaries for s in steps])[None]
    expected = next_byte_log_prob(model(byte_ids, boundaries).final_logits, byte_ids)[0]
    torch.testing.assert_close(torch.cat([s.log_probs for s in steps]), expected, rtol=0, atol=1e-4)


def test_options_reach_the_draw(sharp):
    """What leaves one byte to choose from writes the greedy text; heat or another seed write another one."""

    def text(seed: int = 0, **options) -> bytes:
        return generate(sharp, "x", max_bytes=30, greedy=True, generator=seeded(seed), **options).texts[0]

    greedy = text(temperature=0.0)
    for options in ({"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-5}):
        assert text(**options) == greedy, options
    assert len({greedy, text(), text(temperature=2.0), text(top_k=2), text(top_p=0.3), text(seed=1)}) == 6
    assert text() == text()


def test_boundary_rate_of_sampled_text_is_the_policy_rate(build):
    """1600 draws at a rate of 0.2: three standard errors are 0.03."""
    model = build(target_rate=0.2)
    with torch.no_grad():
        model.boundary_head.projection.weight.zero_()
    written = generate(model, ["x"] * 16, max_bytes=100, generator=seeded(0))
    assert torch.cat(written.boundaries).float().mean().item() == pytest.approx(0.2, abs=0.03)


def test_stop_ends_each_row_by_itself(sharp):
    free = generate(sharp, ["ab", "cd"], max_bytes=30, **GREEDY).texts
    stop = free[0][4:6]
    stopped = generate(sharp, ["ab", "cd"], max_bytes=30, stop=stop, **GREEDY)
    for text, full in zip(stopped.texts, free, strict=True):
        end = full.find(stop)
        assert text == (full if end < 0 else full[: end + len(stop)])
    assert [len(b) for b in stopped.boundaries] == [len(t) for t in stopped.texts]


def test_stream_is_lazy_and_nothing_to_write_is_fine(build):
    steps = stream(build(), "hello", max_bytes=10**9)  # would not come back if it were not lazy
    first = next(steps)
    assert ids_to_bytes(first.byte_ids) != b"" and first.new.tolist() == [True]
    written = generate(build(), "x", max_bytes=0)
    assert written.texts == [b""] and len(written.boundaries[0]) == 0


def test_every_row_of_a_stream_has_max_bytes_new_bytes(sharp):
    """Also rows that go on while a longer prompt is still read."""
    prompts = ["a", "abcdef", "abc"]
    for most in (0, 2, 9):
        texts = [bytearray() for _ in prompts]
        for step in stream(sharp, prompts, max_bytes=most, **GREEDY):
            for text, byte, new in zip(texts, step.byte_ids.tolist(), step.new.tolist(), strict=True):
                text += bytes([byte] * new)
        assert [bytes(text) for text in texts] == generate(sharp, prompts, max_bytes=most, **GREEDY).texts


def test_the_former_name_of_greedy_warns_and_means_the_same(sharp):
    now = generate(sharp, "ab", max_bytes=8, **GREEDY)
    with pytest.warns(DeprecationWarning, match="boundaries='greedy' is greedy=True now") as warned:
        before = generate(sharp, "ab", max_bytes=8, temperature=0.0, boundaries="greedy")
    assert warned[0].filename == __file__
    assert before.texts == now.texts and torch.equal(before.boundaries[0], now.boundaries[0])
    with pytest.warns(DeprecationWarning, match="boundaries='sample' is greedy=False now"):
        stream(sharp, "ab", max_bytes=8, boundaries="sample")
    for write in (stream, generate):
        with pytest.raises(ValueError, match="got boundaries='sample' and greedy=True"):
            write(sharp, "ab", max_bytes=8, boundaries="sample", greedy=True)

"""Laws of all segmenters: causal, streaming = whole, at their rate, rows apart, whatever the text."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from rltok_rl.agents.segmenters import (
    SEGMENTERS,
    BPESegmenter,
    Segmenter,
    Segments,
    SpaceByte,
    make_segmenter,
    read_byte,
    read_window,
    start_reading,
)
from rltok_rl.agents.segmenters.segmenter import check_rate
from rltok_rl.agents.segmenters.tokenizers import split_rows

import rltok_rl.models.mixing
from rltok_rl.diagnostics.segmenter_laws import (
    assert_no_gradient_from_later,
    assert_prefixes_agree,
    fixed_uniforms,
    read_streamed,
)
from rltok_rl.functional.boundary_rules import spacebyte
from rltok_rl.models import UNet

from .definition import CASES, ORACLES, WORDS, Case, build, each, each_causal, texts

WINDOWS = [(1, "padded"), (2, "padded"), (19, "padded"), (19, "packed")]
STRANGE = {
    "equal": torch.full((2, 12), 101),
    "spaces": torch.full((2, 12), 32),
    "zeros": torch.zeros(2, 20, dtype=torch.int64),
    "random": torch.randint(256, (1, 12), generator=torch.Generator().manual_seed(3)).repeat(2, 1),
    "characters": torch.tensor(list("日本語とひらがな".encode()))[None, :12].repeat(2, 1),
}


@each_causal
def test_prefixes_agree(case):
    model, segmenter = build(case)
    assert not segmenter.looks_ahead
    with torch.no_grad():
        assert_prefixes_agree(model, segmenter, texts(2, 11))


@each
def test_no_gradient_comes_from_later_bytes(case):
    assert_no_gradient_from_later(*build(case), texts(2, 11))


@each_causal
@pytest.mark.parametrize(("length", "layout"), WINDOWS)
def test_streaming_is_the_whole_window(case, length, layout):
    model, segmenter = build(case)
    byte_ids = texts(3, length)
    uniforms = fixed_uniforms(byte_ids)
    with torch.no_grad():
        whole = read_window(model, segmenter, byte_ids, uniforms=uniforms, layout=layout)
    boundaries, logits = read_streamed(model, segmenter, byte_ids, uniforms)
    assert torch.equal(boundaries, whole.segments.boundaries)
    torch.testing.assert_close(logits, whole.final_logits, rtol=0, atol=1e-9)
    assert boundaries.dtype == torch.bool and bool(boundaries[:, 0].all())


@each
@pytest.mark.parametrize("kind", list(STRANGE))
def test_strange_texts(case, kind):
    """All-equal bytes, bytes that are no text, characters of three bytes: numbers, and streaming still agrees."""
    model, segmenter = build(case)
    byte_ids = STRANGE[kind]
    uniforms = fixed_uniforms(byte_ids)
    whole = read_window(model, segmenter, byte_ids, uniforms=uniforms)
    own = segmenter.losses(whole.segments, byte_ids, whole.final_logits)
    assert set(own) <= set(segmenter.coefficients)
    (whole.final_logits.logsumexp(-1).mean() + sum(own.values())).backward()
    for name, parameter in [*model.named_parameters(), *segmenter.named_parameters()]:
        assert parameter.grad is None or parameter.grad.isfinite().all(), name
    if not segmenter.looks_ahead:
        assert torch.equal(read_streamed(model, segmenter, byte_ids, uniforms)[0], whole.segments.boundaries)


@each
def test_rows_do_not_see_each_other(case):
    model, segmenter = build(case)
    byte_ids = texts(3, 12)
    uniforms = fixed_uniforms(byte_ids)
    with torch.no_grad():
        together = read_window(model, segmenter, byte_ids, uniforms=uniforms)
        for row in range(3):
            here = slice(row, row + 1)
            alone = read_window(model, segmenter, byte_ids[here], uniforms=uniforms[here])
            assert torch.equal(alone.segments.boundaries, together.segments.boundaries[here])
            torch.testing.assert_close(alone.final_logits, together.final_logits[here], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.tolerance is not None])
def test_reaches_its_target_rate(name):
    """Those that learn are trained on their own rate loss alone, with the text and the model as they are."""
    case = CASES[name]
    model, segmenter = build(case)
    if case.name == "learned":
        model, segmenter = _untouched(case)
    byte_ids = texts(4, 240)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        states = model.encode(byte_ids)
    if case.trained:
        optimizer = torch.optim.Adam(segmenter.parameters(), lr=0.003)
        for _ in range(150):
            segments = segmenter(states, byte_ids, generator=generator)
            loss = sum(segmenter.losses(segments, byte_ids, states).values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        rates = [segmenter(states, byte_ids, generator=generator).boundaries.double().mean() for _ in range(5)]
    assert float(torch.stack(rates).mean()) == pytest.approx(segmenter.target_rate, abs=case.tolerance)


def _untouched(case: Case) -> tuple[UNet, Segmenter]:
    """The learned policy starts at its rate; what trains it is not part of it."""
    from rltok_rl.models import preset

    torch.manual_seed(0)
    model = UNet(preset("tiny", **case.model)).double()
    return model, make_segmenter(case.name, model)


def test_every_word_is_under_the_law():
    assert {case.name for case in CASES.values()} == set(SEGMENTERS)


# Planted leaks: the audits above are worth what they catch.


class Lookahead(SpaceByte):
    """An unshifted rule: a token ends before a space, which only the byte after it shows."""

    def _window(self, states, byte_ids, uniforms):
        return Segments(torch.nn.functional.pad(spacebyte(byte_ids)[:, 1:], (0, 1)))


def test_an_unshifted_rule_is_caught():
    model, _ = build(CASES["spacebyte"])
    with torch.no_grad(), pytest.raises(AssertionError, match="boundaries before byte .* depend on what comes after"):
        assert_prefixes_agree(model, Lookahead(), texts(2, 16))


@pytest.mark.parametrize("name", ["uniform", "gumbel", "hnet", "hnet, two stages"])
def test_an_upsample_one_token_early_is_caught(name, monkeypatch):
    def leaky(states, updates, layout):
        coming = torch.minimum(layout.token_index + 1, layout.token_index[:, -1:])
        return states + updates.reshape(-1, states.shape[-1])[coming]

    monkeypatch.setattr(rltok_rl.models.mixing, "upsample", leaky)
    model, segmenter = build(CASES[name])
    with torch.no_grad(), pytest.raises(AssertionError, match="predictions before byte"):
        assert_prefixes_agree(model, segmenter, texts(2, 11))
    with pytest.raises(AssertionError, match="has a gradient from later bytes"):
        assert_no_gradient_from_later(model, segmenter, texts(2, 11))


class GradientLeak(Segmenter):
    """Weights that are 1 whatever the text, and carry a gradient of the bytes to come all the same."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    @property
    def draws_at_random(self):
        return True

    def _window(self, states, byte_ids, uniforms):
        segments = self.inner(states, byte_ids, uniforms=uniforms)
        later = states.sum((1, 2))[:, None].expand_as(byte_ids)
        leaky = segments.mixing.receive * (1 + later - later.detach())
        return replace(segments, mixing=replace(segments.mixing, receive=leaky))


def test_a_leak_that_only_the_gradient_shows_is_caught():
    model, segmenter = build(CASES["hnet"])
    assert_no_gradient_from_later(model, segmenter, texts(2, 11))
    with pytest.raises(AssertionError, match="has a gradient from later bytes"):
        assert_no_gradient_from_later(model, GradientLeak(segmenter), texts(2, 16))


@pytest.mark.parametrize("name", ORACLES)
def test_an_oracle_is_marked_and_the_audit_shows_its_leak(name):
    model, segmenter = build(CASES[name])
    assert segmenter.looks_ahead
    byte_ids = torch.tensor([list(WORDS.encode())[:40]])
    with torch.no_grad(), pytest.raises(AssertionError, match="depend on what comes after it"):
        assert_prefixes_agree(model, segmenter, byte_ids)


@pytest.mark.parametrize("name", ORACLES)
def test_an_oracle_reads_windows_of_any_length(name):
    model, segmenter = build(CASES[name])
    for length in [1, 2, 19]:
        byte_ids = texts(2, length)
        padded, packed = (read_window(model, segmenter, byte_ids, layout=layout) for layout in ("padded", "packed"))
        assert padded.segments.boundaries.dtype == torch.bool and bool(padded.segments.boundaries[:, 0].all())
        torch.testing.assert_close(padded.final_logits, packed.final_logits, rtol=0, atol=1e-9)


class SpacedPieces(BPESegmenter):
    """A tokenizer whose pieces begin with their space: shifted, its boundaries are known in time."""

    looks_ahead = False

    def __init__(self):
        super().__init__(lambda text: [len(piece) for piece in re.findall(rb" ?[^ ]+| ", text)])


class UnshiftedPieces(SpacedPieces):
    """Boundaries at the last bytes of its pieces instead."""

    def _window(self, states, byte_ids, uniforms):
        starts = split_rows(self.split, byte_ids)
        return Segments(torch.nn.functional.pad(starts[:, 1:], (0, 1), value=True))


def test_unshifted_pieces_are_caught():
    model, _ = build(CASES["bpe"])
    byte_ids = torch.tensor([list(b"to be, or not to")])
    with torch.no_grad():
        assert_prefixes_agree(model, SpacedPieces(), byte_ids)
        with pytest.raises(AssertionError, match="boundaries before byte .* depend on what comes after"):
            assert_prefixes_agree(model, UnshiftedPieces(), byte_ids)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("uniform", {"rate": 0.25}, 24),
        ("uniform", {"rate": 0.3}, 29),
        ("random", {"rate": 0.25, "block": 96}, 24),
        ("random", {"rate": 0.3, "block": 24}, 4 * 8),
        ("stride", {"stride": 7}, 14),
        ("grouped", {"rate": 0.25, "block": 96}, 24),
        ("grouped", {"rate": 0.3, "block": 24}, 4 * 8),
    ],
)
def test_exact_counts(name, options, expected):
    """There are k = ceil(r n) in each block of n bytes, in every row, whatever the weights and the random numbers."""
    model, segmenter = build(Case(name, options))
    byte_ids = texts(6, 96)
    for uniforms in (fixed_uniforms(byte_ids), torch.zeros(6, 96), torch.full((6, 96), 1 - 2**-24)):
        counts = segmenter(model.encode(byte_ids), byte_ids, uniforms=uniforms).boundaries.sum(1)
        assert counts.tolist() == [expected] * 6


def test_what_looks_ahead_is_not_streamed():
    model, segmenter = build(CASES["spacebyte"])
    segmenter.looks_ahead = True
    with pytest.raises(ValueError, match="segmenter must not look ahead to be streamed, got SpaceByte"):
        read_byte(model, segmenter, start_reading(model, segmenter, 1), torch.zeros(1, dtype=torch.int64))


def test_misuse_is_said_by_name():
    model, segmenter = build(CASES["random"])
    with pytest.raises(ValueError, match="name must be one of .*, got 'bytes'"):
        make_segmenter("bytes", model)
    with pytest.raises(ValueError, match=r"options of segmenter 'stride' must be among \['stride'\], got \['rate'\]"):
        make_segmenter("stride", model, rate=0.2)
    with pytest.raises(ValueError, match=r"states \[B, T, D\] and byte_ids \[B, T\] must agree"):
        segmenter(torch.zeros(2, 3, 4), torch.zeros(2, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match="uniforms must have the shape of byte_ids"):
        segmenter(torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64), uniforms=torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"rate must lie in \(0, 1\], got 0.0"):
        check_rate(0.0)

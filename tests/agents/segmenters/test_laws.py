"""Laws of all segmenters: causal, equal in windows and steps, at their rate, rows separate, for any text."""

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
    encode_and_draw,
    make_segmenter,
    read_byte,
    read_window,
    start_reading,
)
from rltok_rl.agents.segmenters.tokenizers import split_rows

import rltok_rl.models.mixing
from rltok_rl.diagnostics.segmenter_laws import SEGMENTER_LAWS, fixed_uniforms, read_streamed
from rltok_rl.functional.boundary_rules import spacebyte
from rltok_rl.models import UNet, preset

from .definition import CASES, CAUSAL, ORACLES, WORDS, Case, assert_for_all, build, texts

APPENDIX_C = {
    "pooling": "attention",
    "upsampling": "attention",
    "smoothing": "straight_through",
    "ngram_sizes": (2, 5),
    "ngram_buckets": 40,
    "window": 4,
}
STRANGE = {
    "equal": torch.full((2, 12), 101),
    "spaces": torch.full((2, 12), 32),
    "random": torch.randint(256, (1, 12), generator=torch.Generator().manual_seed(3)).repeat(2, 1),
    "characters": torch.tensor(list("日本語とひらがな".encode()))[None, :12].repeat(2, 1),
}


def test_every_name_is_tested():
    assert {case.name for case in CASES.values()} == set(SEGMENTERS)


@pytest.mark.parametrize("law", SEGMENTER_LAWS)
def test_law(law):
    def check(case: Case) -> None:
        SEGMENTER_LAWS[law](*build(case), texts(2, 8 if law == "gradients" else 11))

    assert_for_all(CAUSAL if law in ("prefixes", "steps") else CASES, check)


def test_law_for_models_with_the_options_of_appendix_c():
    def check(case: Case) -> None:
        model, segmenter = build(case, **APPENDIX_C)
        SEGMENTER_LAWS["steps"](model, segmenter, texts(2, 13))
        SEGMENTER_LAWS["prefixes"](model, segmenter, texts(2, 6))
        if case in (CASES["learned"], CASES["spacebyte, once"], CASES["gumbel"], CASES["hnet"]):
            SEGMENTER_LAWS["gradients"](model, segmenter, texts(2, 7))

    assert_for_all(CAUSAL, check)


def test_windows_of_any_length_and_layout_equal_steps():
    def check(case: Case) -> None:
        for overrides, length in (({}, 1), ({}, 2), ({}, 19), (APPENDIX_C, 19)):
            model, segmenter = build(case, **overrides)
            byte_ids = texts(2, length)
            uniforms = fixed_uniforms(byte_ids)
            with torch.no_grad():
                padded, packed = (
                    read_window(model, segmenter, byte_ids, uniforms=uniforms, layout=layout)
                    for layout in ("padded", "packed")
                )
            boundaries = padded.segments.boundaries
            assert boundaries.dtype == torch.bool and bool(boundaries[:, 0].all())
            torch.testing.assert_close(padded.final_logits, packed.final_logits, rtol=0, atol=1e-9)
            if not (segmenter.looks_ahead or overrides):
                streamed, logits = read_streamed(model, segmenter, byte_ids, uniforms)
                assert torch.equal(streamed, boundaries)
                torch.testing.assert_close(logits, padded.final_logits, rtol=0, atol=1e-9)

    assert_for_all(CASES, check)


def test_strange_texts():
    """Equal bytes, bytes that are not UTF-8, characters of three bytes: finite gradients, and steps equal windows."""

    def check(case: Case) -> None:
        model, segmenter = build(case)
        for byte_ids in STRANGE.values():
            uniforms = fixed_uniforms(byte_ids)
            whole = read_window(model, segmenter, byte_ids, uniforms=uniforms)
            losses = segmenter.losses(whole.segments, byte_ids, whole.final_logits)
            assert set(losses) <= set(segmenter.coefficients)
            (whole.final_logits.logsumexp(-1).mean() + sum(losses.values())).backward()
            for name, parameter in [*model.named_parameters(), *segmenter.named_parameters()]:
                assert parameter.grad is None or parameter.grad.isfinite().all(), name
            if not segmenter.looks_ahead:
                assert torch.equal(read_streamed(model, segmenter, byte_ids, uniforms)[0], whole.segments.boundaries)

    assert_for_all(CASES, check)


def test_target_rates_are_reached():
    """Segmenters that learn are trained on their rate loss alone."""

    def check(case: Case) -> None:
        model, segmenter = build(case)
        if case.name == "learned":  # starts at its rate, and is not trained by a loss of its own
            torch.manual_seed(0)
            model = UNet(preset("tiny", **case.model)).double()
            segmenter = make_segmenter(case.name, model)
        byte_ids = texts(4, 240)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            states = encode_and_draw(model, segmenter, byte_ids, generator=generator)[0]
        if case.trained:
            optimizer = torch.optim.Adam(segmenter.parameters(), lr=0.01)
            for _ in range(60):
                segments = segmenter(states, byte_ids, generator=generator)
                optimizer.zero_grad()
                sum(segmenter.losses(segments, byte_ids, states).values()).backward()
                optimizer.step()
        with torch.no_grad():
            rates = [segmenter(states, byte_ids, generator=generator).boundaries.double().mean() for _ in range(5)]
        assert float(torch.stack(rates).mean()) == pytest.approx(segmenter.target_rate, abs=case.tolerance)

    assert_for_all({name: case for name, case in CASES.items() if case.tolerance is not None}, check)


def test_exact_counts():
    """There are k = ceil(r n) in each block of n bytes, in every row, for any weights and random numbers."""
    for name, options, expected in [
        ("uniform", {"rate": 0.25}, 24),
        ("uniform", {"rate": 0.3}, 29),
        ("random", {"rate": 0.25, "block": 96}, 24),
        ("random", {"rate": 0.3, "block": 24}, 4 * 8),
        ("stride", {"stride": 7}, 14),
        ("grouped", {"rate": 0.25, "block": 96}, 24),
        ("grouped", {"rate": 0.3, "block": 24}, 4 * 8),
    ]:
        model, segmenter = build(Case(name, options))
        byte_ids = texts(6, 96)
        for uniforms in (fixed_uniforms(byte_ids), torch.zeros(6, 96), torch.full((6, 96), 1 - 2**-24)):
            counts = segmenter(model.encode(byte_ids), byte_ids, uniforms=uniforms).boundaries.sum(1)
            assert counts.tolist() == [expected] * 6, (name, options)


def test_smoothing_uses_the_segmenters_probabilities():
    """Boundaries of a rule are certain and are not smoothed; those of the learned policy are, by its logits."""
    for name, changes in (("uniform", False), ("whitespace", False), ("learned", True), ("hnet", False)):
        predicted = []
        for smoothing in ("none", "detached"):
            model, segmenter = build(CAUSAL[name], smoothing=smoothing)
            byte_ids = texts(2, 19)
            with torch.no_grad():
                out = read_window(model, segmenter, byte_ids, uniforms=fixed_uniforms(byte_ids))
            predicted.append(out.final_logits)
        assert torch.equal(*predicted) != changes, name


def test_rounding_needs_no_random_numbers():
    for name in ("gumbel", "magnet", "grouped"):
        model, segmenter = build(Case(name, {"evaluation": "round"}))
        byte_ids = texts(2, 20)
        assert segmenter.draws_at_random and not segmenter.eval().draws_at_random
        segments = segmenter(model.encode(byte_ids), byte_ids)
        assert torch.equal(segments.boundaries[:, 1:], segments.logits[:, 1:] > 0), name


# Planted leaks: the laws must find them.


class Lookahead(SpaceByte):
    """An unshifted rule: a token ends before a space, which only the next byte shows."""

    def _window(self, states, byte_ids, uniforms):
        return Segments(torch.nn.functional.pad(spacebyte(byte_ids)[:, 1:], (0, 1)))


class SpacedPieces(BPESegmenter):
    """A tokenizer whose tokens begin with their space: shifted, its boundaries are causal."""

    looks_ahead = False

    def __init__(self):
        super().__init__(lambda text: [len(piece) for piece in re.findall(rb" ?[^ ]+| ", text)])


class UnshiftedPieces(SpacedPieces):
    """Boundaries at the last bytes of its tokens."""

    def _window(self, states, byte_ids, uniforms):
        starts = split_rows(self.split, byte_ids)
        return Segments(torch.nn.functional.pad(starts[:, 1:], (0, 1), value=True))


class GradientLeak(Segmenter):
    """Weights that are 1 in value and carry a gradient from later bytes."""

    evaluation = "sample"

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def _window(self, states, byte_ids, uniforms):
        segments = self.inner(states, byte_ids, uniforms=uniforms)
        later = states.sum((1, 2))[:, None].expand_as(byte_ids)
        leaky = segments.mixing.receive * (1 + later - later.detach())
        return replace(segments, mixing=replace(segments.mixing, receive=leaky))


def test_boundaries_that_depend_on_later_bytes_are_found():
    model, _ = build(CASES["spacebyte"])
    words, spaced = torch.tensor([list(WORDS.encode())[:40]]), torch.tensor([list(b"to be, or not to")])
    SEGMENTER_LAWS["prefixes"](model, SpacedPieces(), spaced)
    leaks = [(Lookahead(), texts(2, 16)), (UnshiftedPieces(), spaced)]
    for name in ORACLES:
        leaks.append((build(CASES[name])[1], words))
        assert leaks[-1][0].looks_ahead
    for segmenter, byte_ids in leaks:
        with pytest.raises(AssertionError, match="boundaries before byte .* depend on what comes after"):
            SEGMENTER_LAWS["prefixes"](model, segmenter, byte_ids)


@pytest.mark.parametrize("name", ["uniform", "gumbel", "hnet", "hnet, two stages"])
def test_an_upsample_one_token_early_is_found(name, monkeypatch):
    def leaky(states, updates, layout):
        coming = torch.minimum(layout.token_index + 1, layout.token_index[:, -1:])
        return states + updates.reshape(-1, states.shape[-1])[coming]

    monkeypatch.setattr(rltok_rl.models.mixing, "upsample", leaky)
    for law, message in (("prefixes", "predictions before byte"), ("gradients", "has a gradient from later bytes")):
        with pytest.raises(AssertionError, match=message):
            SEGMENTER_LAWS[law](*build(CASES[name]), texts(2, 11))


def test_a_leak_of_the_gradient_alone_is_found():
    model, segmenter = build(CASES["hnet"])
    with pytest.raises(AssertionError, match="has a gradient from later bytes"):
        SEGMENTER_LAWS["gradients"](model, GradientLeak(segmenter), texts(2, 16))


def test_refusals():
    model, segmenter = build(CASES["random"])
    oracle = build(CASES["spacebyte"])[1]
    oracle.looks_ahead = True
    states, bytes_ = torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64)
    for name, options, words in [
        ("bytes", {}, "name must be one of .*, got 'bytes'"),
        ("stride", {"rate": 0.2}, r"options of segmenter 'stride' must be among \['stride'\], got \['rate'\]"),
        ("random", {"rate": 0.0}, r"rate must lie in \(0, 1\], got 0.0"),
        ("magnet", {"rates": {"greek": 0.2}}, r"one of .*, got \['greek'\]"),
        ("magnet", {"rates": {"latin": 1.5}}, "target must lie strictly between 0 and 1"),
        ("magnet", {"evaluation": "greedy"}, "evaluation must be one of"),
        ("grouped", {"group_size": 1}, "group_size must be an integer of at least 2, got 1"),
        ("grouped", {"advantage": "best"}, r"advantage must be one of \['centred', .*'best'"),
        ("entropy-monotonic", {"threshold_add": 0.1}, "threshold_add belongs to rule 'global', got 0.1"),
        ("entropy-monotonic", {"fidelity": "released"}, "fidelity belongs to the rule with threshold_add, got 'rel"),
        ("entropy-threshold", {"fidelity": "code"}, r"fidelity must be one of \['paper', 'released'\], got 'code'"),
    ]:
        with pytest.raises(ValueError, match=words):
            make_segmenter(name, model, **options)
    scoped = UNet(preset("tiny", byte_scope="token"))
    for name in ("learned", "gumbel", "hnet", "magnet", "grouped", "entropy-spike"):
        words = f"decide from bytes alone with byte_scope='token', .* got '{name}', which reads encoder states"
        with pytest.raises(ValueError, match=words):
            make_segmenter(name, scoped)
    for call, words in [
        (lambda: segmenter(states, bytes_[:, :2]), r"states \[B, T, D\] and byte_ids \[B, T\] must agree"),
        (lambda: segmenter(states, bytes_, uniforms=torch.zeros(2, 2)), "uniforms must have the shape of byte_ids"),
        (
            lambda: read_byte(model, oracle, start_reading(model, oracle, 1), bytes_[0, :1]),
            "segmenter must not look ahead to be streamed, got SpaceByte",
        ),
    ]:
        with pytest.raises(ValueError, match=words):
            call()

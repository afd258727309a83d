"""Segmenters on models with the options of Appendix C: still causal, and streaming is still the whole window."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.agents.segmenters import read_window

from rltok_rl.diagnostics.segmenter_laws import (
    assert_no_gradient_from_later,
    assert_prefixes_agree,
    fixed_uniforms,
    read_streamed,
)

from .definition import CAUSAL, build, each_causal, texts

OPTIONS = {
    "pooling": "attention",
    "upsampling": "attention",
    "smoothing": "straight_through",
    "ngram_sizes": (2, 5),
    "ngram_buckets": 40,
    "window": 4,
}


@each_causal
def test_streaming_is_the_whole_window(case):
    model, segmenter = build(case, **OPTIONS)
    byte_ids = texts(3, 19)
    uniforms = fixed_uniforms(byte_ids)
    boundaries, logits = read_streamed(model, segmenter, byte_ids, uniforms)
    for layout in ("padded", "packed"):
        with torch.no_grad():
            whole = read_window(model, segmenter, byte_ids, uniforms=uniforms, layout=layout)
        assert torch.equal(boundaries, whole.segments.boundaries)
        torch.testing.assert_close(logits, whole.final_logits, rtol=0, atol=1e-9)


@each_causal
def test_prefixes_agree(case):
    with torch.no_grad():
        assert_prefixes_agree(*build(case, **OPTIONS), texts(2, 9))


@pytest.mark.parametrize("name", ["learned", "spacebyte, once", "gumbel", "hnet"])
def test_no_gradient_comes_from_later_bytes(name):
    assert_no_gradient_from_later(*build(CAUSAL[name], **OPTIONS), texts(2, 11))


def test_probabilities_are_the_segmenters_own():
    """Boundaries of a rule are certain and are not smoothed; those of the learned policy are, by its logits."""
    for name, changes in (("uniform", False), ("whitespace", False), ("learned", True), ("hnet", False)):
        predicted = []
        for smoothing in ("none", "detached"):
            model, segmenter = build(CAUSAL[name], smoothing=smoothing)
            byte_ids = texts(2, 19)
            with torch.no_grad():
                predicted.append(
                    read_window(model, segmenter, byte_ids, uniforms=fixed_uniforms(byte_ids)).final_logits
                )
        assert torch.equal(*predicted) != changes, name

"""Source of a custom segmenter, for tests that write modules of their own."""

from __future__ import annotations

EVERY = """
import torch
from rltok_rl.agents.segmenters import Segmenter, Segments

class Every(Segmenter):
    def __init__(self, model, every=3, rate=None):
        super().__init__()
        self.every = every

    def _window(self, states, byte_ids, uniforms):
        return Segments(torch.arange(byte_ids.shape[1]).expand_as(byte_ids) % self.every == 0)

    def _step(self, states, byte_ids, state, uniforms):
        return Segments(state["position"] % self.every == 0), {}
"""
"""A boundary at every ``every``-th byte."""

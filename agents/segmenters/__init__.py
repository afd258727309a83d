"""Every way to draw token boundaries behind one interface; see docs/segmenters.md."""

from __future__ import annotations

from rltok_rl.agents.segmenters.base import Segmenter, Segments, State
from rltok_rl.agents.segmenters.bpe import BPESegmenter, TokenizerSplit, starts_of_pieces, train_bpe
from rltok_rl.agents.segmenters.entropy import EntropySpike, EntropyThreshold, calibrate
from rltok_rl.agents.segmenters.fixed import ActorSegmenter, ExactRandom, SpaceByte
from rltok_rl.agents.segmenters.gumbel import GumbelSegmenter, TrainedSpike
from rltok_rl.agents.segmenters.hnet import HNetSegmenter
from rltok_rl.agents.segmenters.predictors import EarlyExit, OwnModel, Predictor
from rltok_rl.agents.segmenters.reading import (
    ByteReading,
    Reader,
    SegmentedOutput,
    read_byte,
    read_window,
    start_reading,
)
from rltok_rl.agents.segmenters.registry import SEGMENTERS, make_segmenter
from rltok_rl.agents.segmenters.stages import stage_groups

__all__ = [
    "SEGMENTERS",
    "ActorSegmenter",
    "BPESegmenter",
    "ByteReading",
    "EarlyExit",
    "EntropySpike",
    "EntropyThreshold",
    "ExactRandom",
    "GumbelSegmenter",
    "HNetSegmenter",
    "OwnModel",
    "Predictor",
    "Reader",
    "SegmentedOutput",
    "Segmenter",
    "Segments",
    "SpaceByte",
    "State",
    "TokenizerSplit",
    "TrainedSpike",
    "calibrate",
    "make_segmenter",
    "read_byte",
    "read_window",
    "stage_groups",
    "start_reading",
    "starts_of_pieces",
    "train_bpe",
]

"""Every way to draw token boundaries behind one interface; see docs/segmenters.md."""

from __future__ import annotations

from rltok_rl.agents.segmenters.entropy import (
    EarlyExit,
    EntropyCombined,
    EntropyCombinedReleased,
    EntropySpike,
    EntropyThreshold,
    OwnModel,
    Predictor,
    calibrate,
)
from rltok_rl.agents.segmenters.forward import (
    ByteReading,
    Reader,
    SegmentedOutput,
    read_byte,
    read_window,
    segment_text,
    segment_text_parts,
    segments_mixing,
    start_reading,
    write_on,
)
from rltok_rl.agents.segmenters.grouped import GroupedSegmenter
from rltok_rl.agents.segmenters.gumbel import GumbelSegmenter, TrainedSpike
from rltok_rl.agents.segmenters.hnet import HNetSegmenter, split_stages
from rltok_rl.agents.segmenters.magnet import MagnetSegmenter
from rltok_rl.agents.segmenters.registry import SEGMENTERS, make_segmenter, segmenter_maker
from rltok_rl.agents.segmenters.rule_based import ActorSegmenter, ExactRandom, SpaceByte
from rltok_rl.agents.segmenters.saved import load_own_state, load_segmenter, own_parameters, own_state, save_segmenter
from rltok_rl.agents.segmenters.segmenter import (
    Segmenter,
    SegmenterActor,
    Segments,
    State,
    draw_from_bytes,
    encode_and_draw,
)
from rltok_rl.agents.segmenters.tokenizers import (
    BPESegmenter,
    TokenizerSplit,
    TrainedPieces,
    UnigramSegmenter,
    WordSplit,
    starts_of_pieces,
    train_bpe,
    train_unigram,
)

__all__ = [
    "SEGMENTERS",
    "ActorSegmenter",
    "BPESegmenter",
    "ByteReading",
    "EarlyExit",
    "EntropyCombined",
    "EntropyCombinedReleased",
    "EntropySpike",
    "EntropyThreshold",
    "ExactRandom",
    "GroupedSegmenter",
    "GumbelSegmenter",
    "HNetSegmenter",
    "MagnetSegmenter",
    "OwnModel",
    "Predictor",
    "Reader",
    "SegmentedOutput",
    "Segmenter",
    "SegmenterActor",
    "Segments",
    "SpaceByte",
    "State",
    "TokenizerSplit",
    "TrainedPieces",
    "TrainedSpike",
    "UnigramSegmenter",
    "WordSplit",
    "calibrate",
    "draw_from_bytes",
    "encode_and_draw",
    "load_own_state",
    "load_segmenter",
    "make_segmenter",
    "own_parameters",
    "own_state",
    "read_byte",
    "read_window",
    "save_segmenter",
    "segment_text",
    "segment_text_parts",
    "segmenter_maker",
    "segments_mixing",
    "split_stages",
    "start_reading",
    "starts_of_pieces",
    "train_bpe",
    "train_unigram",
    "write_on",
]

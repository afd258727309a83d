"""Train a run's tokenizer: BPE or unigram, for a vocabulary size or a rate."""

from __future__ import annotations

import torch
from rltok_rl.agents.segmenters import TokenizerSplit
from rltok_rl.agents.segmenters.tokenizer_training import train_on
from rltok_rl.experiments.config import TrainConfig
from rltok_rl.experiments.texts import Texts

from rltok_rl.data.windows import WindowSource, WindowWrapper
from rltok_rl.models import UNet
from rltok_rl.text import ids_to_bytes

TRAINED_WITH = ("vocabulary", "num_bytes", "rate")
"""Options of a segmenter that say how its tokenizer is trained."""


def train_tokenizer(config: TrainConfig, model: UNet, texts: Texts) -> TokenizerSplit:
    """Train the run's tokenizer on windows of its training text.

    `bpe` uses the given vocabulary size, else the size that reaches the given rate (default: the model's). `unigram`
    has 5,000 pieces by default.
    """
    name, length = config.segmenter.name, config.data.num_steps + 1
    options = {key: value for key, value in config.segmenter.options.items() if value is not None}
    count = max(1, int(options.get("num_bytes", 2_000_000)) // length)
    windows = _training_windows(texts.train, count, length, seed=config.seed)
    vocabulary, rate = options.get("vocabulary"), options.get("rate")
    if name == "unigram" and rate is not None:
        vocabulary = None
    elif vocabulary is None and rate is None:
        vocabulary, rate = (5000, None) if name == "unigram" else (None, model.config.target_rate)
    return train_on(name, windows, length=length, vocabulary=vocabulary, rate=rate)


def _training_windows(source: WindowSource, count: int, length: int, *, seed: int) -> list[bytes]:
    """Draw windows with a separate generator, so that the windows of training stay the same."""
    while isinstance(source, WindowWrapper):  # an order has a state, which belongs to training
        source = source.source
    drawn = source.draw(count, length, torch.Generator().manual_seed(seed))
    return [ids_to_bytes(row[:size]) for row, size in zip(drawn.byte_ids, drawn.lengths.tolist(), strict=True)]

"""Tokenizers that are trained when a run begins: BPE and unigram pieces, of a vocabulary or at a rate."""

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
    """The tokenizer of a training, from windows of its training text.

    ``bpe`` has the vocabulary that it is told, or one at the rate that it is told, or at the model's. ``unigram`` has
    5,000 pieces unless it is told either.

    Args:
        config: of the training; its segmenter is ``bpe`` or ``unigram``.
        model: the U-Net.
        texts: whose training side is trained on.
    """
    options = {k: v for k, v in config.segmenter.options.items() if k in TRAINED_WITH and v is not None}
    length = config.data.num_steps + 1
    count = max(1, int(options.get("num_bytes", 2_000_000)) // length)
    windows = training_windows(texts.train, count, length, seed=config.seed)
    name = config.segmenter.name
    vocabulary, rate = options.get("vocabulary"), options.get("rate")
    if name == "unigram" and rate is not None:
        vocabulary = None
    elif vocabulary is None and rate is None:
        vocabulary, rate = (5000, None) if name == "unigram" else (None, model.config.target_rate)
    return train_on(name, windows, length=length, vocabulary=vocabulary, rate=rate)


def training_windows(source: WindowSource, count: int, length: int, *, seed: int) -> list[bytes]:
    """Windows of training text, drawn with random numbers of their own: what is trained on does not change.

    Args:
        source: of the training.
        count: how many.
        length: bytes of each.
        seed: of the random numbers.
    """
    while isinstance(source, WindowWrapper):  # an order has a state, which is the training's
        source = source.source
    drawn = source.draw(count, length, torch.Generator().manual_seed(seed))
    return [ids_to_bytes(row[:size]) for row, size in zip(drawn.byte_ids, drawn.lengths.tolist(), strict=True)]

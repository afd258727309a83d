"""The paper's models by name, and three small ones for a CPU.

``paper-*`` are the columns of Table 2; ``released-*`` are further sizes of the authors' released configurations.
The number in a name counts what a model holds: the embedding (256 bytes and 64 special ids), all layers, both
next-byte heads and the boundary projection. The layers alone are ``7 D^2`` per byte layer and ``16 D^2`` per token
layer.
"""

from __future__ import annotations

from typing import Any

from rltok_rl.models.config import UNetConfig
from rltok_rl.utils import did_you_mean

# Gemma 2's soft caps, and the 64 special ids of the byte tokenizer that the authors used (vocabulary 320).
_PAPER: dict[str, Any] = {"num_special": 64, "attention_cap": 50.0, "final_cap": 30.0}


def _paper(width: int, encoder: int, token: int, decoder: int, rate: float = 0.2) -> dict[str, Any]:
    return {
        **_PAPER,
        "width": width,
        "num_heads": width // 64,
        "num_encoder_layers": encoder,
        "num_token_layers": token,
        "num_decoder_layers": decoder,
        "target_rate": rate,
    }


PRESETS: dict[str, dict[str, Any]] = {
    "paper-147m": _paper(768, 4, 12, 4),
    "paper-90m": _paper(768, 4, 6, 4),
    "paper-20m": _paper(512, 4, 2, 4, rate=1 / 2),  # Table 2, right: n token layers at rate 1/n
    "paper-30m": _paper(512, 4, 4, 4, rate=1 / 4),
    "paper-40m": _paper(512, 4, 6, 4, rate=1 / 6),
    "released-18m": _paper(384, 2, 6, 2),
    "released-32m": _paper(512, 2, 6, 2),
    "released-73m": _paper(768, 2, 6, 2),
    "released-130m": _paper(768, 2, 12, 2),
    "small": {
        "width": 256,
        "num_heads": 4,
        "num_encoder_layers": 2,
        "num_token_layers": 4,
        "num_decoder_layers": 2,
    },
    "pocket": {  # of the model that comes with the package
        "width": 192,
        "num_heads": 3,
        "num_encoder_layers": 1,
        "num_token_layers": 3,
        "num_decoder_layers": 1,
        "window": 16,
    },
    "tiny": {
        "width": 64,
        "num_heads": 2,
        "num_encoder_layers": 1,
        "num_token_layers": 1,
        "num_decoder_layers": 1,
        "window": 16,
    },
}
"""Sizes by name: the paper's, those of its released code, and small ones."""


def preset(name: str, **overrides: Any) -> UNetConfig:
    """Return a named configuration, with any field replaced.

    Args:
        name: a key of ``PRESETS``.
        **overrides: fields of :class:`UNetConfig` to change.

    Returns:
        The configuration.

    Example:
        >>> preset("tiny", num_lags=1).num_lags
        1
    """
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; allowed are {sorted(PRESETS)}{did_you_mean(name, PRESETS)}")
    return UNetConfig.from_dict({**PRESETS[name], **overrides})

"""U-Net configurations: every size and option with its default, and the paper's models by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any, Literal

from rltok_rl.ranges import check_fields, check_number, option
from rltok_rl.utils import did_you_mean

NUM_BYTES = 256
BEGIN_OF_TEXT = 256
"""Id of the begin-of-text mark."""
Pooling = Literal["select", "mean", "attention"]
Upsampling = Literal["add", "deviation", "attention"]
ByteScope = Literal["window", "token"]
Smoothing = Literal["none", "detached", "gradient", "straight_through"]


@dataclass(frozen=True, kw_only=True)
class UNetConfig:
    """Sizes and options of a byte-level autoregressive U-Net (Section 2.2 and Appendix D).

    Byte layers (encoder and decoder) see a sliding window and have an MLP of width ``byte_mlp_ratio * width``; token
    layers see every earlier token and have an MLP of width ``token_mlp_ratio * width``.
    """

    width: int = option(MISSING, "[1, 1e6]")
    """D, of bytes, and of tokens without ``token_width`` (the paper's embedding_dim)."""
    num_heads: int = option(MISSING, "[1, 1e6]")
    """Attention heads of every layer; must divide ``width`` into an even head size."""
    num_encoder_layers: int = option(MISSING, "[0, 1000]")
    """Byte layers below the tokens (n_down_layers)."""
    num_token_layers: int = option(MISSING, "[1, 1000]")
    """Token layers (n_mid_layers)."""
    num_decoder_layers: int = option(MISSING, "[0, 1000]")
    """Byte layers above the tokens (n_up_layers)."""
    window: int = option(64, "[1, inf)", "bytes")
    """Bytes that a byte layer sees, the current one included.  # Appendix D"""
    byte_scope: ByteScope = "window"
    """Byte layers see their whole window, or the bytes of their own token in it; boundaries then come first (HAT)."""
    byte_mlp_ratio: int = option(1, "[1, 1000]")
    """MLP width of a byte layer in units of ``width``.  # Appendix D"""
    token_mlp_ratio: int = option(4, "[1, 1000]")
    """MLP width of a token layer in units of its own width.  # Appendix D"""
    token_width: int | None = option(None, "[1, 1e6]")
    """Width of the token layers, at least ``width``: a learned vector extends tokens. None is ``width``.  # H-Net"""
    token_heads: int | None = option(None, "[1, 1e6]")
    """Attention heads of the token layers with ``token_width``; None is ``num_heads``."""
    num_special: int = option(0, "[0, 1e6]")
    """Input ids 256, 257, ... in addition to the bytes (a begin-of-text mark, say): read, never predicted."""
    begin_of_text: bool = False
    """Read the mark, id 256, before the first byte of every text or window, as the released code does. The mark has the
    forced boundary, and the first byte is predicted. Needs ``num_special`` of at least 1."""
    num_lags: int = option(8, "[0, 10_000]", "bytes")
    """w, the number of earlier boundaries that the policy sees.  # Section 2.5"""
    target_rate: float = option(0.2, "(0, 1)")
    """Boundaries per byte of a fresh policy.  # Table 2"""
    rate_embedding: bool = False
    """Condition bytes and policy on a target rate, which may differ between rows."""
    boundary_scale: float = option(1 / 16, "(0, 1e4]")
    """Factor on the raw boundary logit.  # Eq. 22, D = 16"""
    boundary_init: float = option(1.0, "[0, 1e4]")
    """Factor on the initial weights of the boundary head; a small one makes a fresh policy draw ``target_rate``
    everywhere, as a small ``boundary_scale`` does."""
    boundary_cap: float | None = option(6.0, "[1e-3, 1e6]")
    """Soft cap of the boundary logit in training; None disables it.  # Eq. 23; 6 is the released value"""
    boundary_bias: bool = False
    """Learned bias of all 1 + w columns of the boundary projection, 0 at first. Eq. 21 has none; the released code has
    it."""
    head_bias: bool = False
    """Learned biases of both byte heads, 0 at first, as in the released code."""
    encoder_norm: bool = True
    """Normalise X for the policy and the early exit. Eq. 14, Eq. 21 and the released code do not."""
    attention_cap: float | None = option(None, "[1e-3, 1e6]")
    """Soft cap of attention scores (Gemma 2 uses 50). Fused attention kernels do not support it."""
    final_cap: float | None = option(30.0, "[1e-3, 1e6]")
    """Soft cap of next-byte logits, both heads (Gemma 2 uses 30)."""
    pooling: Pooling = "select"
    """Pool a token from its boundary byte alone (Eq. 7), by the mean over its bytes, or by attention to its bytes."""
    upsampling: Upsampling = "add"
    """Give bytes the token output (Eq. 9), the change that token layers made, or attention to the last tokens."""
    tokens_read: int = option(2, "[1, inf)", "tokens")
    """Tokens that a byte attends to with ``upsampling="attention"``, its current token included."""
    smoothing: Smoothing = "none"
    """Mix a token with earlier tokens by its boundary probability, without or with a gradient to the policy."""
    ngram_sizes: tuple[int, ...] = ()
    """Sizes n of hashed byte n-grams whose embeddings are added to those of bytes. BLT: 3 to 8."""
    ngram_buckets: int = option(16_384, "[1, 1e9]", "rows")
    """Rows of each table of n-grams. BLT: 500 000."""
    ngram_scale: Literal["mean", "sum"] = "mean"
    """Average the embeddings (BLT's paper) or add them (its code)."""
    second_level: Literal["stride", "routing"] | None = None
    """Tokens of tokens between the token layers: every 1/rate tokens, or where neighbouring states differ."""
    second_rate: float = option(1 / 3, "(0, inf)")
    """Tokens of tokens per token: exact for ``stride``, the target of the loss for ``routing``."""
    num_second_layers: int = option(1, "[1, 1000]")
    """Layers on tokens of tokens, shaped like token layers."""
    second_width: int | None = option(None, "[1, 1e6]")
    """Width of the layers on tokens of tokens, at least that of the token layers; None is that.  # H-Net"""
    second_heads: int | None = option(None, "[1, 1e6]")
    """Attention heads of these layers with ``second_width``; None is those of the token layers."""
    num_lower_layers: int | None = option(None, "[0, 1000]")
    """Token layers before the second level (the rest run after it); None is half, rounded up."""
    second_residual: Literal["identity", "projection"] = "identity"
    """Residual around the second level: the token itself, or (``routing``) a zero-initialised projection and norms."""
    rope_base: float = option(10_000.0, "[1, 1e12]")
    """Base of the rotary frequencies."""
    norm_eps: float = option(1e-6, "(0, 1]")
    """Added to the mean square in every RMSNorm."""

    def __post_init__(self) -> None:
        """Check every field."""
        check_fields(self)
        object.__setattr__(self, "ngram_sizes", _ngram_sizes(self.ngram_sizes))
        if self.begin_of_text and not self.num_special:
            raise ValueError("num_special must be at least 1 with begin_of_text, whose mark is id 256, got 0")
        _check_heads("width", self.width, "num_heads", self.num_heads)
        if self.byte_scope == "token" and self.ngram_sizes:
            raise ValueError(
                f"ngram_sizes must be empty with byte_scope='token', whose encoder sees no byte of an earlier token, "
                f"got {list(self.ngram_sizes)}"
            )
        self._check_second_level()
        self._check_widths()

    def _check_widths(self) -> None:
        """Check that widths grow from bytes to tokens to tokens of tokens, and that their heads fit."""
        for level in ("token", "second"):
            below = self if level == "token" else self.of_tokens
            width, heads = getattr(self, f"{level}_width"), getattr(self, f"{level}_heads")
            if width is None:
                if heads is not None:
                    raise ValueError(f"{level}_heads must be left out if {level}_width is None, got {heads}")
                continue
            if level == "second" and self.second_level is None:
                raise ValueError(f"second_width must be left out if second_level is None, got {width}")
            if width < below.width:
                raise ValueError(
                    f"{level}_width must be at least the width of the level below, {below.width}, got {width}"
                )
            _check_heads(f"{level}_width", width, f"{level}_heads", below.num_heads if heads is None else heads)

    def _check_second_level(self) -> None:
        """Check what depends on the kind of second level."""
        rate = self.second_rate
        if self.second_level is None:
            defaults = {field.name: field.default for field in fields(self)}
            for name in ("second_rate", "num_second_layers", "num_lower_layers", "second_residual"):
                if getattr(self, name) != defaults[name]:
                    raise ValueError(f"{name} must be left out if second_level is None, got {getattr(self, name)!r}")
        elif self.second_level == "routing" and rate >= 1:
            raise ValueError(f"second_rate must lie strictly between 0 and 1 for 'routing', got {rate}")
        elif self.second_level == "stride":
            if rate > 1 or abs(1 / rate - round(1 / rate)) > 1e-6 / rate:
                raise ValueError(f"second_rate must be 1, 1/2, 1/3, ... for 'stride', got {rate}")
            if self.second_residual != "identity":
                raise ValueError(f"second_residual must be 'identity' for 'stride', got {self.second_residual!r}")
        if self.lower_layers > self.num_token_layers:
            raise ValueError(
                f"num_lower_layers must be at most num_token_layers, {self.num_token_layers}, got {self.lower_layers}"
            )

    @property
    def lower_layers(self) -> int:
        """Token layers before the second level; all of them without one."""
        if self.second_level is None:
            return self.num_token_layers
        return -(-self.num_token_layers // 2) if self.num_lower_layers is None else self.num_lower_layers

    @property
    def second_stride(self) -> int:
        """Tokens per token of tokens, P."""
        return round(1 / self.second_rate)

    @property
    def of_tokens(self) -> UNetConfig:
        """The configuration whose width and heads are those of the token layers."""
        if self.token_width is None:
            return self
        heads = self.num_heads if self.token_heads is None else self.token_heads
        return _resized(self, width=self.token_width, num_heads=heads, token_width=None, token_heads=None)

    @property
    def of_second(self) -> UNetConfig:
        """The configuration whose width and heads are those of the layers on tokens of tokens."""
        below = self.of_tokens
        if self.second_width is None:
            return below
        heads = below.num_heads if self.second_heads is None else self.second_heads
        return _resized(below, width=self.second_width, num_heads=heads, second_width=None, second_heads=None)

    @property
    def head_size(self) -> int:
        """Channels of one attention head."""
        return self.width // self.num_heads

    @property
    def num_ids(self) -> int:
        """Rows of the embedding: 256 bytes and the special ids."""
        return NUM_BYTES + self.num_special

    @property
    def num_marks(self) -> int:
        """Ids that are read before the first byte of a text: 1 with ``begin_of_text``, else 0."""
        return int(self.begin_of_text)

    @property
    def bytes_before(self) -> int:
        """Number of earlier bytes that a byte's embedding depends on."""
        return max(self.ngram_sizes, default=1) - 1

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {name: list(x) if isinstance(x, tuple) else x for name, x in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> UNetConfig:
        """Build from plain values; unknown keys are an error."""
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ValueError(f"unknown keys {unknown} for UNetConfig; allowed are {sorted(known)}")
        return cls(**values)


def _check_heads(name: str, width: int, heads_name: str, heads: int) -> None:
    if width % (2 * heads):
        raise ValueError(
            f"{name} must be a multiple of 2 * {heads_name} (rotary positions turn pairs of channels), "
            f"got {name}={width}, {heads_name}={heads}"
        )


@lru_cache
def _resized(config: UNetConfig, **sizes: Any) -> UNetConfig:
    return replace(config, **sizes)


def _ngram_sizes(values: Any) -> tuple[int, ...]:
    """Return n-gram sizes, distinct and at least 2 because single bytes have an embedding already."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise TypeError(f"ngram_sizes must be a list of integers of at least 2, got {values!r}")
    sizes = tuple(check_number("ngram_sizes", value, "[2, 1000]", whole=True) for value in values)
    if len(set(sizes)) < len(sizes):
        raise ValueError(f"ngram_sizes must name each size once, got {list(sizes)}")
    return sizes


# ``paper-*`` are the columns of Table 2; ``released-*`` are further sizes of the authors' released configurations. The
# number in a name counts all parameters: a byte layer has 7 D^2 of them, a token layer 16 D^2. ``_PAPER`` are Gemma 2's
# soft caps, and the 64 special ids of the authors' byte tokenizer (vocabulary 320).
_PAPER: dict[str, Any] = {"num_special": 64, "attention_cap": 50.0, "final_cap": 30.0}


def _sizes(width: int, num_heads: int, encoder: int, token: int, decoder: int, **others: Any) -> dict[str, Any]:
    layers = {"num_encoder_layers": encoder, "num_token_layers": token, "num_decoder_layers": decoder}
    return {"width": width, "num_heads": num_heads, **layers, **others}


PRESETS: dict[str, dict[str, Any]] = {
    "paper-147m": _sizes(768, 12, 4, 12, 4, **_PAPER),
    "paper-90m": _sizes(768, 12, 4, 6, 4, **_PAPER),
    "paper-20m": _sizes(512, 8, 4, 2, 4, target_rate=1 / 2, **_PAPER),  # Table 2, right: n token layers at rate 1/n
    "paper-30m": _sizes(512, 8, 4, 4, 4, target_rate=1 / 4, **_PAPER),
    "paper-40m": _sizes(512, 8, 4, 6, 4, target_rate=1 / 6, **_PAPER),
    "released-18m": _sizes(384, 6, 2, 6, 2, **_PAPER),
    "released-32m": _sizes(512, 8, 2, 6, 2, **_PAPER),
    "released-73m": _sizes(768, 12, 2, 6, 2, **_PAPER),
    "released-130m": _sizes(768, 12, 2, 12, 2, **_PAPER),
    "small": _sizes(256, 4, 2, 4, 2),
    "pocket": _sizes(192, 3, 1, 3, 1, window=16),  # the packaged model
    "tiny": _sizes(64, 2, 1, 1, 1, window=16),
}
"""Sizes by name: the paper's models, those of its released code, and three for a CPU."""


def preset(name: str, **overrides: Any) -> UNetConfig:
    """Return a configuration of ``PRESETS``, with any field replaced.

    Example:
        >>> preset("tiny", num_lags=1).num_lags
        1
    """
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; allowed are {sorted(PRESETS)}{did_you_mean(name, PRESETS)}")
    return UNetConfig.from_dict({**PRESETS[name], **overrides})

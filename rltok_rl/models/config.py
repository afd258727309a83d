"""The shape of a U-Net, checked when it is written down rather than when it first runs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from rltok_rl.utils import check_count

NUM_BYTES = 256
_CAPS = ("attention_cap", "final_cap")
_SECOND = (
    "second_rate",
    "num_second_layers",
    "num_lower_layers",
    "second_residual",
)  # read where there is a second level


@dataclass(frozen=True, kw_only=True)
class UNetConfig:
    """Sizes and options of a byte-level autoregressive U-Net (Section 2.2 and Appendix D).

    Byte layers (encoder and decoder) see a sliding window and have an MLP of width ``byte_mlp_ratio * width``; token
    layers see every earlier token and have an MLP of width ``token_mlp_ratio * width``.
    """

    width: int
    """D, shared by bytes and tokens (the paper's embedding_dim)."""
    num_heads: int
    """Attention heads of every layer; must divide ``width`` into an even head size."""
    num_encoder_layers: int
    """Byte layers below the tokens (n_down_layers)."""
    num_token_layers: int
    """Token layers (n_mid_layers)."""
    num_decoder_layers: int
    """Byte layers above the tokens (n_up_layers)."""
    window: int = 64
    """Bytes that a byte layer sees, the current one included.  # Appendix D"""
    byte_mlp_ratio: int = 1
    """MLP width of a byte layer in units of ``width``.  # Appendix D"""
    token_mlp_ratio: int = 4
    """MLP width of a token layer in units of ``width``.  # Appendix D"""
    num_special: int = 0
    """Input ids 256, 257, ... beside the bytes (a begin-of-text mark, say). They are read, never predicted."""
    num_lags: int = 8
    """w, how many earlier boundaries the policy sees.  # Section 2.5"""
    target_rate: float = 0.2
    """Boundaries per byte that the policy starts from.  # Table 2"""
    rate_embedding: bool = False
    """The target rate is an input, of each row its own: bytes are told it, and the policy starts from it."""
    boundary_scale: float = 1 / 16
    """Factor on the raw boundary logit.  # Eq. 22, D = 16"""
    boundary_cap: float | None = 6.0
    """Soft cap of the boundary logit in training; None leaves it free.  # Eq. 23; 6 is the released value"""
    boundary_bias: bool = False
    """A learned bias beside W_0. Eq. 21 has none; the released code has one."""
    attention_cap: float | None = None
    """Soft cap of attention scores (Gemma 2 uses 50). It rules out the fused attention kernels."""
    final_cap: float | None = 30.0
    """Soft cap of next-byte logits, both heads (Gemma 2 uses 30)."""
    pooling: Literal["select", "mean", "attention"] = "select"
    """A token is its boundary byte's state (Eq. 7), the mean over the bytes since the previous boundary, or attention
    of the boundary byte to them."""
    upsampling: Literal["add", "deviation", "attention"] = "add"
    """Bytes receive the token output (Eq. 9), only what the token layers added to their input, or attention to the last
    tokens."""
    tokens_read: int = 2
    """Tokens that a byte attends to where ``upsampling`` is ``"attention"``, the one that serves it included."""
    smoothing: Literal["none", "detached", "gradient", "straight_through"] = "none"
    """How far a token replaces those before it: by the probability of its boundary, without or with a gradient."""
    ngram_sizes: tuple[int, ...] = ()
    """Sizes n of the hashed n-grams whose embeddings are added to those of bytes; none by default. BLT: 3 to 8."""
    ngram_buckets: int = 16_384
    """Rows of each table of n-grams. BLT: 500 000."""
    ngram_scale: Literal["mean", "sum"] = "mean"
    """Whether the sum of all embeddings is divided by their number (BLT's paper) or not (its code)."""
    second_level: Literal["stride", "routing"] | None = None
    """Tokens of tokens between the token layers: at every so many tokens, or where token states are unlike."""
    second_rate: float = 1 / 3
    """Tokens of tokens per token: ``stride`` has one in 1/rate tokens, ``routing`` is pulled there by its loss."""
    num_second_layers: int = 1
    """Layers that run on tokens of tokens, of the shape of token layers."""
    num_lower_layers: int | None = None
    """Token layers that run before the second level, the others run after it; None is half, rounded up."""
    second_residual: Literal["identity", "projection"] = "identity"
    """What of a token goes on beside its token of tokens: all of it, or (``routing``) a projection that starts at zero,
    with norms between the levels, as in H-Net."""
    rope_base: float = 10_000.0
    """Base of the rotary frequencies."""
    norm_eps: float = 1e-6
    """Added to the mean square in every RMSNorm."""

    def __post_init__(self) -> None:
        """Refuse what cannot be built, by name."""
        for name in ("width", "num_heads", "num_token_layers", "window", "byte_mlp_ratio", "token_mlp_ratio"):
            object.__setattr__(self, name, check_count(name, getattr(self, name)))
        object.__setattr__(self, "ngram_sizes", _sizes(self.ngram_sizes))
        for name in ("ngram_buckets", "tokens_read"):
            object.__setattr__(self, name, check_count(name, getattr(self, name)))
        for name in ("num_encoder_layers", "num_decoder_layers", "num_special", "num_lags"):
            object.__setattr__(self, name, check_count(name, getattr(self, name), minimum=0))
        if self.width % (2 * self.num_heads):
            raise ValueError(
                f"width must be a multiple of 2 * num_heads (rotary positions turn pairs of channels), "
                f"got width={self.width}, num_heads={self.num_heads}"
            )
        for name in ("target_rate", "boundary_scale", "rope_base", "norm_eps", "boundary_cap", *_CAPS):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
                raise TypeError(f"{name} must be a number, got {value!r}")
        if not isinstance(self.rate_embedding, bool):
            raise TypeError(f"rate_embedding must be True or False, got {self.rate_embedding!r}")
        if not 0.0 < self.target_rate < 1.0:
            raise ValueError(f"target_rate must lie strictly between 0 and 1, got {self.target_rate}")
        for name in ("boundary_scale", "rope_base", "norm_eps"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)}")
        for name in ("boundary_cap", "attention_cap", "final_cap"):
            cap = getattr(self, name)
            if cap is not None and not 0 < cap < math.inf:
                raise ValueError(f"{name} must be positive and finite, or None (no cap), got {cap}")
        _require_choice("pooling", self.pooling, ("select", "mean", "attention"))
        _require_choice("upsampling", self.upsampling, ("add", "deviation", "attention"))
        _require_choice("smoothing", self.smoothing, ("none", "detached", "gradient", "straight_through"))
        _require_choice("ngram_scale", self.ngram_scale, ("mean", "sum"))
        self._check_second_level()

    def _check_second_level(self) -> None:
        object.__setattr__(self, "num_second_layers", check_count("num_second_layers", self.num_second_layers))
        if self.second_level is None:
            for field in fields(self):
                if field.name in _SECOND and getattr(self, field.name) != field.default:
                    raise ValueError(
                        f"{field.name} must be left out where second_level is None, got {getattr(self, field.name)!r}"
                    )
            return
        _require_choice("second_level", self.second_level, ("stride", "routing"))
        _require_choice("second_residual", self.second_residual, ("identity", "projection"))
        rate = self.second_rate
        if isinstance(rate, bool) or not isinstance(rate, (int, float)):
            raise TypeError(f"second_rate must be a number, got {rate!r}")
        if self.second_level == "routing" and not 0 < rate < 1:
            raise ValueError(f"second_rate must lie strictly between 0 and 1 for 'routing', got {rate}")
        if self.second_level == "stride":
            if not 0 < rate <= 1 or abs(1 / rate - round(1 / rate)) > 1e-6 / rate:
                raise ValueError(f"second_rate must be 1, 1/2, 1/3, ... for 'stride', got {rate}")
            if self.second_residual != "identity":
                raise ValueError(f"second_residual must be 'identity' for 'stride', got {self.second_residual!r}")
        if self.num_lower_layers is not None:
            lower = check_count("num_lower_layers", self.num_lower_layers, minimum=0)
            if lower > self.num_token_layers:
                raise ValueError(
                    f"num_lower_layers must be at most num_token_layers, {self.num_token_layers}, got {lower}"
                )
            object.__setattr__(self, "num_lower_layers", lower)

    @property
    def lower_layers(self) -> int:
        """Token layers that run before the second level; all where there is none."""
        if self.second_level is None:
            return self.num_token_layers
        return -(-self.num_token_layers // 2) if self.num_lower_layers is None else self.num_lower_layers

    @property
    def second_stride(self) -> int:
        """Tokens per token of tokens, P."""
        return round(1 / self.second_rate)

    @property
    def head_size(self) -> int:
        """Channels of one attention head."""
        return self.width // self.num_heads

    @property
    def num_ids(self) -> int:
        """Rows of the embedding: 256 bytes and the special ids."""
        return NUM_BYTES + self.num_special

    @property
    def bytes_before(self) -> int:
        """Bytes before its own that a byte's embedding depends on."""
        return max(self.ngram_sizes, default=1) - 1

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {name: list(x) if isinstance(x, tuple) else x for name, x in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> UNetConfig:
        """Build from plain values; a key that is not a field is an error, not ignored."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ValueError(f"unknown keys {unknown} for UNetConfig; allowed are {sorted(known)}")
        return cls(**values)


def _require_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {list(allowed)}, got {value!r}")


def _sizes(values: Any) -> tuple[int, ...]:
    """Sizes of n-grams, each once, of at least two bytes: one byte has an embedding already."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"ngram_sizes must be a list of integers of at least 2, got {values!r}")
    sizes = tuple(check_count("ngram_sizes", value, minimum=2) for value in values)
    if len(set(sizes)) < len(sizes):
        raise ValueError(f"ngram_sizes must name each size once, got {list(sizes)}")
    return sizes

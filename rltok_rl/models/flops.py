"""FLOPs of a forward pass and of an update, counted in matrix products.

    FLOPs of an update = 6 (byte-level matrix parameters x bytes + token-level matrix parameters x tokens
                            + second-level matrix parameters x tokens of tokens)

Two for each multiply-add, three passes of equal cost (forward, and backward to inputs and to weights). Attention
scores, norms and the embedding are not counted, as in the paper. :mod:`rltok_rl.training.loop` sums a run's total, with
an estimator's trials.
"""

from __future__ import annotations

from torch import nn

from rltok_rl.models.unet import UNet

_PER_BYTE = (
    *("encoder", "decoder", "boundary_head", "early_head", "final_head"),
    *("token_pooling.key_value", "token_reading.query", "token_reading.out"),
)
_PER_TOKEN = (
    *("token_layers", "token_pooling.query", "token_pooling.out", "token_reading.key_value"),
    "second_level.routing",  # it reads every token
)
_PER_SECOND = ("second_level.layers",)


def parameter_counts(model: UNet) -> dict[str, int]:
    """Count the parameters of each part and their total."""
    counts = {name: sum(p.numel() for p in part.parameters()) for name, part in model.named_children()}
    counts |= {name: p.numel() for name, p in model.named_parameters(recurse=False)}  # token_pad
    return {**counts, "total": sum(counts.values())}


def count_matrices(module: nn.Module) -> int:
    """Count the entries of a module's weight matrices."""
    return sum(p.numel() for p in module.parameters() if p.dim() == 2)


def matrix_parameters(model: UNet) -> dict[str, int]:
    """Count the entries of the weight matrices of each part that computes with them."""
    parts = {name: part for name, part in model.named_modules() if name in _PER_BYTE + _PER_TOKEN + _PER_SECOND}
    return {name: count_matrices(part) for name, part in parts.items()}


def forward_flops(
    model: UNet, num_bytes: float, num_tokens: float, *, num_second: float | None = None, without: tuple[str, ...] = ()
) -> float:
    """Return the FLOPs of one forward pass over all bytes and tokens, padding included, without some parts.

    ``num_second`` are tokens of tokens; None is their number at the model's ``second_rate``.
    """
    counts = {part: n for part, n in matrix_parameters(model).items() if part not in without}
    tokens = sum(counts.pop(part, 0) for part in _PER_TOKEN)
    second = sum(counts.pop(part, 0) for part in _PER_SECOND)
    num_second = model.config.second_rate * num_tokens if num_second is None else num_second
    return 2.0 * (sum(counts.values()) * num_bytes + tokens * num_tokens + second * num_second)


def decoding_flops(model: UNet, num_bytes: float, num_tokens: float, *, num_second: float | None = None) -> float:
    """Return the FLOPs of decoding encoder states once more: token layers, decoder and the last head."""
    without = ("encoder", "boundary_head", "early_head")
    return forward_flops(model, num_bytes, num_tokens, num_second=num_second, without=without)


def trial_flops(model: UNet, num_bytes: float, num_tokens: float, *, num_second: float | None = None) -> float:
    """Return the FLOPs of a trial: encoder states decoded once more, with boundaries that are drawn again."""
    return forward_flops(model, num_bytes, num_tokens, num_second=num_second, without=("encoder", "early_head"))


def scoring_flops(model: UNet, num_bytes: float) -> float:
    """Return the FLOPs of the policy's scores: encoder and boundary head."""
    counts = matrix_parameters(model)
    return 2.0 * (counts["encoder"] + counts["boundary_head"]) * num_bytes


def update_flops(model: UNet, num_bytes: float, num_tokens: float, *, num_second: float | None = None) -> float:
    """Return the FLOPs of one forward and backward pass; arguments as for :func:`forward_flops`."""
    return 3.0 * forward_flops(model, num_bytes, num_tokens, num_second=num_second)

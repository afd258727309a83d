"""Published packages on the same bytes: MEGABYTE, BLT and H-Net's dynamic chunking.

They are other models with about as many parameters: the comparison is of the cost of a step on [B, T] bytes. All run
uncompiled, in float32 on a CPU and in bfloat16 on a GPU (``pip install MEGABYTE-pytorch h-net-dynamic-chunking
transformers``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rltok_rl.functional.policy import boundary_logits
from rltok_rl.models import UNet, preset
from rltok_rl.models.tokens import downsample, token_layout, upsample
from rltok_rl.sampling import sample_boundaries

RATE = 0.2
Step = tuple[int, Callable[[], None]]
"""Number of parameters, and one update on random bytes."""


def _step(model: nn.Module, loss: Callable[[Tensor], Tensor], device: str, shape: tuple[int, int]) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)

    def step() -> None:
        byte_ids = torch.randint(256, shape, device=device)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            value = loss(byte_ids)
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return sum(parameter.numel() for parameter in model.parameters()), step


def megabyte(device: str, name: str, num_rows: int, num_bytes: int) -> Step:
    """MEGABYTE with patches of four bytes."""
    from MEGABYTE_pytorch import MEGABYTE

    sizes: dict[str, Any] = {"dim": (512, 256), "depth": (4, 2), "max_seq_len": (num_bytes // 4, 4)}
    model = MEGABYTE(num_tokens=256, flash_attn=device == "cuda", **sizes).to(device)
    return _step(model, lambda byte_ids: model(byte_ids, return_loss=True), device, (num_rows, num_bytes))


def blt(device: str, name: str, num_rows: int, num_bytes: int) -> Step:
    """BLT of transformers with the sizes of a preset and given patches, as many as the preset has tokens."""
    from transformers import BltConfig, BltForCausalLM

    config = preset(name)
    heads = {"num_attention_heads": config.num_heads, "num_key_value_heads": config.num_heads}
    local = {
        **heads,
        "hidden_size": config.width,
        "hidden_size_global": config.width,
        "intermediate_size": config.width,
        "num_hidden_layers": config.num_encoder_layers,
        "sliding_window": config.window,
        "cross_attn_k": 1,
        "vocab_size": 260,
    }
    tokens = {
        **heads,
        "hidden_size": config.width,
        "intermediate_size": config.token_mlp_ratio * config.width,
        "num_hidden_layers": config.num_token_layers,
        "head_dim": config.head_size,
    }
    options: dict[str, Any] = {
        "vocab_size": 260,
        "max_position_embeddings": num_bytes,
        "patch_in_forward": False,
        "local_attention_window_len": config.window,
        "cross_attn_k": 1,
        "encoder_hash_byte_group_size": [3],
        "encoder_hash_byte_group_vocab": 256,
    }
    sizes: dict[str, Any] = {"encoder_config": local, "decoder_config": dict(local), "global_config": tokens}
    model: Any = BltForCausalLM(BltConfig(**options, **sizes))
    model.to(device)
    patch = round(1 / RATE)
    lengths = torch.full((num_rows, num_bytes // patch), patch, device=device)
    lengths[:, -1] += num_bytes - lengths[0].sum()

    def loss(byte_ids: Tensor) -> Tensor:
        return model(input_ids=byte_ids, labels=byte_ids, patch_lengths=lengths, use_cache=False).loss

    return _step(model, loss, device, (num_rows, num_bytes))


PEERS = {"MEGABYTE (MEGABYTE-pytorch)": megabyte, "BLT (transformers)": blt}


def chunker(device: str, name: str, num_rows: int, num_bytes: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """Our policy, drawing, pooling and adding, and H-Net's routing, pooling and upsampling, with their gradients."""
    from h_net_dynamic_chunking import DynamicSequenceChunker

    config = preset(name)
    model = UNet(config).to(device)
    chunks = DynamicSequenceChunker(config.width, target_avg_token_length=1 / RATE).to(device)
    states = torch.randn(num_rows, num_bytes, config.width, device=device, requires_grad=True)

    def ours() -> None:
        terms = model.boundary_terms(states)
        boundaries = sample_boundaries(*terms, cap=model.boundary_cap)
        logits = boundary_logits(*terms, boundaries, cap=model.boundary_cap)
        layout = token_layout(boundaries)
        tokens = downsample(states, layout)  # [B, S, D]
        (upsample(states, tokens, layout).sum() + logits.sum()).backward()

    def theirs() -> None:
        tokens, upsampled, loss = chunks(states)
        (upsampled(tokens).sum() + loss).backward()

    return ours, theirs

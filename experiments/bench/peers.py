"""Training steps of published packages on the same bytes, beside ours: same rows, about as many parameters.

These are other models: what is compared is what a step on [B, T] bytes costs, and what boundaries and pooling cost
alone. Packages that are not installed are passed over, with a word (``pip install MEGABYTE-pytorch
h-net-dynamic-chunking transformers``). All run uncompiled, in float32 on a CPU and in bfloat16 on a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from rltok_rl.experiments.bench.harness import Row, compare
from rltok_rl.experiments.bench.training import NUM_BYTES, NUM_ROWS, PRESET, Way, our_trainer
from torch import Tensor, nn

from rltok_rl.functional.policy import boundary_logits
from rltok_rl.models import UNet, preset
from rltok_rl.models.tokens import downsample, token_layout, upsample
from rltok_rl.sampling import sample_boundaries

RATE = 0.2


def peer_step(model: nn.Module, loss: Callable[[Tensor], Tensor], device: str) -> Callable[[], None]:
    """One update on random bytes: draws, loss, backward, clip, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)

    def step() -> None:
        byte_ids = torch.randint(256, (NUM_ROWS, NUM_BYTES), device=device)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            value = loss(byte_ids)
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def megabyte(device: str) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """MEGABYTE with patches of four bytes."""
    from MEGABYTE_pytorch import MEGABYTE

    sizes: dict[str, Any] = {"dim": (512, 256), "depth": (4, 2), "max_seq_len": (NUM_BYTES // 4, 4)}
    model = MEGABYTE(num_tokens=256, flash_attn=device == "cuda", **sizes).to(device)
    return model, lambda byte_ids: model(byte_ids, return_loss=True)


def blt(device: str) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """BLT of transformers with our sizes, and as many patches as we have tokens, given instead of predicted."""
    from transformers import BltConfig, BltForCausalLM

    config = preset(PRESET)
    shape = {"num_attention_heads": config.num_heads, "num_key_value_heads": config.num_heads}
    local = {
        **shape,
        "hidden_size": config.width,
        "hidden_size_global": config.width,
        "intermediate_size": config.width,
        "num_hidden_layers": config.num_encoder_layers,
        "sliding_window": config.window,
        "cross_attn_k": 1,
        "vocab_size": 260,
    }
    tokens = {
        **shape,
        "hidden_size": config.width,
        "intermediate_size": config.token_mlp_ratio * config.width,
        "num_hidden_layers": config.num_token_layers,
        "head_dim": config.head_size,
    }
    model: Any = BltForCausalLM(
        BltConfig(
            vocab_size=260,
            max_position_embeddings=NUM_BYTES,
            patch_in_forward=False,
            local_attention_window_len=config.window,
            cross_attn_k=1,
            encoder_hash_byte_group_size=[3],
            encoder_hash_byte_group_vocab=256,
            encoder_config=local,
            decoder_config=dict(local),
            global_config=tokens,
        )
    )
    model.to(device)
    every = round(1 / RATE)
    lengths = torch.full((NUM_ROWS, NUM_BYTES // every), every, device=device)
    lengths[:, -1] += NUM_BYTES - lengths[0].sum()

    def loss(byte_ids: Tensor) -> Tensor:
        return model(input_ids=byte_ids, labels=byte_ids, patch_lengths=lengths, use_cache=False).loss

    return model, loss


def chunker_row(device: str) -> Row:
    """H-Net's routing, pooling and upsampling against our policy, drawing, pooling and adding, with their gradients."""
    from h_net_dynamic_chunking import DynamicSequenceChunker

    config = preset(PRESET)
    model = UNet(config).to(device)
    chunker = DynamicSequenceChunker(config.width, target_avg_token_length=1 / RATE).to(device)
    states = torch.randn(NUM_ROWS, NUM_BYTES, config.width, device=device, requires_grad=True)

    def ours() -> None:
        terms = model.boundary_terms(states)
        boundaries = sample_boundaries(*terms, cap=model.boundary_cap)
        logits = boundary_logits(*terms, boundaries, cap=model.boundary_cap)
        where = token_layout(boundaries)
        tokens = downsample(states, where)  # [B, S, D]
        (upsample(states, tokens, where).sum() + logits.sum()).backward()

    def theirs() -> None:
        tokens, give_back, loss = chunker(states)
        (give_back(tokens).sum() + loss).backward()

    name = f"boundaries, pooling, giving back / H-Net's chunker (h-net-dynamic-chunking), D={config.width}"
    return compare("peers", name, ours, theirs, pairs=5)


def rows(device: str) -> list[Row]:
    """A step of each peer that is installed, and the boundaries of H-Net."""
    torch.manual_seed(0)
    way = Way("bfloat16" if device == "cuda" else "float32", compiled=False)
    trainer = our_trainer(way, device)
    mine = sum(p.numel() for p in trainer.model.parameters())
    out = []
    for name, make in (("MEGABYTE (MEGABYTE-pytorch)", megabyte), ("BLT (transformers)", blt)):
        try:
            model, loss = make(device)
        except ImportError as error:
            print(f"  peers: {name} passed over: {error}", file=sys.stderr, flush=True)
            continue
        theirs = sum(p.numel() for p in model.parameters())
        note = f"{mine / 1e6:.1f} M parameters against {theirs / 1e6:.1f} M; {way.precision}"
        title = f"step, {PRESET} / {name}, T={NUM_BYTES}, B={NUM_ROWS}"
        out.append(compare("peers", title, trainer.update, peer_step(model, loss, device), pairs=3, note=note))
        del model, loss
    try:
        out.append(chunker_row(device))
    except ImportError as error:
        print(f"  peers: h-net-dynamic-chunking passed over: {error}", file=sys.stderr, flush=True)
    return out

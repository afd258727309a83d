"""Published packages on the same bytes: MEGABYTE, BLT and H-Net's dynamic chunking.

They are other models with about as many parameters: the comparison is of the cost of a step on [B, T] bytes. All run
uncompiled, each in its faster precision (``pip install MEGABYTE-pytorch h-net-dynamic-chunking transformers``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from rltok_rl.experiments.bench.step import NUM_BYTES, NUM_ROWS, PAIRS, PRESET, SIZE, Mode, modes, our_trainer
from rltok_rl.experiments.bench.timing import BenchRow, compare, seconds
from torch import Tensor, nn

from rltok_rl.functional.policy import boundary_logits
from rltok_rl.models import UNet, preset
from rltok_rl.models.tokens import downsample, token_layout, upsample
from rltok_rl.sampling import sample_boundaries

RATE = 0.2


def peers(device: str) -> list[BenchRow]:
    """Steps of published packages on as many bytes, and H-Net's chunker; packages that are missing are skipped."""
    torch.manual_seed(0)
    precisions = sorted({mode.precision for mode in modes(device)})
    trainers = {precision: our_trainer(Mode(precision), device) for precision in precisions}
    ours, our_update = _faster({precision: trainer.update for precision, trainer in trainers.items()})
    size = _millions(trainers[ours].model)
    del trainers  # the slower one; the update keeps its own
    rows = []
    for name, make in {"MEGABYTE (MEGABYTE-pytorch)": megabyte, "BLT (transformers)": blt}.items():
        try:
            model, loss = make(device)
        except ImportError as error:
            print(f"  peers: skipped {name}: {error}", file=sys.stderr, flush=True)
            continue
        theirs, step = _faster({precision: _step(model, loss, device, precision) for precision in precisions})
        note = f"{size} M parameters in {ours} against {_millions(model)} M in {theirs}"
        rows.append(compare("peers", f"step, {PRESET} / {name}, {SIZE}", our_update, step, pairs=PAIRS, note=note))
        del model, loss, step
    try:
        chunkers = chunker(device)
    except ImportError as error:
        print(f"  peers: skipped h-net-dynamic-chunking: {error}", file=sys.stderr, flush=True)
        return rows
    name = f"boundaries, pooling, giving back / H-Net's chunker (h-net-dynamic-chunking), D={preset(PRESET).width}"
    return [*rows, compare("peers", name, *chunkers, pairs=5)]


def _millions(model: nn.Module) -> str:
    """Parameters in millions."""
    return f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}"


def _faster(steps: Mapping[str, Callable[[], object]]) -> tuple[str, Callable[[], object]]:
    """Return the precision whose steps are faster, and its step; the first one prepares."""
    for step in steps.values():
        step()
    return min(steps.items(), key=lambda item: seconds(item[1], repeat=3))


def _step(model: nn.Module, loss: Callable[[Tensor], Tensor], device: str, precision: str) -> Callable[[], None]:
    """One update on random bytes."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)

    def step() -> None:
        byte_ids = torch.randint(256, (NUM_ROWS, NUM_BYTES), device=device)
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
            value = loss(byte_ids)
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def megabyte(device: str) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """MEGABYTE with patches of four bytes, and its loss."""
    from MEGABYTE_pytorch import MEGABYTE

    sizes: dict[str, Any] = {"dim": (512, 256), "depth": (4, 2), "max_seq_len": (NUM_BYTES // 4, 4)}
    model = MEGABYTE(num_tokens=256, flash_attn=device == "cuda", **sizes).to(device)
    return model, lambda byte_ids: model(byte_ids, return_loss=True)


def blt(device: str) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """BLT of transformers with the preset's sizes and given patches, as many as the preset has tokens, and its loss."""
    from transformers import BltConfig, BltForCausalLM

    config = preset(PRESET)
    common = {"num_attention_heads": config.num_heads, "num_key_value_heads": config.num_heads}
    common["hidden_size"] = config.width
    local = common | {
        "hidden_size_global": config.width,
        "intermediate_size": config.width,
        "num_hidden_layers": config.num_encoder_layers,
        "sliding_window": config.window,
        "cross_attn_k": 1,
        "vocab_size": 260,
    }
    tokens = common | {
        "intermediate_size": config.token_mlp_ratio * config.width,
        "num_hidden_layers": config.num_token_layers,
        "head_dim": config.head_size,
    }
    options: dict[str, Any] = {
        "vocab_size": 260,
        "max_position_embeddings": NUM_BYTES,
        "patch_in_forward": False,
        "local_attention_window_len": config.window,
        "cross_attn_k": 1,
        "encoder_hash_byte_group_size": [3],
        "encoder_hash_byte_group_vocab": 256,
        "encoder_config": local,
        "decoder_config": dict(local),
        "global_config": tokens,
    }
    model: Any = BltForCausalLM(BltConfig(**options))
    model.to(device)
    patch = round(1 / RATE)
    lengths = torch.full((NUM_ROWS, NUM_BYTES // patch), patch, device=device)
    lengths[:, -1] += NUM_BYTES - lengths[0].sum()
    inputs: dict[str, Any] = {"patch_lengths": lengths, "use_cache": False}
    return model, lambda byte_ids: model(input_ids=byte_ids, labels=byte_ids, **inputs).loss


def chunker(device: str) -> tuple[Callable[[], None], Callable[[], None]]:
    """Our policy, drawing, pooling and adding, and H-Net's routing, pooling and upsampling, with their gradients."""
    from h_net_dynamic_chunking import DynamicSequenceChunker

    config = preset(PRESET)
    model = UNet(config).to(device)
    chunks = DynamicSequenceChunker(config.width, target_avg_token_length=1 / RATE).to(device)
    states = torch.randn(NUM_ROWS, NUM_BYTES, config.width, device=device, requires_grad=True)

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

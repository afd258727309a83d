"""One byte at a time equals the whole window at once."""

from __future__ import annotations

import pytest
import torch

from rltok_rl.models.incremental import decide, observe, prefill, step

from ..each import each
from .conftest import VARIANTS, assert_same, mixed_boundaries, outputs, stepped


@each(name=VARIANTS)
@torch.no_grad()
def test_stepping_equals_the_full_forward(name, build, text):
    """80 bytes, boundary rates from 0 to 1: windows (16) wrap around and token room (64) doubles."""
    model, byte_ids, boundaries = build(**VARIANTS[name]).double(), text(4, 80), mixed_boundaries(4, 80)
    cache = model.new_cache(4)
    assert_same(stepped(model, cache, byte_ids, boundaries), outputs(model, byte_ids, boundaries))
    assert torch.equal(cache.num_tokens, boundaries.sum(1))
    assert cache.position.tolist() == [80] * 4 and cache.tokens.keys.shape[2] == 128


@torch.no_grad()
def test_stepping_in_training_mode_and_bfloat16(build, text):
    """The soft cap of boundary logits belongs to training, in steps as well."""
    byte_ids, boundaries = text(2, 30), mixed_boundaries(2, 30)
    for model, atol in ((build(boundary_cap=0.1).train(), 1e-4), (build(pooling="attention").bfloat16(), 0.15)):
        full = outputs(model, byte_ids, boundaries)
        ours = stepped(model, model.new_cache(2), byte_ids, boundaries)
        names = ("boundary_logits", "early_logits", "final_logits")
        assert_same({name: ours[name] for name in names}, full, atol=atol)


@each(name=VARIANTS, prompt=[1, 17, 66])
@torch.no_grad()
def test_prefill_leaves_what_stepping_leaves(name, prompt, build, text):
    """Prompts shorter and longer than the window (16) and the token room (64); 17 further bytes reach every slot."""
    length = prompt + 17
    model, byte_ids, boundaries = build(**VARIANTS[name]).double(), text(3, length), mixed_boundaries(3, length)
    cache, full = model.new_cache(3), outputs(model, byte_ids, boundaries)
    output = prefill(model, cache, byte_ids[:, :prompt], boundaries[:, :prompt])
    torch.testing.assert_close(output.final_logits, full["final_logits"][:, :prompt], rtol=0, atol=1e-8)
    later = slice(prompt, None)
    assert_same(stepped(model, cache, byte_ids[:, later], boundaries[:, later]), full, slice(None), later)


@each(name=VARIANTS)
@torch.no_grad()
def test_rows_reset_and_branch(name, build, text):
    """Row 1 starts anew at byte 10, between the halves of a step; from byte 16 on copies continue in turns.

    Each copy reads bytes of its own, which reveals tensors that two of them share.
    """
    model, joined, boundaries = build(**VARIANTS[name]).double(), text(3, 26), mixed_boundaries(3, 26)
    boundaries[1, 10] = True
    cache = model.new_cache(3)
    stepped(model, cache, joined[:, :10], boundaries[:, :10])
    observe(model, cache, joined[:, 10])
    cache.reset(torch.tensor([False, True, False]))
    joined[1, 10:] = text(1, 16, seed=9)
    observe(model, cache, joined[1:2, 10], rows=torch.tensor([1]))
    decide(model, cache, boundaries[:, 10])
    stepped(model, cache, joined[:, 11:16], boundaries[:, 11:16])
    everyone, order = torch.arange(3), torch.tensor([2, 1, 1, 0])
    twice = everyone.repeat_interleave(2)
    caches = [(cache, everyone), (cache.clone(), everyone), (cache.take(order), order), (cache.repeat(2), twice)]
    branches = []
    for number, (branch, rows) in enumerate(caches):
        byte_ids, drawn = joined[rows].clone(), boundaries[rows] ^ (torch.arange(26) >= 16 if number % 2 else False)
        byte_ids[:, 16:] = text(len(rows), 10, seed=20 + number)
        branches.append((branch, rows, byte_ids, drawn, []))
    for t in range(16, 26):
        for branch, _, byte_ids, drawn, logits in branches:
            logits.append(step(model, branch, byte_ids[:, t], drawn[:, t])[1].final_logits)
    for _, rows, byte_ids, drawn, logits in branches:
        for place, row in enumerate(rows.tolist()):
            start = 10 if row == 1 else 0
            alone = model(byte_ids[place : place + 1, start:], drawn[place : place + 1, start:]).final_logits[0]
            torch.testing.assert_close(torch.stack(logits, 1)[place], alone[16 - start :], rtol=0, atol=1e-8)


@pytest.mark.gpu
@torch.no_grad()
def test_stepping_on_gpu_equals_the_full_forward_on_cpu(build, text):
    model, byte_ids, boundaries = build(), text(2, 100), mixed_boundaries(2, 100)
    full = outputs(model, byte_ids, boundaries)
    ours = stepped(model.cuda(), model.new_cache(2), byte_ids.cuda(), boundaries.cuda())
    assert_same({name: values.cpu() for name, values in ours.items()}, full, atol=1e-3)

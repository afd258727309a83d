"""One byte at a time says the same as the whole window at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rltok_rl.models import UNet
from rltok_rl.models.cache import UNetCache
from rltok_rl.models.incremental import decide, observe, prefill, step

from .test_unet import every_option

NAMES = ("encoder_states", "boundary_logits", "early_logits", "decoder_states", "final_logits")


def stepped(model: UNet, cache: UNetCache, byte_ids: Tensor, boundaries: Tensor) -> dict[str, Tensor]:
    """Run [B, T] bytes through the cache and stack what every step says along time."""
    steps = []
    for t in range(byte_ids.shape[1]):
        seen, said = step(model, cache, byte_ids[:, t], boundaries[:, t])
        steps.append(
            (seen.encoder_state, seen.boundary_logit, seen.early_logits, said.decoder_state, said.final_logits)
        )
    return {name: torch.stack(values, 1) for name, values in zip(NAMES, zip(*steps, strict=True), strict=True)}


def assert_same(ours: dict[str, Tensor], full, rows=slice(None), start: int = 0) -> None:
    for name, values in ours.items():
        expected = getattr(full, name)[rows, start : start + values.shape[1]]
        if name.endswith("_logits") and name != "boundary_logits":
            values, expected = values.log_softmax(-1), expected.log_softmax(-1)
        torch.testing.assert_close(values, expected, rtol=0, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@every_option
@torch.no_grad()
def test_stepping_equals_the_full_forward(build, text, options):
    """150 bytes, 8 rows with boundary rates from 0 to 1: windows (16) wrap around and token room (64) doubles."""
    model, byte_ids = build(**options), text(8, 150)
    rates = torch.linspace(0, 1, 8)[:, None]
    boundaries = torch.rand(8, 150, generator=torch.Generator().manual_seed(4)) < rates
    boundaries[:, 0] = True
    cache = UNetCache.empty(model.config, 8)
    assert_same(stepped(model, cache, byte_ids, boundaries), model(byte_ids, boundaries))
    assert torch.equal(cache.num_tokens, boundaries.sum(1))
    assert cache.position.tolist() == [150] * 8


@torch.no_grad()
def test_stepping_equals_the_full_forward_in_training_mode(build, text, boundaries_of):
    """The soft cap of boundary logits belongs to training, in steps as well."""
    model, byte_ids, boundaries = build(boundary_cap=0.1).train(), text(2, 50), boundaries_of(2, 50)
    assert_same(stepped(model, UNetCache.empty(model.config, 2), byte_ids, boundaries), model(byte_ids, boundaries))


@every_option
@pytest.mark.parametrize("prompt", [1, 16, 60])
@torch.no_grad()
def test_prefill_leaves_what_stepping_leaves(build, text, boundaries_of, options, prompt):
    model, byte_ids, boundaries = build(**options), text(3, 80), boundaries_of(3, 80)
    cache = UNetCache.empty(model.config, 3)
    full = model(byte_ids, boundaries)
    read = prefill(model, cache, byte_ids[:, :prompt], boundaries[:, :prompt])
    torch.testing.assert_close(read.final_logits, full.final_logits[:, :prompt], rtol=0, atol=1e-5)
    assert_same(stepped(model, cache, byte_ids[:, prompt:], boundaries[:, prompt:]), full, start=prompt)


@torch.no_grad()
def test_rows_reset_while_others_go_on(build, text):
    """Row 1 starts a new text at byte 40; rows 0 and 2 must not notice, and row 1 must remember nothing."""
    model, first, second = build(pooling="mean"), text(3, 100), text(3, 60, seed=9)
    boundaries = torch.rand(3, 100, generator=torch.Generator().manual_seed(4)) < 0.4
    boundaries[:, 0] = boundaries[1, 40] = True
    joined = first.clone()
    joined[1, 40:] = second[1]
    cache = UNetCache.empty(model.config, 3)
    before = stepped(model, cache, joined[:, :40], boundaries[:, :40])
    cache.reset(torch.tensor([False, True, False]))
    assert cache.position.tolist() == [40, 0, 40]
    after = stepped(model, cache, joined[:, 40:], boundaries[:, 40:])
    undisturbed = model(first, boundaries)
    for row in (0, 2):
        ours = {name: torch.cat((before[name], after[name]), 1)[row : row + 1] for name in NAMES}
        assert_same(ours, undisturbed, rows=slice(row, row + 1))
    fresh = model(second[1:2], boundaries[1:2, 40:])
    assert_same({name: values[1:2] for name, values in after.items()}, fresh)


@torch.no_grad()
def test_a_row_reset_between_the_halves_of_a_step_catches_up(build, text):
    """All rows have observed a byte when row 1 starts anew: it observes its first byte alone, then all decide."""
    model, first, second = build(pooling="mean"), text(3, 40), text(3, 40, seed=9)
    boundaries = torch.rand(3, 40, generator=torch.Generator().manual_seed(4)) < 0.4
    boundaries[:, 0] = boundaries[1, 20] = True
    cache = UNetCache.empty(model.config, 3)
    stepped(model, cache, first[:, :20], boundaries[:, :20])
    observe(model, cache, first[:, 20])
    cache.reset(torch.tensor([False, True, False]))
    observed = observe(model, cache, second[1:2, 0], rows=torch.tensor([1]))
    said = [decide(model, cache, boundaries[:, 20]).final_logits]
    for t in range(21, 40):
        byte_ids = torch.stack((first[0, t], second[1, t - 20], first[2, t]))
        said.append(step(model, cache, byte_ids, boundaries[:, t])[1].final_logits)
    said = torch.stack(said, 1)
    fresh, undisturbed = model(second[1:2, :20], boundaries[1:2, 20:]), model(first, boundaries)
    torch.testing.assert_close(observed.early_logits, fresh.early_logits[:, 0], rtol=0, atol=1e-4)
    torch.testing.assert_close(said[1], fresh.final_logits[0], rtol=0, atol=1e-4)
    for row in (0, 2):
        torch.testing.assert_close(said[row], undisturbed.final_logits[row, 20:], rtol=0, atol=1e-4)


@torch.no_grad()
def test_branches_do_not_disturb_each_other(build, text, boundaries_of):
    """A clone and a repeat go their own ways from byte 20 on; the original then continues as if alone."""
    model, byte_ids, boundaries = build(), text(2, 60), boundaries_of(2, 60)
    cache = UNetCache.empty(model.config, 2)
    stepped(model, cache, byte_ids[:, :20], boundaries[:, :20])

    flipped = boundaries.clone()
    flipped[:, 20] = ~flipped[:, 20]
    branch, repeated = cache.clone(), cache.repeat(2)
    assert_same(stepped(model, branch, byte_ids[:, 20:], flipped[:, 20:]), model(byte_ids, flipped), start=20)
    # Row b becomes 2b and 2b + 1: one keeps the boundaries, the other flips one.
    both = torch.stack((boundaries, flipped), 1).flatten(0, 1)
    twice = byte_ids.repeat_interleave(2, 0)
    assert_same(stepped(model, repeated, twice[:, 20:], both[:, 20:]), model(twice, both), start=20)
    assert_same(stepped(model, cache, byte_ids[:, 20:], boundaries[:, 20:]), model(byte_ids, boundaries), start=20)


@pytest.mark.parametrize(
    "branching", [lambda cache: cache.clone(), lambda cache: cache.repeat(1)], ids=["clone", "repeat"]
)
@torch.no_grad()
def test_branches_and_their_origin_take_turns(build, text, branching):
    """Both draw a token at every byte, one byte each in turn: a shared tensor would hold the other's keys."""
    model, ones, byte_ids, other = build(), torch.ones(2, 60, dtype=torch.bool), text(2, 60), text(2, 60, seed=9)
    other[:, :20] = byte_ids[:, :20]
    cache = UNetCache.empty(model.config, 2)
    stepped(model, cache, byte_ids[:, :20], ones[:, :20])
    branch, said, branched = branching(cache), [], []
    for t in range(20, 60):
        said.append(step(model, cache, byte_ids[:, t], ones[:, t])[1].final_logits)
        branched.append(step(model, branch, other[:, t], ones[:, t])[1].final_logits)
    for ours, ids in ((said, byte_ids), (branched, other)):
        full = model(ids, ones).final_logits[:, 20:]
        torch.testing.assert_close(torch.stack(ours, 1), full, rtol=0, atol=1e-4)


@torch.no_grad()
def test_token_room_doubles(build):
    model = build()
    cache = UNetCache.empty(model.config, 1)
    room = []
    for _ in range(300):
        step(model, cache, torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.bool))
        room.append(cache.tokens.keys.shape[2])
    assert sorted(set(room)) == [64, 128, 256, 512]


@pytest.mark.gpu
@torch.no_grad()
def test_stepping_on_gpu_equals_the_full_forward_on_cpu(build, text, boundaries_of):
    model, byte_ids, boundaries = build(), text(2, 100), boundaries_of(2, 100)
    full = model(byte_ids, boundaries)
    model.cuda()
    cache = UNetCache.empty(model.config, 2, device="cuda")
    ours = stepped(model, cache, byte_ids.cuda(), boundaries.cuda())
    assert_same({name: values.cpu() for name, values in ours.items()}, full)

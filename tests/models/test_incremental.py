"""One byte at a time equals the whole window at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rltok_rl.models import UNet
from rltok_rl.models.cache import UNetCache
from rltok_rl.models.incremental import decide, observe, prefill, step

from .conftest import hold_for, mixed_boundaries
from .test_unet import OPTIONS

NAMES = ("encoder_states", "boundary_logits", "early_logits", "decoder_states", "final_logits")


def stepped(model: UNet, cache: UNetCache, byte_ids: Tensor, boundaries: Tensor) -> dict[str, Tensor]:
    """Run [B, T] bytes through the cache and stack the outputs of all steps along time."""
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


@torch.no_grad()
def test_stepping_equals_the_full_forward(build, text):
    """80 bytes, boundary rates from 0 to 1: windows (16) wrap around and token room (64) doubles."""

    def law(options):
        model, byte_ids, boundaries = build(**options), text(4, 80), mixed_boundaries(4, 80)
        cache = UNetCache.empty(model.config, 4)
        assert_same(stepped(model, cache, byte_ids, boundaries), model(byte_ids, boundaries))
        assert torch.equal(cache.num_tokens, boundaries.sum(1))
        assert cache.position.tolist() == [80] * 4 and cache.tokens.keys.shape[2] == 128

    hold_for(law, OPTIONS)


@torch.no_grad()
def test_stepping_equals_the_full_forward_in_training_mode(build, text):
    """The soft cap of boundary logits belongs to training, in steps as well."""
    model, byte_ids, boundaries = build(boundary_cap=0.1).train(), text(2, 30), mixed_boundaries(2, 30)
    assert_same(stepped(model, UNetCache.empty(model.config, 2), byte_ids, boundaries), model(byte_ids, boundaries))


@torch.no_grad()
def test_prefill_leaves_what_stepping_leaves(build, text):
    """Prompts shorter and longer than the window (16) and the token room (64); 17 further bytes reach every slot."""

    def law(options):
        for prompt in (1, 17, 66):
            length = prompt + 17
            model, byte_ids, boundaries = build(**options), text(3, length), mixed_boundaries(3, length)
            cache = UNetCache.empty(model.config, 3)
            full = model(byte_ids, boundaries)
            output = prefill(model, cache, byte_ids[:, :prompt], boundaries[:, :prompt])
            torch.testing.assert_close(output.final_logits, full.final_logits[:, :prompt], rtol=0, atol=1e-5)
            assert_same(stepped(model, cache, byte_ids[:, prompt:], boundaries[:, prompt:]), full, start=prompt)

    hold_for(law, OPTIONS)


@torch.no_grad()
def test_rows_reset_while_others_continue(build, text):
    """Row 1 starts a new text at byte 20; rows 0 and 2 must not notice, and row 1 must forget the old text."""
    model, first, second = build(pooling="mean"), text(3, 50), text(3, 30, seed=9)
    boundaries = mixed_boundaries(3, 50)
    boundaries[1, 20] = True
    joined = first.clone()
    joined[1, 20:] = second[1]
    cache = UNetCache.empty(model.config, 3)
    before = stepped(model, cache, joined[:, :20], boundaries[:, :20])
    cache.reset(torch.tensor([False, True, False]))
    assert cache.position.tolist() == [20, 0, 20]
    after = stepped(model, cache, joined[:, 20:], boundaries[:, 20:])
    undisturbed = model(first, boundaries)
    for row in (0, 2):
        ours = {name: torch.cat((before[name], after[name]), 1)[row : row + 1] for name in NAMES}
        assert_same(ours, undisturbed, rows=slice(row, row + 1))
    fresh = model(second[1:2], boundaries[1:2, 20:])
    assert_same({name: values[1:2] for name, values in after.items()}, fresh)


@torch.no_grad()
def test_a_row_reset_between_the_halves_of_a_step_catches_up(build, text):
    """All rows have observed a byte when row 1 starts anew: it observes its first byte alone, then all decide."""
    model, first, second = build(pooling="mean"), text(3, 40), text(3, 40, seed=9)
    boundaries = mixed_boundaries(3, 40)
    boundaries[1, 20] = True
    cache = UNetCache.empty(model.config, 3)
    stepped(model, cache, first[:, :20], boundaries[:, :20])
    observe(model, cache, first[:, 20])
    cache.reset(torch.tensor([False, True, False]))
    observed = observe(model, cache, second[1:2, 0], rows=torch.tensor([1]))
    logits = [decide(model, cache, boundaries[:, 20]).final_logits]
    for t in range(21, 40):
        byte_ids = torch.stack((first[0, t], second[1, t - 20], first[2, t]))
        logits.append(step(model, cache, byte_ids, boundaries[:, t])[1].final_logits)
    logits = torch.stack(logits, 1)
    fresh, undisturbed = model(second[1:2, :20], boundaries[1:2, 20:]), model(first, boundaries)
    torch.testing.assert_close(observed.early_logits, fresh.early_logits[:, 0], rtol=0, atol=1e-4)
    torch.testing.assert_close(logits[1], fresh.final_logits[0], rtol=0, atol=1e-4)
    for row in (0, 2):
        torch.testing.assert_close(logits[row], undisturbed.final_logits[row, 20:], rtol=0, atol=1e-4)


@pytest.mark.parametrize("flipping_first", [False, True])
@torch.no_grad()
def test_branches_do_not_disturb_each_other(build, text, flipping_first):
    """Clones and repeats flip a boundary at byte 20, before or after the original continues alone."""
    model, byte_ids, boundaries = build(upsampling="attention"), text(2, 40), mixed_boundaries(2, 40)
    cache = UNetCache.empty(model.config, 2)
    stepped(model, cache, byte_ids[:, :20], boundaries[:, :20])
    flipped = boundaries.clone()
    flipped[:, 20] = ~flipped[:, 20]
    # Row b becomes 2b and 2b + 1: one keeps the boundaries, the other flips one.
    both, twice = torch.stack((boundaries, flipped), 1).flatten(0, 1), byte_ids.repeat_interleave(2, 0)
    order = torch.tensor([1, 0, 1])
    runs = [
        (cache.clone(), byte_ids, flipped),
        (cache.repeat(2), twice, both),
        (cache.take(order), byte_ids[order], flipped[order]),
        (cache, byte_ids, boundaries),
    ]
    for state, bytes_, drawn in runs if flipping_first else reversed(runs):
        assert_same(stepped(model, state, bytes_[:, 20:], drawn[:, 20:]), model(bytes_, drawn), start=20)


@torch.no_grad()
def test_branches_share_no_tensor(build, text):
    """A byte written in a branch leaves every tensor of its origin as it was."""
    model = build(second_level="routing", pooling="attention", ngram_sizes=(2,), rate_embedding=True)
    branchings = [lambda cache: cache.clone(), lambda cache: cache.repeat(1), lambda cache: cache.take(torch.arange(2))]
    for branching in branchings:
        cache = model.new_cache(2)
        stepped(model, cache, text(2, 5), mixed_boundaries(2, 5))
        before = tensors_of(cache.map(torch.clone))
        stepped(model, branching(cache), text(2, 5, seed=9), torch.ones(2, 5, dtype=torch.bool))
        assert all(torch.equal(a, b) for a, b in zip(before, tensors_of(cache), strict=True))
        for wrong in (torch.tensor([2]), torch.tensor([0.0]), torch.tensor([], dtype=torch.int64)):
            with pytest.raises(ValueError, match="rows must"):
                cache.take(wrong)


def tensors_of(cache: UNetCache) -> list[Tensor]:
    tensors: list[Tensor] = []
    cache.map(lambda x: tensors.append(x) or x)
    return tensors


@pytest.mark.gpu
@torch.no_grad()
def test_stepping_on_gpu_equals_the_full_forward_on_cpu(build, text):
    model, byte_ids, boundaries = build(), text(2, 100), mixed_boundaries(2, 100)
    full = model(byte_ids, boundaries)
    model.cuda()
    cache = UNetCache.empty(model.config, 2, device="cuda")
    ours = stepped(model, cache, byte_ids.cuda(), boundaries.cuda())
    assert_same({name: values.cpu() for name, values in ours.items()}, full)

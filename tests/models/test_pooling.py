"""Tokens are made of the right bytes and serve the right bytes, in both layouts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rltok_rl.models.incremental import step
from rltok_rl.models.mixing import token_update
from rltok_rl.models.tokens import downsample, token_layout, upsample

from .conftest import mixed_boundaries


def tokens_by_loop(states: Tensor, boundaries: Tensor, pooling: str) -> list[tuple[list[int], Tensor]]:
    """Per row: positions of the tokens, and the tokens [S_b, D], one byte after the other."""
    rows = []
    for row_states, row in zip(states, boundaries.tolist(), strict=True):
        positions, tokens, since = [], [], []
        for t, boundary in enumerate(row):
            since.append(row_states[t])
            if boundary:
                positions.append(t)
                tokens.append(row_states[t] if pooling == "select" else torch.stack(since).mean(0))
                since = []
        rows.append((positions, torch.stack(tokens)))
    return rows


@pytest.mark.parametrize("pooling", ["select", "mean"])
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_downsample_equals_a_loop(pooling, layout):
    boundaries = mixed_boundaries(4, 23)
    states = torch.randn(4, 23, 6)
    where = token_layout(boundaries, layout)
    tokens = downsample(states, where, pooling)
    expected = tokens_by_loop(states, boundaries, pooling)
    if layout == "packed":
        torch.testing.assert_close(tokens, torch.cat([t for _, t in expected]))
        assert where.positions.tolist() == [p for positions, _ in expected for p in positions]
    else:
        for row, (positions, row_tokens) in enumerate(expected):
            torch.testing.assert_close(tokens[row, : len(positions)], row_tokens)
            assert where.positions[row, : len(positions)].tolist() == positions
    assert where.num_tokens.tolist() == [len(p) for p, _ in expected]


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_bytes_receive_the_token_that_was_closed_last(layout):
    boundaries = mixed_boundaries(3, 17)
    states = torch.randn(3, 17, 5)
    where = token_layout(boundaries, layout)
    updates = torch.randn(*where.shape, 5)
    out = upsample(states, updates, where)
    flat, first = updates.reshape(-1, 5), 0
    for row in range(3):
        current = -1
        for t in range(17):
            current += int(boundaries[row, t])
            torch.testing.assert_close(out[row, t], states[row, t] + flat[first + current])
        first += where.width if layout == "padded" else int(where.num_tokens[row])


def test_a_worked_example():
    """Figure 1 of the paper: x = "<b>Learn t", a = 11001010, i(t) counts from 0 here."""
    where = token_layout(torch.tensor([[1, 1, 0, 0, 1, 0, 1, 0]]).bool())
    assert where.token_index.tolist() == [[0, 1, 1, 1, 2, 2, 3, 3]]
    assert where.positions.tolist() == [[0, 1, 4, 6]]
    states = torch.arange(8.0).view(1, 8, 1)
    assert downsample(states, where, "select").flatten().tolist() == [0, 1, 4, 6]
    assert downsample(states, where, "mean").flatten().tolist() == [0, 1, 3, 5.5]  # byte 7 flows into no token yet


def test_deviation_takes_away_what_went_in():
    tokens_in, tokens_out = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    torch.testing.assert_close(token_update(tokens_in, tokens_out, "deviation"), tokens_out - tokens_in)
    assert token_update(tokens_in, tokens_out, "add") is tokens_out


@pytest.mark.parametrize("pooling", ["select", "mean"])
def test_gradient_flows_to_the_pooled_bytes_alone(pooling):
    states = torch.randn(1, 6, 2, requires_grad=True)
    where = token_layout(torch.tensor([[1, 0, 0, 1, 0, 0]]).bool())
    downsample(states, where, pooling)[0, 1].sum().backward()
    touched = states.grad.abs().sum(-1)[0] > 0
    expected = [0, 0, 0, 1, 0, 0] if pooling == "select" else [0, 1, 1, 1, 0, 0]
    assert touched.int().tolist() == expected


def test_unknown_layout_is_refused():
    with pytest.raises(ValueError, match=r"layout must be one of \['padded', 'packed'\] or a Packing, got 'ragged'"):
        token_layout(torch.ones(1, 2).bool(), "ragged")


def test_mean_pooling_counts_beyond_what_bfloat16_can():
    boundaries = torch.zeros(1, 1000, dtype=torch.bool)
    boundaries[0, [0, -1]] = True
    tokens = downsample(torch.ones(1, 1000, 2).bfloat16(), token_layout(boundaries), "mean")
    assert tokens.dtype == torch.bfloat16 and (tokens == 1).all()


@torch.no_grad()
def test_mean_pooling_in_bfloat16_steps_as_it_runs(build, text):
    model, byte_ids = build(pooling="mean", num_decoder_layers=0).bfloat16(), text(1, 400)
    boundaries = torch.zeros(1, 400, dtype=torch.bool)
    boundaries[0, [0, -1]] = True
    cache = model.new_cache(1)
    for t in range(400):
        _, said = step(model, cache, byte_ids[:, t], boundaries[:, t])
    full = model(byte_ids, boundaries).decoder_states[:, -1]
    torch.testing.assert_close(said.decoder_state, full, rtol=0.05, atol=0.05)

"""Tokens are made of the right bytes and serve the right bytes, in both layouts."""

from __future__ import annotations

import torch

from rltok_rl.models.mixing import token_update
from rltok_rl.models.tokens import downsample, token_layout, upsample

from ..each import each
from .conftest import mixed_boundaries, stepped


@each(layout=["padded", "packed"], pooling=["select", "mean"])
def test_pooling_and_upsampling_equal_a_loop(layout, pooling):
    boundaries, states = mixed_boundaries(4, 23), torch.randn(4, 23, 6)
    where = token_layout(boundaries, layout)
    tokens, updates = downsample(states, where, pooling).reshape(-1, 6), torch.randn(*where.shape, 6)
    out, positions = upsample(states, updates, where), where.positions.flatten().tolist()
    for row, marks in enumerate(boundaries.tolist()):
        since, number = [], int(where.first[row]) - 1
        for t, boundary in enumerate(marks):
            since.append(states[row, t])
            if boundary:
                number += 1
                expected = states[row, t] if pooling == "select" else torch.stack(since).mean(0)
                torch.testing.assert_close(tokens[number], expected)
                assert positions[number] == t
                since = []
            torch.testing.assert_close(out[row, t], states[row, t] + updates.reshape(-1, 6)[number])
        assert where.num_tokens[row] == sum(marks)


def test_a_worked_example():
    """Figure 1 of the paper: x = "<b>Learn t", a = 11001010, i(t) counts from 0 here."""
    where = token_layout(torch.tensor([[1, 1, 0, 0, 1, 0, 1, 0]]).bool())
    assert where.token_index.tolist() == [[0, 1, 1, 1, 2, 2, 3, 3]]
    assert where.positions.tolist() == [[0, 1, 4, 6]]
    states = torch.arange(8.0).view(1, 8, 1)
    assert downsample(states, where, "select").flatten().tolist() == [0, 1, 4, 6]
    assert downsample(states, where, "mean").flatten().tolist() == [0, 1, 3, 5.5]  # byte 7 flows into no token yet
    tokens_in, tokens_out = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    assert torch.equal(token_update(tokens_in, tokens_out, "deviation"), tokens_out - tokens_in)
    assert torch.equal(token_update(tokens_in, tokens_out), tokens_out)


@each(layout=["padded", "packed"])
def test_gradients_reach_the_pooled_bytes_alone(layout):
    """Select touches boundary bytes, mean also the bytes inside a token, and neither the bytes still waiting."""
    boundaries = torch.tensor([[1, 0, 1, 0, 0], [1, 0, 0, 0, 1]]).bool()
    for pooling, touched in (("select", [[1, 0, 1, 0, 0], [1, 0, 0, 0, 1]]), ("mean", [[1, 1, 1, 0, 0], [1] * 5])):
        states = torch.randn(2, 5, 3, requires_grad=True)
        tokens = downsample(states, token_layout(boundaries, layout), pooling)
        (grad,) = torch.autograd.grad(tokens.sum(), states)
        assert (grad != 0).any(-1).int().tolist() == touched


@torch.no_grad()
def test_mean_pooling_counts_beyond_what_bfloat16_can(build, text):
    boundaries = (torch.arange(400) % 399 == 0)[None]
    tokens = downsample(torch.ones(1, 400, 2).bfloat16(), token_layout(boundaries), "mean")
    assert tokens.dtype == torch.bfloat16 and (tokens == 1).all()
    model, byte_ids = build(pooling="mean", num_decoder_layers=0).bfloat16(), text(1, 400)
    full = model(byte_ids, boundaries).decoder_states[:, -1]
    ours = stepped(model, model.new_cache(1), byte_ids, boundaries)["decoder_states"][:, -1]
    torch.testing.assert_close(ours, full, rtol=0.05, atol=0.05)

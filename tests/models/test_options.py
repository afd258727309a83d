"""Options of the paper's Appendix C: smoothing, attention between bytes and tokens."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rltok_rl.functional.likelihood import next_byte_log_prob
from rltok_rl.models import UNet
from rltok_rl.models.cross_attention import segment_attention
from rltok_rl.models.mixing import Mixing

from ..each import each
from .conftest import mixed_boundaries, seeded

# Smoothing.


@each(smoothing=["detached", "gradient", "straight_through"])
def test_all_smoothings_predict_the_same_and_only_some_teach_the_policy(smoothing, build, text):
    byte_ids, boundaries = text(2, 40), mixed_boundaries(2, 40, 0.3)
    model, detached, plain = build(smoothing=smoothing), build(smoothing="detached"), build()
    logits = model(byte_ids, boundaries).final_logits
    assert torch.equal(logits, detached(byte_ids, boundaries).final_logits)
    assert (logits - plain(byte_ids, boundaries).final_logits).abs().max() > 0.01
    next_byte_log_prob(logits, byte_ids).sum().backward()
    assert (model.boundary_head.projection.weight.grad is not None) == (smoothing != "detached")


@torch.no_grad()
def test_a_boundary_that_was_certain_is_not_smoothed(build, text):
    """With boundary probabilities near 1, smoothing is gone; near 0, the first token serves all bytes."""
    byte_ids, boundaries = text(2, 40), mixed_boundaries(2, 40, 0.3)
    plain, smoothed = build(), build(smoothing="detached", boundary_bias=True)
    missing = smoothed.load_state_dict(plain.state_dict(), strict=False).missing_keys
    assert missing == ["boundary_head.projection.bias"]
    for logit, expected in ((600.0, boundaries), (-600.0, (torch.arange(40) == 0).expand(2, 40))):
        smoothed.boundary_head.projection.bias[0] = logit / smoothed.config.boundary_scale
        found = smoothed(byte_ids, boundaries).final_logits
        torch.testing.assert_close(found, plain(byte_ids, expected).final_logits, rtol=0, atol=1e-5)


def test_straight_through_confidence_is_one_and_a_given_mixing_replaces_it(build, text):
    model, boundaries = build(smoothing="straight_through"), mixed_boundaries(2, 40, 0.3)
    states = model.encode(text(2, 40))
    mixing = model.own_mixing(states, boundaries)
    assert torch.equal(mixing.receive, torch.ones(2, 40))
    (slope,) = torch.autograd.grad(mixing.receive.sum(), mixing.smoothing)
    assert torch.equal(slope, torch.where(boundaries, 1.0, -1.0))
    assert torch.equal(build().decode(states, boundaries), model.decode(states, boundaries, mixing=Mixing()))


# Attention between bytes and tokens.


def test_segment_attention_is_softmax_in_every_segment():
    scores, values = torch.randn(20, 2, dtype=torch.float64), torch.randn(20, 2, 3, dtype=torch.float64)
    scores[5] = 900.0  # exp of it is no number
    owner = torch.randint(6, (20,), generator=seeded(0)) % 5  # 5 is no segment, 4 of 0..4 owned
    owner[owner == 3] = 5
    ours = segment_attention(scores, values, owner, 5)
    for s in range(5):
        mine = owner == s
        torch.testing.assert_close(ours[s], (scores[mine].softmax(0)[..., None] * values[mine]).sum(0))
    assert (ours[3] == 0).all() and int((owner == 5).sum()) > 0


def bytes_that_count(model: UNet, byte_ids, boundaries, position: int) -> list[int]:
    """Earlier bytes that change the prediction at a position when they change."""
    expected, found = model(byte_ids, boundaries).final_logits[0, position], []
    for u in range(position):
        other = byte_ids.clone()
        other[0, u] = (other[0, u] + 1) % 256
        if (model(other, boundaries).final_logits[0, position] - expected).abs().max() > 1e-4:
            found.append(u)
    return found


@torch.no_grad()
def test_attention_sees_a_window_of_bytes_and_the_configured_number_of_tokens(build, text):
    """Without byte layers a state is its byte; token layers that do nothing leave tokens as they come in."""
    plain = {"num_encoder_layers": 0, "num_decoder_layers": 0}
    boundaries = (torch.arange(30) % 20 == 0)[None]
    counted = bytes_that_count(build(pooling="attention", window=6, **plain), text(1, 30), boundaries, 20)
    assert counted == [0, *range(15, 20)]  # byte 0 is the first token
    model = build(upsampling="attention", tokens_read=3, **plain)
    model.token_layers.forward = lambda x, *_, **options: x
    boundaries = mixed_boundaries(1, 30, 0.3)
    boundaries[:, 26:] = False
    counted = bytes_that_count(model, text(1, 30), boundaries, 29)
    assert counted == boundaries[0].nonzero().flatten()[-3:].tolist()


def test_attention_costs_what_the_bytes_cost(build, text):
    """Twice the bytes make twice the elements of all tensors."""

    class Count(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            self.elements += sum(x.numel() for x in (out if isinstance(out, tuple) else (out,)) if torch.is_tensor(x))
            return out

    counts = []
    for length in (400, 800):
        model = build(pooling="attention", upsampling="attention", num_encoder_layers=0, num_decoder_layers=0)
        model.token_layers.forward = lambda x, *_, **options: x  # whose attention is not linear
        with Count() as count:
            model(text(1, length), mixed_boundaries(1, length, 0.3))
        counts.append(count.elements)
    assert 1.8 < counts[1] / counts[0] < 2.1

"""Room for packed tokens: its size, equality with padded tokens, and no wait for an accelerator."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rltok_rl.functional.likelihood import next_byte_log_prob
from rltok_rl.models import UNet, attention, preset
from rltok_rl.models.mixing import Mixing
from rltok_rl.models.tokens import Packing, bucketed, bucketed_totals, downsample, token_layout, upsample

OPTIONS = {
    "add": {},
    "mean, capped": {"pooling": "mean", "upsampling": "deviation", "attention_cap": 5.0},
    "attention": {"pooling": "attention", "upsampling": "attention"},
    "smoothing": {"smoothing": "straight_through"},
    "stride": {"second_level": "stride", "num_token_layers": 2},
    "routing": {"second_level": "routing", "num_token_layers": 2},
    "as H-Net": {"second_level": "routing", "second_residual": "projection", "num_lower_layers": 0},
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))


def ragged(num_rows: int = 4, length: int = 50) -> Tensor:
    """Rows with one token, every byte a token, and between."""
    rates = torch.tensor([0.0, 1.1, 0.2, 0.5])[:num_rows, None]
    boundaries = torch.rand(num_rows, length, generator=torch.Generator().manual_seed(3)) < rates
    boundaries[:, :1] = True
    return boundaries


def test_buckets_leave_at_most_two_per_cent_empty():
    """At totals from 800 tokens on, which a row of 4,096 bytes has at a rate of 0.2; below, fewer than 16 places."""
    totals = torch.cat((torch.arange(1, 3000), torch.arange(3000, 400_000, 61)))
    rooms = bucketed_totals(totals)
    assert rooms.tolist() == [bucketed(n) for n in totals.tolist()]
    empty = rooms - totals
    assert int(empty.min()) == 0 and (empty < 16)[totals < 2048].all()
    share = empty / rooms
    assert share[totals >= 800].max() <= 0.02
    assert share[totals >= 1024].max() < 1 / 64
    assert share[totals >= 800].mean() < 0.008
    # Shapes repeat: as many rooms as there are buckets, between one power of two and the next.
    assert len({bucketed(n) for n in range(8192, 16384)}) <= 65


@pytest.mark.parametrize("num_rows", [1, 4])
@pytest.mark.parametrize("packing", [Packing(), Packing(tokens=0.9), Packing(tokens=5.0), Packing(bucketed=False)])
def test_every_room_has_the_same_tokens_in_it(packing, num_rows):
    """Against the layout without an empty place; and behind the tokens there is a byte that exists."""
    boundaries, states = ragged(num_rows), torch.randn(num_rows, 50, 6, requires_grad=True)
    exact, roomy = token_layout(boundaries, "packed"), token_layout(boundaries, packing)
    total = int(boundaries.sum())
    assert exact.shape == (total,) and exact.positions.tolist() == boundaries.nonzero()[:, 1].tolist()
    assert roomy.shape[0] >= total and roomy.shape[0] % (16 if packing.bucketed else 1) == 0
    for name in ("num_tokens", "token_index", "first"):
        assert torch.equal(getattr(exact, name), getattr(roomy, name)), name
    for name in ("positions", "byte_index"):
        assert torch.equal(getattr(exact, name), getattr(roomy, name)[:total]), name
        assert not getattr(roomy, name)[total:].any()
    assert roomy.width == exact.width == int(boundaries.sum(1).max())
    for pooling in ("select", "mean"):
        tokens = downsample(states, roomy, pooling)
        torch.testing.assert_close(tokens[:total], downsample(states, exact, pooling), rtol=0, atol=0)
        served = upsample(states, torch.cat((tokens[:total], torch.full_like(tokens[total:], torch.nan))), roomy)
        assert served.isfinite().all()  # no byte is served by a place that holds no token


def run(model: UNet, byte_ids: Tensor, boundaries: Tensor, layout) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad(set_to_none=True)
    out = model(byte_ids, boundaries, layout=layout)
    (-next_byte_log_prob(out.final_logits, byte_ids).mean()).backward()
    return out.final_logits.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@every_option
def test_room_changes_no_value_and_no_gradient(build, text, options):
    byte_ids, boundaries, model = text(4, 50), ragged(), build(**options).double()
    expected, gradients = run(model, byte_ids, boundaries, "padded")
    for packing in (Packing(), Packing(tokens=0.7, second=0.9), Packing(tokens=0.7, attention="padded")):
        said, found = run(model, byte_ids, boundaries, packing)
        torch.testing.assert_close(said, expected, rtol=0, atol=1e-10)
        assert found.keys() == gradients.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


def test_a_first_token_of_its_own_and_smoothing_begin_anew_in_every_row():
    """What a segmenter's mixing puts at the first token goes to that of every row, and to no empty place's gradient."""
    model, boundaries = UNet(preset("tiny")).double(), ragged()
    states = torch.randn(4, 50, 64, dtype=torch.float64, requires_grad=True)
    null = torch.randn(64, dtype=torch.float64, requires_grad=True)
    mixing = Mixing(pooling="mean", first_token=null, smoothing=torch.rand(4, 50, dtype=torch.float64))
    found = []
    for layout in ("padded", Packing(tokens=0.9)):
        out = model.decode(states, boundaries, layout=layout, mixing=mixing)
        found.append((out, *torch.autograd.grad(out.square().sum(), (states, null))))
    for padded, packed in zip(*found, strict=True):
        torch.testing.assert_close(packed, padded, rtol=0, atol=1e-10)


def test_too_many_tokens_are_an_error():
    boundaries = torch.ones(4, 50, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"more tokens .*compute.token_room.*: 200 of 200 places .* room for 64"):
        token_layout(boundaries, Packing(tokens=0.25))
    assert token_layout(boundaries, Packing(tokens=1.0)).shape == (208,)
    model = UNet(preset("tiny", second_level="stride", second_rate=1.0, num_token_layers=2))
    with pytest.raises(ValueError, match=r"200 of 208 places .* room for 32"):
        model(torch.zeros(4, 50, dtype=torch.int64), boundaries, layout=Packing(tokens=1.0, second=0.1))
    with pytest.raises(ValueError, match="tokens must be a positive number or None, got 0"):
        Packing(tokens=0)
    with pytest.raises(ValueError, match="second must be None if tokens is None"):
        Packing(second=0.3)


class Asked(TorchDispatchMode):
    """Record the names of all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["mean, capped", "attention", "smoothing", "stride", "as H-Net"])
def test_no_host_waits_for_a_fixed_room(name, monkeypatch):
    """Forward and backward on meta tensors, which refuse to be read."""
    monkeypatch.setattr(attention, "flex_rows_attention", lambda query, key, value, **_: query * 2 + key + value)
    with torch.device("meta"):
        model = UNet(preset("tiny", **OPTIONS[name]))
        states = torch.empty(3, 96, 64, requires_grad=True)
        boundaries = torch.empty(3, 96, dtype=torch.bool)
    with Asked() as asked:
        model.decode(states, boundaries, layout=Packing(tokens=0.5, attention="flex")).sum().backward()
    assert states.grad.shape == states.shape
    assert not asked.names & {"_local_scalar_dense", "nonzero", "masked_select", "unique_dim"}
    assert "_assert_async" in asked.names  # too many tokens would stop the device
    for layout in (Packing(attention="flex"), Packing(tokens=0.5, attention="padded"), "padded"):
        with pytest.raises((NotImplementedError, RuntimeError), match="meta"):  # these count tokens
            model.decode(states, boundaries, layout=layout)


def test_block_masks_are_built_without_reading_values():
    rows = attention.PackedRows(torch.empty(3, dtype=torch.int64, device="meta"), room=600, most=300)
    mask = attention.row_block_mask(rows)
    assert mask.kv_indices.shape == (1, 1, 5, 5) and mask.kv_indices.device.type == "meta"


def test_layouts_have_no_field_that_goes_by_the_batch():
    """With a room that is known, shapes are the same for any boundaries: what programs and graphs are made for."""
    few, many = (torch.rand(4, 50, generator=torch.Generator().manual_seed(0)) < rate for rate in (0.1, 0.6))
    shapes = []
    for boundaries in (few, many):
        boundaries[:, 0] = True
        where = token_layout(boundaries, Packing(tokens=0.8))
        mask = attention.row_block_mask(where.rows)
        tensors = [getattr(where, f.name) for f in fields(where)]
        shapes.append([x.shape for x in tensors if isinstance(x, Tensor)] + [where.shape, mask.kv_indices.shape])
    assert shapes[0] == shapes[1]

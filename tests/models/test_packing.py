"""Packed tokens: their room, equality with padded tokens, and no wait for an accelerator."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rltok_rl.models import UNet, attention, preset
from rltok_rl.models.mixing import Mixing
from rltok_rl.models.tokens import Packing, bucketed, bucketed_totals, downsample, token_layout, upsample

from ..each import each
from .conftest import VARIANTS, loss_and_gradients, mixed_boundaries

PACKINGS = [Packing(), Packing(tokens=0.9), Packing(tokens=5.0), Packing(bucketed=False)]
LAYOUTS = ["packed", Packing(), Packing(tokens=0.9, second=0.9), Packing(tokens=0.9, attention="padded")]


def test_buckets_leave_at_most_two_per_cent_empty():
    """At totals from 800 tokens on, which a row of 4,096 bytes has at a rate of 0.2; below, fewer than 16 places."""
    totals = torch.cat((torch.arange(1, 3000), torch.arange(3000, 400_000, 61)))
    rooms = bucketed_totals(totals)
    assert rooms.tolist() == [bucketed(n) for n in totals.tolist()]
    empty = rooms - totals
    assert int(empty.min()) == 0 and (empty < 16)[totals < 2048].all()
    share = empty / rooms
    assert share[totals >= 800].max() <= 0.02 and share[totals >= 800].mean() < 0.008
    assert share[totals >= 1024].max() < 1 / 64
    # Shapes repeat: as many rooms as there are buckets, between one power of two and the next.
    assert len({bucketed(n) for n in range(8192, 16384)}) <= 65


@each(num_rows=[1, 4], packing=PACKINGS)
def test_every_room_has_the_same_tokens_in_it(packing, num_rows):
    """As the layout without empty places has; behind the tokens is a byte that exists."""
    boundaries, states = mixed_boundaries(num_rows, 50), torch.randn(num_rows, 50, 6, requires_grad=True)
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
        assert served.isfinite().all()  # no byte is served by an empty place


@each(name=VARIANTS)
def test_layouts_change_no_value_and_no_gradient(name, build, text):
    byte_ids, boundaries, model = text(4, 50), mixed_boundaries(4, 50), build(**VARIANTS[name]).double()
    expected = model(byte_ids, boundaries).final_logits
    gradients = loss_and_gradients(model, expected)
    for layout in LAYOUTS:
        logits = model(byte_ids, boundaries, layout=layout).final_logits
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)
        found = loss_and_gradients(model, logits)
        assert found.keys() == gradients.keys()
        for parameter, gradient in gradients.items():
            torch.testing.assert_close(found[parameter], gradient, rtol=1e-9, atol=1e-8)


def test_a_null_token_and_smoothing_begin_anew_in_every_row():
    """The first token of a mixing goes to that of every row, and its gradient comes from no empty place."""
    model, boundaries = UNet(preset("tiny")).double(), mixed_boundaries(4, 50)
    states = torch.randn(4, 50, 64, dtype=torch.float64, requires_grad=True)
    null = torch.randn(64, dtype=torch.float64, requires_grad=True)
    mixing, found = Mixing(pooling="mean", first_token=null, smoothing=torch.rand(4, 50, dtype=torch.float64)), []
    for layout in ("padded", Packing(tokens=0.9)):
        out = model.decode(states, boundaries, layout=layout, mixing=mixing)
        found.append((out, *torch.autograd.grad(out.square().sum(), (states, null))))
    for padded, packed in zip(*found, strict=True):
        torch.testing.assert_close(packed, padded, rtol=0, atol=1e-10)


class Asked(TorchDispatchMode):
    """Record the names of all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@each(name=["mean, deviation, capped", "n-grams, smoothing", "attention", "stride", "as H-Net"])
def test_no_host_waits_for_a_fixed_room(name):
    """Forward and backward on meta tensors, which refuse to be read."""
    with torch.device("meta"):
        model = UNet(preset("tiny", **VARIANTS[name]))
        states = torch.empty(3, 96, 64, requires_grad=True)
        boundaries = torch.empty(3, 96, dtype=torch.bool)
    with pytest.MonkeyPatch.context() as patch, Asked() as asked:
        patch.setattr(attention, "flex_rows_attention", lambda query, key, value, **_: query * 2 + key + value)
        model.decode(states, boundaries, layout=Packing(tokens=0.5, attention="flex")).sum().backward()
    assert states.grad.shape == states.shape
    assert not asked.names & {"_local_scalar_dense", "nonzero", "masked_select", "unique_dim"}
    assert "_assert_async" in asked.names  # too many tokens would stop the device
    for layout in (Packing(attention="flex"), Packing(tokens=0.5, attention="padded"), "padded"):
        with pytest.raises((NotImplementedError, RuntimeError), match="meta"):  # these count tokens
            model.decode(states, boundaries, layout=layout)


def test_shapes_of_a_fixed_room_do_not_depend_on_the_batch():
    """Programs and graphs are made for shapes; block masks are built without reading values."""
    rows = attention.PackedRows(torch.empty(3, dtype=torch.int64, device="meta"), room=600, most=300)
    mask = attention.row_block_mask(rows)
    assert mask.kv_indices.shape == (1, 1, 5, 5) and mask.kv_indices.device.type == "meta"
    shapes = []
    for boundaries in (mixed_boundaries(4, 50, 0.1), mixed_boundaries(4, 50, 0.6)):
        where = token_layout(boundaries, Packing(tokens=0.8))
        tensors = [getattr(where, f.name) for f in fields(where)]
        shapes.append([x.shape for x in tensors if isinstance(x, Tensor)] + [where.shape])
    assert shapes[0] == shapes[1]

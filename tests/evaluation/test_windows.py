"""Windows predict every byte but the first once, each from as many bytes before it as the stride promises."""

from __future__ import annotations

import pytest
import torch

from rltok_rl.evaluation import cut_windows, read_text
from rltok_rl.evaluation.reading import lay_windows, windows_of_texts
from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.models import UNet, preset
from rltok_rl.text import text_to_ids

TEXT = "It is a truth universally acknowledged, é"


@pytest.mark.parametrize("context", [1, 2, 3, 5, 10, 11, 100])
@pytest.mark.parametrize("num_bytes", [2, 3, 4, 11, 12, 13, 60])
def test_every_byte_but_the_first_is_predicted_once(num_bytes, context):
    for stride in range(1, context + 1):
        windows = cut_windows(num_bytes, context, stride)
        predicted, seen = [], 1
        for number, (start, end) in enumerate(windows):
            assert 2 <= end - start <= context + 1 and start == stride * number
            assert seen < end  # a window that predicts nothing would be in vain
            for byte in range(seen, end):
                assert byte - start >= min(byte, context - stride + 1)
            predicted += range(seen, end)
            seen = end
        assert predicted == list(range(1, num_bytes))
        laid = lay_windows(num_bytes, context, stride)
        assert laid.places().tolist() == list(range(num_bytes - 1))
        assert laid.first.tolist() == [1, *(end for _, end in windows[:-1])]
    assert cut_windows(num_bytes, context) == cut_windows(num_bytes, context, context)


@torch.no_grad()
@pytest.mark.parametrize(("context", "stride"), [(8, 1), (8, 3), (7, 7), (6, 5), (100, 1)])
def test_each_byte_costs_what_it_does_after_the_bytes_that_it_may_see(context, stride):
    """Every cost from a forward pass of its own, over exactly the bytes from the window's beginning on."""
    model = UNet(preset("tiny", boundary_scale=1.0, target_rate=0.6)).eval()
    torch.nn.init.normal_(model.final_head.projection.weight, std=0.3)
    byte_ids = text_to_ids(TEXT)
    read = read_text(model, TEXT, context=context, stride=stride, greedy=True)
    assert 0.1 < read.boundaries.double().mean() < 0.95
    costs, boundaries, starts = [], [], set()
    for byte in range(1, len(byte_ids)):
        start = 0 if byte <= context else -(-(byte - context) // stride) * stride
        out = model(byte_ids[None, start:byte], greedy=True)
        costs.append(-byte_log_prob(out.final_logits[0, -1:], byte_ids[byte : byte + 1]).item())
        boundaries.append(bool(out.boundaries[0, -1]))
        starts.add(start)
    assert len(starts) == read.num_windows
    torch.testing.assert_close(read.final_nats, torch.tensor(costs, dtype=torch.float64), atol=1e-4, rtol=0)
    assert read.boundaries.tolist() == boundaries


def test_boundaries_of_bytes_that_are_read_again_are_drawn_anew():
    """One random number per byte that is read, window by window, whether a byte is predicted there or not."""
    model = UNet(preset("tiny", boundary_scale=1.0, target_rate=0.3)).eval()
    byte_ids, draws = text_to_ids(TEXT), torch.Generator().manual_seed(3)
    read = read_text(model, TEXT, context=10, stride=4, generator=torch.Generator().manual_seed(3))
    boundaries, seen = [], 0
    for start, end in cut_windows(len(byte_ids), 10, 4):
        uniforms = torch.rand(1, end - start - 1, generator=draws)
        drawn = model(byte_ids[None, start : end - 1], uniforms=uniforms).boundaries[0].tolist()
        boundaries += drawn[max(seen - start, 0) :]
        seen = end - 1
    assert read.boundaries.tolist() == boundaries
    assert read.forced.nonzero().flatten().tolist() == [0]  # no other window predicts from its first byte


def test_texts_have_windows_of_their_own_and_some_can_be_taken():
    windows = windows_of_texts([(0, 9), (10, 14)], 4, 2)
    assert windows.start.tolist() == [0, 2, 4, 10] and windows.end.tolist() == [5, 7, 9, 14]
    assert windows.first.tolist() == [1, 5, 7, 11]
    assert windows.places().tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12]
    assert windows.spread(2).start.tolist() == [0, 4]
    assert windows.spread(2).places().tolist() == [0, 1, 2, 3, 6, 7]  # bytes 7 and 8 alone are the second one's own


def test_strides_beyond_the_context_are_refused():
    with pytest.raises(ValueError, match="stride must be at most the context, 4, .* got 5"):
        cut_windows(20, 4, 5)
    with pytest.raises(ValueError, match="stride must be an integer of at least 1, got 0"):
        cut_windows(20, 4, 0)

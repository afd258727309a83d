"""FLOPs against torch's own counter: matrix products within 2 %, attention scores apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from rltok_rl.agents.segmenters import make_segmenter, read_window
from rltok_rl.experiments.bench.flop_meter import count_flops, multiplied_score_flops, score_flops
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from rltok_rl.models import UNet, preset
from rltok_rl.models.flops import forward_flops, matrix_parameters, update_flops
from rltok_rl.training.metrics import segmenter_matrices

ROWS, LENGTH = 2, 200
SHRUNK = {"width": 64, "num_heads": 2}
TWO = {"num_token_layers": 2}
CASES = {
    "tiny": ("tiny", {}),
    "small": ("small", SHRUNK),
    "paper": ("paper-20m", SHRUNK),
    "released": ("released-18m", SHRUNK),
    "capped": ("tiny", {"attention_cap": 50.0}),
    "wide window": ("tiny", {"window": LENGTH}),
    "stride": ("tiny", {"second_level": "stride", **TWO}),
    "routing": ("tiny", {"second_level": "routing", "second_residual": "projection", **TWO}),
    "cross attention": ("tiny", {"pooling": "attention", "upsampling": "attention", "tokens_read": 3}),
    "mean": ("tiny", {"pooling": "mean", "upsampling": "deviation"}),
    "n-grams": ("tiny", {"ngram_sizes": (3, 4), "ngram_buckets": 64}),
    "smoothing": ("tiny", {"smoothing": "gradient"}),
    "rates": ("tiny", {"rate_embedding": True}),
    "no lags": ("tiny", {"num_lags": 0, "boundary_bias": True}),
}
each_case = pytest.mark.parametrize("case", CASES)
SCORES = ("aten.bmm", "aten.baddbmm")  # nothing else here multiplies batches of matrices


def counted(run) -> tuple[float, float]:
    """What torch counts while something runs: matrix products, and products of attention."""
    # The fused kernel of the CPU is one that the counter does not know, and takes for nothing.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()
    found = {str(name): flops for name, flops in counter.get_flop_counts()["Global"].items()}
    assert set(found) <= {*SCORES, "aten.mm", "aten.addmm"}
    scores = sum(found.get(name, 0) for name in SCORES)
    return sum(found.values()) - scores, scores


def built(case: str) -> tuple[UNet, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    name, options = CASES[case]
    model = UNet(preset(name, **options))
    boundaries = torch.rand(ROWS, LENGTH) < torch.tensor([[0.2], [0.35]])  # rows of different numbers of tokens
    boundaries[:, 0] = True
    return model, torch.randint(256, (ROWS, LENGTH)), boundaries


def outputs(out) -> torch.Tensor:
    """Something that every weight of the model has a gradient from."""
    return out.final_logits.sum() + out.early_logits.sum() + out.boundary_logits.sum()


@each_case
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_matrix_products_are_those_of_the_counter(case, layout):
    model, byte_ids, boundaries = built(case)
    out = model(byte_ids, boundaries)
    second = None if out.second is None else out.second.boundaries
    for backward in (False, True):

        def run(backward=backward):
            found = model(byte_ids, boundaries, layout=layout)
            if backward:
                outputs(found).backward()

        count = count_flops(model, boundaries, second=second, backward=backward)
        products, scores = counted(run)
        ours = count.padded_products if layout == "padded" else count.products
        assert ours == pytest.approx(products, rel=0.02)
        if case in ("tiny", "small", "paper", "stride", "cross attention", "n-grams"):
            assert ours == products  # nothing is left out there
        multiplied = count.multiplied_scores
        if layout == "packed":  # row after row: each is as long as it is
            above = [0] * ROWS if second is None else second.sum(1).tolist()
            lengths = zip(boundaries.sum(1).tolist(), above, strict=True)
            each = [sum(multiplied_score_flops(model.config, LENGTH, *both).values()) for both in lengths]
            multiplied = sum(each) * (3 if backward else 1)
        between = sum(multiplied_score_flops(model.config, LENGTH, 1).get(f"token_{part}", 0) for part in PARTS)
        # The attention between bytes and tokens multiplies element by element, which the counter does not see.
        assert multiplied - ROWS * between * (3 if backward else 1) == scores
        assert count.scores < count.multiplied_scores and count.products < count.padded_products


PARTS = ("pooling", "reading")


@pytest.mark.parametrize("name", ["hnet", "gumbel", "entropy-spike", "spacebyte"])
def test_segmenters_are_counted_with_the_model(name):
    model, byte_ids, _ = built("tiny")
    segmenter = make_segmenter(name, model)
    boundaries = read_window(model, segmenter, byte_ids).segments.boundaries
    own = segmenter_matrices(segmenter, model)
    products, _ = counted(lambda: read_window(model, segmenter, byte_ids))
    if name != "hnet":  # these draw from their own weights alone, which the model's projection is no part of
        products += 2 * ROWS * LENGTH * matrix_parameters(model)["boundary_head"]
    assert count_flops(model, boundaries, own=own).padded_products == pytest.approx(products, rel=0.02)


def test_a_part_that_is_forgotten_is_noticed(monkeypatch):
    """The comparison is one that can fail: without the early exit we are more than 2 % off."""
    from rltok_rl.models import flops

    model, byte_ids, boundaries = built("tiny")
    monkeypatch.setattr(flops, "_PER_BYTE", tuple(part for part in flops._PER_BYTE if part != "early_head"))
    products, _ = counted(lambda: model(byte_ids, boundaries))
    assert count_flops(model, boundaries).padded_products < 0.98 * products


@pytest.mark.parametrize("window", [1, 5, 40, 64])
def test_scores_are_pairs_that_may_be_seen(window):
    """Enumerated: every pair of a query and a key, byte by byte and token by token."""
    config = preset("tiny", window=window, pooling="attention", upsampling="attention")
    found = score_flops(config, 40, 9)
    pairs = sum(1 for t in range(40) for u in range(40) if t - window < u <= t)
    assert found["encoder"] == found["decoder"] == 4 * config.width * pairs
    assert found["token_layers"] == 4 * config.width * sum(1 for s in range(9) for r in range(9) if r <= s)
    assert found["token_pooling"] == 4 * config.width * 40
    assert found["token_reading"] == 4 * config.width * 80  # two tokens
    more = multiplied_score_flops(config, 40, 9)
    assert all(more[part] >= found[part] for part in found) and more.keys() == found.keys()


@pytest.mark.parametrize("length", [1, 255, 256, 257, 700])
def test_capped_scores_are_multiplied_chunk_by_chunk(length):
    from rltok_rl.models.attention import causal_attention

    config = preset("tiny", attention_cap=50.0)
    heads = torch.zeros(1, length, config.num_heads, config.head_size)
    _, scores = counted(lambda: causal_attention(heads, heads, heads, cap=50.0))
    assert multiplied_score_flops(config, 1, length)["token_layers"] == scores


def test_tokens_are_counted_row_by_row():
    model = UNet(preset("tiny"))
    boundaries = torch.zeros(3, 20, dtype=torch.bool)
    boundaries[:, 0], boundaries[1, ::4], boundaries[2, ::2] = True, True, True  # 1, 5 and 10 tokens
    found = count_flops(model, boundaries)
    assert found.products == forward_flops(model, 60, 16) and found.padded_products == forward_flops(model, 60, 30)
    one_by_one = [count_flops(model, row[None]) for row in boundaries]
    assert found.scores == sum(one.scores for one in one_by_one)
    assert all(one.products == one.padded_products for one in one_by_one)
    whole = count_flops(model, boundaries, backward=True)
    assert (whole.products, whole.scores) == (update_flops(model, 60, 16), 3 * found.scores)


def test_second_levels_are_as_many_as_they_are_or_as_aimed_at():
    config = preset("tiny", second_level="stride", second_rate=0.5, num_token_layers=2)
    model, boundaries = UNet(config), torch.ones(1, 12, dtype=torch.bool)
    second = torch.arange(12)[None] % 2 == 0
    assert count_flops(model, boundaries, second=second) == count_flops(model, boundaries)
    fewer = count_flops(model, boundaries, second=torch.arange(12)[None] == 0)
    per_second = matrix_parameters(model)["second_level.layers"]
    assert count_flops(model, boundaries).products - fewer.products == 2 * 5 * per_second
    plain = UNet(replace(config, second_level=None, second_rate=1 / 3))
    assert "second_level.layers" not in score_flops(plain.config, 12, 12)


def test_what_is_no_boundary_string_is_refused():
    model = UNet(preset("tiny"))
    with pytest.raises(ValueError, match="boundaries must be 1 at the first byte"):
        count_flops(model, torch.zeros(1, 4, dtype=torch.bool))
    with pytest.raises(TypeError, match="boundaries must be bool or integer"):
        count_flops(model, torch.ones(1, 4))

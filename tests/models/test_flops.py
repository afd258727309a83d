"""FLOPs equal those of torch's counter: matrix products within 2 %, attention scores apart."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.agents.segmenters import make_segmenter, read_window
from rltok_rl.experiments.bench.flop_meter import count_flops, multiplied_score_flops, score_flops
from rltok_rl.experiments.commands.overrides import compose_config
from rltok_rl.experiments.runs.build import make_trainer
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from rltok_rl.models import UNet, preset
from rltok_rl.models.attention import causal_attention
from rltok_rl.models.flops import forward_flops, matrix_parameters, update_flops
from rltok_rl.training.metrics import segmenter_matrices

from ..each import each
from .conftest import LEVELS, VARIANTS, refused

ROWS, LENGTH = 2, 200
CASES = {
    **{name: (name, {"width": 64, "num_heads": 2}) for name in ("small", "paper-20m", "released-18m")},
    **{name: ("tiny", VARIANTS[name]) for name in VARIANTS if name not in ("no byte layers", "every option")},
    "wide window": ("tiny", {"window": LENGTH}),
    "rates": ("tiny", {"rate_embedding": True}),
    "no lags": ("tiny", {"num_lags": 0, "boundary_bias": True, "head_bias": True}),
}
EXACT = ("plain", "small", "paper-20m", "stride", "attention")
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


@each(case=CASES, layout=["padded", "packed"])
def test_products_and_scores_are_those_of_the_counter(case, layout):
    model, byte_ids, boundaries = built(case)
    second = getattr(model(byte_ids, boundaries).second, "boundaries", None)
    for passes in (1, 3):

        def run(backward=passes == 3):
            out = model(byte_ids, boundaries, layout=layout)
            if backward:  # every weight of the model has a gradient
                (out.final_logits.sum() + out.early_logits.sum() + out.boundary_logits.sum()).backward()

        count = count_flops(model, boundaries, second=second, backward=passes == 3)
        products, scores = counted(run)
        ours = count.padded_products if layout == "padded" else count.products
        assert ours == pytest.approx(products, rel=0 if case in EXACT else 0.02)
        assert count.scores < count.multiplied_scores and count.products < count.padded_products
        multiplied = count.multiplied_scores / passes
        if layout == "packed":  # row after row: each is as long as it is
            above = [0] * ROWS if second is None else second.sum(1).tolist()
            lengths = zip(boundaries.sum(1).tolist(), above, strict=True)
            multiplied = sum(sum(multiplied_score_flops(model.config, LENGTH, *both).values()) for both in lengths)
        one_row = multiplied_score_flops(model.config, LENGTH, 1)
        # The attention between bytes and tokens multiplies element by element, which the counter does not see.
        between = sum(one_row.get(part, 0) for part in ("token_pooling", "token_reading"))
        assert (multiplied - ROWS * between) * passes == scores


@each(name=["hnet", "gumbel", "entropy-spike", "spacebyte"])
def test_segmenters_are_counted_with_the_model(name):
    model, byte_ids, _ = built("plain")
    segmenter = make_segmenter(name, model)
    boundaries = read_window(model, segmenter, byte_ids).segments.boundaries
    products, _ = counted(lambda: read_window(model, segmenter, byte_ids))
    if name != "hnet":  # these draw from their own weights alone, which the model's projection is no part of
        products += 2 * ROWS * LENGTH * matrix_parameters(model)["boundary_head"]
    count = count_flops(model, boundaries, own=segmenter_matrices(segmenter, model))
    assert count.padded_products == pytest.approx(products, rel=0.02)


@each(window=[1, 5, 40, 64])
def test_scores_are_pairs_that_may_be_seen(window):
    """Enumerated: every pair of a query and a key, byte by byte and token by token."""
    config = preset("tiny", window=window, pooling="attention", upsampling="attention")
    found, more = score_flops(config, 40, 9), multiplied_score_flops(config, 40, 9)
    pairs = sum(1 for t in range(40) for u in range(40) if t - window < u <= t)
    assert found["encoder"] == found["decoder"] == 4 * config.width * pairs
    assert found["token_layers"] == 4 * config.width * sum(range(1, 10))
    assert found["token_pooling"] == 4 * config.width * 40
    assert found["token_reading"] == 4 * config.width * 80  # two tokens
    assert all(more[part] >= found[part] for part in found) and more.keys() == found.keys()


@each(length=[1, 255, 256, 257, 700])
def test_capped_scores_are_multiplied_chunk_by_chunk(length):
    config = preset("tiny", attention_cap=50.0)
    heads = torch.zeros(1, length, config.num_heads, config.head_size)
    _, scores = counted(lambda: causal_attention(heads, heads, heads, cap=50.0))
    assert multiplied_score_flops(config, 1, length)["token_layers"] == scores


def test_tokens_are_counted_row_by_row_and_second_levels_as_drawn_or_aimed_at():
    model = UNet(preset("tiny"))
    boundaries = torch.zeros(3, 20, dtype=torch.bool)
    boundaries[:, 0], boundaries[1, ::4], boundaries[2, ::2] = True, True, True  # 1, 5 and 10 tokens
    found = count_flops(model, boundaries)
    assert found.products == forward_flops(model, 60, 16) and found.padded_products == forward_flops(model, 60, 30)
    assert found.scores == sum(count_flops(model, row[None]).scores for row in boundaries)
    whole = count_flops(model, boundaries, backward=True)
    assert (whole.products, whole.scores) == (update_flops(model, 60, 16), 3 * found.scores)
    two = UNet(preset("tiny", **{**LEVELS["stride"], "second_rate": 0.5}))
    ones, number = torch.ones(1, 12, dtype=torch.bool), torch.arange(12)[None]
    assert count_flops(two, ones, second=number % 2 == 0) == count_flops(two, ones)
    fewer, per_second = count_flops(two, ones, second=number == 0), matrix_parameters(two)["second_level.layers"]
    assert count_flops(two, ones).products - fewer.products == 2 * 5 * per_second
    assert "second_level.layers" not in score_flops(model.config, 12, 12)
    refused(
        [
            (lambda: count_flops(model, ~ones), ValueError, "boundaries must be 1 at the first byte"),
            (lambda: count_flops(model, ones.float()), TypeError, "boundaries must be bool or integer"),
        ]
    )


PLAIN = ("experiment=recall", "estimator=discounted_return", "baseline=none", "compute.fused=off")
LEARNING = {
    "critic": ("estimator=critic_advantage", "loss=ppo", "loss.policy_epochs=1"),
    "critic and epochs": ("estimator=critic_advantage", "loss=ppo"),
    "epochs": ("loss=ppo", "loss.policy_epochs=4"),
}


@each(case=LEARNING)
def test_critics_and_further_epochs_are_part_of_total_flops(case):
    """The same first batch with and without them: the counter sees exactly what the totals differ by."""
    costs = []
    for options in (PLAIN, (*PLAIN, *LEARNING[case])):
        trainer, _ = make_trainer(compose_config(options))
        products, _ = counted(trainer.update)
        costs.append((products, trainer.total_flops_done))
    (plain, plain_total), (products, total) = costs
    assert products - plain == total - plain_total > 0

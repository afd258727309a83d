"""Language-model training with a segmenter in one forward pass."""

from __future__ import annotations

import math

import pytest
import torch
from rltok_rl.agents.segmenters import SEGMENTERS, SegmenterActor, make_segmenter, read_window, train_bpe, train_unigram
from rltok_rl.envs import ByteBoundaryEnv
from tensordict import TensorDict

from rltok_rl.data import TextSource
from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.models import UNet, preset
from rltok_rl.objectives import JointLoss
from rltok_rl.objectives.segmented import SegmenterLoss, second_level_cost

from ..each import each

TEXT = b"Call me Ishmael. Some years ago - never mind how long precisely - I thought I would sail about a little. "


@pytest.fixture
def byte_ids():
    return torch.tensor(list(TEXT)).unfold(0, 41, 20)  # [4, 41]


OPTIONS = {
    "bpe": {"tokenizer": train_bpe([TEXT.decode()], vocabulary=280)},
    "unigram": {"tokenizer": train_unigram([TEXT.decode() * 3], vocabulary=300)},
    "grouped": {"group_size": 2},
}


def rollout_of(model, segmenter, byte_ids, **options):
    """The rollout that reads all rows but their last byte, and predicts all but their first."""
    texts = [bytes(row.tolist()) for row in byte_ids]
    env = ByteBoundaryEnv(model, texts, num_steps=byte_ids.shape[1] - 1, batch_size=(len(texts),))
    return env.parallel_rollout(SegmenterActor(segmenter), text=texts, **options)


def losses_of_one_pass(model, segmenter, byte_ids, uniforms):
    """The definition: weighted losses of one forward pass by name, and its output."""
    before, following = byte_ids[:, :-1], byte_ids[:, 1:]
    out = read_window(model, segmenter, before, uniforms=uniforms)
    losses = {
        "loss_language_model": -byte_log_prob(out.final_logits, following).mean(),
        "loss_early_exit": -0.1 * byte_log_prob(out.early_logits, following).mean(),
    }
    for name, own in segmenter.losses(out.segments, before, out.final_logits).items():
        losses[f"loss_{name}"] = segmenter.coefficients[name] * own
    if out.second is not None:
        target = segmenter.second_rate or model.config.second_rate
        cost = second_level_cost(out.second.boundaries, out.second.probabilities, out.segments.boundaries, target)
        losses["loss_second_level"] = 0.03 * cost
    return losses, out


TWO_LEVELS = {"second_level": "routing", "second_residual": "projection", "num_token_layers": 2}
COUPLED = [(name, {}, OPTIONS.get(name, {})) for name in SEGMENTERS if name != "learned"] + [
    ("hnet", {**TWO_LEVELS, "ngram_sizes": (2, 3), "ngram_buckets": 50}, {"stages": 2, "second_rate": 0.4}),
    ("gumbel", {**TWO_LEVELS, "smoothing": "straight_through"}, {}),
    ("spacebyte", {**TWO_LEVELS, "smoothing": "gradient", "upsampling": "attention"}, {}),
    ("whitespace", {"byte_scope": "token"}, {}),
    ("random", {"byte_scope": "token", **TWO_LEVELS}, {}),
]
"""Segmenters, fields of the model, options."""


@each(case=COUPLED)
def test_a_rollout_by_a_segmenter_gives_the_same_losses_and_gradients(case, byte_ids):
    """The environment's parallel rollout and its joint loss, against one forward pass; all parts of the model learn."""
    name, fields, options = case
    if name == "grouped":  # reads every text twice
        byte_ids = byte_ids[:2].repeat_interleave(2, 0)
    uniforms = torch.rand(4, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.manual_seed(0)
    model = UNet(preset("tiny", **fields)).double()
    if model.second_level is not None:
        torch.nn.init.normal_(model.second_level.routing.key.weight, std=1 / 8)  # states at the start are alike
    segmenter = make_segmenter(name, model, **options)
    given = uniforms if segmenter.draws_at_random else None
    expected, out = losses_of_one_pass(model, segmenter, byte_ids, given)
    sum(expected.values()).backward()
    for part in ("embedding", "encoder", "token_layers", "decoder", "final_head", "early_head"):
        assert all(p.grad is not None for p in getattr(model, part).parameters()), part
    gradients = {key: p.grad.clone() for key, p in segmenter.named_parameters() if p.grad is not None}
    gradients |= {f"model.{key}": p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(), segmenter.zero_grad()
    rollout = rollout_of(model, segmenter, byte_ids, uniforms=given)
    assert torch.equal(rollout["action"].bool(), out.segments.boundaries)
    loss = JointLoss.of_segmenter(segmenter, model)
    found = loss(rollout)
    if model.second_level is not None:
        assert 0 < float(found["second_rate"]) < 1
        rate = out.second.boundaries.sum() / out.segments.boundaries.sum()
        torch.testing.assert_close(found["second_rate"], rate, check_dtype=False)
    assert {key for key in found.keys() if key.startswith("loss_")} == set(expected)
    for key, value in expected.items():
        assert float(found[key].detach()) == pytest.approx(float(value.detach()), rel=1e-5), key
    loss.total(found).backward()
    named = {**dict(segmenter.named_parameters()), **{f"model.{key}": p for key, p in model.named_parameters()}}
    for key, gradient in gradients.items():
        torch.testing.assert_close(named[key].grad, gradient, rtol=1e-4, atol=1e-7)


def test_weights_of_a_segmenters_loss():
    model, weights = UNet(preset("tiny", **TWO_LEVELS)), {"language_model": 0.9, "early_exit": 0.5}
    loss = JointLoss.of_segmenter(make_segmenter("hnet", model, stages=2, ratio_weight=0.2), model, **weights)
    found = {name: float(loss.coefficient(name)) for name in loss.terms}
    assert found == pytest.approx({**weights, "second_level": 0.03, "ratio": 0.2})


def test_texts_of_different_lengths_are_not_padded_for_a_segmenter():
    """A tokenizer that saw padding would cut the end of a short text in another way."""
    texts = [TEXT[:30], TEXT[:23] + b"  ", TEXT[40:57]]
    model = UNet(preset("tiny"))
    seen: list[list[int]] = []

    def split(text: bytes) -> list[int]:
        seen.append(list(text))
        return [1] * len(text)

    segmenter = make_segmenter("bpe", model, tokenizer=split)
    env = ByteBoundaryEnv(model, TextSource(texts, short_documents="whole"), num_steps=29, batch_size=(3,))
    rollout = env.parallel_rollout(SegmenterActor(segmenter), text=texts, break_when_any_done=True)
    steps = rollout.shape[1]
    assert steps == 16 and sorted(seen) == sorted(list(text[:16]) for text in texts)
    seen.clear()
    env.parallel_rollout(SegmenterActor(segmenter), text=texts, max_steps=29)
    assert {TEXT[:29], TEXT[:23] + b" ", TEXT[40:56]} <= {bytes(s) for s in seen}


def slopes(name: str, byte_ids: torch.Tensor, **options) -> dict[str, float]:
    """Largest gradient of the next-byte loss alone in each parameter that is only the segmenter's."""
    model = UNet(preset("tiny"))
    segmenter = make_segmenter(name, model, **options)
    JointLoss.of_segmenter(segmenter, model)(rollout_of(model, segmenter, byte_ids))["loss_language_model"].backward()
    shared = {id(p) for p in model.parameters()}
    own = [(key, p) for key, p in segmenter.named_parameters() if id(p) not in shared]
    return {key: 0.0 if p.grad is None else float(p.grad.abs().max()) for key, p in own}


def test_next_byte_losses_reach_boundaries_that_carry_a_gradient_alone(byte_ids):
    """A spike predictor learns from spikes alone, and a separate entropy model from its own loss."""
    assert slopes("gumbel", byte_ids)["predictor.0.weight"] > 1e-7
    assert slopes("hnet", byte_ids)["query.weight"] > 1e-7
    assert slopes("hnet", byte_ids, variant="baseline")["key.weight"] > 1e-7
    assert not any(slope for key, slope in slopes("entropy-spike", byte_ids).items() if key.startswith("predictor"))
    assert set(slopes("entropy-threshold", byte_ids).values()) == {0.0}
    model = UNet(preset("tiny"))
    segmenter = make_segmenter("entropy-threshold", model)
    JointLoss.of_segmenter(segmenter, model)(rollout_of(model, segmenter, byte_ids))["loss_predictor"].backward()
    assert all(p.grad is None for p in model.parameters())
    assert all(p.grad is not None for p in segmenter.parameters())


@each(name=["hnet", "gumbel"])
def test_a_few_updates_lower_the_loss(name, byte_ids):
    torch.manual_seed(0)
    model = UNet(preset("tiny"))
    segmenter = make_segmenter(name, model)
    optimizer = torch.optim.Adam([*model.parameters(), *segmenter.parameters()], lr=3e-3)
    loss, bits = JointLoss.of_segmenter(segmenter, model), []
    for _ in range(25):
        out = loss(rollout_of(model, segmenter, byte_ids, generator=torch.Generator().manual_seed(0)))
        optimizer.zero_grad()
        loss.total(out).backward()
        optimizer.step()
        bits.append(float(out["loss_language_model"].detach()) / math.log(2))
    assert bits[0] == pytest.approx(8, abs=0.3) and bits[-1] < 4.5


@each(name=["random", "gumbel"])
def test_boundaries_are_drawn_from_what_is_given(name, byte_ids):
    """A generator repeats and advances, and the global one stays where it is; uniforms go before both."""
    model = UNet(preset("tiny"))
    segmenter = make_segmenter(name, model)
    state, generator = torch.get_rng_state(), torch.Generator().manual_seed(4)

    def drawn(**options):
        return read_window(model, segmenter, byte_ids[:, :-1], **options).segments.boundaries

    first, second = drawn(generator=generator), drawn(generator=generator)
    again = drawn(generator=torch.Generator().manual_seed(4))
    assert torch.equal(first, again) and not torch.equal(first, second)
    uniforms = torch.rand(4, 40, generator=torch.Generator().manual_seed(5))
    assert torch.equal(drawn(uniforms=uniforms), drawn(uniforms=uniforms))
    assert torch.equal(torch.get_rng_state(), state)


def segmenter_rollout(masked: bool):
    td = TensorDict({"segmenter_ratio": torch.randn(3, 5, requires_grad=True)}, [3, 5])
    if masked:
        td["collector", "mask"] = torch.arange(5) < torch.tensor([5, 2, 0])[:, None]
    return td


@each(masked=[False, True], reduction=["mean", "sum", "none"])
def test_a_segmenters_own_loss_is_reduced_over_real_steps(masked, reduction):
    td = segmenter_rollout(masked)
    real = td["collector", "mask"] if masked else torch.ones(3, 5, dtype=torch.bool)
    values = td["segmenter_ratio"].where(real, 0.0)
    expected = {"mean": values.sum() / real.sum(), "sum": values.sum(), "none": values}[reduction]
    loss = SegmenterLoss("ratio", reduction=reduction)
    torch.testing.assert_close(loss(td)["loss_ratio"], expected)
    loss.set_keys(segmenter_loss=("deep", "own"))
    td["deep", "own"] = 2 * td["segmenter_ratio"]
    torch.testing.assert_close(loss(td)["loss_ratio"], 2 * expected)

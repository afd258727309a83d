"""Tokens of tokens: steps equal windows, layouts agree, nothing leaks, gradients equal the slow definition's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rltok_rl.functional.likelihood import next_byte_log_prob
from rltok_rl.models import UNet, UNetConfig, level, preset
from rltok_rl.models.config import _SECOND
from rltok_rl.models.incremental import decide, observe, prefill, step
from rltok_rl.models.mixing import give_back
from rltok_rl.models.tokens import token_layout

from .conftest import hold_for, mixed_boundaries
from .test_unet import assert_causal, slopes
from .textbook import textbook_forward

LEVELS = {
    "stride": {"second_level": "stride", "num_token_layers": 2, "num_second_layers": 2},
    "every token": {"second_level": "stride", "second_rate": 1.0},
    "routing": {"second_level": "routing", "num_token_layers": 2},
    "routing, no lower layer": {"second_level": "routing", "num_lower_layers": 0, "pooling": "mean"},
    "as H-Net": {"second_level": "routing", "second_residual": "projection", "num_token_layers": 3},
    "with every option": {
        **{"second_level": "routing", "second_residual": "projection", "num_token_layers": 2},
        **{"ngram_sizes": (2, 3), "ngram_buckets": 50, "smoothing": "gradient", "window": 5},
        **{"pooling": "attention", "upsampling": "attention", "tokens_read": 3},
    },
}


def made(build, options, **more) -> UNet:
    """In float64, with weights that make routing and what goes past it count."""
    model = build(**options, **more).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "second_level.routing" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def stepped(model: UNet, cache, byte_ids: Tensor, boundaries: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Next-byte logits [B, T, 256] and the second level's decisions, one byte after the other."""
    said = [step(model, cache, byte_ids[:, t], boundaries[:, t])[1] for t in range(byte_ids.shape[1])]
    probs = [p.second.probabilities for p in said]
    return (
        torch.stack([p.final_logits for p in said], 1),
        torch.stack([p.second.boundaries for p in said], 1),
        None if probs[0] is None else torch.stack(probs, 1),
    )


def assert_same(said: tuple[Tensor, Tensor, Tensor | None], full, rows=slice(None), times=slice(None)) -> None:
    logits, boundaries, probs = said
    torch.testing.assert_close(logits, full.final_logits[rows, times], rtol=0, atol=1e-9)
    assert torch.equal(boundaries, full.second.boundaries[rows, times])
    if probs is None:
        assert full.second.probabilities is None
    else:
        torch.testing.assert_close(probs, full.second.probabilities[rows, times], rtol=0, atol=1e-9)


@torch.no_grad()
def test_steps_and_prefills_equal_the_window(build, text):
    """Both layouts, windows of 1, 2 and 24 bytes; decisions are at the bytes that close tokens."""

    def law(options):
        model = made(build, options)
        for length, layout, prompt in ((1, "packed", 0), (2, "padded", 1), (24, "packed", 0), (24, "padded", 9)):
            byte_ids, boundaries = text(4, length), mixed_boundaries(4, length)
            full, cache = model(byte_ids, boundaries, layout=layout), model.new_cache(4)
            if prompt:
                prefill(model, cache, byte_ids[:, :prompt], boundaries[:, :prompt])
            said = stepped(model, cache, byte_ids[:, prompt:], boundaries[:, prompt:])
            assert_same(said, full, times=slice(prompt, None))
            second = full.second
            assert torch.equal(cache.second.tokens.count, second.boundaries.sum(1))
            assert second.boundaries[:, 0].all() and not (second.boundaries & ~boundaries).any()
            if model.config.second_level == "stride":
                assert second.probabilities is None
                counts = -(-boundaries.sum(1) // model.config.second_stride)
                assert torch.equal(second.boundaries.sum(1), counts)
            else:
                assert (second.probabilities[:, 0] == 1).all()
                assert torch.equal(second.probabilities > 0.5, second.boundaries)
                assert torch.equal(second.probabilities > 0, boundaries)

    hold_for(law, LEVELS)


@torch.no_grad()
def test_rows_reset_and_branches_continue_on_their_own(build, text):
    """Row 1 starts anew at byte 9; a copy from there, with row 0 twice, continues with other boundaries."""
    first, second, boundaries = text(3, 24), text(3, 24, seed=9), mixed_boundaries(3, 24)
    boundaries[1, 9] = True

    def law(options):
        model = made(build, options)
        cache = model.new_cache(3)
        before = stepped(model, cache, first[:, :9], boundaries[:, :9])
        branch = cache.take(torch.tensor([0, 2, 0]))
        cache.reset(torch.tensor([False, True, False]))
        joined = first.clone()
        joined[1, 9:] = second[1, :15]
        after = stepped(model, cache, joined[:, 9:], boundaries[:, 9:])
        full, fresh = model(first, boundaries), model(second[1:2, :15], boundaries[1:2, 9:])
        for row in (0, 2):
            pairs = zip(before, after, strict=True)
            whole = [None if a is None else torch.cat((a, b), 1)[row : row + 1] for a, b in pairs]
            assert_same(tuple(whole), full, rows=slice(row, row + 1))
        assert_same(tuple(None if x is None else x[1:2] for x in after), fresh)
        taken, other = first[[0, 2, 0]], boundaries[[0, 2, 0]].clone()
        other[2, 9:] = ~other[2, 9:]
        assert_same(stepped(model, branch, taken[:, 9:], other[:, 9:]), model(taken, other), times=slice(9, None))

    hold_for(law, LEVELS)


@torch.no_grad()
def test_steps_without_tokens_decide_nothing(build, text):
    def law(options):
        model, byte_ids = made(build, options), text(2, 3)
        cache = model.new_cache(2)
        for t, drawn in enumerate(([1, 1], [0, 0], [0, 1])):
            observe(model, cache, byte_ids[:, t])
            said = decide(model, cache, torch.tensor(drawn)).second
            assert not said.boundaries[torch.tensor(drawn) == 0].any()
            if said.probabilities is not None:
                assert (said.probabilities > 0).tolist() == [bool(d) for d in drawn]

    hold_for(law, LEVELS)


def test_causal_and_caught_when_not(build, text, monkeypatch):
    """A planted leak: a token receives the token of tokens that is still open."""
    byte_ids, boundaries, calls = text(1, 20), mixed_boundaries(1, 20), []

    def early(states, updates, layout, mixing, read=None):
        calls.append(layout)
        if len(calls) % 2:  # the second level is computed within the first
            ahead = torch.minimum(layout.token_index + 1, layout.token_index[:, -1:])
            layout = replace(layout, token_index=ahead)
        return give_back(states, updates, layout, mixing, read)

    def law(options):
        model = made(build, options)
        for layout in ("padded", "packed"):
            assert_causal(model, byte_ids, boundaries, layout)
            if int(model(byte_ids, boundaries).second.boundaries.sum()) > 1:  # the last token has no successor to leak
                with monkeypatch.context() as patch:
                    patch.setattr(level, "give_back", early)
                    with pytest.raises(AssertionError, match="sees what comes after it"):
                        assert_causal(model, byte_ids, boundaries, layout)

    hold_for(law, LEVELS)


def gradients_from_later(model: UNet, byte_ids: Tensor, boundaries: Tensor, layout: str) -> float:
    """The largest gradient of a prediction with respect to the encoder state of a later byte."""
    states = model.encode(byte_ids).detach().requires_grad_()
    decoded = model.decode_levels(states, boundaries, layout=layout)
    said = [decoded.states]
    if decoded.second.probabilities is not None:
        said.append(decoded.second.probabilities.unsqueeze(-1))
    worst, length = 0.0, byte_ids.shape[1]
    for values in said:
        for t in range(length):
            (slope,) = torch.autograd.grad(values[:, t].sum() + 0 * states.sum(), states, retain_graph=True)
            worst = max([worst, *slope[:, t + 1 :].abs().flatten().tolist()])
    return worst


def test_no_gradient_comes_from_later_bytes(build, text, monkeypatch):
    byte_ids, boundaries = text(3, 9), mixed_boundaries(3, 9)

    def next_confidence(probs, drawn):  # 1 in value; the gradient is that of the token after
        later = probs.roll(-1, 1)
        return 1 + later - later.detach()

    def law(options):
        model = made(build, options)
        for layout in ("padded", "packed"):
            assert gradients_from_later(model, byte_ids, boundaries, layout) == 0
            if options["second_level"] == "routing":
                with monkeypatch.context() as patch:
                    patch.setattr(level, "confidence", next_confidence)
                    assert gradients_from_later(model, byte_ids, boundaries, layout) > 0

    hold_for(law, LEVELS)


def test_values_and_gradients_equal_the_textbook(build, text):
    """Token by token in loops, in float64; the definition of straight-through parts."""
    byte_ids, boundaries = text(3, 18), mixed_boundaries(3, 18)
    direction = torch.randn(3, 18, 256, dtype=torch.float64)

    def law(options):
        model, results = made(build, options), []
        for compute in (
            lambda: textbook_forward(model, byte_ids, boundaries)["final_logits"],
            lambda: model(byte_ids, boundaries).final_logits,
            lambda: model(byte_ids, boundaries, layout="packed").final_logits,
        ):
            model.zero_grad(set_to_none=True)
            logits = compute()
            (logits * direction).sum().backward()
            results.append((logits.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}))
        (expected, gradients), *ours = results
        for logits, found in ours:
            # Rotary angles are float32 in the library.
            torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
            assert found.keys() == gradients.keys()
            for name, grad in found.items():
                assert grad.abs().max() > 0
                torch.testing.assert_close(
                    grad, gradients[name], rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
                )

    hold_for(law, LEVELS)


@pytest.mark.parametrize("residual", ["identity", "projection"])
def test_straight_through_gradients_are_those_of_the_confidence(build, text, residual, monkeypatch):
    """With decisions and the values of c fixed, 1 + c - c_0 is a function whose finite differences are the gradient."""
    model = made(build, {"second_level": "routing", "second_residual": residual})
    byte_ids, boundaries = text(2, 20), mixed_boundaries(2, 20)
    direction = torch.randn(2, 20, 256, dtype=torch.float64)
    fixed: list[Tensor] = []

    def frozen(probs, drawn):
        sure = torch.where(drawn, probs, 1 - probs)
        fixed.append(sure.detach())
        return 1 + sure - fixed[0]

    monkeypatch.setattr(level, "confidence", frozen)
    router = model.second_level.routing
    slope, difference = slopes(
        lambda: (model(byte_ids, boundaries).final_logits * direction).sum(),
        [router.query.weight, router.key.weight],
        step=1e-4,
    )
    assert slope.abs() > 1e-3
    torch.testing.assert_close(slope, difference, rtol=1e-6, atol=1e-8)


@torch.no_grad()
def test_models_without_a_second_level_have_no_trace_of_it(text):
    plain = UNet(preset("tiny", num_token_layers=2))
    assert not [name for name in plain.state_dict() if "second" in name]
    assert plain(text(2, 9)).second is None and plain.new_cache(2).second is None


@torch.no_grad()
def test_saved_models_load(tmp_path, build, text):
    model, byte_ids, boundaries = made(build, LEVELS["with every option"]), text(2, 30), mixed_boundaries(2, 30)
    again = UNet.from_pretrained(model.save_pretrained(tmp_path / "model"))
    assert again.config == model.config
    for name, weight in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name
    # The place of a weight in memory changes the order of a product's sums.
    said, before = again(byte_ids, boundaries), model(byte_ids, boundaries)
    torch.testing.assert_close(said.final_logits, before.final_logits, rtol=0, atol=1e-12)


def test_routing_starts_as_the_cosine_of_neighbours(text):
    model = UNet(preset("tiny", second_level="routing", second_residual="projection"))
    router = model.second_level.routing
    for projection in (router.query, router.key):
        assert torch.equal(projection.weight, torch.eye(64))
    assert not router.residual.weight.any() and not router.residual.bias.any()


@torch.no_grad()
def test_half_a_probability_draws_no_boundary():
    """A token at right angles to the one before, in a window and in a step."""
    model = UNet(preset("tiny", second_level="routing", num_token_layers=2))
    states = torch.eye(64)[:2]  # [S = 2, D]
    where = token_layout(torch.ones(1, 2, dtype=torch.bool))
    _, window = model.second_level(states[None], where)
    assert window.probabilities.tolist() == [[1.0, 0.5]] and window.boundaries.tolist() == [[True, False]]
    cache = model.new_cache(1)
    for s, drawn in enumerate((True, False)):
        number = torch.tensor([s])
        _, step = model.second_level.step(cache.second, torch.tensor([0]), number, number, states[s : s + 1])
        assert step.boundaries.tolist() == [drawn] and step.probabilities.tolist() == [1.0 if drawn else 0.5]


def test_a_second_level_learns(text):
    """100 letters by heart, with the weights of every part moved by the next-byte loss alone."""
    torch.manual_seed(0)
    byte_ids = torch.randint(97, 123, (1, 100))
    model = UNet(preset("tiny", second_level="routing", num_token_layers=2))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    for _ in range(200):
        loss = -next_byte_log_prob(model(byte_ids).final_logits, byte_ids).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss < 1.0:
            break
    assert loss < 1.0  # letters at random cost 3.26 nats
    for name, parameter in model.named_parameters():
        if "second_level" in name:
            assert (parameter - before[name]).abs().max() > 0, name


def test_mixed_precision_is_finite_and_close(build, text):
    byte_ids, boundaries = text(2, 30), mixed_boundaries(2, 30)

    def law(options):
        model = build(**options)
        exact = model(byte_ids, boundaries)
        with torch.autocast("cpu", torch.bfloat16):
            mixed = model(byte_ids, boundaries)
            logits, _, probs = stepped(model, model.new_cache(2), byte_ids[:, :5], boundaries[:, :5])
        assert mixed.final_logits.isfinite().all() and logits.isfinite().all()
        if mixed.second.probabilities is None:
            torch.testing.assert_close(mixed.final_logits.float(), exact.final_logits, rtol=0, atol=0.1)
            return
        assert mixed.second.probabilities.dtype == probs.dtype == torch.float32
        if torch.equal(mixed.second.boundaries, exact.second.boundaries):  # rounding may flip a decision
            torch.testing.assert_close(mixed.final_logits.float(), exact.final_logits, rtol=0, atol=0.15)
        sure = (exact.second.probabilities - 0.5).abs() > 0.02
        assert torch.equal(mixed.second.boundaries[sure], exact.second.boundaries[sure])

    hold_for(law, LEVELS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"second_level": "words"}, r"second_level must be one of \['stride', 'routing'\], got 'words'"),
        ({"second_rate": 0.2}, "second_rate must be left out if second_level is None, got 0.2"),
        ({"num_lower_layers": 1}, "num_lower_layers must be left out if second_level is None, got 1"),
        ({"second_level": "stride", "second_rate": 0.3}, "second_rate must be 1, 1/2, 1/3, ... for 'stride', got 0.3"),
        ({"second_level": "routing", "second_rate": 1.0}, "second_rate must lie strictly between 0 and 1"),
        ({"second_level": "stride", "second_rate": "1/3"}, "second_rate must be a number, got '1/3'"),
        (
            {"second_level": "stride", "second_residual": "projection"},
            "second_residual must be 'identity' for 'stride'",
        ),
        ({"second_level": "routing", "num_second_layers": 0}, "num_second_layers must be an integer of at least 1"),
        ({"second_level": "routing", "num_lower_layers": 2}, "num_lower_layers must be at most num_token_layers, 1"),
    ],
)
def test_refused_by_name(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        preset("tiny", **options)


def test_configurations_go_through_plain_values():
    config = preset("tiny", second_level="stride", second_rate=1 / 4, num_token_layers=3)
    assert UNetConfig.from_dict(config.to_dict()) == config
    assert (config.second_stride, config.lower_layers) == (4, 2)
    assert preset("tiny", num_token_layers=3).lower_layers == 3
    assert all(name in UNetConfig.__dataclass_fields__ for name in _SECOND)


def test_a_cache_of_another_model_is_refused(build, text):
    plain, two = build(), build(second_level="stride")
    for model, other in ((plain, two), (two, plain), (two, build(second_level="stride", num_second_layers=2))):
        with pytest.raises(ValueError, match="cache must be made for this model"):
            observe(model, other.new_cache(2), text(2, 1)[:, 0])

"""Tokens of tokens: steps are windows, layouts agree, nothing leaks, gradients are those of the slow definition."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import rltok_rl.models.level as routing
import rltok_rl.models.level as second_level
from rltok_rl.functional.likelihood import next_byte_log_prob
from rltok_rl.models import UNet, UNetConfig, preset
from rltok_rl.models.config import _SECOND
from rltok_rl.models.incremental import decide, observe, prefill, step
from rltok_rl.models.mixing import give_back
from rltok_rl.models.tokens import token_layout

from .test_unet import assert_causal
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
every_level = pytest.mark.parametrize("options", LEVELS.values(), ids=LEVELS)


def made(build, options, **more) -> UNet:
    """In float64, with weights that make routing and what goes past it count."""
    model = build(**options, **more).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "second_level.routing" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def ragged(num_rows: int, length: int) -> Tensor:
    """[B, T] boundaries: rows with a single token, with a few, and with one per byte."""
    rates = torch.linspace(0, 1.01, num_rows)[:, None]
    boundaries = torch.rand(num_rows, length, generator=torch.Generator().manual_seed(4)) < rates
    boundaries[:, :1] = True
    return boundaries


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


@every_level
@pytest.mark.parametrize("length", [1, 2, 24])
@pytest.mark.parametrize("layout", ["padded", "packed"])
@torch.no_grad()
def test_steps_are_the_window(build, text, options, length, layout):
    model, byte_ids, boundaries = made(build, options), text(4, length), ragged(4, length)
    full = model(byte_ids, boundaries, layout=layout)
    cache = model.new_cache(4)
    assert_same(stepped(model, cache, byte_ids, boundaries), full)
    assert torch.equal(cache.second.tokens.count, full.second.boundaries.sum(1))


@every_level
@torch.no_grad()
def test_what_is_decided_is_decided_at_tokens(build, text, options):
    model, byte_ids, boundaries = made(build, options), text(4, 40), ragged(4, 40)
    said = model(byte_ids, boundaries).second
    assert said.boundaries[:, 0].all()
    assert not (said.boundaries & ~boundaries).any()
    counts, tokens = said.boundaries.sum(1), boundaries.sum(1)
    if model.config.second_level == "stride":
        assert said.probabilities is None
        assert torch.equal(counts, -(-tokens // model.config.second_stride))
    else:
        assert (said.probabilities[:, 0] == 1).all()
        assert torch.equal(said.probabilities > 0.5, said.boundaries)
        assert (said.probabilities[~boundaries] == 0).all() and (said.probabilities[boundaries] > 0).all()
        assert 1 < int(counts[-1]) < 40 or options.get("num_lower_layers") == 0


@every_level
@pytest.mark.parametrize("prompt", [1, 17])
@torch.no_grad()
def test_prefill_leaves_what_steps_leave(build, text, options, prompt):
    model, byte_ids, boundaries = made(build, options), text(4, 40), ragged(4, 40)
    full, cache = model(byte_ids, boundaries), model.new_cache(4)
    prefill(model, cache, byte_ids[:, :prompt], boundaries[:, :prompt])
    assert_same(stepped(model, cache, byte_ids[:, prompt:], boundaries[:, prompt:]), full, times=slice(prompt, None))


@every_level
@torch.no_grad()
def test_rows_reset_and_branches_go_their_own_way(build, text, options):
    """Row 1 starts anew at byte 15; a copy made there, in which row 0 comes twice, goes on with other boundaries."""
    model, first, second, boundaries = made(build, options), text(3, 40), text(3, 40, seed=9), ragged(3, 40)
    boundaries[1, 15] = True
    cache = model.new_cache(3)
    before = stepped(model, cache, first[:, :15], boundaries[:, :15])
    branch = cache.take(torch.tensor([0, 2, 0]))
    cache.reset(torch.tensor([False, True, False]))
    joined = first.clone()
    joined[1, 15:] = second[1, :25]
    after = stepped(model, cache, joined[:, 15:], boundaries[:, 15:])
    full, fresh = model(first, boundaries), model(second[1:2, :25], boundaries[1:2, 15:])
    for row in (0, 2):
        whole = [None if a is None else torch.cat((a, b), 1)[row : row + 1] for a, b in zip(before, after, strict=True)]
        assert_same(tuple(whole), full, rows=slice(row, row + 1))
    assert_same(tuple(None if x is None else x[1:2] for x in after), fresh)
    taken, other = first[[0, 2, 0]], boundaries[[0, 2, 0]].clone()
    other[2, 15:] = ~other[2, 15:]
    assert_same(stepped(model, branch, taken[:, 15:], other[:, 15:]), model(taken, other), times=slice(15, None))


@every_level
@torch.no_grad()
def test_steps_without_tokens_decide_nothing(build, text, options):
    model, byte_ids, cache = made(build, options), text(2, 3), None
    cache = model.new_cache(2)
    for t, drawn in enumerate(([1, 1], [0, 0], [0, 1])):
        observe(model, cache, byte_ids[:, t])
        said = decide(model, cache, torch.tensor(drawn)).second
        assert not said.boundaries[torch.tensor(drawn) == 0].any()
        if said.probabilities is not None:
            assert (said.probabilities > 0).tolist() == [bool(d) for d in drawn]


@every_level
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_causal_and_caught_when_not(build, text, boundaries_of, options, layout, monkeypatch):
    """A planted leak: a token receives the token of tokens that is still open."""
    byte_ids, boundaries = text(1, 24), boundaries_of(1, 24)
    model = made(build, options)
    assert_causal(model, byte_ids, boundaries, layout)

    def early(states, updates, above, mixing):
        last = above.token_index[:, -1:]
        return give_back(
            states, updates, replace(above, token_index=torch.minimum(above.token_index + 1, last)), mixing
        )

    if int(model(byte_ids, boundaries).second.boundaries.sum()) == 1:
        return  # one token of tokens has no successor to leak
    monkeypatch.setattr(second_level, "give_back", early)
    with pytest.raises(AssertionError, match="sees what comes after it"):
        assert_causal(model, byte_ids, boundaries, layout)


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


@every_level
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_no_gradient_comes_from_later_bytes(build, text, options, layout, monkeypatch):
    model, byte_ids, boundaries = made(build, options), text(3, 9), ragged(3, 9)
    assert gradients_from_later(model, byte_ids, boundaries, layout) == 0

    def next_one(probs, drawn):  # 1 in value; the gradient is that of the token after
        later = probs.roll(-1, 1)
        return 1 + later - later.detach()

    if options["second_level"] == "routing":
        monkeypatch.setattr(routing, "confidence", next_one)
        assert gradients_from_later(model, byte_ids, boundaries, layout) > 0


@every_level
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_values_and_gradients_are_the_textbooks(build, text, options, layout):
    """Token by token in loops, in float64; straight-through parts have no finite difference, but this definition."""
    byte_ids, boundaries, found = text(3, 24), ragged(3, 24), []
    model = made(build, options)
    direction = torch.randn(3, 24, 256, dtype=torch.float64)
    for logits in (
        lambda: model(byte_ids, boundaries, layout=layout).final_logits,
        lambda: textbook_forward(model, byte_ids, boundaries)["final_logits"],
    ):
        model.zero_grad(set_to_none=True)
        said = logits()
        (said * direction).sum().backward()
        found.append((said.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}))
    (ours, our_grads), (theirs, their_grads) = found
    # Rotary angles are float32 in the library.
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert our_grads.keys() == their_grads.keys()
    for name, grad in our_grads.items():
        assert grad.abs().max() > 0
        torch.testing.assert_close(grad, their_grads[name], rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("residual", ["identity", "projection"])
def test_straight_through_gradients_are_those_of_the_confidence(build, text, residual, monkeypatch):
    """With decisions and the values of c held, 1 + c - c_0 is a function, whose finite differences are the gradient."""
    model = made(build, {"second_level": "routing", "second_residual": residual})
    byte_ids, boundaries = text(2, 20), ragged(2, 20)
    direction = torch.randn(2, 20, 256, dtype=torch.float64)
    router = model.second_level.routing
    moved = [router.query.weight, router.key.weight]
    ways = [0.05 * torch.randn_like(p) for p in moved]

    def value() -> Tensor:
        return (model(byte_ids, boundaries).final_logits * direction).sum()

    gradients = torch.autograd.grad(value(), moved)
    slope = sum((g * w).sum() for g, w in zip(gradients, ways, strict=True))
    held: list[Tensor] = []

    def frozen(probs, drawn):
        sure = torch.where(drawn, probs, 1 - probs)
        held.append(sure.detach())
        return 1 + sure - held[0]

    monkeypatch.setattr(routing, "confidence", frozen)
    size, at = 1e-4, {}
    with torch.no_grad():
        value()  # the c_0
        for k in (-2, -1, 1, 2):
            for p, w in zip(moved, ways, strict=True):
                p.add_(w, alpha=k * size)
            at[k] = value()
            for p, w in zip(moved, ways, strict=True):
                p.sub_(w, alpha=k * size)
    difference = (at[-2] - 8 * at[-1] + 8 * at[1] - at[2]) / (12 * size)
    assert slope.abs() > 1e-3
    torch.testing.assert_close(slope, difference, rtol=1e-6, atol=1e-8)


@torch.no_grad()
def test_off_is_as_it_was(build, text, boundaries_of):
    """Weights by name, draws and outputs of a model without a second level know nothing of it."""
    torch.manual_seed(3)
    plain = UNet(preset("tiny", num_token_layers=2))
    assert not [name for name in plain.state_dict() if "second" in name]
    byte_ids, boundaries = text(2, 30), boundaries_of(2, 30)
    out = plain(byte_ids, boundaries)
    assert out.second is None and plain.new_cache(2).second is None
    below = plain.encode(byte_ids)
    where = token_layout(boundaries)
    tokens = second_level.pool_tokens(below, where, second_level.Mixing())
    attend = where.attention(None)
    after = plain.token_layers(tokens, plain.byte_angles(where.positions), lambda _: attend)
    mixed = give_back(below, after, where, second_level.Mixing())
    assert torch.equal(plain._run_bytes(plain.decoder, mixed, None), out.decoder_states)


@every_level
@torch.no_grad()
def test_saved_and_loaded(tmp_path, build, text, options):
    model, byte_ids, boundaries = made(build, options), text(2, 30), ragged(2, 30)
    again = UNet.from_pretrained(model.save_pretrained(tmp_path / "model"))
    assert again.config == model.config
    for name, weight in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name
    # Where a weight lies in memory decides how a product is summed up, hence not to the last bit.
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
    _, window = model.second_level(states[None], where, model.byte_angles)
    assert window.probabilities.tolist() == [[1.0, 0.5]] and window.boundaries.tolist() == [[True, False]]
    cache = model.new_cache(1)
    for s, drawn in enumerate((True, False)):
        angles = model.byte_angles(torch.tensor([s]))
        _, step = model.second_level.step(cache, torch.tensor([0]), states[s : s + 1], angles)
        cache.tokens.count += 1
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


@every_level
def test_mixed_precision_is_finite_and_close(build, text, options):
    model, byte_ids, boundaries = build(**options), text(2, 40), ragged(2, 40)
    exact = model(byte_ids, boundaries)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(byte_ids, boundaries)
        cache = model.new_cache(2)
        logits, _, probs = stepped(model, cache, byte_ids[:, :5], boundaries[:, :5])
    assert mixed.final_logits.isfinite().all() and logits.isfinite().all()
    if mixed.second.probabilities is None:
        torch.testing.assert_close(mixed.final_logits.float(), exact.final_logits, rtol=0, atol=0.1)
        return
    assert mixed.second.probabilities.dtype == probs.dtype == torch.float32
    if torch.equal(mixed.second.boundaries, exact.second.boundaries):  # rounding may turn a decision
        torch.testing.assert_close(mixed.final_logits.float(), exact.final_logits, rtol=0, atol=0.15)
    sure = (exact.second.probabilities - 0.5).abs() > 0.02
    assert torch.equal(mixed.second.boundaries[sure], exact.second.boundaries[sure])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"second_level": "words"}, r"second_level must be one of \['stride', 'routing'\], got 'words'"),
        ({"second_rate": 0.2}, "second_rate must be left out where second_level is None, got 0.2"),
        ({"num_lower_layers": 1}, "num_lower_layers must be left out where second_level is None, got 1"),
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

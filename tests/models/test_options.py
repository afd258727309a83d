"""Options of the paper's Appendix C: n-grams, smoothing, attention between bytes and tokens."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import rltok_rl.models.cross_attention
import rltok_rl.models.heads
import rltok_rl.models.mixing
from rltok_rl.functional.likelihood import next_byte_log_prob
from rltok_rl.functional.ngrams import ngram_hash
from rltok_rl.models import UNet, UNetConfig, parameter_counts, preset, segment
from rltok_rl.models.cache import UNetCache
from rltok_rl.models.cross_attention import segment_attention
from rltok_rl.models.flops import forward_flops, matrix_parameters
from rltok_rl.models.incremental import decide, observe, step
from rltok_rl.models.mixing import Mixing
from rltok_rl.models.segmentation import policy_terms

from .conftest import hold_for, mixed_boundaries
from .test_incremental import assert_same, stepped
from .test_unet import assert_causal

NGRAMS = {"ngram_sizes": (3, 2, 7), "ngram_buckets": 50}
ATTENTION = {"pooling": "attention", "upsampling": "attention", "window": 5}
EACH = {
    "n-grams": NGRAMS,
    "smoothing": {"smoothing": "gradient"},
    "attention to bytes": {"pooling": "attention", "window": 5},
    "attention to tokens": {"upsampling": "attention", "tokens_read": 3},
    "all": {**NGRAMS, **ATTENTION, "smoothing": "detached"},
}


def random_boundaries(num_rows: int, length: int, rate: float = 0.3) -> Tensor:
    boundaries = torch.rand(num_rows, length, generator=torch.Generator().manual_seed(6)) < rate
    boundaries[:, 0] = True
    return boundaries


# All options.


def test_matrices_are_counted_where_they_run():
    """Bytes and tokens pass each named matrix once; tables and norms are no products."""

    def law(options):
        model = UNet(preset("tiny", **options))
        counted = matrix_parameters(model)
        whole = {name.removesuffix(".weight"): p.numel() for name, p in model.named_parameters() if p.dim() == 2}
        tables = {name for name in whole if name == "embedding" or name.startswith("ngrams.")}
        assert sum(counted.values()) == sum(n for name, n in whole.items() if name not in tables)
        assert parameter_counts(model)["total"] == sum(p.numel() for p in model.parameters())
        seen = dict.fromkeys(whole, 0)
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_hook(lambda _m, inputs, _o, n=name: seen.update({n: inputs[0].numel() // 64}))
        boundaries = torch.zeros(1, 40, dtype=torch.bool)
        boundaries[:, ::4] = True  # 10 tokens
        model(torch.zeros(1, 40, dtype=torch.int64), boundaries)
        products = sum(whole[name] * rows for name, rows in seen.items() if "mlp.down" not in name)
        # The inner width of a token's MLP is four times a byte's, and so is the input of its last matrix.
        products += sum(whole[name] * (10 if "token" in name else 40) for name in seen if "mlp.down" in name)
        assert forward_flops(model, 40, 10) == 2 * products

    hold_for(law, EACH)


def test_options_change_predictions_and_draw_their_weights_last(build, text, tmp_path):
    """Seeds of plain models keep their meaning; saved, pickled and original models predict the same."""
    byte_ids, boundaries = text(2, 30), random_boundaries(2, 30)
    plain = build()
    plain_logits = plain(byte_ids, boundaries).final_logits

    def law(options):
        model = build(**options)
        logits = model(byte_ids, boundaries).final_logits
        assert (plain_logits - logits).abs().max() > 0.01
        assert set(plain.state_dict()) <= set(model.state_dict())
        saved = UNet.from_pretrained(model.save_pretrained(tmp_path / "m"))
        assert saved.config == model.config
        for again in (saved, pickle.loads(pickle.dumps(model))):
            assert torch.equal(logits, again(byte_ids, boundaries).final_logits)

    hold_for(law, EACH)


def test_models_saved_before_there_were_options_load(build, tmp_path):
    model = build()
    folder = model.save_pretrained(tmp_path / "m")
    values = json.loads((folder / "config.json").read_text())
    for name in ("ngram_sizes", "ngram_buckets", "ngram_scale", "smoothing", "tokens_read"):
        del values[name]
    (folder / "config.json").write_text(json.dumps(values))
    assert UNet.from_pretrained(folder).config == model.config


@torch.no_grad()
def test_rows_are_reset_and_branch(build, text):
    """Row 1 starts anew at byte 10, between the halves of a step; from byte 16 on a branch reads another text."""
    first, second, boundaries = text(3, 26), text(3, 26, seed=9), random_boundaries(3, 26)
    boundaries[1, 10] = True

    def law(options):
        model = build(**options).double()
        cache = model.new_cache(3)
        stepped(model, cache, first[:, :10], boundaries[:, :10])
        observe(model, cache, first[:, 10])
        cache.reset(torch.tensor([False, True, False]))
        observe(model, cache, second[1:2, 0], rows=torch.tensor([1]))
        decide(model, cache, boundaries[:, 10])
        joined = torch.stack((first[0], torch.cat((first[1, :10], second[1, :16])), first[2]))
        stepped(model, cache, joined[:, 11:16], boundaries[:, 11:16])
        branch, other = cache.clone(), joined.clone()
        other[:, 16:] = second[:, :10]
        logits: list[list[Tensor]] = [[], []]
        for t in range(16, 26):  # in turns, which reveals shared tensors
            for number, (state, ids) in enumerate(((cache, joined), (branch, other))):
                logits[number].append(step(model, state, ids[:, t], boundaries[:, t])[1].final_logits)
        for steps, ids in zip(logits, (joined, other), strict=True):
            found = torch.stack(steps, 1)
            whole, fresh = model(ids, boundaries), model(ids[1:2, 10:], boundaries[1:2, 10:])
            for row in (0, 2):
                torch.testing.assert_close(found[row], whole.final_logits[row, 16:], rtol=0, atol=1e-6)
            torch.testing.assert_close(found[1], fresh.final_logits[0, 6:], rtol=0, atol=1e-6)

    hold_for(law, EACH)


def test_no_gradient_comes_from_later_bytes(build, text, monkeypatch):
    """Predictions after byte t have no gradient with respect to the embedding of a later byte."""
    direction = torch.randn(256, dtype=torch.float64)

    def law(options):
        model, embedded = build(**options).double(), []
        embed = model.embed

        def hold(*inputs):
            embedded.append(embed(*inputs).detach().requires_grad_())
            return embedded[-1]

        monkeypatch.setattr(model, "embed", hold)
        out = model(text(1, 12), random_boundaries(1, 12, 0.4))
        for t in range(12):
            (slope,) = torch.autograd.grad((out.final_logits[0, t] @ direction), embedded[0], retain_graph=True)
            assert slope[0, : t + 1].abs().max() > 0
            assert slope[0, t + 1 :].abs().sum() == 0

    hold_for(law, EACH)


@torch.no_grad()
def test_mixed_precision_stays_close(build, text):
    """bfloat16 autocast or weights, in windows and in steps."""
    byte_ids, boundaries = text(2, 20), random_boundaries(2, 20)

    def law(options):
        model = build(**options)
        exact = model(byte_ids, boundaries).final_logits
        with torch.autocast("cpu", torch.bfloat16):
            found = [model(byte_ids, boundaries, layout=layout).final_logits for layout in ("padded", "packed")]
            found.append(stepped(model, model.new_cache(2), byte_ids, boundaries)["final_logits"])
        model.bfloat16()
        found.append(model(byte_ids, boundaries).final_logits)
        found.append(stepped(model, model.new_cache(2), byte_ids, boundaries)["final_logits"])
        for values in found:
            torch.testing.assert_close(values.float(), exact, rtol=0, atol=0.15)

    hold_for(law, EACH)


# N-grams.


def test_causality_test_catches_an_early_ngram(build, text, monkeypatch):
    def leaky(byte_ids: Tensor, size: int, buckets: int) -> Tensor:
        return ngram_hash(byte_ids, size, buckets).roll(-1, -1)

    monkeypatch.setattr(rltok_rl.models.heads, "ngram_hash", leaky)
    with pytest.raises(AssertionError, match="sees what comes after it"):
        assert_causal(build(**NGRAMS), text(1, 40), mixed_boundaries(1, 40))


@torch.no_grad()
def test_pieces_of_a_long_text_know_the_ngrams_before_them(build, text):
    model, byte_ids = build(**NGRAMS, window=3, num_encoder_layers=2).double(), text(1, 200)[0]
    for ours, whole in zip(policy_terms(model, byte_ids, piece=13), policy_terms(model, byte_ids), strict=True):
        torch.testing.assert_close(ours, whole, rtol=0, atol=1e-6)
    drawn = segment(model, bytes(byte_ids.tolist()), generator=torch.Generator().manual_seed(0), piece=13)
    whole = segment(model, bytes(byte_ids.tolist()), generator=torch.Generator().manual_seed(0))
    assert torch.equal(drawn.boundaries, whole.boundaries)


@torch.no_grad()
def test_caches_of_other_ngrams_are_refused(build, text):
    with pytest.raises(ValueError, match="cache must be made for this model"):
        observe(build(**NGRAMS), UNetCache.empty(preset("tiny"), 2), text(2, 1)[:, 0])


@pytest.mark.parametrize(
    ("field", "value", "error", "message"),
    [
        ("ngram_sizes", (3, 1), ValueError, "ngram_sizes must be an integer of at least 2, got 1"),
        ("ngram_sizes", (3, 3), ValueError, r"ngram_sizes must name each size once, got \[3, 3\]"),
        ("ngram_sizes", "34", TypeError, "ngram_sizes must be a list of integers of at least 2, got '34'"),
        ("ngram_sizes", 3, TypeError, "ngram_sizes must be a list of integers of at least 2, got 3"),
        ("ngram_buckets", 0, ValueError, "ngram_buckets must be an integer of at least 1, got 0"),
        ("ngram_scale", "max", ValueError, r"ngram_scale must be one of \['mean', 'sum'\], got 'max'"),
        ("tokens_read", 0, ValueError, "tokens_read must be an integer of at least 1, got 0"),
        ("smoothing", "policy", ValueError, r"smoothing must be one of \['none', 'detached', .*\], got 'policy'"),
    ],
)
def test_options_are_refused_by_name(field, value, error, message):
    with pytest.raises(error, match=message):
        preset("tiny", **{field: value})


def test_lists_of_sizes_are_tuples():
    config = preset("tiny", ngram_sizes=[3, 4])
    assert config.ngram_sizes == (3, 4) and config.bytes_before == 3
    assert UNetConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


# Smoothing.


@pytest.mark.parametrize("smoothing", ["detached", "gradient", "straight_through"])
def test_all_smoothings_predict_the_same_and_only_some_teach_the_policy(build, text, smoothing):
    byte_ids, boundaries = text(2, 40), random_boundaries(2, 40)
    model, detached = build(smoothing=smoothing), build(smoothing="detached")
    out = model(byte_ids, boundaries)
    assert torch.equal(out.final_logits, detached(byte_ids, boundaries).final_logits)
    next_byte_log_prob(out.final_logits, byte_ids).sum().backward()
    reached = model.boundary_head.projection.weight.grad is not None
    assert reached == (smoothing != "detached")


def test_a_boundary_that_was_certain_is_not_smoothed(build, text):
    """With boundary probabilities near 1, smoothing is gone; near 0, the first token serves all bytes."""
    byte_ids, boundaries = text(2, 40), random_boundaries(2, 40)
    plain, smoothed = build(), build(smoothing="detached", boundary_bias=True)
    missing = smoothed.load_state_dict(plain.state_dict(), strict=False).missing_keys
    assert missing == ["boundary_head.projection.bias"]
    first_only = torch.zeros_like(boundaries)
    first_only[:, 0] = True
    for logit, expected in ((600.0, boundaries), (-600.0, None)):
        with torch.no_grad():
            smoothed.boundary_head.projection.bias[0] = logit / smoothed.config.boundary_scale
        found = smoothed(byte_ids, boundaries).final_logits
        if expected is not None:
            torch.testing.assert_close(found, plain(byte_ids, expected).final_logits, rtol=0, atol=1e-5)
        else:
            torch.testing.assert_close(found, plain(byte_ids, first_only).final_logits, rtol=0, atol=1e-5)


def test_straight_through_confidence_is_exactly_one(build, text):
    model, boundaries = build(smoothing="straight_through"), random_boundaries(2, 40)
    mixing = model.own_mixing(model.encode(text(2, 40)), boundaries)
    assert torch.equal(mixing.receive, torch.ones(2, 40))
    (slope,) = torch.autograd.grad(mixing.receive.sum(), mixing.smoothing)
    assert torch.equal(slope, torch.where(boundaries, 1.0, -1.0))


def test_a_mixing_that_is_given_is_all_there_is(build, text):
    byte_ids, boundaries = text(2, 40), random_boundaries(2, 40)
    plain, smoothed = build(), build(smoothing="detached")
    states = plain.encode(byte_ids)
    assert torch.equal(plain.decode(states, boundaries), smoothed.decode(states, boundaries, mixing=Mixing()))


def test_causality_test_catches_a_probability_from_the_future(build, text, monkeypatch):
    policy_smoothing = rltok_rl.models.mixing.policy_smoothing

    def leaky(smoothing, logits, *given):
        return policy_smoothing(smoothing, logits.roll(-1, -1), *given)

    monkeypatch.setattr(rltok_rl.models.unet, "policy_smoothing", leaky)
    with pytest.raises(AssertionError, match="sees what comes after it"):
        assert_causal(build(smoothing="detached", boundary_scale=1.0), text(1, 40), random_boundaries(1, 40))


@torch.no_grad()
def test_generation_and_counterfactuals_are_smoothed(build, text):
    """``decide`` alone, as they call it: equal to the forward pass, which a plain model is not."""
    model, byte_ids, boundaries = build(smoothing="detached"), text(2, 60), random_boundaries(2, 60)
    ours = stepped(model, model.new_cache(2), byte_ids, boundaries)
    assert_same(ours, model(byte_ids, boundaries))


# Attention between bytes and tokens.


def test_segment_attention_is_softmax_in_every_segment():
    scores, values = torch.randn(20, 2, dtype=torch.float64), torch.randn(20, 2, 3, dtype=torch.float64)
    scores[5] = 900.0  # exp of it is no number
    owner = torch.randint(6, (20,), generator=torch.Generator().manual_seed(0)) % 5  # 5 is no segment, 4 of 0..4 owned
    owner[owner == 3] = 5
    ours = segment_attention(scores, values, owner, 5)
    for s in range(5):
        mine = owner == s
        expected = (scores[mine].softmax(0)[..., None] * values[mine]).sum(0)
        torch.testing.assert_close(ours[s], expected)
    assert (ours[3] == 0).all() and int((owner == 5).sum()) > 0


def test_causality_test_catches_a_token_that_reads_the_next_bytes(build, text, monkeypatch):
    def leaky(layout, open_first):
        return layout.token_index  # a byte flows into the token before it

    monkeypatch.setattr(rltok_rl.models.cross_attention, "closing_token", leaky)
    with pytest.raises(AssertionError, match="sees what comes after it"):
        assert_causal(build(pooling="attention"), text(1, 40), random_boundaries(1, 40))


def test_causality_test_catches_a_byte_that_reads_the_next_token(build, text, monkeypatch):
    model = build(upsampling="attention")
    forward = model.token_reading.forward

    def leaky(states, updates, layout, ring):
        ahead = torch.minimum(layout.token_index + 1, layout.token_index[:, -1:])
        return forward(
            states, updates, replace(layout, token_index=torch.cat((layout.token_index[:, :1], ahead[:, 1:]), 1))
        )

    monkeypatch.setattr(model.token_reading, "forward", leaky)
    with pytest.raises(AssertionError, match="sees what comes after it"):
        assert_causal(model, text(1, 40), random_boundaries(1, 40))


@torch.no_grad()
def test_tokens_read_no_more_than_a_window_of_their_bytes(build, text):
    """Without byte layers a state is its byte: beyond the window no byte of a long segment counts, within it each."""
    model = build(pooling="attention", window=6, num_encoder_layers=0, num_decoder_layers=0)
    byte_ids, boundaries = text(1, 30), torch.zeros(1, 30, dtype=torch.bool)
    boundaries[:, [0, 20]] = True
    whole = model(byte_ids, boundaries).final_logits[0, 20]
    for u in range(1, 20):
        other = byte_ids.clone()
        other[0, u] = (other[0, u] + 1) % 256
        apart = (model(other, boundaries).final_logits[0, 20] - whole).abs().max()
        assert (apart > 1e-4) == (u > 14), u


@torch.no_grad()
def test_bytes_read_as_many_tokens_as_they_are_told(build, text):
    """Without layers below and above, only the tokens read reach a byte: those of the last k boundaries."""
    model = build(upsampling="attention", tokens_read=3, num_encoder_layers=0, num_decoder_layers=0)
    monkey = model.token_layers
    monkey.forward = lambda x, *given, **options: x  # tokens as they come in
    byte_ids, boundaries = text(1, 30), random_boundaries(1, 30)
    boundaries[:, 26:] = False
    last = boundaries[0].nonzero().flatten()[-3:].tolist()
    whole = model(byte_ids, boundaries).final_logits[0, -1]
    for u in range(29):
        other = byte_ids.clone()
        other[0, u] = (other[0, u] + 1) % 256
        apart = (model(other, boundaries).final_logits[0, -1] - whole).abs().max()
        assert (apart > 1e-4) == (u in last), u


def test_attention_costs_what_the_bytes_cost(build, text):
    """Twice the bytes make twice the elements of all tensors, whatever the boundaries."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            self.elements += sum(x.numel() for x in (out if isinstance(out, tuple) else (out,)) if torch.is_tensor(x))
            return out

    counts = []
    for length in (400, 800):
        model = build(pooling="attention", upsampling="attention", num_encoder_layers=0, num_decoder_layers=0)
        model.token_layers.forward = lambda x, *given, **options: x  # whose attention is not linear
        with Count() as count:
            model(text(1, length), random_boundaries(1, length))
        counts.append(count.elements)
    assert 1.8 < counts[1] / counts[0] < 2.1

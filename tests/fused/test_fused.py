"""Fused operations against their definitions, and where they leave the work to them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap
from torch.utils.flop_counter import FlopCounterMode

from rltok_rl import fused
from rltok_rl.functional.likelihood import byte_log_prob
from rltok_rl.functional.policy import soft_cap
from rltok_rl.functional.returns import reverse_scan
from rltok_rl.fused import choice, launch
from rltok_rl.fused.fused_functions import SHORT_WINDOW
from rltok_rl.models import UNet, preset
from rltok_rl.models.attention import causal_attention, sliding_window_attention
from rltok_rl.models.layers import RMSNorm, TransformerLayer, band_of, rotary
from rltok_rl.training.options import compile_layers, recompute_layers

from ..each import each

pytestmark = pytest.mark.skipif(fused.missing() is not None, reason=f"no fused operations: {fused.missing()}")

EPS = 1e-5
ATOL = {torch.float32: 2e-5, torch.float64: 1e-12}


@pytest.fixture(autouse=True)
def fusing():
    """Fuse whatever the environment says."""
    with fused.fused(True):
        yield


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * (1 + weight)


def _heads_and_finish(rows: tuple[int, ...], width: int) -> dict[str, Any]:
    """Operations on rows, as (fused, definition, tensors with gradients)."""
    layer = TransformerLayer(preset("tiny", width=width, num_heads=2, norm_eps=EPS), 3)
    for weight in layer.parameters():
        nn.init.normal_(weight, std=0.4)
    weights = [weight.detach() for weight in layer.fused_weights()]
    names = {weight.data_ptr(): name for name, weight in layer.named_parameters()}
    angles = rotary(torch.randint(500, rows[1:]), width // 2, 1e4)

    def wide(given: tuple[Tensor, ...], first: int) -> dict[str, Tensor]:
        return {names[old.data_ptr()]: new for old, new in zip(weights[first:], given, strict=False)}

    def call(method: Callable[..., Any], given: dict[str, Tensor], *inputs: Any) -> Any:
        return torch.func.functional_call(_Method(layer, method), {f"layer.{k}": v for k, v in given.items()}, inputs)

    def heads(x: Tensor, *given: Tensor) -> Tensor:
        query, key, value = call(TransformerLayer.heads, wide(given, 0), x, angles)
        return torch.stack((query, key, value), -3).flatten(-3)

    def finish(x: Tensor, attended: Tensor, *given: Tensor) -> Tensor:
        return call(TransformerLayer.finish, wide(given, 2), x, attended)

    x, attended = torch.randn(*rows, width), torch.randn(*rows, width)
    return {
        "heads": (lambda x, *w: fused.project_heads(x, *w, *angles, EPS), heads, (x, *weights[:2])),
        "finish": (
            lambda x, attended, *w: fused.finish_layer(x, attended, w, EPS),
            finish,
            (x, attended, *weights[2:]),
        ),
    }


class _Method(nn.Module):
    """A method of a layer as a module, for calls with other weights."""

    def __init__(self, layer: nn.Module, method: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self.method = layer, method

    def forward(self, *inputs: Any) -> Any:
        return self.method(self.layer, *inputs)


def _others(rows: tuple[int, ...], width: int) -> dict[str, Any]:
    """Norm, likelihoods and attention, as (fused, definition, tensors with gradients)."""
    x, norm, head = torch.randn(*rows, width), torch.randn(width), torch.randn(256, width)
    targets, qkv = torch.randint(256, rows), torch.randn(*rows, 3 * width)

    def band(window: int, cap: float | None) -> Callable[[Tensor], Tensor]:
        def attend(qkv: Tensor) -> Tensor:
            heads = qkv.unflatten(-1, (3, 2, -1)).unbind(-3)
            return sliding_window_attention(*heads, window=window, cap=cap).flatten(-2)

        return attend

    def likelihood(cap: float | None) -> Callable[..., Tensor]:
        def log_prob(x: Tensor, head: Tensor) -> Tensor:
            logits = x @ head.T
            return byte_log_prob(logits if cap is None else soft_cap(logits, cap), targets)

        return log_prob

    operations: dict[str, Any] = {"norm": (lambda x, w: fused.rms_norm(x, w, EPS), _norm, (x, norm))}
    for cap in (None, 5.0):
        ours = lambda x, w, cap=cap: fused.head_log_prob(x, w, targets, cap)  # noqa: E731
        operations[f"likelihood, cap {cap}"] = (ours, likelihood(cap), (x, head))
    for window, cap in [
        (1, None),
        (4, None),
        (SHORT_WINDOW, None),
        (17, None),
        (70, None),
        (1000, None),
        (4, 2.0),
        (70, 2.0),
    ]:
        ours = lambda qkv, window=window, cap=cap: fused.band_attention(qkv, 2, window, cap)  # noqa: E731
        operations[f"attention, window {window}, cap {cap}"] = (ours, band(window, cap), (qkv,))
    return operations


def _operations(rows: tuple[int, ...], width: int) -> dict[str, Any]:
    return {**_heads_and_finish(rows, width), **_others(rows, width)}


def _run(function: Callable[..., Tensor], tensors: tuple[Tensor, ...], weights: Tensor) -> list[Tensor]:
    """Output and gradients."""
    inputs = [x.clone().requires_grad_() for x in tensors]
    out = function(*inputs)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), inputs)]


@each(rows=[(1, 33), (3, 7), (5, 131), (2, 1300)], width=[8, 52, 72])
def test_equal_to_the_definition_in_float64_with_gradients(rows, width):
    for name, (ours, definition, tensors) in _operations(rows, width).items():
        weights = torch.randn_like(ours(*tensors))
        with fused.fused(False):
            exact = _run(definition, tuple(x.double() for x in tensors), weights.double())
            plain = _run(definition, tensors, weights)
        for number, (x, y, z) in enumerate(zip(_run(ours, tensors, weights), exact, plain, strict=True)):
            error, theirs = (float((a - y).norm() / y.norm()) for a in (x, z))
            assert error < max(1e-6, 3 * theirs), f"{name}, result {number}: {error:.1e}, plain torch {theirs:.1e}"


def test_rows_that_are_not_contiguous():
    for name, (ours, _, tensors) in _operations((4, 40), 16).items():
        # The first two dimensions are swapped in memory; weights stay as they are.
        strided = [x.transpose(0, 1).contiguous().transpose(0, 1) if x.dim() > 2 else x for x in tensors]
        for x, y in zip(_run(ours, strided, torch.ones(())), _run(ours, tensors, torch.ones(())), strict=True):
            assert torch.equal(x, y), name


@each(
    dtype=[torch.float32, torch.float64],
    decay=["number", "tensor", "per step", "shared by rows"],
    strided=[False, True],
)
def test_discounted_sums_equal_those_in_plain_torch(dtype, decay, strided, monkeypatch):
    x = torch.randn(6, 1300, dtype=dtype)[:, ::2] if strided else torch.randn(2, 3, 400, dtype=dtype)
    factors = {
        "number": 0.97,
        "tensor": torch.tensor(0.97, dtype=dtype),
        "per step": torch.rand(x.shape).to(dtype) * (torch.rand(x.shape) > 0.01),
        "shared by rows": torch.rand(x.shape[-1]).to(dtype).expand(x.shape),
    }
    calls = []
    monkeypatch.setattr(launch, "observers", [lambda *names: calls.append(names[0])])
    ours = reverse_scan(x, factors[decay])
    assert calls == ["scan_part"] and ours.dtype == dtype and ours.shape == x.shape
    graded = reverse_scan(x.clone().requires_grad_(), factors[decay])  # gradients need plain torch
    assert calls == ["scan_part"] and graded.requires_grad
    if isinstance(factors[decay], Tensor):
        assert reverse_scan(x, factors[decay].clone().requires_grad_()).requires_grad and calls == ["scan_part"]
    with torch.no_grad():  # none are kept
        assert torch.equal(reverse_scan(x.clone().requires_grad_(), factors[decay]), ours)
    assert calls == ["scan_part"] * 2
    with fused.fused(False):
        torch.testing.assert_close(ours, reverse_scan(x, factors[decay]), rtol=0, atol=ATOL[dtype])
    assert calls == ["scan_part"] * 2


def test_exponentials_to_the_last_digits():
    """Soft caps and softmax over all magnitudes: an identity projection turns states into logits."""
    x = torch.randn(4096, 8) * 10.0 ** torch.linspace(-6, 2.5, 4096)[:, None]
    targets = torch.zeros(len(x), dtype=torch.int64)
    for cap in (None, 30.0, 60.0, 200.0):
        logits = x.double() if cap is None else soft_cap(x.double(), cap)
        ours = fused.head_log_prob(x, torch.eye(8), targets, cap).double()
        theirs = byte_log_prob(logits, targets)
        assert ((ours - theirs).abs() <= 4e-7 * (1 + logits.abs().amax(-1))).all()


@each(size=[(1, 1, 1), (5, 3, 17), (128, 64, 192), (77, 130, 33)], add=[False, True])
def test_products_of_strided_rows(size, add):
    from rltok_rl.fused.kernels.arithmetic import multiply, transpose

    n, k, m = size
    wide_a, wide_b, wide_out = torch.randn(n, k + 3), torch.randn(k, m + 5), torch.randn(n, m + 2)
    a, b, out, expected = wide_a[:, :k], wide_b[:, 1 : m + 1], wide_out[:, 2:], wide_out.double()
    expected[:, 2:] = a.double() @ b.double() + (expected[:, 2:] if add else 0)
    multiply(a.numpy(), b.numpy(), out.numpy(), add)
    assert (wide_out - expected).abs().max() <= 1e-6 * k
    turned = torch.ones(k, n)
    transpose(a.numpy(), turned.numpy(), add)
    assert torch.equal(turned, a.T + (1 if add else 0))


def test_products_without_brgemm():
    """Products of a torch that does not export ``brgemm``."""
    import numba

    from rltok_rl.fused.kernels import arithmetic

    stand_in = numba.cfunc(numba.types.void(*arithmetic.PRODUCT_TYPES))(arithmetic.by_sgemm)
    a, b, out = torch.randn(33, 20), torch.randn(20, 48), torch.randn(33, 40)
    for add in (False, True):
        expected = a.double() @ b[:, :40].double() + (out.double() if add else 0)
        stand_in.ctypes(33, 40, 20, 20, 48, 40, add, a.data_ptr(), b.data_ptr(), out.data_ptr(), False)
        assert (out - expected).abs().max() <= 2e-5


@each(bad=[float("nan"), float("inf")])
def test_what_is_not_finite_stays_visible(bad):
    for name, (ours, definition, tensors) in _operations((3, 50), 16).items():
        tensors[0][1, 20, 3] = bad
        with fused.fused(False):
            theirs = [bool(x[1].isfinite().all()) for x in _run(definition, tensors, torch.ones(()))[:2]]
        results = _run(ours, tensors, torch.ones(()))[:2]
        assert [bool(x[1].isfinite().all()) for x in results] == theirs, name
        assert results[0][0].isfinite().all() and results[0][2].isfinite().all(), name


def test_what_is_not_finite_stays_in_its_row():
    """The last head of a row is followed by the next row's first; one thread computes them in one call."""
    qkv, threads = torch.randn(3, 100, 48), torch.get_num_threads()
    qkv[1, 99, 15] = float("nan")
    torch.set_num_threads(1)
    try:
        for window, cap in [(4, None), (1000, None), (1000, 2.0)]:
            for x in _run(lambda qkv, w=window, c=cap: fused.band_attention(qkv, 2, w, c), (qkv,), torch.ones(())):
                assert [bool(row.isfinite().all()) for row in x] == [True, False, True]
    finally:
        torch.set_num_threads(threads)


def test_attention_refuses_what_its_kernels_cannot_take():
    with pytest.raises(ValueError, match="window must be at least 1"):
        fused.band_attention(torch.randn(1, 8, 12), 2, 0)
    with pytest.raises(TypeError, match="qkv must be float32"):
        fused.band_attention(torch.randn(1, 8, 12).double(), 2, 4)


def test_attention_is_fused_with_a_window_and_a_cap_alone():
    qkv, starts = torch.randn(2, 40, 24), torch.zeros(2, 40, dtype=torch.int64)
    assert band_of(partial(causal_attention, cap=2.0), qkv) == {"window": 40, "cap": 2.0}
    assert band_of(partial(sliding_window_attention, window=4, starts=None), qkv) == {"window": 4}
    assert band_of(partial(causal_attention), qkv[0]) is None  # flat rows
    for attend in (
        causal_attention,
        partial(sliding_window_attention, window=4, starts=starts),
        partial(max, window=4),
    ):
        assert band_of(attend, qkv) is None


def test_bits_do_not_depend_on_the_number_of_threads():
    operations, threads = _operations((7, 700), 16), torch.get_num_threads()
    results = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            results.append([_run(ours, tensors, torch.ones(())) for ours, _, tensors in operations.values()])
    finally:
        torch.set_num_threads(threads)
    for name, one, three in zip(operations, *results, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(one, three, strict=True)), name


# Whole models.

BYTES = torch.randint(256, (3, 70), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def kernels():
    """Names of the kernels that ran."""
    names: list[str] = []
    observer = lambda name, read, written: names.append(name)  # noqa: E731
    launch.observers.append(observer)
    yield names
    launch.observers.remove(observer)


def _step(model: UNet) -> list[Tensor]:
    boundaries = BYTES % 4 == 0
    boundaries[:, 0] = True
    model.zero_grad()
    states = model.encode(BYTES)
    logits = model.boundary_terms(states).base
    decoded = model.decode(states, boundaries)
    log_probs = model.early_log_prob(states, BYTES), model.final_log_prob(decoded, BYTES)
    (logits.mean() + sum(x.mean() for x in log_probs)).backward()
    grads = [x.grad for x in model.parameters() if x.grad is not None]
    return [states.detach(), decoded.detach(), *(x.detach() for x in log_probs), *grads]


OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "capped attention": {"attention_cap": 20.0},
    "no caps": {"final_cap": None},
    "no norm": {"encoder_norm": False},
    "mean pooling": {"pooling": "mean", "upsampling": "deviation"},
    "second level": {"second_level": "stride", "num_token_layers": 2},
}


@each(options=OPTIONS)
def test_models_are_equal_up_to_rounding(options, kernels):
    torch.manual_seed(0)
    model = UNet(preset("tiny", **OPTIONS[options]))
    ours = _step(model)
    assert {"heads_part", "finish_part_backward", "head_part_backward"} <= set(kernels)
    assert ("band_part" in kernels) == (options != "capped attention")
    assert "block_part_backward" in kernels or options != "capped attention"
    kernels.clear()
    with fused.fused(False):
        theirs = _step(model)
    assert not kernels
    for x, y in zip(ours, theirs, strict=True):
        assert float((x - y).norm() / y.norm()) < 1e-5


def test_recomputed_layers_are_equal_to_the_last_bit(kernels):
    torch.manual_seed(0)
    model = UNet(preset("tiny"))
    kept = _step(model)
    recompute_layers(model)
    once = len(kernels)
    assert all(torch.equal(x, y) for x, y in zip(kept, _step(model), strict=True))
    assert len(kernels) > 2 * once


def test_work_is_left_to_torch_where_kernels_do_not_apply(kernels):
    x, norm = torch.randn(4, 40, 16), RMSNorm(16, EPS)
    double = RMSNorm(16, EPS).double()
    vmap(norm)(x)
    torch.func.jvp(norm, (x,), (x,))
    double(x.double())
    norm(x[:0])
    norm(x[0, :5])  # few rows
    norm.to("meta")(x.to("meta"))
    norm = RMSNorm(16, EPS)
    with torch.autocast("cpu", torch.bfloat16):
        assert fused.fuses(x, multiplies=False) and not fused.fuses(x)
    with FlopCounterMode(display=False):
        norm(x)
    with fused.fused(False):
        norm(x)
    RMSNorm(choice.WIDEST + 8, EPS)(torch.randn(64, choice.WIDEST + 8))
    torch.compile(norm, backend="eager")(x)
    assert not kernels
    norm(x)
    RMSNorm(16, EPS)(x)
    assert kernels


def test_norms_alone_run_in_kernels_under_autocast(kernels):
    layer, x = TransformerLayer(preset("tiny"), 2), torch.randn(2, 40, 64, requires_grad=True)
    angles, results = rotary(torch.arange(40), 32, 1e4), []
    for on in (True, False):
        with fused.fused(on), torch.autocast("cpu", torch.bfloat16):
            out = layer(x, angles, lambda query, key, value: value)
        results.append((out, *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])))
    assert set(kernels) == {"norm_part", "norm_part_backward"}
    for ours, theirs in zip(*results, strict=True):
        assert ours.dtype == theirs.dtype and (ours - theirs).norm() <= 4e-3 * theirs.norm()
    narrow = x.detach().bfloat16()
    assert layer.mlp_norm(narrow).dtype == torch.bfloat16


HOOKS = [
    f"register_{when}" for when in ("forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook")
]


@each(change=[*HOOKS, "adapter", "compiled"])
def test_layers_whose_parts_were_changed_run_part_by_part(change, kernels):
    layer, x = TransformerLayer(preset("tiny"), 2), torch.randn(2, 40, 64)
    angles, seen = rotary(torch.arange(40), 32, 1e4), []
    if change in HOOKS:
        getattr(layer.mlp.down, change)(lambda *_: seen.append(1))
    elif change == "adapter":
        layer.attention.out = nn.Sequential(layer.attention.out)
    else:
        model = UNet(preset("tiny"))
        compile_layers(model, backend="eager")
        layer = model.encoder[0]
    layer(x, angles, lambda query, key, value: value).sum().backward()
    assert "heads_part" not in kernels and "finish_part" not in kernels
    assert bool(seen) == (change in HOOKS)


def test_environment_variable(monkeypatch):
    for value, words in (("off", "RLTOK_FUSED=off"), ("auto", None)):
        monkeypatch.setenv(choice.VARIABLE, value)
        choice.missing.cache_clear()
        assert fused.missing() == words
    monkeypatch.setenv(choice.VARIABLE, "on")
    choice.missing.cache_clear()
    with pytest.raises(ValueError, match="RLTOK_FUSED must be 'auto' or 'off', got 'on'"):
        fused.missing()
    monkeypatch.undo()
    choice.missing.cache_clear()


def test_targets_are_checked():
    head, states = UNet(preset("tiny")).final_head, torch.randn(2, 40, 64)
    with pytest.raises(ValueError, match="must agree"):
        head(states, torch.zeros(2, 39, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"targets must lie in 0..255"):
        head(states, torch.full((2, 40), 256))
    assert F.relu(head(states, torch.zeros(2, 40, dtype=torch.uint8))).shape == (2, 40)

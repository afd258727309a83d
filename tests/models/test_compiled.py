"""Compiled layers: what they compute, and how few programs they are for inputs of any length."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from shutil import which

import pytest
import torch
import torch.nn.attention.flex_attention as torch_flex
from rltok_rl.experiments.bench.operations import inductor_counts
from torch._dynamo.utils import counters

from rltok_rl.fused import fused
from rltok_rl.models import UNet, attention, preset
from rltok_rl.training.options import compile_layers

from .conftest import mixed_boundaries, seeded

# Of torch: its tracer looks at tensors that are not leaves.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
KERNELS, MOVED = 69, 9.3e6
"""Kernels, and bytes that a call of each program moves, as inductor of torch 2.13 counts them for the small model."""
RATES = (0.2, 0.9, 0.5, 0.02, 0.7)  # up to three chunks of capped attention; tokens of few positions as well


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    with fused(False):  # compiled layers are compared with their source
        yield
    torch._dynamo.reset()


def twins(cap: float | None, backend: str = "eager", **fields: str) -> tuple[UNet, UNet]:
    """A model, and the same with compiled layers."""
    torch.manual_seed(0)
    layers = {"num_encoder_layers": 2, "num_token_layers": 2}
    model = UNet(preset("tiny", width=16, attention_cap=cap, **layers, **fields)).train()
    compiled = copy.deepcopy(model)
    compile_layers(compiled, backend=backend)
    return model, compiled


def step(model: UNet, number: int, layout: str = "padded") -> torch.Tensor:
    byte_ids = torch.randint(256, (2, 600), generator=seeded(number))
    out = model(byte_ids, mixed_boundaries(2, 600, RATES[number]), layout=layout)
    (out.final_logits.mean() + out.early_logits.mean()).backward()
    return out.final_logits.detach()


def programs() -> int:
    return counters["stats"]["unique_graphs"]


@pytest.mark.parametrize(("cap", "scope", "expected"), [(None, "window", 3), (50.0, "window", 6), (50.0, "token", 6)])
def test_few_programs_serve_all_lengths_and_layouts(cap, scope, expected):
    """None is made after the first two updates; results are those of layers that are not compiled."""
    model, compiled = twins(cap, byte_scope=scope)
    made = []
    for number in range(len(RATES)):
        for layout in ("padded", "packed"):
            torch.testing.assert_close(step(compiled, number, layout), step(model, number, layout), rtol=0, atol=1e-6)
        made.append(programs())
    assert made[-1] == made[1] == expected
    assert not counters["graph_break"]


def assert_same_gradients(compiled: UNet, model: UNet) -> None:
    for (name, mine), theirs in zip(compiled.named_parameters(), model.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None), name
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-7, msg=lambda m, n=name: f"{n}: {m}")


def test_gradients_are_those_of_layers_that_are_not_compiled():
    model, compiled = twins(50.0, "aot_eager")  # traced backward passes, without a compiler
    for one in (model, compiled):
        step(one, 1)
    assert_same_gradients(compiled, model)


def test_a_copy_computes_with_weights_of_its_own():
    model, compiled = twins(None)
    other, before = copy.deepcopy(compiled), step(compiled, 0)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.5)
    assert not torch.equal(step(other, 0), before) and torch.equal(step(compiled, 0), before)
    assert list(compiled.state_dict()) == list(model.state_dict())


@pytest.mark.skipif(not (which("g++") or which("clang++")), reason="no C++ compiler")
def test_inductor_generates_few_kernels_that_move_little(tmp_path, monkeypatch):
    """At most 10 % more than measured, which leaves room for other versions of torch."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # a cached program may lack its count of bytes
    model, compiled = twins(None, "inductor")
    with inductor_counts() as counts:
        torch.testing.assert_close(step(compiled, 0), step(model, 0), rtol=0, atol=1e-5)
    assert_same_gradients(compiled, model)
    assert 0 < counts["kernels"] <= 1.1 * KERNELS and 0 < counts["moved"] <= 1.1 * MOVED
    assert not logging.getLogger("torch._inductor.compile_fx.__inductor_metrics").isEnabledFor(logging.INFO)


@pytest.mark.parametrize("scope", ["window", "token"])
def test_layers_with_flex_attention_are_one_program(monkeypatch, scope):
    """As on a GPU: attention is inside, of bytes and of packed tokens; traced backward passes, without a compiler."""
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *tensors: None, raising=False)
    model, compiled = twins(50.0, "aot_eager", byte_scope=scope)
    made = []
    for number in range(3):
        results = []
        for one, method in ((model, "rows"), (compiled, "flex")):
            monkeypatch.setattr(attention, "fastest_method", lambda *_, method=method, **__: method)
            one.zero_grad()
            results.append(step(one, number, "packed"))
        torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-6)
        assert_same_gradients(compiled, model)
        made.append(programs())
    assert made == [2, 2, 2]  # of byte and of token layers
    assert not counters["graph_break"]

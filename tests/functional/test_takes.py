"""Every function declares its arguments; wrong shapes, dtypes, devices and NaN are named, or defined."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
import random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rltok_rl import functional
from rltok_rl.functional.baselines import RunningMean, running_mean, z_score
from rltok_rl.functional.boundary_rules import entropy_spikes, select_exactly
from rltok_rl.functional.budget import draw_within_budget
from rltok_rl.functional.control_variate import control_variate
from rltok_rl.functional.episodes import ratio_with_error
from rltok_rl.functional.likelihood import byte_log_prob_in_parts
from rltok_rl.functional.ngrams import ngram_hash
from rltok_rl.functional.policy_gradient import clipped_ratio
from rltok_rl.functional.rate import Controller, controller_update, logit_pressure
from rltok_rl.functional.returns import reverse_scan
from rltok_rl.functional.scripts import running_script
from rltok_rl.functional.takes import takes

from ..tools.fuzz_functions import call_once, functions, outcome, right_arguments

FUNCTIONS = functions()
UNDECLARED = {
    *("as_reward", "broken_reward_laws", "function_name", "reads_entropy"),  # take rewards, which are functions
    *("check_gamma", "check_rewards", "check_target", "check_targets", "check_terms", "clip_bounds"),  # are checks
    *("precision", "wide", "readable", "signed", "takes"),  # read a dtype, a device or a Python number
}
OTHERS = {"process_group", "generator", "state", "clip", "others"}
"""Parameters that functions check themselves."""
HIDE_NAN = {
    "policy_metrics.clip_fraction": "a ratio that is NaN is not outside",
    "boundary_rules.select_next": "NaN is refused",
    "rewards.log_likelihood_reward": "the early exit is not read",
    "returns.cut": "the dtype alone is read",
}


def shared(function: Any, arguments: dict[str, Any]) -> list[Any]:
    """Declared tensors of a call whose last dimension an earlier tensor of the call has too."""
    out: list[Any] = []
    seen: set[str] = set()
    for argument in function.arguments:
        value = arguments[argument.name]
        if isinstance(value, Tensor) and value.dim():
            kind = next(kind for kind in argument.kinds if kind.is_tensor)
            last = kind.dims[-1] if kind.dims else f"*{kind.leading}"
            out += [argument] if last in seen else []
            seen |= {last}
    return out


def test_every_public_function_declares_its_arguments():
    for module in pkgutil.iter_modules(functional.__path__):
        members = vars(importlib.import_module(f"{functional.__name__}.{module.name}"))
        for name, member in members.items():
            if inspect.isfunction(member) and not name.startswith("_") and member.__module__.endswith(module.name):
                declared = FUNCTIONS.get(f"{module.name}.{member.__name__}")
                assert (declared is not None) != (name in UNDECLARED), name
                if declared is not None:
                    named = {argument.name for argument in declared.arguments}
                    assert set(inspect.signature(declared).parameters) - named <= OTHERS, name


def test_right_calls_return_and_wrong_tensors_are_named():
    """Shapes that are shared with another argument are not broadcast; dtypes and devices are not converted."""
    for name, function in FUNCTIONS.items():
        calls = [right_arguments(function, random.Random(f"{name} {seed}")) for seed in range(40)]
        assert any(outcome(function, arguments) == "result" for arguments in calls), name
        for arguments in calls[:4]:
            wrong: list[tuple[str, Any]] = []
            for argument in shared(function, arguments):
                value = arguments[argument.name]
                wrong += [(argument.name, torch.cat((value, value), -1)), (argument.name, value.to("meta"))]
            for argument in function.arguments:
                value = arguments[argument.name]
                if isinstance(value, Tensor):
                    others = (value.to(torch.complex64), value.to(torch.float8_e4m3fn), value.to(torch.uint64))
                    wrong += [(argument.name, other) for other in (*others, value.to_sparse(), "text")]
            for key, value in wrong:
                with pytest.raises((ValueError, TypeError), match=key):
                    function(**{**arguments, key: value})


def test_nan_is_named_or_stays():
    for name, function in FUNCTIONS.items():
        arguments = right_arguments(function, random.Random(name))
        first = next(iter(argument for argument in function.arguments))
        value = arguments[first.name]
        if name in HIDE_NAN or not isinstance(value, Tensor) or first.kinds[0].name not in ("float", "known"):
            continue
        arguments[first.name] = value * math.nan
        try:
            out = function(**arguments)
        except ValueError as error:
            assert any(parameter in str(error) for parameter in arguments), name
            continue
        parts = [part for part in (out if isinstance(out, tuple) else (out,)) if isinstance(part, Tensor)]
        assert any(part.isnan().any() for part in parts), name


class Counting(TorchDispatchMode):
    """Counts dispatched operations."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_checks_dispatch_no_operation():
    """So they wait for no device, and cost an update no kernel; NaN is looked for only where it would be lost."""
    for name, function in FUNCTIONS.items():
        arguments = right_arguments(function, random.Random(name))
        if any(kind.name == "known" for argument in function.arguments for kind in argument.kinds):
            continue
        counts = []
        for call in (function, function.__wrapped__):
            with Counting() as counting:
                outcome(call, arguments)
            counts.append(counting.count)
        assert counts[0] == counts[1], name


def test_a_compiled_graph_has_no_checks():
    @takes("x, y: float *B T", "share: number [0, 1]")
    def scaled(x, y, share):
        return share * x + y

    x = torch.ones(2, 3)
    assert torch.equal(torch.compile(scaled, backend="eager", fullgraph=True)(x, x, 0.5), 1.5 * x)
    assert "Takes ``x`` float [*B, T]; ``y`` float [*B, T]; ``share`` number in [0, 1]." in scaled.__doc__


def test_wild_calls_return_or_name_an_argument():
    """A tenth of a second of `make soak`."""
    for number in range(100):
        name = [*FUNCTIONS][number % len(FUNCTIONS)]
        result, call = call_once(name, FUNCTIONS[name], f"test {number}")
        assert result in ("result", "error"), f"{call}: {result}"


def test_calls_that_a_soak_found_name_an_argument():
    x, whole = torch.rand(4, 6), torch.zeros(4, dtype=torch.int64)
    for call, words in (
        (lambda: running_script(whole, whole[0].to("meta")), "scripts and before must be on one device"),
        (lambda: logit_pressure(x[0, 0], x[0, 0] > 0.5, x[0, 0].to("meta")), "must be on one device"),
        (lambda: running_mean(x.to("meta"), RunningMean.empty(6)), "returns and state must be on one device"),
        (lambda: control_variate(x, x[..., None][..., :0]), "regressors must be"),
        (lambda: byte_log_prob_in_parts(torch.exp, x[:, :0], whole, 5), "states must be"),
        (lambda: clipped_ratio(x, x, x, torch.ones(2)), "clip must be"),
        (lambda: ratio_with_error([], 2), "moments must be 5 numbers, got 0"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    state = controller_update(Controller.empty(), x[0, 0], proportional=1.0, integral=1.0, limit=1e300)
    assert state.integral == x[0, 0]
    for decay in (-0.5, 10**12, 1e38, math.nan):
        expected = reverse_scan(x, torch.full_like(x, decay))
        torch.testing.assert_close(reverse_scan(x, decay), expected, equal_nan=True)


def test_values_that_decide_are_numbers():
    """NaN would draw no boundary, or take part in every comparison as False."""
    x, nan = torch.rand(2, 8), torch.rand(2, 8)
    nan[1, 3] = math.nan
    for call in (
        lambda: draw_within_budget(nan, x, 0.5, 4),
        lambda: draw_within_budget(x, nan, 0.5, 4),
        lambda: select_exactly(nan, 0.5, 4),
        lambda: entropy_spikes(nan),
    ):
        with pytest.raises(ValueError, match=r"must hold numbers, got nan at index \[1, 3\]"):
            call()
    assert z_score(nan).isnan().all() and (z_score(torch.ones(2, 8)) == 0).all()
    assert torch.equal(entropy_spikes(x, 10**12), entropy_spikes(x, 8))


def test_ngrams_of_all_integers_have_one_hash():
    ids = torch.randint(256, (2, 9))
    for dtype in (torch.uint8, torch.int16, torch.int32):
        assert torch.equal(ngram_hash(ids.clamp(max=127).to(dtype), 3, 1000), ngram_hash(ids.clamp(max=127), 3, 1000))
    with pytest.raises(TypeError, match="byte_ids must be an integer tensor, got torch.float32"):
        ngram_hash(ids.float(), 3, 1000)

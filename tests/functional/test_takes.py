"""Every function declares its arguments; wrong shapes, dtypes, devices and NaN are named, or defined."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rltok_rl import functional
from rltok_rl.functional.baselines import RunningMean, group_mean, no_baseline, per_rows, running_mean, z_score
from rltok_rl.functional.boundary_rules import (
    entropy_spikes,
    exact_count,
    select_exactly,
    spacebyte,
    spacelike,
    threshold_for_rate,
)
from rltok_rl.functional.budget import budget_offsets, draw_within_budget, string_log_prob
from rltok_rl.functional.control_variate import control_variate
from rltok_rl.functional.decoding import filter_logits, sample_bytes
from rltok_rl.functional.episodes import ratio_with_error, return_sums
from rltok_rl.functional.likelihood import bits_per_byte, byte_log_prob_in_parts
from rltok_rl.functional.ngrams import ngram_hash
from rltok_rl.functional.policy import boundary_log_prob, recent_boundaries, soft_cap
from rltok_rl.functional.policy_gradient import clipped_ratio, importance_weighted, vtrace
from rltok_rl.functional.policy_metrics import clip_fraction
from rltok_rl.functional.rate import (
    RATE_CONTROLS,
    Controller,
    check_target,
    control_per_rows,
    controller_update,
    hinge_loss,
    load_balance,
    logit_pressure,
    priced_boundaries,
)
from rltok_rl.functional.reduction import row_groups, sum_and_count
from rltok_rl.functional.returns import check_gamma, cut, discounted_return, generalized_advantage, reverse_scan
from rltok_rl.functional.rewards import broken_reward_laws, function_name
from rltok_rl.functional.scripts import running_script, script_at, scripts_of
from rltok_rl.functional.takes import takes

from ..tools.fuzz_functions import SECONDS, call_once, functions, nested, outcome, right_arguments, time_limit

FUNCTIONS = functions()
UNDECLARED = {
    *("as_reward", "broken_reward_laws", "function_name", "reads_entropy"),  # take rewards, which are functions
    *("check_gamma", "check_rewards", "check_target", "check_targets", "clip_bounds"),  # are checks
    *("check_dense", "check_finite", "check_result", "check_scalar"),
    *("wide", "readable", "signed", "takes", "check_call"),  # read a dtype, a device or a Python number
}
OTHERS = {"state", "clip", "others"}
"""Parameters that functions check themselves."""
HIDE_NAN = {
    "policy_metrics.clip_fraction": "a ratio that is NaN is not outside",
    "boundary_rules.select_next": "NaN is refused",
    "rewards.log_likelihood_reward": "the early exit is not read",
    "returns.cut": "the dtype alone is read",
}


def misshapen(function: Any, arguments: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Tensors of a call with one size unlike that of an earlier tensor, or with a dimension that would broadcast."""
    seen: set[str] = set()
    for argument in function.arguments:
        value = arguments[argument.name]
        if isinstance(value, Tensor):
            kind = next(kind for kind in argument.kinds if kind.is_tensor)
            names = [*([f"*{kind.leading}"] if kind.leading else []), *kind.dims]
            for place, name in enumerate(names, -len(names)):
                if name in seen:
                    yield argument.name, value[None] if name[0] == "*" else torch.cat((value, value), place)
            seen |= {*names}


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
            wrong: list[tuple[str, Any]] = [*misshapen(function, arguments)]
            wrong += [(key, arguments[key].to("meta")) for key in {key for key, _ in wrong}]
            for argument in function.arguments:
                value = arguments[argument.name]
                if isinstance(value, Tensor):
                    dtypes = [torch.complex64, torch.float8_e4m3fn, torch.uint64]
                    kinds = {kind.name for kind in argument.kinds if kind.is_tensor}
                    dtypes += [torch.int64] if kinds <= {"float", "known", "uniforms"} else []
                    dtypes += [torch.float32, torch.int64] if kinds == {"bool"} else []
                    wrong += [(argument.name, value.to(dtype)) for dtype in dtypes]
                    wrong += [(argument.name, value.to_sparse()), (argument.name, "text")]
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
        if any(kind.name in ("known", "uniforms", "ids") for argument in function.arguments for kind in argument.kinds):
            continue
        counts = []
        for call in (function, function.__wrapped__):
            with Counting() as counting:
                outcome(call, arguments)
            counts.append(counting.count)
        assert counts[0] == counts[1], name


def moved(value: Any, change: Any) -> Any:
    """An argument with ``change`` applied to its tensors, which may be those of a state."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(change(part) for part in value))
    return change(value) if isinstance(value, Tensor) else value


def parts(out: Any) -> list[Any]:
    """What a function returns, in a row."""
    if isinstance(out, dict):
        out = tuple(out.values())
    return [x for part in out for x in parts(part)] if isinstance(out, (tuple, list)) else [out]


def test_results_are_on_the_device_of_the_arguments():
    """A tensor that a function makes on the CPU would be a result there, or would not fit in."""
    without_values = ("on a device with values", "_unique2")  # refused, or not implemented by torch
    for name, function in FUNCTIONS.items():
        for seed in range(4):
            arguments = right_arguments(function, random.Random(f"{name} {seed}"))
            if outcome(function, arguments) != "result":
                continue
            there = {key: moved(value, lambda x: x.to("meta")) for key, value in arguments.items()}
            try:
                devices = {x.device.type for x in parts(function(**there)) if isinstance(x, Tensor)}
            except (ValueError, NotImplementedError) as error:
                assert any(words in str(error) for words in without_values), f"{name}: {error}"
            else:
                tensors = [x for value in there.values() for x in parts(value) if isinstance(x, Tensor)]
                assert devices <= {"meta"} or not tensors, name
    for state in (RunningMean.empty(3, device="meta"), Controller.empty(device="meta")):
        assert {part.device.type for part in state} == {"meta"}


def test_no_steps_are_none_in_the_result():
    """Of rollouts without a step: results have the dtypes and dimensions of others."""
    for name, function in FUNCTIONS.items():
        for seed in range(8):
            arguments = right_arguments(function, random.Random(f"{name} {seed}"))
            timed = {a.name: k.dims[::-1].index("T") + 1 for a in function.arguments for k in a.kinds if "T" in k.dims}
            none = {
                key: value.narrow(-timed[key], 0, 0)
                for key, value in arguments.items()
                if key in timed and isinstance(value, Tensor) and value.dim()
            }
            if isinstance(arguments.get("state"), RunningMean):
                none["state"] = RunningMean.empty(0)
            if not none or name == "ngrams.ngram_hash" or outcome(function, arguments) != "result":
                continue
            if name == "baselines.z_score":
                with pytest.raises(ValueError, match="z_score needs at least 2 steps"):
                    function(**arguments | none)
                continue
            ours, whole = (
                [(x.dtype, x.dim()) for x in parts(function(**kinds)) if isinstance(x, Tensor)]
                for kinds in (arguments | none, arguments)
            )
            assert ours == whole, name


def test_whole_numbers_of_every_type_count_alike():
    """Sums and differences with narrow ones would wrap around, here in blocks of 1000."""
    compared = 0
    for name, function in FUNCTIONS.items():
        for seed in range(8):
            arguments = right_arguments(function, random.Random(f"{name} {seed}"))
            tensors = {key: x for key, x in arguments.items() if isinstance(x, Tensor)}
            whole = {key: x for key, x in tensors.items() if x.dtype in (torch.uint8, torch.int64)}
            arguments |= {"block": 1000} if "block" in arguments else {}
            if not whole or outcome(function, arguments) != "result":
                continue
            results = []
            for dtype in (torch.int64, torch.int32, torch.uint8):
                out = function(**arguments | {key: x.to(dtype) for key, x in whole.items()})
                results.append([torch.as_tensor(x).double() for x in parts(out)])
            for narrow in results[1:]:
                torch.testing.assert_close(narrow, results[0], equal_nan=True, msg=lambda m, n=name: f"{n}: {m}")
            compared += 1
    assert compared > 100


def test_a_compiled_graph_has_no_checks():
    @takes("x, y: float *B T", "share: number [0, 1]")
    def scaled(x, y, share):
        return share * x + y

    x = torch.ones(2, 3)
    assert torch.equal(torch.compile(scaled, backend="eager", fullgraph=True)(x, x, 0.5), 1.5 * x)
    assert "Takes ``x`` float [*B, T]; ``y`` float [*B, T]; ``share`` number in [0, 1]." in scaled.__doc__
    several = "``target`` number in (0, 1) or float [*L]; ``mask`` bool [*L] or None."
    assert several in logit_pressure.__doc__ and "``lags`` integer in [0, inf)" in entropy_spikes.__doc__


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
    for call, words in (
        (lambda: running_mean(x, (x[0], x[0])), "state must be a RunningMean, got tuple"),
        (
            lambda: controller_update((x[0, 0], x[0, 0]), x[0, 0], proportional=1.0, integral=1.0),
            "state must be a Controller, got tuple",
        ),
        (lambda: sum_and_count(x, dim=True), "dim must be an integer or a tuple of integers, got True"),
    ):
        with pytest.raises(TypeError, match=words):
            call()
    state = controller_update(Controller.empty(), x[0, 0], proportional=1.0, integral=1.0, limit=1e300)
    assert state.integral == x[0, 0]
    for decay in (-0.5, 10**12, 1e38, math.nan):
        expected = reverse_scan(x, torch.full_like(x, decay))
        torch.testing.assert_close(reverse_scan(x, decay), expected, equal_nan=True)


def test_numbers_may_lie_at_the_ends_of_their_ranges_and_not_beyond():
    x, bits, inf = torch.rand(4, 6), torch.rand(4, 6) < 0.5, math.inf
    ids, error, empty = torch.zeros(4, 6, dtype=torch.int64), x[0, 0], Controller.empty()
    memory, none = RunningMean.empty(6), no_baseline
    for name, call, right, wrong in (
        ("group_size", lambda v: group_mean(x, group_size=v), (2, 4), (1, 0)),
        ("eps", lambda v: z_score(x, eps=v), (0,), (-1e-9, inf)),
        ("rows_per_mean", lambda v: per_rows(x, baseline=none, rows_per_mean=v), (1, 4), (0,)),
        ("rows_per_mean", lambda v: row_groups(v, x), (1, 4), (0,)),
        (
            "rows_per_mean",
            lambda v: control_per_rows(x, bits, 0.5, control=logit_pressure, rows_per_mean=v),
            (1, 4),
            (0,),
        ),
        ("decay", lambda v: running_mean(x, memory, decay=v), (0, 1), (-0.1, 1.1)),
        ("num_steps", RunningMean.empty, (0,), (-1, 1.0, 10**9 + 1)),
        ("ridge", lambda v: control_variate(x, x[..., None], ridge=v), (0, 1e9), (-1e-9, inf)),
        ("folds", lambda v: control_variate(x, x[..., None], folds=v), (2, 4), (1, 5)),
        ("rate", lambda v: exact_count(v, 6), (0, 1), (-0.1, 1.1)),
        ("length", lambda v: exact_count(0.5, v), (0,), (-1,)),
        ("rate", lambda v: select_exactly(x, v, 3), (0, 1), (-0.1, 1.1)),
        ("block", lambda v: select_exactly(x, 0.5, v), (1, 9), (0,)),
        ("rate", lambda v: draw_within_budget(x, x, v, 3), (0, 1), (-0.1, 1.1)),
        ("block", lambda v: draw_within_budget(x, x, 0.5, v), (1, 9), (0,)),
        ("lags", lambda v: entropy_spikes(x, v), (0, 9), (-1, 0.5)),
        ("margin", lambda v: entropy_spikes(x, margin=v), (-9, 9), (inf, -inf)),
        ("rate", lambda v: threshold_for_rate(x, v), (0, 1), (-0.1, 1.1)),
        ("top_k", lambda v: filter_logits(x, top_k=v), (1, 9, None), (0,)),
        ("top_p", lambda v: filter_logits(x, top_p=v), (1e-9, 1, None), (0, 1.1)),
        ("top_k", lambda v: sample_bytes(x, top_k=v), (1, 9, None), (0,)),
        ("top_p", lambda v: sample_bytes(x, top_p=v), (1e-9, 1, None), (0, 1.1)),
        ("temperature", lambda v: sample_bytes(x, temperature=v), (0, inf), (-0.1, math.nan)),
        ("gamma", lambda v: return_sums(x, bits, gamma=v), (0, 1, None), (-0.1, 1.1)),
        ("gamma", lambda v: discounted_return(x, v), (0, 1), (-0.1, 1.1, math.nan, torch.tensor(1.1), torch.ones(2))),
        ("lmbda", lambda v: generalized_advantage(x, x, x, 0.5, v), (0, 1), (-0.1, 1.1, torch.tensor(1.1))),
        ("lmbda", lambda v: vtrace(x, x, x, x, 0.5, lmbda=v), (0, 1), (-0.1, 1.1, torch.tensor(1.1))),
        ("rho_clip", lambda v: vtrace(x, x, x, x, 0.5, rho_clip=v), (1e-9, inf), (0,)),
        ("c_clip", lambda v: vtrace(x, x, x, x, 0.5, c_clip=v), (1e-9, inf), (0,)),
        ("max_weight", lambda v: importance_weighted(x, x, x, max_weight=v), (1e-9, inf, None), (0,)),
        (
            "clip",
            lambda v: clipped_ratio(x, x, x, v),
            (0, 1, (1, 9), (0, inf)),
            (-0.1, 1.1, math.nan, (0, math.nan), (0.2, -1.0), (2.0, 0.1), (0.1, 0.2, 0.3)),
        ),
        ("num_rows", lambda v: ratio_with_error([1.0] * 5, v), (1,), (0,)),
        ("chunk", lambda v: byte_log_prob_in_parts(torch.exp, x[..., None], ids, v), (1, 99), (0,)),
        ("num_bytes", lambda v: bits_per_byte(1.0, v), (1,), (0, 1.5)),
        ("size", lambda v: ngram_hash(ids, v, 5), (1, 6, 7), (0, 8)),
        ("buckets", lambda v: ngram_hash(ids, 2, v), (1,), (0,)),
        ("cap", lambda v: soft_cap(x, v), (1e-9, 1e9), (0, inf)),
        ("num_lags", lambda v: recent_boundaries(bits, v), (0, 9), (-1, 10_001)),
        *(
            ("target", lambda v, control=control: control(x, bits, v), (1e-9, 0.999), (-0.2, 0, 1))
            for control in RATE_CONTROLS.values()
        ),
        ("target", lambda v: load_balance(error, error, v), (1e-9, 0.999), (0, 1)),
        ("slack", lambda v: hinge_loss(x, bits, 0.5, slack=v), (0, 1), (-1e-9, inf)),
        ("limit", lambda v: controller_update(empty, error, proportional=1, integral=1, limit=v), (0, inf), (-1e-9,)),
    ):
        for value in right:
            call(value)
        for value in wrong:
            with pytest.raises(ValueError, match=name):
                call(value)
                pytest.fail(f"{name} may be {value}")


def test_switches_and_words_are_what_they_say():
    """A number would count as True, and a name that is no text as none of the choices."""
    x, bits = torch.rand(4, 6), torch.rand(4, 6) < 0.5
    for call, words in (
        (lambda: group_mean(x, group_size=2, exclude_self=1), "exclude_self must be True or False, got 1"),
        (lambda: per_rows(x, baseline="none", rows_per_mean=2), "baseline must be a function, got 'none'"),
        (lambda: ratio_with_error([1.0, 2.0, 1.0, 2.0, "4"], 2), "moments must be a list of numbers, got"),
        (lambda: ratio_with_error((1.0,) * 5, 2), "moments must be a list of numbers, got"),
        (lambda: filter_logits(x, top_p="1"), "top_p must be a number, got '1'"),
        (lambda: hinge_loss(x, bits, 0.5, slack=True), "slack must be a number, got True"),
    ):
        with pytest.raises(TypeError, match=words):
            call()


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
    for outside, shown in ((-0.5, "-0.5"), (1.5, "1.5"), (math.inf, "inf")):
        uniforms = x.clone()
        uniforms[1, 3] = outside
        for call in (
            lambda wrong=uniforms: draw_within_budget(x, wrong, 0.5, 4),
            lambda wrong=uniforms: select_exactly(wrong, 0.5, 4),
        ):
            with pytest.raises(ValueError, match=rf"^uniforms must lie in \[0, 1\], got {shown} at index \[1, 3\]"):
                call()
    assert threshold_for_rate(torch.tensor([math.inf, -math.inf, 1.0]), 1 / 3) == 1.0  # a sum of NaN, and none in it
    assert z_score(nan).isnan().all() and (z_score(torch.ones(2, 8)) == 0).all()
    assert torch.equal(entropy_spikes(x, 10**12), entropy_spikes(x, 8))


def test_ngrams_of_all_integers_have_one_hash():
    ids = torch.randint(256, (2, 9))
    for dtype in (torch.uint8, torch.int16, torch.int32):
        assert torch.equal(ngram_hash(ids.clamp(max=127).to(dtype), 3, 1000), ngram_hash(ids.clamp(max=127), 3, 1000))
    with pytest.raises(TypeError, match="byte_ids must be an integer tensor, got torch.float32"):
        ngram_hash(ids.float(), 3, 1000)


def test_functions_that_take_no_tensor_name_their_arguments_too():
    for call, message in (
        (lambda: check_gamma("x"), "gamma must be a number, got 'x'"),
        (lambda: check_gamma(None, "lmbda"), "lmbda must be a number, got None"),
        (lambda: check_target("x"), "target must be a number, got 'x'"),
        (lambda: function_name(5), "function must be a function or its name, got 5"),
        (lambda: broken_reward_laws("early_exit"), "reward must be a function, got 'early_exit'"),
    ):
        with pytest.raises(TypeError) as error:
            call()
        assert str(error.value) == message


def refused(*cases: tuple[Callable[[], Any], str]) -> None:
    """Each call raises an error with these words."""
    for call, words in cases:
        with pytest.raises((ValueError, TypeError)) as error:
            call()
            pytest.fail(f"no error: {words}")
        assert words in str(error.value)


def test_a_tensor_for_a_number_is_real_and_within_reach():
    x, half, meta = torch.rand(2, 3), torch.tensor(0.5), torch.tensor(0.5, device="meta")
    bits = x > 0.5
    refused(
        *(
            (lambda f=f, value=value: f(value), words)
            for name, f in (
                ("gamma", lambda v: discounted_return(x, v)),
                ("gamma", lambda v: return_sums(x, bits, gamma=v)),
                ("lmbda", lambda v: generalized_advantage(x, x, x, 0.5, v)),
                ("lmbda", lambda v: vtrace(x, x, x, x, 0.5, lmbda=v)),
                ("decay", lambda v: reverse_scan(x, v)),
                ("factor", lambda v: cut(v, bits, x)),
            )
            for value, words in (
                (torch.tensor(1j), f"{name} must be a real number, got torch.complex64 [] on cpu"),
                (torch.tensor(True), f"{name} must be a real number, got torch.bool [] on cpu"),
                (nested(), f"{name} must be a"),
                (meta, f"{name} must be on the CPU or on the device of "),
            )
        ),
        (lambda: check_gamma(torch.tensor(1j)), "gamma must be a real number, got torch.complex64 [] on cpu"),
        (lambda: return_sums(x, bits, gamma=half + 1), "gamma must lie in [0, 1], got 1.5"),
        (lambda: priced_boundaries(x, meta), "price must be on the CPU or on the device of logits, cpu, got meta"),
        (lambda: clip_fraction(x, (0.1, 10**400)), "clip must be epsilon in [0, 1], or"),
        (lambda: clip_fraction(x, torch.tensor(1j)), "clip must be a real number, got torch.complex64 [] on cpu"),
        (lambda: clip_fraction(x, torch.tensor(math.nan)), "clip must be epsilon in [0, 1], or"),
        (lambda: clipped_ratio(x, x, x, (0.1, torch.tensor(-1.0))), "clip must be epsilon in [0, 1], or"),
        (
            lambda: clipped_ratio(x, x, x, meta),
            "clip must be on the CPU or on the device of log-prob",
        ),
    )
    assert torch.equal(discounted_return(x, half), discounted_return(x, 0.5))
    assert discounted_return(x.to("meta"), half).is_meta and discounted_return(x.to("meta"), meta).is_meta


def test_numbers_that_python_does_not_print_are_named():
    x, long = torch.rand(2, 3), 10**5000
    refused(
        (lambda: soft_cap(x, long), "cap must be below 2^63 as an integer, got int of 16610 bits"),
        (lambda: discounted_return(x, long), "gamma must lie in [0, 1], got int of 16610 bits"),
        (lambda: clipped_ratio(x, x, x, (0.1, long)), "clip must be epsilon in [0, 1], or"),
        (
            lambda: sum_and_count(x, dim=long),
            "dim must be different dimensions of values [2, 3], got int of",
        ),
        (lambda: z_score(x, eps=-long), "eps must be"),
    )


def test_results_of_functions_are_checked():
    x, bits, ids = torch.rand(4, 3), torch.rand(4, 3) > 0.5, torch.zeros(4, 3, dtype=torch.int64)
    refused(
        *(
            (lambda f=f, result=result: f(lambda *_, **__: result), f"{words}, got {got}")
            for f, words in (
                (
                    lambda b: per_rows(x, baseline=b, rows_per_mean=2),
                    "baseline must return a floating-point tensor [2, 3] on cpu",
                ),
                (
                    lambda c: control_per_rows(x, bits, 0.5, control=c, rows_per_mean=2),
                    "control must return a floating-point tensor [] on cpu",
                ),
                (
                    lambda h: byte_log_prob_in_parts(h, x[..., None], ids, 5),
                    "head must return a floating-point tensor [5, V] on cpu",
                ),
            )
            for result, got in (
                (x[:1], "torch.float32 [1, 3] on cpu"),
                (x[:2, 0].long(), "torch.int64 [2] on cpu"),
                (x[0].to("meta"), "torch.float32 [3] on meta"),
                (x.to_sparse(), "torch.sparse_coo torch.float32 [4, 3] on cpu"),
                (nested(), "a nested tensor"),
                ("x", "str"),
            )
        ),
        (lambda: byte_log_prob_in_parts(lambda s: s[:, :0], x[..., None], ids, 5), "head must return"),
    )


def test_targets_boundaries_and_bytes_have_possible_values():
    x, nan, ids = torch.rand(3), torch.tensor([2.0, -1.0, math.nan]), torch.tensor([[97, -5]])
    bits, rows = x > 0.5, torch.rand(4, 3)
    grouped = {"control": logit_pressure, "rows_per_mean": 2}
    for wrong in (5.0, 0.0, 1.0, math.nan, -math.inf):
        target = torch.tensor([0.5, wrong, 0.2])
        words = f"target must lie strictly between 0 and 1, got {wrong} at index "
        refused(
            (lambda t=target: logit_pressure(x, bits, t), f"{words}[1]"),
            (lambda t=target: control_per_rows(rows, rows > 0.5, t.expand(4, 3), **grouped), f"{words}[0, 1]"),
        )
        real = torch.tensor([True, False, True])
        assert logit_pressure(x, bits, target, mask=real).isfinite()  # the wrong one is padding
    for dtype in (torch.float32, torch.float64):
        values, named = nan.to(dtype), "boundaries must hold numbers, got nan at index [2]"
        refused(
            (lambda v=values: boundary_log_prob(x, v), named),
            (lambda v=values: string_log_prob(x, v), named),
            (lambda v=values: budget_offsets(v, 0.5, 2), named),
        )
    fractions = torch.tensor([0.5, -2.0, 0.0])
    for function in (
        lambda a: boundary_log_prob(x, a),
        lambda a: string_log_prob(x, a),
        lambda a: budget_offsets(a, 0.5, 3),
    ):
        assert torch.equal(function(fractions), function(fractions.bool()))
    for function in (spacelike, spacebyte, script_at, scripts_of):
        refused((lambda f=function: f(ids), "byte_ids must be at least 0, got -5 at index [0, 1]"))
        assert function(ids.abs() + 10**6).shape == ids.shape and function(ids[:, :0]).numel() == 0
    refused(
        (
            lambda: running_script(torch.tensor([[-5, 10**6]])),
            "scripts must lie in -1..3, got values from -5 to 1000",
        ),
        (lambda: running_script(ids[0].clamp(-1, 3), ids[0, 1]), "before must lie in 0..3, got values from -5 to -5"),
    )


def test_memories_stay_finite():
    x, wrong, memory = torch.rand(2, 3), torch.rand(2, 3), RunningMean.empty(3)
    wrong[1, 2] = math.nan
    mask, gains = ~wrong.isnan(), {"proportional": 1.0, "integral": 1.0}
    nan, empty, number = torch.tensor(math.nan), Controller.empty(), torch.tensor(0.1)
    refused(
        (lambda: running_mean(wrong, memory), "returns must be finite at real steps, got nan at index [1, 2]"),
        (lambda: running_mean(x / 0, memory), "returns must be finite at real steps, got inf at index [0, 0]"),
        (
            lambda: running_mean(x, memory._replace(total=x[0] * math.nan)),
            "state must be finite, got nan",
        ),
        (
            lambda: running_mean(x, memory._replace(count=x[0].long())),
            "state must be a floating-point tensor, got",
        ),
        (lambda: running_mean(x, memory._replace(count="x")), "state must be a floating-point tensor, got str"),
        (lambda: controller_update(empty, nan, **gains), "error must be finite, got nan"),
        (lambda: controller_update(empty, -1 / (0 * number), **gains), "error must be finite, got -inf"),
        (lambda: controller_update(Controller(nan, number), number, **gains), "state must be finite, got nan"),
        (lambda: controller_update(Controller("x", number), number, **gains), "state must hold tensors, got str"),
        (lambda: controller_update(Controller(1j * number, number), number, **gains), "state must be a real number"),
    )
    _, after = running_mean(wrong, memory, mask=mask)
    assert all(part.isfinite().all() for part in after)
    large = torch.full((2, 1), torch.finfo(torch.float32).max)  # whose sum is not finite
    assert running_mean(large, RunningMean.empty(1))[1].total.isinf().all()


def test_groups_generators_dimensions_and_layouts_are_named():
    x = torch.rand(4, 3)
    grouped = [name for name, f in FUNCTIONS.items() if "process_group" in inspect.signature(f).parameters]
    for name in grouped:
        arguments = right_arguments(FUNCTIONS[name], random.Random(name)) | {"process_group": "x"}
        refused((lambda a=arguments, n=name: FUNCTIONS[n](**a), "process_group must be a ProcessGroup, got 'x'"))
    assert len(grouped) > 20
    for name, function in FUNCTIONS.items():
        arguments = right_arguments(function, random.Random(name))
        for key in [key for key, value in arguments.items() if isinstance(value, Tensor)]:
            refused((lambda a=arguments, k=key, f=function: f(**a | {k: nested()}), key))
    refused(
        (lambda: sample_bytes(x, generator="x"), "generator must be a torch.Generator, got 'x'"),
        (
            lambda: sample_bytes(x[:1, :1].expand(1, 2**24 + 1)),
            "logits must be of at most 16777216 bytes, got 167",
        ),
        *(
            (lambda dim=dim: sum_and_count(x, dim=dim), "dim must be different dimensions of values [4, 3], got")
            for dim in ((0, 0), (-1, 1), (0, 2), 5, 10**400)
        ),
        (lambda: row_groups(2, x, x[0]), "others must have the shape of values, [4, 3], on cpu, got [3] on cpu"),
        (
            lambda: row_groups(2, x, x.to("meta")),
            "others must have the shape of values, [4, 3], on cpu, got [4, 3]",
        ),
        (lambda: row_groups(2, x, None, "x"), "others must be a tensor of real numbers, got str"),
        (lambda: row_groups(2, x, nested()), "others must be a dense tensor, got a nested one"),
    )
    assert all(torch.equal(*pair) for pair in zip(sum_and_count(x, dim=()), sum_and_count(x), strict=True))
    first, second = (sample_bytes(x, generator=torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(first, second)


def test_absurd_sizes_are_fast_or_refused():
    """Within seconds of processor time; before, they took minutes."""
    long, uniforms = torch.zeros(1, 300_001, dtype=torch.int64), torch.rand(1, 100_000)
    with time_limit(SECONDS):
        assert ngram_hash(long, 300_000, 100).tolist() == [[0, 0]]
        assert entropy_spikes(uniforms, 100_000).sum() == (uniforms.cummax(-1).indices.diff() > 0).sum() + 1
        refused(
            (
                lambda: control_variate(uniforms[:, :6].view(2, 3), uniforms[:, :1, None].expand(2, 3, 2049)),
                "regressors must be at most 2048 per step, got 2049",
            )
        )

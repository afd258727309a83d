"""Call the functions of ``rltok_rl.functional`` with right and wild arguments: each returns, or names an argument.

    python -m tests.tools.fuzz_functions --calls 5000

Arguments follow the declarations of each function (:func:`rltok_rl.functional.takes.takes`). Some calls get one of them
wrong: another shape, dtype, device or layout, NaN, infinity, a number out of range, a function with another result, or
another type. Allowed are a result, and
ValueError or TypeError with the name of a parameter, within seconds.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import math
import pkgutil
import random
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rltok_rl import functional
from rltok_rl.functional.baselines import RunningMean
from rltok_rl.functional.rate import Controller, logit_pressure
from rltok_rl.functional.takes import Argument, ArgumentKind
from rltok_rl.ranges import read_range, shown

SECONDS = 10
"""Time after which a call counts as hanging."""
WILD_NUMBERS = (math.nan, math.inf, -math.inf, -1, 0, 0.5, 1e-300, 1e300, 3, 10**12, 2**64, 10**400, 10**5000)
WILD_TYPES: tuple[Any, ...] = ("wild", None, [], True, {}, object(), 1j)
WILD_SCALARS = (1j, True, math.nan, -0.5, 0.5)
"""Numbers that become tensors; one of them is on the meta device."""
WILD_AXES = ((0, 0), (-1, 0), (0, 1), (9,), (), (10**400,), (0, True), ("0",))
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64)


def functions() -> dict[str, Callable[..., Any]]:
    """Return the functions with declared arguments, by module and name."""
    out = {}
    for module in pkgutil.iter_modules(functional.__path__):
        members = vars(importlib.import_module(f"{functional.__name__}.{module.name}"))
        for name, member in members.items():
            if hasattr(member, "arguments") and member.__module__.endswith(f".{module.name}"):
                out[f"{module.name}.{name}"] = member
    return out


def right_arguments(function: Any, dice: random.Random) -> dict[str, Any]:
    """Draw arguments as declared, with sizes 1 to 6; numbers of tensors are in [0, 1) or 0 and 1."""
    sizes: dict[str, Any] = {}
    arguments = {argument.name: _draw(argument, sizes, dice) for argument in function.arguments}
    length = sizes.get("T", 4)
    others = {
        "state": RunningMean.empty(length) if "returns" in arguments else Controller.empty(),
        "clip": dice.choice((0.2, (0.1, 0.3), [0.0, 2.0])),
    }
    plain = {"size": dice.randint(1, length), "num_rows": 2}
    plain |= {"group_size": 2, "rows_per_mean": 1, "folds": 2, "dim": 0}
    arguments |= {name: value for name, value in plain.items() if arguments.get(name) is not None}
    return arguments | {name: others[name] for name in others.keys() & inspect.signature(function).parameters.keys()}


def _draw(argument: Argument, sizes: dict[str, Any], dice: random.Random) -> Any:
    """Draw one argument; ``sizes`` are those of dimensions so far."""
    if argument.optional and dice.random() < 0.3:
        return None
    kind = dice.choice(argument.kinds)
    if kind.is_tensor:
        return draw_tensor(kind, sizes, dice)
    if kind.name in ("number", "whole", "scalar"):
        allowed = read_range(kind.range or "[0, 1]")
        low = max(allowed.low, -4)
        high = min(allowed.high, low + 8)
        return dice.randint(int(low), int(high)) if kind.name == "whole" else dice.uniform(low, high) or 0.5 * high
    if kind.name in ("group", "generator"):
        return torch.Generator() if kind.name == "generator" else None
    if kind.name == "callable":
        return logit_pressure if argument.name == "control" else lambda x, **_: x
    return {"switch": True, "axes": -1, "text": "scan", "numbers": [1.0, 2.0, 1.0, 2.0, 4.0]}[kind.name]


def draw_tensor(kind: ArgumentKind, sizes: dict[str, Any], dice: random.Random) -> Tensor:
    """Draw a tensor of a kind, and the sizes of its new dimensions."""
    leading = sizes.setdefault(f"*{kind.leading}", [dice.randint(1, 4) for _ in range(dice.randint(0, 2))])
    names = [dim.rstrip("+") for dim in kind.dims]
    shape = [*(leading if kind.leading else ())]
    shape += [int(name) if name.isdigit() else sizes.setdefault(name, dice.randint(1, 6)) for name in names]
    numbers = torch.rand(shape, generator=torch.Generator().manual_seed(dice.getrandbits(40)))
    if kind.name in ("float", "known", "uniforms"):
        return numbers.to(dice.choice((torch.float32, torch.float64)))
    return (numbers < 0.5).to(torch.bool if kind.name == "bool" else dice.choice((torch.int64, torch.uint8)))


def corrupt_argument(value: Any, dice: random.Random) -> Any:
    """Return a wild value in the place of a right one."""
    if isinstance(value, tuple) and hasattr(value, "_fields") and dice.random() < 0.7:  # a state
        place = dice.choice(value._fields)
        return value._replace(**{place: corrupt_argument(getattr(value, place), dice)})
    if inspect.isroutine(value) and dice.random() < 0.7:
        return _wrong_result(value, dice)
    if not isinstance(value, Tensor):
        scalars = [torch.tensor(number) for number in WILD_SCALARS]
        wild_tensors = (torch.ones(2), torch.tensor([[0.5]]), torch.tensor(0.5, device="meta"), nested(), *scalars)
        several = ((0.1, 10**400), (torch.tensor(1j), 0.2), torch.Generator())
        return dice.choice((*WILD_NUMBERS, *WILD_TYPES, *wild_tensors, *WILD_AXES, *several))
    wild = dice.randrange(9)
    if wild == 0:
        return value[None].expand(2, *value.shape)
    if wild == 1:
        return value[..., :0] if value.dim() else value[None]
    if wild == 2:
        return torch.cat((value, value)) if value.dim() else value.expand(3)
    if wild == 3:
        return value.to(dice.choice(_DTYPES))
    if wild == 4:
        return value.to("meta")
    if wild == 5 and value.dtype.is_floating_point:
        return value.masked_fill(value < 0.5, dice.choice((math.nan, math.inf, -math.inf, 1e30)))
    if wild == 6 and value.dtype == torch.int64:
        return value * dice.choice((-1, 255, 256, 2**40))
    if wild == 7:
        return nested() if dice.random() < 0.5 else value.to_sparse()
    return dice.choice((*WILD_TYPES, 0.5))


def nested() -> Tensor:
    """A nested tensor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is a prototype
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def _wrong_result(function: Callable[..., Any], dice: random.Random) -> Callable[..., Any]:
    """A function that changes the results of another."""
    changes: tuple[Callable[[Any], Any], ...] = (
        *(lambda x: x[None], lambda x: x.expand(2, *x.shape), lambda x: x[:0] if x.dim() else x[None][:0]),
        *(lambda x: x.long(), lambda x: x.to(torch.complex64), lambda x: x.to("meta"), lambda x: x.to_sparse()),
        *(lambda x: x * math.nan, lambda x: (x, x), lambda _: "wild", lambda _: None, lambda _: 0.5),
        lambda _: nested(),
    )
    change = dice.choice(changes)
    return lambda *args, **kwargs: change(function(*args, **kwargs))


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in a block that takes longer, in seconds of processor time."""

    def ring(*_: Any) -> None:
        raise TimeoutError(f"took more than {seconds} s")

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def outcome(function: Callable[..., Any], arguments: dict[str, Any]) -> str:
    """Return ``"result"`` or ``"error"`` of a call, or else a description of what it did instead."""
    try:
        with time_limit(SECONDS):
            function(**arguments)
    except (ValueError, TypeError) as error:
        named = any(name in str(error) for name in inspect.signature(function).parameters)
        return "error" if named else f"{type(error).__name__} without a name: {error}"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{type(error).__name__}: {error}"
    return "result"


def call_once(name: str, function: Any, seed: str) -> tuple[str, str]:
    """Make one call, drawn from ``seed``; return its outcome, and a description of the call."""
    dice = random.Random(seed)
    arguments = right_arguments(function, dice)
    for wrong in dice.sample(sorted(arguments), min(len(arguments), dice.choice((0, 1, 1, 2)))):
        arguments[wrong] = corrupt_argument(arguments[wrong], dice)
    shown = ", ".join(f"{key}={_shown(value)}" for key, value in arguments.items())
    return outcome(function, arguments), f"{name}({shown})"


def _shown(value: Any) -> str:
    """Dtype, shape and device of a tensor, or the start of another value."""
    if not isinstance(value, Tensor) or value.is_nested:
        return shown(value)
    return f"{value.dtype} {[*value.shape]} {value.device}"


def main(arguments: list[str] | None = None) -> int:
    """Make the calls; return 0 if each ended in a result or a named error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.calls < 1:
        parser.error(f"--calls must be at least 1, got {options.calls}")
    counts: Counter[str] = Counter()
    known = [*functions().items()]
    for number in range(options.calls):
        name, function = known[number % len(known)]
        result, call = call_once(name, function, f"{options.seed} {number}")
        counts[result if result in ("result", "error") else "other"] += 1
        if result not in ("result", "error"):
            print(f"call {number}: {call}: {result}", file=sys.stderr)
        if (number + 1) % 1000 == 0:
            print(f"  {number + 1} of {options.calls} calls", flush=True)
    print(
        f"{options.calls} calls of {len(known)} functions: {counts['result']} results, {counts['error']} named errors, "
        f"{counts['other']} others"
    )
    return int(counts["other"] > 0)


if __name__ == "__main__":
    sys.exit(main())

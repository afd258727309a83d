"""Declared arguments of functions: kinds, shapes and ranges, which drive checks, documentation and tests.

Arguments are declared as ``rewards, values: float *B T`` (floating-point tensors [*B, T]), ``gamma: number [0, 1]`` or
``size: whole [1, inf)``, or as several kinds with ``|`` between them. ``?`` after a kind admits None, as a default of
None does. Equal names of dimensions have equal sizes in a call; ``T+`` is at least 1. All tensors with dimensions are
on one device, and a single number is there or on the CPU. ``process_group`` and ``generator`` are declared by their
name. Checks read shapes and dtypes, never values on an accelerator, and a compiled graph has none of them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch
from torch import Generator, Tensor
from torch.distributed import ProcessGroup

from rltok_rl.ranges import check_number, is_number, shown

F = TypeVar("F", bound=Callable[..., Any])
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_NUMBERS = _FLOATS | _INTEGERS
_REAL = _NUMBERS | {torch.bool}
_DTYPES: dict[str, tuple[str, frozenset[torch.dtype]]] = {
    "float": ("a floating-point tensor", _FLOATS),
    "known": ("a floating-point tensor", _FLOATS),
    "uniforms": ("a floating-point tensor", _FLOATS),
    "int": ("an integer tensor", _INTEGERS),
    "ids": ("an integer tensor", _INTEGERS),
    "bool": ("bool", frozenset({torch.bool})),
    "real": ("a tensor of real numbers", _REAL),
    "decisions": ("a tensor of real numbers", _REAL),
}
"""Kinds of tensors: words, and the types that torch calculates with.

On the CPU, ``known`` and ``decisions`` are checked for NaN, ``uniforms`` for numbers outside [0, 1] (1 may be rounded),
and ``ids`` for numbers below 0. ``decisions`` are those of
functions to which any number but 0 is a boundary; ids above 255 are special ids.
"""
VALUE_KINDS = {
    "known": "float without NaN",
    "uniforms": "float in [0, 1]",
    "decisions": "real without NaN",
    "ids": "integer of at least 0",
}
"""Kinds of tensors whose values are checked, in words."""

_PLAIN: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "callable": ("a function", callable),
    "axes": ("an integer or a tuple of integers", lambda value: all(type(x) is int for x in _several(value))),
    "switch": ("True or False", lambda value: isinstance(value, bool)),
    "group": ("a ProcessGroup", lambda value: isinstance(value, ProcessGroup)),
    "generator": ("a torch.Generator", lambda value: isinstance(value, Generator)),
    "text": ("a string", lambda value: isinstance(value, str)),
    "scalar": ("a number", is_number),
    "number": ("a number", is_number),
    "numbers": ("a list of numbers", lambda value: isinstance(value, list) and all(map(is_number, value))),
}
"""Kinds of other values than tensors; ``number`` and ``whole`` with a range are checked with it."""
_WORDS = {**VALUE_KINDS, "whole": "integer"}
_NAMED = {"process_group": "group", "generator": "generator"}


def _several(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


class ArgumentKind(NamedTuple):
    """A kind of argument: a tensor with dimensions, or a number with a range."""

    name: str
    leading: str = ""
    """Name of any number of leading dimensions, ``B`` for ``*B``."""
    dims: tuple[str, ...] = ()
    range: str = ""

    @property
    def is_tensor(self) -> bool:
        """Whether it is a kind of tensor."""
        return self.name in _DTYPES

    def __str__(self) -> str:
        """Return the kind as it is documented."""
        word = _WORDS.get(self.name, self.name)
        if self.is_tensor:
            return f"{word} [{', '.join([f'*{self.leading}'] * bool(self.leading) + [*self.dims])}]"
        return f"{word} in {self.range}" if self.range else word


class Argument(NamedTuple):
    """A declared argument: its place, its name, the kinds that it may have, and whether it may be None."""

    place: int
    name: str
    kinds: tuple[ArgumentKind, ...]
    optional: bool

    def __str__(self) -> str:
        """Return the argument as it is documented."""
        return f"``{self.name}`` {' or '.join(map(str, self.kinds))}{' or None' if self.optional else ''}"


def takes(*groups: str) -> Callable[[F], F]:
    """Declare the arguments of a function, which are checked at each call and named in its documentation.

    Example:
        >>> @takes("values: float *B T", "share: number [0, 1]")
        ... def scaled(values, share):
        ...     return share * values
        >>> scaled(torch.ones(2), 3)
        Traceback (most recent call last):
        ValueError: share must lie in [0, 1], got 3
    """

    def declare(function: F) -> F:
        parameters = inspect.signature(function).parameters
        declared = tuple(argument for group in groups for argument in _read(group, parameters))
        places = enumerate(parameters)
        named = tuple(Argument(i, x, (ArgumentKind(_NAMED[x]),), True) for i, x in places if x in _NAMED)
        arguments = declared + named

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling():
                _check(arguments, args, kwargs)
            return function(*args, **kwargs)

        checked.arguments = arguments  # type: ignore[attr-defined]
        table = "; ".join(map(str, declared))
        checked.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nTakes {table}."
        return checked  # type: ignore[return-value]

    return declare


def _read(group: str, parameters: Mapping[str, inspect.Parameter]) -> list[Argument]:
    """Read the declaration of one or several parameters."""
    names, _, text = group.partition(": ")
    kinds = []
    for part in text.split(" | "):
        word, _, rest = part.partition(" ")
        name = word.rstrip("?")
        dims = rest.split() if name in _DTYPES else []
        leading = dims.pop(0)[1:] if dims and dims[0][0] == "*" else ""
        kinds.append(ArgumentKind(name, leading, tuple(dims), "" if name in _DTYPES else rest))
    places, none = [*parameters], "?" in text
    return [
        Argument(places.index(name), name, tuple(kinds), none or parameters[name].default is None)
        for name in names.split(", ")
    ]


def check_call(function: Callable[..., Any], **kwargs: Any) -> None:
    """Check some of the arguments of a later call."""
    _check(function.arguments, (), kwargs)  # type: ignore[attr-defined]


def _check(arguments: Sequence[Argument], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Check the arguments of one call."""
    sizes: dict[str, Any] = {}
    first: tuple[str, Tensor, ArgumentKind] | None = None
    single: list[tuple[str, Tensor | Generator]] = []  # single numbers that are not on the CPU, and generators
    for place, name, kinds, optional in arguments:
        if place < len(args):
            value = args[place]
        elif name in kwargs:
            value = kwargs[name]
        else:
            continue
        if value is None and optional:
            continue
        kind = kinds[0]
        if len(kinds) > 1 and isinstance(value, Tensor) and (kind.name != "scalar" or value.dim()):
            kind = kinds[1]
        if not kind.is_tensor:
            _check_plain(name, value, kind, optional)
            if kind.name == "generator" or (isinstance(value, Tensor) and not value.is_cpu):
                single.append((name, value))
            continue
        check_dense(name, value, kind.name)
        _check_tensor(name, value, kind, sizes, first)
        if not value.dim() and not kind.leading:
            if not value.is_cpu:
                single.append((name, value))
        elif first is None:
            first = name, value, kind
    if first is not None and single:
        _check_places(single, first)


def _check_places(single: Sequence[tuple[str, Tensor | Generator]], first: tuple[str, Tensor, Any]) -> None:
    """Require single numbers on the CPU or with the other tensors, and generators with them."""
    device = first[1].device
    for name, value in single:
        if isinstance(value, Generator):
            if value.device.type != device.type and device.type != "meta":
                raise ValueError(f"{name} must be on the device of {first[0]}, {device}, got {value.device}")
        elif value.device != device:
            raise ValueError(f"{name} must be on the CPU or on the device of {first[0]}, {device}, got {value.device}")


def readable(x: Tensor) -> bool:
    """Return whether values can be checked: reading from a device stalls it, and a compiled graph has none."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def check_dense(name: str, value: Any, kind: str = "float") -> None:
    """Require a dense tensor with a dtype of a kind."""
    words, dtypes = _DTYPES[kind]
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be {words}, got {type(value).__name__}")
    if value.dtype not in dtypes:
        raise TypeError(f"{name} must be {words}, got {value.dtype}")
    if value.layout != torch.strided or value.is_nested:
        raise TypeError(f"{name} must be a dense tensor, got {'a nested one' if value.is_nested else value.layout}")


def check_scalar(name: str, value: Tensor) -> None:
    """Require a tensor of one real number."""
    if value.is_nested or value.dtype not in _NUMBERS:
        raise TypeError(f"{name} must be a real number, got {_described(value)}")
    if value.layout != torch.strided:
        raise TypeError(f"{name} must be a number or a dense tensor, got {value.layout}")
    if value.numel() != 1:
        raise ValueError(f"{name} must be one number, got a tensor of shape {[*value.shape]}")


def check_finite(name: str, value: Tensor, where: str = "") -> None:
    """Require finite numbers, for the error of a result that is not; they may still have a sum that is not."""
    wrong = (~value.isfinite()).nonzero().tolist()
    if wrong:
        place = f" at index {wrong[0]}" if wrong[0] else ""
        raise ValueError(f"{name} must be finite{where}, got {value[tuple(wrong[0])].item()}{place}")


def check_result(name: str, value: Any, like: Tensor, shape: Sequence[int | str]) -> Any:
    """Return what the function ``name`` returned: a floating-point tensor of a shape, on the device of ``like``.

    A name in the shape is any size of at least 1. A compiled graph has no check.
    """
    if torch.compiler.is_compiling():
        return value
    dense = isinstance(value, Tensor) and not value.is_nested and value.layout == torch.strided
    right_kind = dense and value.dtype in _FLOATS
    if right_kind and value.device == like.device and value.dim() == len(shape):
        pairs = zip(value.shape, shape, strict=True)
        if all(size if isinstance(known, str) else size == known for size, known in pairs):
            return value
    expected = f"a floating-point tensor [{', '.join(map(str, shape))}] on {like.device}"
    error = ValueError if right_kind else TypeError
    raise error(f"{name} must return {expected}, got {_described(value)}")


def _described(value: Any) -> str:
    """Dtype, shape and device of a tensor, or the type of another value."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    if value.is_nested:
        return "a nested tensor"
    layout = "" if value.layout == torch.strided else f"{value.layout} "
    return f"{layout}{value.dtype} {[*value.shape]} on {value.device}"


def _check_plain(name: str, value: Any, kind: ArgumentKind, optional: bool) -> None:
    """Check a value that is no tensor; a ``scalar`` may be a tensor of one number."""
    if kind.name == "scalar" and isinstance(value, Tensor):
        check_scalar(name, value)
    elif kind.range:
        check_number(name, value, kind.range, whole=kind.name == "whole", optional=optional)
    elif not _PLAIN[kind.name][1](value):
        raise TypeError(f"{name} must be {_PLAIN[kind.name][0]}, got {shown(value)}")


def _check_tensor(
    name: str, value: Tensor, kind: ArgumentKind, sizes: dict[str, Any], first: tuple[str, Tensor, ArgumentKind] | None
) -> None:
    """Check shape, device and values, and add the sizes of new dimensions to ``sizes``."""
    shape, dims = value.shape, kind.dims
    split = len(shape) - len(dims)
    if split < 0 or (split and not kind.leading):
        _refuse_shape(name, value, kind, sizes, first)
    if kind.leading and sizes.setdefault(f"*{kind.leading}", shape[:split]) != shape[:split]:
        _refuse_shape(name, value, kind, sizes, first)
    for place, dim in enumerate(dims, split):
        size = shape[place]
        known = sizes.setdefault(dim.rstrip("+"), int(dim) if dim.isdigit() else size)
        if known != size or (not size and dim[-1] == "+"):
            _refuse_shape(name, value, kind, sizes, first)
    if first is not None and value.device != first[1].device and (value.dim() or kind.leading):
        raise ValueError(f"{first[0]} and {name} must be on one device, got {first[1].device} and {value.device}")
    if kind.name in VALUE_KINDS and readable(value):
        _check_values(name, value, kind)


def _check_values(name: str, value: Tensor, kind: ArgumentKind) -> None:
    """Check the values of a tensor, in one reduction if they are right."""
    if kind.name == "ids":
        if value.dtype != torch.uint8 and value.numel() and value.min() < 0:
            place = (value < 0).nonzero()[0].tolist()
            raise ValueError(f"{name} must be at least 0, got {value[tuple(place)].item()} at index {place}")
    elif value.dtype.is_floating_point and value.sum().isnan() and value.isnan().any():
        raise ValueError(f"{name} must hold numbers, got nan at index {value.isnan().nonzero()[0].tolist()}")
    elif kind.name == "uniforms" and value.numel() and (value.min() < 0 or value.max() > 1):
        place = ((value < 0) | (value > 1)).nonzero()[0].tolist()
        raise ValueError(f"{name} must lie in [0, 1], got {value[tuple(place)].item():g} at index {place}")


def _refuse_shape(
    name: str, value: Tensor, kind: ArgumentKind, sizes: dict[str, Any], first: tuple[str, Tensor, ArgumentKind] | None
) -> NoReturn:
    """Raise the error of a wrong shape, with the sizes that are known from other arguments."""
    got = [*value.shape]
    if first is not None and (kind.leading, kind.dims) == (first[2].leading, first[2].dims):
        raise ValueError(f"{name} must have the shape of {first[0]}, {[*first[1].shape]}, got {got}")
    expected: list[Any] = [*sizes.get(f"*{kind.leading}", [f"*{kind.leading}"])] if kind.leading else []
    for dim in kind.dims:
        size = dim.rstrip("+")
        expected.append(int(dim) if dim.isdigit() else sizes.get(size, size) or dim)  # "T+" instead of no steps
    raise ValueError(f"{name} must be {expected}, got {got}")

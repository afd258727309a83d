"""Ranges of numbers: part of the declaration of every option, and of the arguments of functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field, is_dataclass
from functools import cache, partial
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints


class Range(NamedTuple):
    """An interval of numbers, written ``[0, 1)``. ``inf]`` admits infinity, and NaN is in no interval."""

    text: str
    low: float
    high: float

    def __contains__(self, value: object) -> bool:
        """Return whether a number lies in it."""
        number: Any = value
        above = self.low <= number if self.text[0] == "[" else self.low < number
        return above and (number <= self.high if self.text[-1] == "]" else number < self.high)

    def words(self, whole: bool = False) -> str:
        """Return the range in words that follow "must".

        Example:
            >>> read_range("(0, inf)").words(), read_range("[1, inf)").words(whole=True)
            ('be positive and finite', 'be an integer of at least 1')
        """
        endless = self.high == math.inf
        if whole:
            most = "" if endless else f" and at most {self.text[:-1].split(', ')[1]}"
            return f"be an integer of at least {self.low:.0f}{most}"
        if not endless:
            return "lie strictly between 0 and 1" if self.text == "(0, 1)" else f"lie in {self.text}"
        finite = ["finite"] if self.text[-1] == ")" else []
        least = [] if self.low == -math.inf else [f"at least {self.low:g}" if self.text[0] == "[" else "positive"]
        return f"be {' and '.join(least + finite)}"


@cache
def read_range(text: str) -> Range:
    """Read an interval.

    Example:
        >>> 0.5 in read_range("(0, 1]"), math.inf in read_range("[0, inf)")
        (True, False)
    """
    low, high = (float(end) for end in text[1:-1].split(","))
    return Range(text, low, high)


def option(default: Any, range: str, unit: str = "") -> Any:
    """Declare a number of a dataclass with its range and unit; ``default`` may be ``dataclasses.MISSING``."""
    return field(default=default, metadata={"range": range, "unit": unit})


def check_number(name: str, value: Any, range: str, *, whole: bool = False, optional: bool = False) -> Any:
    """Require a number in a range, or None if ``optional``; return it, integers of NumPy as int.

    Example:
        >>> check_number("lr", math.nan, "(0, inf)")
        Traceback (most recent call last):
        ValueError: lr must be positive and finite, got nan
    """
    if value is None and optional:
        return None
    allowed, also = read_range(range), ", or None" if optional else ""
    right_kind = isinstance(value, Real) and not isinstance(value, bool)
    if not right_kind and not whole:
        raise TypeError(f"{name} must be a number, got {shown(value)}")
    if not right_kind or (whole and not isinstance(value, Integral)) or value not in allowed:
        raise ValueError(f"{name} must {allowed.words(whole)}{also}, got {shown(value)}")
    if not is_number(value):
        raise ValueError(f"{name} must be below 2^63 as an integer{also}, got {shown(value)}")
    return int(value) if whole else value


def shown(value: Any) -> str:
    """Return the start of a value's representation, for errors.

    Example:
        >>> shown("x"), shown(10**5000)  # Python prints no integers of more than 4,300 digits
        ("'x'", 'int of 16610 bits')
    """
    try:
        return f"{value!r:.60}"
    except ValueError:
        return f"int of {value.bit_length()} bits" if isinstance(value, int) else f"{type(value).__name__}"


def is_number(value: Any) -> bool:
    """Return whether a value is a real number that torch reads; its integers have 64 bits."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return not isinstance(value, Integral) or abs(int(value)) < 2**63


class Declared(NamedTuple):
    """A number, a switch or a word that a dataclass declares."""

    kind: Any
    optional: bool
    several: bool
    range: str
    words: tuple[Any, ...]


@cache
def declared(schema: Any) -> dict[str, Declared]:
    """Return the numbers with a range, the switches and the words (``Literal``) among the fields of a dataclass."""
    out, fields = {}, schema.__dataclass_fields__
    for name, hint in get_type_hints(schema).items():
        optional = NoneType in get_args(hint)
        kind = get_args(hint)[0] if optional else hint
        several = get_origin(kind) is list
        kind = get_args(kind)[0] if several else kind
        words = get_args(kind) if get_origin(kind) is Literal else ()
        range_ = fields[name].metadata.get("range", "") if name in fields else ""
        if words or range_ or kind is bool:
            out[name] = Declared(kind, optional, several, range_, (None,) * optional + words)
    return out


def check_fields(options: Any, prefix: str = "") -> None:
    """Require that the numbers, switches and words of a dataclass, and of dataclasses in it, are as declared."""
    schema: Any = type(options)
    for name, (kind, optional, several, range_, words) in declared(schema).items():
        value, full = getattr(options, name), prefix + name
        if several:
            if value is not None and not isinstance(value, (list, tuple)):
                raise TypeError(f"{full} must be a list of numbers, got {shown(value)}")
            for item in value or ():
                check_number(full, item, range_)
        elif range_:
            number = check_number(full, value, range_, whole=kind is int, optional=optional)
            object.__setattr__(options, name, number)
        elif kind is bool and not isinstance(value, bool):
            raise TypeError(f"{full} must be True or False, got {shown(value)}")
        elif kind is not bool and value not in words:
            raise ValueError(f"{full} must be one of {[*words]}, got {shown(value)}")
    for name, inner in vars(options).items():
        if is_dataclass(inner):
            check_fields(inner, f"{prefix}{name}.")


def check_arguments(function: Callable[..., Any], arguments: Mapping[str, Any], prefix: str = "") -> None:
    """Require that arguments are of the types that the function is annotated with; numbers must be finite.

    ``Annotated[int, "[1, inf)"]`` declares a range. Errors name an argument after ``prefix``.

    Example:
        >>> def shorten(text: str, length: Annotated[int, "[1, inf)"] | None = None): ...
        >>> check_arguments(shorten, {"text": "to be", "length": 0})
        Traceback (most recent call last):
        ValueError: length must be an integer of at least 1, or None, got 0
    """
    if not arguments:
        return
    whole_function = function.func if isinstance(function, partial) else function
    inner: Any = whole_function.__init__ if isinstance(whole_function, type) else whole_function  # type: ignore[misc]
    hints = get_type_hints(inner, include_extras=True)
    for argument, value in arguments.items():
        name, hint = prefix + argument, hints.get(argument, Any)
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        for number in (kind for kind in kinds if get_origin(kind) is Annotated):
            whole, (range_,) = number.__origin__ is int, number.__metadata__
            check_number(name, value, range_, whole=whole, optional=NoneType in kinds)
        if not any(_is_kind(value, kind) for kind in kinds):
            words = ", or ".join(_kind_in_words(kind) for kind in kinds)
            kind_of_error = ValueError if any(get_origin(kind) is Literal for kind in kinds) else TypeError
            raise kind_of_error(f"{name} must be {words}, got {shown(value)}")


def _is_kind(value: Any, kind: Any) -> bool:
    """Whether a value is of an annotation's kind; anything is of kinds that are not known here."""
    if kind is Any or get_origin(kind) is Annotated:  # the latter is checked with its range
        return True
    if get_origin(kind) is Literal:
        return any(type(value) is type(word) and value == word for word in get_args(kind))
    if kind in (int, float):
        whole = kind is int
        return is_number(value) and (isinstance(value, Integral) if whole else math.isfinite(value))
    plain = get_origin(kind) or kind
    return isinstance(value, plain) if isinstance(plain, type) else True


def _kind_in_words(kind: Any) -> str:
    """Describe an annotation's kind in words that follow "must be"."""
    if get_origin(kind) is Literal:
        return f"one of {[*get_args(kind)]}"
    words = {bool: "True or False", int: "an integer", float: "a finite number", str: "a string", NoneType: "None"}
    plain = get_origin(kind) or kind
    return words.get(plain) or f"a {plain.__name__.lower()}"

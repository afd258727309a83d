"""Operations on short rows as vector instructions, because loops as short as a head's channels hardly vectorise.

A row is the address of adjacent float32 numbers; ``lanes`` is ``lanes_of(length)``. After an edit here, delete numba's
cache: it notices changes in a kernel's own file alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

Lanes = tuple[tuple[int, ...], tuple[int, ...]]
intrinsic: Any = extending.intrinsic
_FLAGS = ("reassoc", "contract", "nsz")


def lanes_of(length: int) -> Lanes:
    """Return a value whose type encodes a row's length, so that numba compiles a kernel for each length.

    Example:
        >>> lanes_of(35)
        ((0, 0), (0, 0, 0))
    """
    return (0,) * (length // 16), (0,) * (length % 16)


class _Row:
    """Numbers ``at`` .. ``at + size`` of a row, while instructions are written."""

    def __init__(self, builder: Any, address: Any, at: int, size: int) -> None:
        self.builder, self.type = builder, ir.VectorType(ir.FloatType(), size)
        place = builder.add(address, ir.Constant(address.type, 4 * at))
        self.pointer = builder.inttoptr(place, self.type.as_pointer())

    def load(self) -> Any:
        return self.builder.load(self.pointer, align=4)

    def store(self, value: Any) -> None:
        self.builder.store(value, self.pointer, align=4)


def _parts(lanes: Any) -> list[tuple[int, int]]:
    """Return first number and size of the vectors that hold a row."""
    length, at, parts = 16 * lanes.types[0].count + lanes.types[1].count, 0, []
    for size in (16, 8, 4, 2, 1):
        while length - at >= size:
            parts.append((at, size))
            at += size
    return parts


def _broadcast(builder: Any, value: Any, size: int) -> Any:
    """Return a vector filled with a number."""
    vector, places = ir.VectorType(ir.FloatType(), size), ir.VectorType(ir.IntType(32), size)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), ir.Constant(places, [0] * size))


def _sum(builder: Any, vector: Any) -> Any:
    """Return the sum of a vector's numbers."""
    real = ir.FloatType()
    kind = ir.FunctionType(real, [real, vector.type])
    reduce = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fadd.v{vector.type.count}f32")
    return builder.call(reduce, [ir.Constant(real, -0.0), vector], fastmath=_FLAGS)


@intrinsic
def dot(context: Any, x: Any, y: Any, lanes: Any) -> Any:
    """Return ``sum_c x_c y_c``."""

    def generate(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
        totals: dict[int, Any] = {}
        for at, size in _parts(lanes):
            left, right = (_Row(builder, address, at, size).load() for address in values[:2])
            product = builder.fmul(left, right, flags=_FLAGS)
            totals[size] = builder.fadd(totals[size], product, flags=_FLAGS) if size in totals else product
        out = ir.Constant(ir.FloatType(), 0.0)
        for total in totals.values():
            out = builder.fadd(out, _sum(builder, total), flags=_FLAGS)
        return out

    return types.float32(types.uintp, types.uintp, lanes), generate


@intrinsic
def add_scaled(context: Any, scale: Any, x: Any, out: Any, lanes: Any) -> Any:
    """Add ``scale x_c`` to ``out_c``."""

    def generate(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
        for at, size in _parts(lanes):
            row, to = (_Row(builder, address, at, size) for address in values[1:3])
            product = builder.fmul(row.load(), _broadcast(builder, values[0], size), flags=_FLAGS)
            to.store(builder.fadd(to.load(), product, flags=_FLAGS))
        return context.get_dummy_value()

    return types.void(types.float32, types.uintp, types.uintp, lanes), generate


@intrinsic
def clear(context: Any, out: Any, lanes: Any) -> Any:
    """Set a row to 0."""

    def generate(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
        for at, size in _parts(lanes):
            row = _Row(builder, values[0], at, size)
            row.store(ir.Constant(row.type, [0.0] * size))
        return context.get_dummy_value()

    return types.void(types.uintp, lanes), generate


@intrinsic
def prefetch(context: Any, x: Any, lanes: Any) -> Any:
    """Prefetch a row; the address may be invalid."""

    def generate(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
        number, byte = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        read = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        for at, _ in _parts(lanes):
            place = builder.bitcast(_Row(builder, values[0], at, 1).pointer, byte)
            read_into_all_caches = (ir.Constant(number, n) for n in (0, 3, 1))
            builder.call(read, [place, *read_into_all_caches])
        return context.get_dummy_value()

    return types.void(types.uintp, lanes), generate


@intrinsic
def rotate(context: Any, left: Any, right: Any, cos: Any, sin: Any, sign: Any, lanes: Any) -> Any:
    """Rotate two rows in place: ``left cos - sign right sin`` and ``right cos + sign left sin``."""

    def generate(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
        def combine(operation: Any, *factors: Any) -> Any:
            x, y, z, w = factors
            return operation(builder.fmul(x, y, flags=_FLAGS), builder.fmul(z, w, flags=_FLAGS), flags=_FLAGS)

        for at, size in _parts(lanes):
            rows = [_Row(builder, address, at, size) for address in values[:4]]
            x, y, c, s = (row.load() for row in rows)
            s = builder.fmul(s, _broadcast(builder, values[4], size), flags=_FLAGS)
            rows[0].store(combine(builder.fsub, x, c, y, s))
            rows[1].store(combine(builder.fadd, y, c, x, s))
        return context.get_dummy_value()

    return types.void(*[types.uintp] * 4, types.float32, lanes), generate

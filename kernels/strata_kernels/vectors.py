"""Vectors for compiled CPU kernels: two types of the host's width, floats and ints, and what is done with them.

They are LLVM's own vectors. What is computed, and in which order, is what is written: nothing lets the compiler reorder
sums, so a result's bits depend on the width and on the numbers alone. Addresses and strides are in bytes; any alignment
will do. WIDTH is 16 lanes with AVX-512, else 8.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models, register_default
from numba.core.typing.templates import ConcreteTemplate, infer_global
from numba.extending import intrinsic, lower_builtin

_HOST = llvm.get_host_cpu_features()
WIDTH = 16 if _HOST.get("avx512f") and _HOST.get("avx512bw") else 8
BYTES = 4 * WIDTH  # of a vector

F32, I16, I32, I64 = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)
VF, VI, VM = (ir.VectorType(element, WIDTH) for element in (F32, I32, ir.IntType(1)))
Builder = Any
Value = Any


class Floats(types.Type):
    """WIDTH float32."""

    def __init__(self) -> None:
        super().__init__("floats")


class Ints(types.Type):
    """WIDTH int32."""

    def __init__(self) -> None:
        super().__init__("ints")


floats, ints, i64, f32, void = Floats(), Ints(), types.int64, types.float32, types.void


@register_default(Floats)
class _FloatsModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any):
        super().__init__(manager, kind, VF)


@register_default(Ints)
class _IntsModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any):
        super().__init__(manager, kind, VI)


def op(result: Any, *arguments: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make a function of compiled code from one that emits LLVM instructions: (builder, *values) -> value or None."""
    names = ", ".join(f"a{i}" for i in range(len(arguments)))

    def made(emit: Callable[..., Any]) -> Any:
        def generate(context: Any, builder: Builder, signature: Any, values: Sequence[Value]) -> Value:
            value = emit(builder, *values)
            return context.get_dummy_value() if value is None else value

        # numba wants a typing function whose parameters are those of the call
        scope = {"found": (result(*arguments), generate)}
        exec(f"def {emit.__name__}(context, {names}): return found", scope)
        return intrinsic(scope[emit.__name__])

    return made


# What emitters are made of.


def const(kind: Any, value: float) -> Value:
    return ir.Constant(kind, [value] * WIDTH)


def number(value: int) -> Value:
    return ir.Constant(I64, value)


def call(b: Builder, name: str, result: Any, *values: Value) -> Value:
    kinds = [value.type for value in values]
    return b.call(cgutils.get_or_insert_function(b.module, ir.FunctionType(result, kinds), name), values)


def spread(b: Builder, value: Value) -> Value:
    kind = ir.VectorType(value.type, WIDTH)
    none = ir.Constant(kind, ir.Undefined)
    return b.shuffle_vector(b.insert_element(none, value, ir.Constant(I32, 0)), none, const(VI, 0))


def load(b: Builder, address: Value, kind: Any) -> Value:
    value = b.load(b.inttoptr(address, kind.as_pointer()))
    value.align = 1
    return value


def store(b: Builder, value: Value, address: Value) -> None:
    b.store(value, b.inttoptr(address, value.type.as_pointer())).align = 1


def below(b: Builder, count: Value) -> Value:
    """The mask of the first `count` lanes."""
    lanes = ir.Constant(VI, list(range(WIDTH)))
    return b.icmp_signed("<", lanes, spread(b, b.trunc(count, I32)))


def _name(kind: Any) -> str:
    return f"v{WIDTH}" + ("f32" if kind == VF else "i32")


def masked_load(b: Builder, address: Value, kind: Any, mask: Value) -> Value:
    """Lanes outside the mask are 0 and are not read."""
    pointer = b.inttoptr(address, kind.as_pointer())
    name = f"llvm.masked.load.{_name(kind)}.p0"
    return call(b, name, kind, pointer, ir.Constant(I32, 1), mask, ir.Constant(kind, None))


def masked_store(b: Builder, value: Value, address: Value, mask: Value) -> None:
    pointer = b.inttoptr(address, value.type.as_pointer())
    name = f"llvm.masked.store.{_name(value.type)}.p0"
    call(b, name, ir.VoidType(), value, pointer, ir.Constant(I32, 1), mask)


def fused(b: Builder, x: Value, y: Value, z: Value) -> Value:
    """x * y + z, rounded once."""
    return call(b, f"llvm.fma.v{WIDTH}f32", VF, x, y, z)


def half(b: Builder, value: Value) -> Value:
    """float32 of IEEE half precision bits."""
    one = not isinstance(value.type, ir.VectorType)
    target = (ir.HalfType(), F32) if one else (ir.VectorType(ir.HalfType(), WIDTH), VF)
    return b.fpext(b.bitcast(value, target[0]), target[1])


# Operations of compiled code.


@op(i64, i64)
def i64_at(b: Builder, address: Value) -> Value:
    return load(b, address, I64)


@op(i64, i64, i64)
def field(b: Builder, address: Value, place: Value) -> Value:
    """Number `place` of int64 that lie at an address."""
    return load(b, b.add(address, b.mul(place, number(8))), I64)


@op(i64, i64)
def i32_at(b: Builder, address: Value) -> Value:
    return b.sext(load(b, address, I32), I64)


@op(f32, i64)
def f32_at(b: Builder, address: Value) -> Value:
    return load(b, address, F32)


@op(f32, i64)
def bf16_at(b: Builder, address: Value) -> Value:
    return b.bitcast(b.shl(b.zext(load(b, address, I16), I32), ir.Constant(I32, 16)), F32)


@op(f32, i64)
def f16_at(b: Builder, address: Value) -> Value:
    return half(b, load(b, address, I16))


@op(void, i64, i64)
def set_i64(b: Builder, address: Value, value: Value) -> None:
    store(b, value, address)


@op(void, i64, f32)
def set_f32(b: Builder, address: Value, value: Value) -> None:
    store(b, value, address)


@op(void, i64, f32)
def set_bf16(b: Builder, address: Value, value: Value) -> None:
    """Rounded to the nearest, to even in the middle."""
    bits = b.bitcast(value, I32)

    def whole(number: int) -> Value:
        return ir.Constant(I32, number)

    odd = b.and_(b.lshr(bits, whole(16)), whole(1))
    rounded = b.add(bits, b.add(odd, whole(0x7FFF)))
    kept = b.select(b.fcmp_unordered("uno", value, value), b.or_(bits, whole(0x400000)), rounded)
    store(b, b.trunc(b.lshr(kept, whole(16)), I16), address)


@op(void, i64, f32)
def set_f16(b: Builder, address: Value, value: Value) -> None:
    """Rounded to the nearest, to even in the middle."""
    store(b, b.bitcast(b.fptrunc(value, ir.HalfType()), I16), address)


@op(floats, i64)
def get(b: Builder, address: Value) -> Value:
    return load(b, address, VF)


@op(floats, i64)
def get_bf16(b: Builder, address: Value) -> Value:
    bits = b.zext(load(b, address, ir.VectorType(I16, WIDTH)), VI)
    return b.bitcast(b.shl(bits, const(VI, 16)), VF)


@op(floats, i64)
def get_f16(b: Builder, address: Value) -> Value:
    return half(b, load(b, address, ir.VectorType(I16, WIDTH)))


@op(floats, i64, i64)
def get_some(b: Builder, address: Value, count: Value) -> Value:
    """The first `count` lanes, the others 0; nothing outside is read."""
    return masked_load(b, address, VF, below(b, count))


@op(void, i64, floats)
def put(b: Builder, address: Value, value: Value) -> None:
    store(b, value, address)


@op(void, i64, floats, i64)
def put_some(b: Builder, address: Value, value: Value, count: Value) -> None:
    """The first `count` lanes."""
    masked_store(b, value, address, below(b, count))


@op(ints, i64)
def get_ints(b: Builder, address: Value) -> Value:
    return load(b, address, VI)


@op(floats, f32)
def all_lanes(b: Builder, value: Value) -> Value:
    return spread(b, value)


@op(floats, floats, floats, floats)
def fma(b: Builder, x: Value, y: Value, z: Value) -> Value:
    return fused(b, x, y, z)


def _halves() -> list[tuple[Value, Value]]:
    """Lanes of the lower and the upper half of a vector, of its lower half, and so on."""
    found, width = [], WIDTH
    while width > 1:
        width //= 2
        kind = ir.VectorType(I32, width)
        found.append((ir.Constant(kind, list(range(width))), ir.Constant(kind, list(range(width, 2 * width)))))
    return found


@op(f32, floats)
def total(b: Builder, x: Value) -> Value:
    """The sum of all lanes, halves added to halves."""
    for low, high in _halves():
        x = b.fadd(b.shuffle_vector(x, x, low), b.shuffle_vector(x, x, high))
    return b.extract_element(x, ir.Constant(I32, 0))


def power_of_e(b: Builder, x: Value) -> Value:
    low, high = const(VF, -87.33), const(VF, 88.37)
    small, large = b.fcmp_ordered("<", x, low), b.fcmp_ordered(">", x, high)
    bounded = b.select(large, high, b.select(small, low, x))
    shifter = const(VF, 12582912.0)  # 1.5 * 2^23: its sum with an integer has that in its lowest bits
    shifted = fused(b, bounded, const(VF, 1.4426950408889634), shifter)
    n = b.fsub(shifted, shifter)
    r = fused(b, n, const(VF, -0.693145751953125), bounded)
    r = fused(b, n, const(VF, -1.428606820309417e-06), r)  # ln 2 in two parts
    y = const(VF, 1 / 5040)
    for factor in (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1, 1):
        y = fused(b, y, r, const(VF, factor))
    power = b.add(b.shl(b.bitcast(shifted, VI), const(VI, 23)), const(VI, 0x3F800000))
    y = b.fmul(y, b.bitcast(power, VF))
    return b.select(large, const(VF, float("inf")), b.select(small, const(VF, 0.0), y))


def _sigmoid(b: Builder, x: Value) -> Value:
    one = const(VF, 1.0)
    return b.fdiv(one, b.fadd(one, power_of_e(b, b.fneg(x))))


@op(floats, floats)
def exp(b: Builder, x: Value) -> Value:
    """e^x to about an ulp; 0 below -87.33, infinity above 88.37; NaN stays."""
    return power_of_e(b, x)


@op(floats, floats)
def sigmoid(b: Builder, x: Value) -> Value:
    return _sigmoid(b, x)


@op(floats, floats)
def silu(b: Builder, x: Value) -> Value:
    return b.fdiv(x, b.fadd(const(VF, 1.0), power_of_e(b, b.fneg(x))))


@op(floats, floats)
def softplus(b: Builder, x: Value) -> Value:
    """log(1 + e^x) = max(x, 0) + 2 artanh(s), s = t / (2 + t), t = e^-|x|."""
    zero = const(VF, 0.0)
    positive = b.fcmp_ordered(">", x, zero)
    t = power_of_e(b, b.select(positive, b.fneg(x), x))
    s = b.fdiv(t, b.fadd(const(VF, 2.0), t))
    square = b.fmul(s, s)
    y = const(VF, 1 / 17)
    for odd in range(15, 0, -2):
        y = fused(b, y, square, const(VF, 1 / odd))
    return b.fadd(b.select(positive, x, zero), b.fmul(const(VF, 2.0), b.fmul(s, y)))


@op(floats, floats, floats)
def larger(b: Builder, x: Value, y: Value) -> Value:
    """Of each lane the larger; y where one is NaN."""
    return b.select(b.fcmp_ordered(">", x, y), x, y)


@op(f32, floats)
def top(b: Builder, x: Value) -> Value:
    """The largest of all lanes, which must not be NaN."""
    for low, high in _halves():
        left, right = b.shuffle_vector(x, x, low), b.shuffle_vector(x, x, high)
        x = b.select(b.fcmp_ordered(">", left, right), left, right)
    return b.extract_element(x, ir.Constant(I32, 0))


@op(f32, floats)
def first_lane(b: Builder, x: Value) -> Value:
    return b.extract_element(x, ir.Constant(I32, 0))


@op(floats, floats, i64, f32)
def only(b: Builder, x: Value, count: Value, other: Value) -> Value:
    """The first `count` lanes; `other` in those behind."""
    return b.select(below(b, count), x, spread(b, other))


def _binary(operation: Any, method: str) -> None:
    """Let compiled code write an operation of two vectors as it writes one of numbers."""

    class Typed(ConcreteTemplate):
        key = operation
        cases: ClassVar = [floats(floats, floats)]

    infer_global(operation)(Typed)

    @lower_builtin(operation, Floats, Floats)
    def lower(context: Any, b: Builder, signature: Any, values: Sequence[Value]) -> Value:
        return getattr(b, method)(*values)


for _operation, _method in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _binary(_operation, _method)

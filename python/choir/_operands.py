# SPDX-License-Identifier: Apache-2.0
"""What is beside a tensor in an expression: tensors of other dtypes, numbers, arrays
and lists; and the dtype of what they make. `tensor` has the operators themselves.
"""

from __future__ import annotations

import numpy as np

from choir import _elements, _numbers, _raw, autograd
from choir._here import here
from choir._raw import OPS, run
from choir.tensor import (
    _DTYPES,
    _NAMES,
    Tensor,
    _apply,
    _is_list,
    _need_tensor,
    bool_,
    float32,
    float64,
    uint8,
    zeros_like,
)

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
# Comparisons: what they are with their operands in the other order, and whether
# they hold for a number above all of the dtype of the left one.
_COMPARISONS = {
    "less": ("greater", True),
    "less_equal": ("greater_equal", True),
    "greater": ("less", False),
    "greater_equal": ("less_equal", False),
    "equal": ("equal", False),
    "not_equal": ("not_equal", True),
}
# What arrays of 64 bits are, as SINGA takes them.
_SHORT = {_raw.F64: _raw.F32, _raw.I64: _raw.I32}


def as_code(t: Tensor, code: int) -> Tensor:
    """A tensor in a dtype of the library's."""
    return t if t.data.dtype == code else t.as_type(_DTYPES[code])


def operand(value, like: Tensor, wide: bool = False):
    """What is beside a tensor, as a tensor; NotImplemented if it is neither that nor
    a number, an array or a list.

    A number takes the tensor's dtype; a float beside integers is float32. An array
    keeps 64 bits where the tensor has them, and floats of as many beside integers.
    Else, and unless `wide`, it has 32: ValueError for an integer that does not fit.
    """
    if isinstance(value, Tensor):
        return value
    code = like.data.dtype
    is_float = code in _raw.FLOATS
    if _numbers.is_number(value):
        if not is_float and _numbers.is_real(value):
            code = _raw.F32
        elif code == _raw.BOOL and not isinstance(value, (bool, np.bool_)):
            code = _raw.I32
        return Tensor._of(_elements.scalar(like.data, value, code))
    if not isinstance(value, np.ndarray) and not _is_list(value):
        return NotImplemented
    array = np.asarray(value)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype == np.int64 and code != _raw.I64:
        is_short = not wide and not is_float
        array = (
            _elements.narrow(array) if is_short else _numbers.narrowed(array)
        )
    elif array.dtype == np.float64 and is_float and code != _raw.F64:
        array = array if wide else array.astype(np.float32)
    return Tensor._of(_elements.constant(like.device, array))


def paired(lhs, rhs, wide: bool = False, is_division: bool = False):
    """Two operands, of which one is a tensor, as tensors, and the dtype of what they
    make; None if the other cannot be one."""
    like = lhs if isinstance(lhs, Tensor) else rhs
    operands, codes = [], []
    for value in (lhs, rhs):
        made = operand(value, like, wide)
        if made is NotImplemented:
            return None
        code = made.data.dtype
        # An array's 64 bits count where the tensor has them.
        if made is not value and code != like.data.dtype:
            code = _SHORT.get(code, code)
        operands.append(made)
        codes.append(code)
    return *operands, _elements.promoted(*codes, is_division)


def binary(name: str, lhs, rhs) -> Tensor:
    """An elementwise op of two operands, one of which may be a number."""
    if isinstance(lhs, Tensor) and isinstance(rhs, Tensor):
        code = lhs.data.dtype
        if code == rhs.data.dtype and (
            code in _raw.FLOATS or (code in _raw._WHOLE and name != "div")
        ):
            return autograd.apply_attrs(OPS[name], (lhs, rhs), None)
        mixed = here.precision == _raw.BF16 and {_raw.F32, _raw.BF16}
        if {code, rhs.data.dtype} == mixed:
            return autograd.apply_attrs(OPS[name], (lhs, rhs), None)
    like = lhs if isinstance(lhs, Tensor) else rhs
    other = rhs if like is lhs else lhs
    if _numbers.is_number(other):
        return _with_number(name, like, other, like is lhs)
    is_comparison = name in _COMPARISONS
    pair = paired(lhs, rhs, is_comparison, name == "div")
    if pair is None:
        return NotImplemented
    a, b, result = pair
    codes = a.data.dtype, b.data.dtype
    floats = [code for code in codes if code in _raw.FLOATS]
    if is_comparison:
        # As they are: integers meet floats in float64.
        met = _elements.promoted(*codes, False)
        if len(floats) == 1:
            met = _raw.F64
        elif met == _raw.BOOL:
            met = _raw.U8
    elif _raw.F64 in codes or (name == "div" and not floats):
        met = _raw.F64  # rounded to float32 once
    else:
        met = result
    return as_code(_apply(name, as_code(a, met), as_code(b, met)), result)


def both(name: str, lhs, rhs) -> Tensor:
    """The same by the name of a function: TypeError for what is no operand."""
    result = NotImplemented
    if isinstance(lhs, Tensor) or isinstance(rhs, Tensor):
        result = binary(name, lhs, rhs)
    if result is NotImplemented:
        _need_tensor(rhs if isinstance(lhs, Tensor) else lhs, name)
    return result


def _with_number(name: str, t: Tensor, number, is_left: bool) -> Tensor:
    """`t op number`, or with the number on the left."""
    if name in _COMPARISONS:
        name = name if is_left else _COMPARISONS[name][0]
        return _compare_number(name, t, number)
    code = t.data.dtype
    is_float = code in _raw.FLOATS
    if not is_float and (name == "div" or _numbers.is_real(number)):
        # In float64, which holds both, rounded to float32 once.
        wide = t.as_type(float64)
        return _with_number(name, wide, number, is_left).as_type(float32)
    value = _numbers.fitted(number, code)
    if (
        not is_float
        or name not in ("add", "sub", "mul")
        or value != value  # which no attribute of an op may be
    ):
        made = Tensor._of(_elements.scalar(t.data, number))
        return _apply(name, *((t, made) if is_left else (made, t)))
    if name == "mul":
        return _apply("scale", t, factor=value, shift=0.0)
    if name == "add":
        return _apply("scale", t, factor=1.0, shift=value)
    if is_left:
        return _apply("scale", t, factor=1.0, shift=-value)
    return _apply("scale", t, factor=-1.0, shift=value)


def _compare_number(name: str, t: Tensor, number) -> Tensor:
    """1 where it holds, in the dtype of t, or float32 for integers with a float.

    Integers meet a float in float64, and a whole number of any size as it is.
    """
    code = t.data.dtype
    if code in _raw.FLOATS:
        return _apply(name, t, Tensor._of(_elements.scalar(t.data, number)))
    if _numbers.is_real(number):
        wide = t.detach().as_type(float64)
        made = Tensor._of(_elements.scalar(wide.data, number))
        return _apply(name, wide, made).as_type(float32)
    if code == _raw.BOOL:
        holds = _compare_number(name, t.as_type(uint8), number)
        return holds.as_type(bool_)
    side = _numbers.out_of(code, int(number))
    if not side:
        return _apply(name, t, Tensor._of(_elements.scalar(t.data, number)))
    mirrored, holds_above = _COMPARISONS[name]
    holds = holds_above if side > 0 else _COMPARISONS[mirrored][1]
    return zeros_like(t).set_value(holds)


def floor_divide(lhs: Tensor, rhs) -> Tensor:
    """The quotient rounded down, not the rounded quotient: in float64."""
    if _numbers.is_number(rhs):
        is_whole = lhs.data.dtype not in _raw.FLOATS
        code = _raw.F32 if is_whole else lhs.data.dtype
        if not is_whole or not _numbers.is_real(rhs):
            rhs = _numbers.fitted(rhs, lhs.data.dtype)
        if code == _raw.F32 and not is_whole:
            rhs = float(np.float32(rhs))
    else:
        pair = paired(lhs, rhs, is_division=True)
        if pair is None:
            return NotImplemented
        rhs, code = pair[1].as_type(float64), pair[2]
    quotient = binary("div", lhs.as_type(float64), rhs)
    return as_code(_apply("floor", quotient), code)


def in_place(name: str, t: Tensor, x) -> Tensor:
    """`t op= x`, by NumPy's rule "same kind": floats go into floats, integers into
    those of their sign and into floats."""
    own = t.data.dtype
    if _numbers.is_number(x):
        result = _raw.F32 if _numbers.is_real(x) else own
    else:
        x = operand(x, t, wide=True)
        if x is NotImplemented:
            return x
        result = x.data.dtype
    if own not in _raw.FLOATS and (
        result in _raw.FLOATS
        or name == "div"
        or own == _raw.BOOL
        or (own == _raw.U8 and result in (_raw.I32, _raw.I64))
    ):
        raise TypeError(
            f"{name} in place: its result does not go into a tensor of "
            f"{_NAMES[t.dtype]}; write t = t {_SIGNS[name]} x"
        )
    if not isinstance(x, Tensor):
        other = _elements.scalar(t.data, x)
    else:
        met = own
        if own in _raw.FLOATS:
            # In a dtype that holds both, rounded once.
            met = _elements.promoted(own, result, False)
            if result in (_raw.I32, _raw.I64):
                met = _raw.F64
        other = as_code(x.detach(), met).data
        if met != own:
            wide = as_code(t.detach(), met).data
            run("cast", run(name, wide, other), out=[t.data], dtype=own)
            return t
    run(name, t.data, other, out=[t.data])
    return t

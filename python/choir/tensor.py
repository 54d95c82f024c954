# SPDX-License-Identifier: Apache-2.0
"""Tensors: n-dimensional arrays on a device.

    x = tensor.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3))
    y = x * 2 + tensor.ones((3,))
    y[0, 1:]                       # NumPy's rules for slicing and broadcasting
    np.asarray(y)                  # without a copy, where it lies in host memory

Names and meaning are those of SINGA's `tensor`; where the two differ, NumPy's
rules hold. `shape` is a tuple; `ndim()`, `size()` and `T()` are methods, as in
SINGA. Arithmetic on tensors that need a gradient is seen by autograd while
`autograd.training` is true; in-place changes never are.
"""

from __future__ import annotations

import builtins
import operator
import re
from collections.abc import Sequence

import numpy as np

from choir import _elements, _numbers, _raw, device as _device
from choir._calls import check, lib
from choir._raw import CTensor, OPS, run

# ---- Element types: SINGA's numbers, and more after them ----

float32 = 0
float16 = 1
int32 = 2
float64 = 4
uint8 = 5
int64 = 6
bool_ = 7
bfloat16 = 8

_CODES = {
    float32: _raw.F32,
    float16: _raw.F16,
    int32: _raw.I32,
    float64: _raw.F64,
    uint8: _raw.U8,
    int64: _raw.I64,
    bool_: _raw.BOOL,
    bfloat16: _raw.BF16,
}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}
_NAMES = {
    float32: "float32",
    float16: "float16",
    int32: "int32",
    float64: "float64",
    uint8: "uint8",
    int64: "int64",
    bool_: "bool",
    bfloat16: "bfloat16",
}
_BY_NAME = {name: dtype for dtype, name in _NAMES.items()}
_BY_NAME.update({"int": int32, "float": float32})


def _code(dtype) -> int:
    """The library's dtype for a number of ours, a name or a NumPy dtype."""
    if isinstance(dtype, int) and not isinstance(dtype, bool):
        if dtype in _CODES:
            return _CODES[dtype]
    elif isinstance(dtype, str) and dtype in _BY_NAME:
        return _CODES[_BY_NAME[dtype]]
    elif dtype is int or dtype is float:
        return _CODES[_BY_NAME[dtype.__name__]]
    elif isinstance(dtype, (type, np.dtype)):
        return _raw.dtype_of(dtype)
    raise ValueError(
        f"dtype {dtype!r} is unknown; one of {', '.join(_NAMES.values())} is needed"
    )


# ---- Functions that differ by their op alone ----


def _called(function, name: str, doc: str | None = None):
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def _both_sides(op: str):
    """An operator, and the one for what has a tensor on its right."""

    def left(self, rhs) -> Tensor:
        return _operands.binary(op, self, rhs)

    def right(self, lhs) -> Tensor:
        return _operands.binary(op, lhs, self)

    return left, right


def _in_place(op: str):
    return lambda self, x: _operands.in_place(op, self, x)


def _with_vector(name: str, op: str, doc: str):
    def function(self, v: Tensor) -> None:
        operand = v.data
        if name.endswith("column"):
            operand = _elements.reshape(operand, (v.size(), 1))
        run(op, self.data, operand, out=[self.data])

    return _called(function, name, f"{doc} (deprecated in SINGA).")


def _function(name: str, doc: str):
    def function(t: Tensor) -> Tensor:
        return _apply(name, t)

    return _called(function, name, doc)


def _comparison(name: str, sign: str):
    compare = getattr(operator, name)

    def function(t: Tensor, x) -> Tensor:
        return compare(t, x)

    doc = f"1 where t {sign} x, else 0, in the dtype of t."
    return _called(function, name, doc)


def _of_two(name: str, op: str, doc: str):
    def function(lhs, rhs, ret: Tensor | None = None) -> Tensor:
        return _into(_operands.both(op, lhs, rhs), ret)

    doc = f"{doc}, into `ret` where that is given."
    return _called(function, name, doc)


class Tensor:
    """An n-dimensional array on a device.

    shape: sizes; device: where (the default device); dtype: `tensor.float32`,
    a name or a NumPy dtype; data: a NumPy array, a list or a raw tensor to take
    the elements from (else they are 0). requires_grad: whether gradients flow
    to it; stores_grad: whether it is a parameter, which `autograd.backward`
    yields. Like NumPy's arrays, tensors compare element by element, so they
    are not hashable.
    """

    tensor_count = 0
    dtype_name = dict(_NAMES)

    def __init__(
        self,
        shape=(),
        device=None,
        dtype=float32,
        data=None,
        requires_grad: bool = True,
        stores_grad: bool = False,
        creator=None,
        name: str | None = None,
    ) -> None:
        if isinstance(data, CTensor):
            self.data = data
        else:
            device = device or _device.get_default_device()
            if data is None:
                self.data = _elements.zeros(device, shape, _code(dtype))
            elif isinstance(data, Tensor):
                self.data = data.clone().data
            else:
                array = np.asarray(data)
                self.data = _raw.from_array(device, _elements.narrow(array))
        self.requires_grad = requires_grad
        self.stores_grad = stores_grad
        self.creator = creator
        self._index = 0
        self._name = name

    @classmethod
    def _of(
        cls, raw: CTensor, requires_grad: bool = False, creator=None
    ) -> Tensor:
        """The quick way for results of ops."""
        self = cls.__new__(cls)
        self.data = raw
        self.requires_grad = requires_grad
        self.stores_grad = False
        self.creator = creator
        self._index = 0
        self._name = None
        return self

    # ---- What it is ----

    @property
    def name(self) -> str:
        if self._name is None:
            self._name = f"Dummy#{Tensor.tensor_count}"
            Tensor.tensor_count += 1
        return self._name

    @name.setter
    def name(self, name: str | None) -> None:
        self._name = name

    def is_dummy(self) -> bool:
        """Whether nobody gave it a name."""
        return (
            self._name is None or re.match(r"Dummy#\d+", self._name) is not None
        )

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape()

    @property
    def device(self):
        return self.data.device

    @property
    def dtype(self) -> int:
        return _DTYPES[self.data.dtype]

    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def size(self) -> int:
        """Number of elements."""
        return self.data.count()

    def memsize(self) -> int:
        """Bytes of the elements."""
        return self.size() * sizeof(self.dtype)

    def is_empty(self) -> bool:
        """Whether it has no dimensions."""
        return self.ndim() == 0

    def is_transpose(self) -> bool:
        """Whether the elements do not lie row by row."""
        return not self.data.is_contiguous()

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without dimensions has no length")
        return self.shape[0]

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        if self.size() != 1:
            raise ValueError(
                f"the truth of a tensor of shape {self.shape} is not one value; "
                "compare, then use to_numpy().any() or .all()"
            )
        return bool(self.item())

    def item(self):
        """The only element as a Python number."""
        if self.size() != 1:
            raise ValueError(
                f"item: the tensor has shape {self.shape}; one element is needed"
            )
        return to_numpy(self).reshape(())[()].item()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __repr__(self) -> str:
        text = np.array2string(to_numpy(self), separator=", ", prefix="Tensor(")
        where = "" if self.device.id() < 0 else f", device={self.device}"
        return f"Tensor({text}, {_NAMES[self.dtype]}{where})"

    def __reduce__(self):
        return (
            _rebuild,
            (
                self.data,
                self.device,
                self.requires_grad,
                self.stores_grad,
                self._name,
            ),
        )

    # ---- NumPy and DLPack ----

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        if self.dtype == bfloat16 or not self.device.is_host():
            if copy is False:
                raise ValueError(
                    f"{_NAMES[self.dtype]} on {self.device} is seen by NumPy as a "
                    "copy alone"
                )
            array = to_numpy(self)
        else:
            array = self.data.as_array()
        if dtype is not None and array.dtype != np.dtype(dtype):
            if copy is False:
                raise ValueError("a change of dtype needs a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    # NumPy hands `array + tensor` to us.
    __array_priority__ = 1000

    def __dlpack__(self, *, stream=None, **_options):
        from choir import _dlpack

        return _dlpack.export(self, stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        from choir import _dlpack

        return _dlpack.device_of(self)

    def numpy(self) -> np.ndarray:
        """A copy as a NumPy array."""
        return to_numpy(self)

    # ---- Shape ----

    def reshape(self, *shape) -> Tensor:
        """The same elements in another shape; one size may be -1."""
        return reshape(
            self, shape[0] if len(shape) == 1 and _is_list(shape[0]) else shape
        )

    def transpose(self, axes: Sequence[int] | None = None) -> Tensor:
        """Axes in another order; None reverses them. Shares memory."""
        return transpose(self, axes)

    def T(self) -> Tensor:
        """The axes reversed. Shares memory."""
        return transpose(self)

    def contiguous(self) -> Tensor:
        """Itself where the elements lie row by row, else a copy that does."""
        if self.data.is_contiguous():
            return self
        return contiguous(self)

    def reset_like(self, t: Tensor) -> None:
        """Takes shape, device and dtype of another tensor; elements are 0."""
        self.data = _elements.zeros(t.device, t.shape, t.data.dtype)

    def as_type(self, dtype) -> Tensor:
        """A new tensor with elements of another type: as NumPy's astype, but that
        floats become the nearest integer of the type, and NaN 0."""
        code = _code(dtype)
        if code in _raw.FLOATS or self.data.dtype in _raw.FLOATS:
            return _apply("cast", self, dtype=code)
        return Tensor._of(_raw.cast(self.data, code))

    def to_type(self, dtype) -> Tensor:
        """Changes the elements' type in place; returns itself."""
        if self.data.dtype != _code(dtype):
            self.data = _raw.cast(self.data, _code(dtype))
        return self

    def to_device(self, device) -> None:
        """Moves it to a device."""
        if device is not self.device:
            self.data = _raw.from_array(device, self.data.read())

    def to_host(self) -> None:
        """Moves it to the host's CPU."""
        self.to_device(_device.create_cpu_device())

    # ---- Copies and values ----

    def copy_from_numpy(self, np_array, offset: int = 0) -> None:
        """Sets the elements from an array.

        As many elements as the tensor has, in any shape; of its dtype, but
        float64 goes into float32, int64 into int32, and floats that are whole
        numbers into integers. offset: elements of the tensor before the first that
        is set; then the array may be shorter.
        """
        copy_from_numpy(self.data, np_array, offset)

    def copy_data(self, t: Tensor) -> None:
        """Sets the elements from a tensor with as many."""
        if t.size() != self.size():
            raise ValueError(
                f"copy_data: {t.size()} elements for a tensor of {self.size()}"
            )
        src = t.data
        if src.device is not self.device:
            self.data.write(src.read().reshape(self.shape))
            return
        if src.dtype != self.data.dtype:
            src = _raw.cast(src, self.data.dtype)
        if src.shape() != self.shape:
            src = _elements.reshape(src, self.shape)
        run("copy", src, out=[self.data])

    def copy_from(self, t, offset: int = 0) -> None:
        """copy_data or copy_from_numpy, by what `t` is."""
        if isinstance(t, Tensor):
            self.copy_data(t)
        else:
            self.copy_from_numpy(t, offset)

    def clone(self) -> Tensor:
        """A copy with elements of its own."""
        raw = _raw.empty_layout(self.device, self.data.layout())
        if raw.count():
            run("copy", self.data, out=[raw])
        new = Tensor._of(raw, self.requires_grad)
        new.stores_grad = self.stores_grad
        return new

    deepcopy = clone

    def copy(self) -> Tensor:
        """A new Tensor on the same elements."""
        new = Tensor._of(self.data, self.requires_grad, self.creator)
        new.stores_grad = self.stores_grad
        new._index = self._index
        new._name = self._name
        return new

    def __copy__(self) -> Tensor:
        return self.copy()

    def __deepcopy__(self, memo) -> Tensor:
        new = self.clone()
        new._name = self._name
        return new

    def detach(self) -> Tensor:
        """The same elements, out of autograd's sight."""
        return Tensor._of(self.data)

    def set_value(self, x, inplace: bool = True) -> Tensor:
        """Sets every element to a number, as NumPy's fill; returns itself."""
        target = (
            self
            if inplace
            else Tensor._of(_raw.empty_layout(self.device, self.data.layout()))
        )
        if target.size():
            _elements.fill(target.data, _numbers.assigned(x, target.data.dtype))
        return target

    def repeat(self, repeats, axis: int | None = None) -> Tensor:
        """numpy.repeat: an int, or one number for each index along `axis`."""
        return repeat(self, repeats, axis)

    def l1(self) -> float:
        """Sum of absolute values over the number of elements, as SINGA has it."""
        return float(sum(abs(self))) / builtins.max(self.size(), 1)

    def l2(self) -> float:
        """Euclidean norm over the number of elements, as SINGA has it."""
        return float(sqrt(sum(square(self)))) / builtins.max(self.size(), 1)

    # ---- Random numbers, in place ----

    def bernoulli(self, p: float, inplace: bool = True) -> Tensor:
        """Sets elements to 1 with probability p, else 0."""
        target = self if inplace else self.clone()
        _elements.draw("random_uniform", target.data, 0.0, 1.0)
        threshold = _elements.scalar(target.data, p)
        run("less", target.data, threshold, out=[target.data])
        return target

    def gaussian(self, mean: float, std: float, inplace: bool = True) -> Tensor:
        """Draws elements from a normal distribution."""
        target = self if inplace else self.clone()
        _elements.draw("random_normal", target.data, mean, std)
        return target

    def uniform(self, low: float, high: float, inplace: bool = True) -> Tensor:
        """Draws elements evenly from [low, high)."""
        target = self if inplace else self.clone()
        _elements.draw("random_uniform", target.data, low, high)
        return target

    # ---- SINGA's old in-place forms for matrices ----

    add_column = _with_vector(
        "add_column", "add", "Adds a vector to each column"
    )
    add_row = _with_vector("add_row", "add", "Adds a vector to each row")
    div_column = _with_vector(
        "div_column", "div", "Divides each column by a vector"
    )
    div_row = _with_vector("div_row", "div", "Divides each row by a vector")
    mult_column = _with_vector(
        "mult_column", "mul", "Multiplies each column by a vector"
    )
    mult_row = _with_vector(
        "mult_row", "mul", "Multiplies each row by a vector"
    )

    # ---- Operators ----

    __iadd__ = _in_place("add")
    __isub__ = _in_place("sub")
    __imul__ = _in_place("mul")
    __itruediv__ = _in_place("div")
    __add__, __radd__ = _both_sides("add")
    __sub__, __rsub__ = _both_sides("sub")
    __mul__, __rmul__ = _both_sides("mul")
    __truediv__, __rtruediv__ = _both_sides("div")
    __div__ = __truediv__
    __rdiv__ = __rtruediv__

    __pow__ = _both_sides("pow")[0]
    __lt__, __gt__ = _both_sides("less")[0], _both_sides("greater")[0]
    __le__ = _both_sides("less_equal")[0]
    __ge__ = _both_sides("greater_equal")[0]

    def __floordiv__(self, rhs) -> Tensor:
        return _operands.floor_divide(self, rhs)

    def __matmul__(self, other) -> Tensor:
        return mult(self, other)

    def __neg__(self) -> Tensor:
        return _apply("neg", self)

    def __abs__(self) -> Tensor:
        return _apply("abs", self)

    def __eq__(self, rhs):
        if rhs is None:
            return False
        return _operands.binary("equal", self, rhs)

    def __ne__(self, rhs):
        if rhs is None:
            return True
        return _operands.binary("not_equal", self, rhs)

    __hash__ = None

    def __getitem__(self, keys) -> Tensor:
        return _indexing.read(self, keys)

    def __setitem__(self, keys, value) -> None:
        _indexing.write(self, keys, value)


PlaceHolder = Tensor
Constants = _elements.Constants


def _rebuild(data, device, requires_grad, stores_grad, name=None) -> Tensor:
    if not isinstance(data, CTensor):  # an array, in a file of an older version
        data = _raw.from_array(device, data)
    new = Tensor._of(data, requires_grad)
    new.stores_grad = stores_grad
    new._name = name
    return new


def _is_list(value) -> bool:
    return isinstance(value, (list, tuple))


def _apply(name: str, *xs: Tensor, **settings) -> Tensor:
    """An op on tensors, seen by autograd where that is on."""
    return _autograd.apply(OPS[name], xs, settings)


def _need_tensor(x, name: str) -> Tensor:
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{name}: {type(x).__name__} given; a Tensor is needed "
            "(tensor.from_numpy makes one of an array)"
        )
    return x


def _to(shape) -> dict:
    return {"ndim": len(shape), "shape": tuple(shape)}


# ---- Making tensors ----


def from_raw_tensor(t: CTensor) -> Tensor:
    """A Tensor on a raw tensor's elements."""
    return Tensor(data=t)


def from_raw_tensors(tt) -> list[Tensor]:
    """The same for a list."""
    return [from_raw_tensor(t) for t in tt]


def from_numpy(np_array, dev=None) -> Tensor:
    """A tensor with an array's elements, on `dev` or the default device.

    float64 becomes float32 and int64 int32, as in SINGA.
    """
    array = _elements.narrow(np.asarray(np_array))
    raw = _raw.from_array(dev or _device.get_default_device(), array)
    return Tensor(data=raw)


def from_dlpack(x) -> Tensor:
    """A tensor on the memory of anything that has `__dlpack__`, without a copy."""
    from choir import _dlpack

    return _dlpack.take(x)


def zeros_like(t: Tensor) -> Tensor:
    """Zeros in the shape, dtype and device of `t`."""
    return Tensor._of(_elements.zeros(t.device, t.shape, t.data.dtype))


def ones_like(t: Tensor) -> Tensor:
    """Ones in the shape, dtype and device of `t`."""
    return zeros_like(t).set_value(1.0)


def zeros(shape, device=None, dtype=float32) -> Tensor:
    """Zeros."""
    return Tensor(shape, device, dtype)


def ones(shape, device=None, dtype=float32) -> Tensor:
    """Ones."""
    return Tensor(shape, device, dtype).set_value(1.0)


def random(shape, device=None) -> Tensor:
    """Numbers drawn evenly from [0, 1)."""
    return Tensor(shape, device).uniform(0.0, 1.0)


def to_host(t: Tensor) -> Tensor:
    """A copy on the host."""
    return Tensor._of(
        _raw.from_array(_device.create_cpu_device(), t.data.read())
    )


def to_numpy(t: Tensor) -> np.ndarray:
    """A copy of the elements as an array; bfloat16 comes as float32."""
    raw = t.data
    if raw.dtype == _raw.BF16:
        raw = run("cast", raw, dtype=_raw.F32)
    return raw.read()


def copy_from_numpy(data: CTensor, np_array, offset: int = 0) -> None:
    """Sets a raw tensor's elements: see Tensor.copy_from_numpy."""
    if data.dtype == _raw.BF16:
        # By way of float32, which to_numpy gives too.
        wide = run("cast", data, dtype=_raw.F32)
        copy_from_numpy(wide, np_array, offset)
        run("cast", wide, out=[data], dtype=_raw.BF16)
        return
    array = np.asarray(np_array)
    wanted = _raw.numpy_dtype(data.dtype)
    if array.dtype.kind == "f" and wanted.kind in "iu":
        array = _elements.whole(array, wanted)
    is_wide = data.dtype in (_raw.F64, _raw.I64)
    if is_wide and np.can_cast(array.dtype, wanted, "same_kind"):
        given, array = array, array.astype(wanted)
        if wanted.kind == "i" and (array != given).any():
            raise ValueError(
                f"a {given.dtype} element does not fit into {wanted}"
            )
    elif not is_wide:
        array = _elements.narrow(array)
    if array.dtype != wanted:
        raise TypeError(
            f"copy_from_numpy: an array of {np.asarray(np_array).dtype} for a "
            f"tensor of {wanted}; convert it with astype({str(wanted)!r})"
        )
    count = data.count()
    if (
        offset < 0
        or offset + array.size > count
        or (offset == 0 and array.size != count)
    ):
        raise ValueError(
            f"copy_from_numpy: {array.size} elements of shape {array.shape} from "
            f"element {offset} on, for a tensor of shape {data.shape()} with "
            f"{count} elements"
        )
    if array.size == count:
        data.write(array.reshape(data.shape()))
        return
    whole = data.read().reshape(-1)
    whole[offset : offset + array.size] = array.reshape(-1)
    data.write(whole.reshape(data.shape()))


def copy_data_to_from(
    dst: Tensor,
    src: Tensor,
    size: int,
    dst_offset: int = 0,
    src_offset: int = 0,
) -> None:
    """Copies `size` elements, counted row by row, from one tensor to another."""
    if (
        min(size, dst_offset, src_offset) < 0
        or dst_offset + size > dst.size()
        or src_offset + size > src.size()
    ):
        raise ValueError(
            f"copy_data_to_from: {size} elements from {src_offset} of {src.size()} "
            f"to {dst_offset} of {dst.size()}"
        )
    values = src.data.read().reshape(-1)[src_offset : src_offset + size]
    whole = dst.data.read().reshape(-1)
    whole[dst_offset : dst_offset + size] = values
    dst.data.write(whole.reshape(dst.shape))


# ---- Shapes ----


def product(shape) -> int:
    """The product of sizes."""
    result = 1
    for size in shape:
        result *= size
    return result


def sizeof(dtype) -> int:
    """Bytes of one element."""
    return int(lib.dtype_bytes(_code(dtype)))


def contiguous(tensor: Tensor) -> Tensor:
    """A copy whose elements lie row by row."""
    raw = _raw.empty(tensor.device, tensor.shape, tensor.data.dtype)
    if raw.count():
        run("copy", tensor.data, out=[raw])
    return Tensor._of(raw, tensor.requires_grad)


def reshape(tensor: Tensor, shape) -> Tensor:
    """The same elements in another shape; one size may be -1."""
    sizes = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    return _apply("reshape", tensor, **_to([operator.index(n) for n in sizes]))


def transpose(t: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    """Axes in another order; None reverses them. Shares memory."""
    if axes is None:
        axes = range(t.ndim() - 1, -1, -1)
    axes = _axes(axes, t.ndim(), "transpose")
    if len(axes) != t.ndim():
        raise ValueError(
            f"transpose: {len(axes)} axes for a tensor of shape {t.shape}"
        )
    return _apply("transpose", t, axes=axes)


def _axes(axes, ndim: int, name: str) -> tuple[int, ...]:
    """Axes as numbers from 0, each once."""
    if isinstance(axes, (int, np.integer)):
        axes = (axes,)
    result = []
    for axis in axes:
        if not -ndim <= axis < ndim:
            raise IndexError(
                f"{name}: axis {axis} of a tensor with {ndim} dimensions"
            )
        result.append(operator.index(axis) % ndim)
    if len(set(result)) != len(result):
        raise ValueError(f"{name}: an axis is named twice in {tuple(axes)}")
    return tuple(result)


def concatenate(tensors, axis: int) -> Tensor:
    """Joins tensors along an axis."""
    tensors = list(tensors)
    axis = _axes(axis, tensors[0].ndim(), "concatenate")[0]
    joined = [tensors[i : i + 15] for i in range(0, len(tensors), 15)]
    while len(joined) > 1 or len(joined[0]) > 1:
        parts = [
            _apply("concat", *part, axis=axis) if len(part) > 1 else part[0]
            for part in joined
        ]
        joined = [parts[i : i + 15] for i in range(0, len(parts), 15)]
    return joined[0][0]


def repeat(t: Tensor, repeats, axis: int | None = None) -> Tensor:
    """numpy.repeat: an int, or one number for each index along `axis`.

    axis None: of the elements in one row.
    """
    if axis is None:
        t = reshape(t, (-1,))
        axis = 0
    axis = _axes(axis, t.ndim(), "repeat")[0]
    size = t.shape[axis]
    counts = np.asarray(repeats)
    if counts.shape not in ((), (1,), (size,)) or (counts < 0).any():
        raise ValueError(
            f"repeat: repeats is {repeats!r}; a number that is not negative, or "
            f"{size} of them, is needed"
        )
    return _indexing.gather(t, axis, np.repeat(np.arange(size), counts))


# ---- Elementwise ----


abs = _function("abs", "|x|")
exp = _function("exp", "e^x")
ceil = _function("ceil", "The least integer that is not below x.")
log = _function("log", "Natural logarithm.")
sigmoid = _function("sigmoid", "1 / (1 + e^-x)")
sign = _function("sign", "-1, 0 or 1.")
sqrt = _function("sqrt", "Square root.")
square = _function("square", "x^2")
tanh = _function("tanh", "Hyperbolic tangent.")
relu = _function("relu", "max(0, x)")


def softmax(t: Tensor, out: Tensor | None = None) -> Tensor:
    """e^x over its sum along the last axis."""
    return _into(_apply("softmax", t), out)


def _into(result: Tensor, out: Tensor | None) -> Tensor:
    """The result, or `out` with its elements."""
    if out is None:
        return result
    out.copy_data(result)
    return out


def pow(t: Tensor, x, out: Tensor | None = None) -> Tensor:
    """t^x, for a number or a tensor."""
    return _into(_operands.both("pow", t, x), out)


lt = _comparison("lt", "<")
le = _comparison("le", "<=")
gt = _comparison("gt", ">")
ge = _comparison("ge", ">=")
eq = _comparison("eq", "==")
add = _of_two("add", "add", "lhs + rhs")
sub = _of_two("sub", "sub", "lhs - rhs")
eltwise_mult = _of_two("eltwise_mult", "mul", "lhs * rhs element by element")
div = _of_two("div", "div", "lhs / rhs")


def axpy(alpha: float, x: Tensor, y: Tensor) -> Tensor:
    """y += alpha x, in place; returns y."""
    run(
        "scale",
        x.data,
        out=[y.data],
        accumulate=True,
        factor=float(alpha),
        shift=0.0,
    )
    return y


# ---- Reductions ----


def sum(t: Tensor, axis=None, out: Tensor | None = None) -> Tensor:
    """The sum over all elements, one axis or several.

    Over all elements the result has shape (1, 1), as in SINGA.
    """
    if axis is None:
        return _into(reshape(_apply("sum", t, axis=-1), (1, 1)), out)
    result = t
    for one in sorted(_axes(axis, t.ndim(), "sum"), reverse=True):
        result = _apply("sum", result, axis=one)
    return _into(result, out)


def average(t: Tensor, axis=None):
    """The mean over an axis; over all elements it is a Python float."""
    if axis is None:
        return float(_apply("mean", t, axis=-1))
    result = t
    for one in sorted(_axes(axis, t.ndim(), "average"), reverse=True):
        result = _apply("mean", result, axis=one)
    return result


def max(t: Tensor, axis: int | None = None) -> Tensor:
    """The largest element, of all or along an axis."""
    if axis is None:
        return _apply("max", t, axis=-1)
    return _apply("max", t, axis=_axes(axis, t.ndim(), "max")[0])


def argmax(t: Tensor, axis: int | None = None) -> Tensor:
    """Where the first largest element is, of all or along an axis; int64."""
    if axis is None:
        return _apply("argmax", t, axis=-1)
    return _apply("argmax", t, axis=_axes(axis, t.ndim(), "argmax")[0])


def sum_columns(M: Tensor) -> Tensor:
    """The sum of all columns of a matrix: (rows, 1)."""
    return _apply("sum", M, axis=1, keep_dims=True)


def sum_rows(M: Tensor) -> Tensor:
    """The sum of all rows of a matrix: (1, columns)."""
    return _apply("sum", M, axis=0, keep_dims=True)


# ---- Linear algebra ----


def mult(
    A: Tensor, B: Tensor, C: Tensor | None = None, alpha=1.0, beta=0.0
) -> Tensor:
    """The matrix product: (..., m, k) by (..., k, n), or (m, k) by (k).

    With C: C = alpha A B + beta C, in place.
    """
    if B.ndim() == 1:
        product_ = _apply("matmul", A, reshape(B, (B.size(), 1)))
        product_ = reshape(product_, product_.shape[:-1])
    else:
        product_ = _apply("matmul", A, B)
    if C is None:
        return product_ if alpha == 1.0 else product_ * alpha
    if beta == 0.0:
        C.set_value(0.0)
    elif beta != 1.0:
        C *= beta
    return axpy(alpha, product_, C)


def tensordot(A: Tensor, B: Tensor, axes=2) -> Tensor:
    """numpy.tensordot: sums products over the last axes of A and first of B, or
    over a pair of lists of axes."""
    if isinstance(axes, (int, np.integer)):
        left = tuple(range(A.ndim() - int(axes), A.ndim()))
        right = tuple(range(int(axes)))
    else:
        left = _axes(axes[0], A.ndim(), "tensordot")
        right = _axes(axes[1], B.ndim(), "tensordot")
    summed = [A.shape[i] for i in left]
    if summed != [B.shape[i] for i in right]:
        raise ValueError(
            f"tensordot: sizes {summed} of A meet {[B.shape[i] for i in right]} of B"
        )
    kept_a = tuple(i for i in range(A.ndim()) if i not in left)
    kept_b = tuple(i for i in range(B.ndim()) if i not in right)
    shape = tuple(A.shape[i] for i in kept_a) + tuple(
        B.shape[i] for i in kept_b
    )
    k = product(summed)
    rows = product(A.shape[i] for i in kept_a)
    columns = product(B.shape[i] for i in kept_b)
    a = reshape(transpose(A, kept_a + left), (rows, k))
    b = reshape(transpose(B, right + kept_b), (k, columns))
    return reshape(_apply("matmul", a, b), shape)


def einsum(ops: str, *args: Tensor) -> Tensor:
    """Einstein's summation for one or more tensors, as numpy.einsum."""
    return _einsum.einsum(ops, args)


def add_column(alpha: float, v: Tensor, beta: float, M: Tensor) -> Tensor:
    """M = alpha v + beta M for each column, in place."""
    M *= beta
    M.add_column(v * alpha)
    return M


def add_row(alpha: float, v: Tensor, beta: float, M: Tensor) -> Tensor:
    """M = alpha v + beta M for each row, in place."""
    M *= beta
    M.add_row(v * alpha)
    return M


# ---- Random numbers ----


def bernoulli(p: float, t: Tensor) -> Tensor:
    """Sets elements of t to 1 with probability p, else 0; returns t."""
    return t.bernoulli(p)


def gaussian(mean: float, std: float, t: Tensor) -> Tensor:
    """Draws the elements of t from a normal distribution; returns t."""
    return t.gaussian(mean, std)


def uniform(low: float, high: float, t: Tensor) -> Tensor:
    """Draws the elements of t evenly from [low, high); returns t."""
    return t.uniform(low, high)


def _call_singa_func(_singa_func, *args) -> Tensor:
    """Calls a function of raw tensors and wraps its result."""
    return from_raw_tensor(_singa_func(*args))


def digest(tensors: dict[str, Tensor]) -> int:
    """64 bits over names, shapes, dtypes and elements: equal for equal bits."""
    from ctypes import byref, c_uint64

    from choir._lib import NamedTensor

    named = (NamedTensor * len(tensors))(
        *[(name.encode(), t.data.handle) for name, t in tensors.items()]
    )
    out = c_uint64()
    check(lib.tensor_digest(named, len(tensors), byref(out)))
    return out.value


from choir import (  # noqa: E402  (each needs this module)
    _einsum,
    _indexing,
    _operands,
    autograd as _autograd,
)

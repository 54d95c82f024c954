# SPDX-License-Identifier: Apache-2.0
"""Small helpers."""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator

import numpy as np

from choir import _raw, _run_log_writer, autograd
from choir._handles import ConvHandle
from choir._raw import CTensor
from choir.tensor import from_raw_tensor

_BAR = 20

RunLog = _run_log_writer.RunLog


def update_progress(progress: float, info: str) -> None:
    """Draws a bar on stdout: progress from 0 to 1, and a text."""
    progress = min(max(float(progress), 0.0), 1.0)
    done = int(round(_BAR * progress))
    end = "\n" if progress >= 1 else ""
    sys.stdout.write(
        f"\r[{'#' * done}{'-' * (_BAR - done)}] {progress * 100:3.1f}% {info}{end}"
    )
    sys.stdout.flush()


def progress(
    items: Iterable, total: int | None = None, text: str = ""
) -> Iterator:
    """The items, with a bar on stderr while stderr is a terminal."""
    if total is None:
        total = len(items)  # type: ignore[arg-type]
    shows = sys.stderr.isatty() and total > 0
    last = 0.0
    for i, item in enumerate(items):
        yield item
        now = time.monotonic()
        if shows and (now - last > 0.1 or i + 1 == total):
            last = now
            done = _BAR * (i + 1) // total
            sys.stderr.write(
                f"\r{text} [{'#' * done}{'-' * (_BAR - done)}] {i + 1}/{total}"
            )
            sys.stderr.flush()
    if shows:
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()


def force_unicode(s) -> str:
    """bytes or str as str."""
    return s.decode() if isinstance(s, bytes) else str(s)


def handle_odd_pad_fwd(
    x: CTensor, odd_padding, is_pool: bool = False
) -> CTensor:
    """Pads a raw image (n, c, h, w) by (top, bottom, left, right): with zeros, or
    with what no maximum takes."""
    top, bottom, left, right = odd_padding
    pads = (0, 0, top, left, 0, 0, bottom, right)
    with autograd.no_grad():
        value = -3e38 if is_pool else 0.0
        return autograd.pad(from_raw_tensor(x), "constant", pads, value).data


def handle_odd_pad_bwd(dx: CTensor, odd_padding) -> CTensor:
    """Takes such padding away from a gradient."""
    top, bottom, left, right = odd_padding
    _, _, height, width = dx.shape()
    dx = _raw.run("slice", dx, axis=2, start=top, stop=height - bottom, step=1)
    return _raw.run("slice", dx, axis=3, start=left, stop=width - right, step=1)


def same_pad_shape_check(handle, pad_mode: str, x) -> list[int]:
    """The odd padding (top, bottom, left, right) that a handle's even padding
    leaves for SAME_UPPER or SAME_LOWER; ValueError when it does not fit."""
    even, odd = get_padding_shape(
        pad_mode, x.shape[2:], handle.kernel_size, handle.stride
    )
    if list(handle.padding) != even:
        raise ValueError(
            f"the handle's padding is {tuple(handle.padding)}; {tuple(even)} is needed "
            f"for {pad_mode}"
        )
    return odd


def re_new_handle(handle, x: CTensor, is_pool: bool = False):
    """A handle like `handle` for another input; the old one where that fits."""
    if is_pool or x.shape()[0] == handle.batchsize:
        return handle
    return ConvHandle(
        x,
        handle.kernel_size,
        handle.stride,
        handle.padding,
        handle.channels,
        handle.num_filters,
        handle.bias_term,
        handle.group,
    )


def get_padding_shape(
    pad_mode: str, input_spatial_shape, kernel_spatial_shape, strides_spatial
):
    """Even padding (rows, columns), and the odd rest (top, bottom, left, right),
    for SAME_UPPER and SAME_LOWER."""
    if pad_mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise ValueError(
            f"pad_mode is {pad_mode!r}; SAME_UPPER or SAME_LOWER is needed"
        )
    even, odd = [], []
    outputs = get_output_shape(
        pad_mode, input_spatial_shape, kernel_spatial_shape, strides_spatial
    )
    for n, k, s, out in zip(
        input_spatial_shape, kernel_spatial_shape, strides_spatial, outputs
    ):
        total = max((out - 1) * s + k - n, 0)
        even.append(total // 2)
        rest = total % 2
        odd.extend((0, rest) if pad_mode == "SAME_UPPER" else (rest, 0))
    return even, odd


def get_output_shape(
    auto_pad: str, input_spatial_shape, kernel_spatial_shape, strides_spatial
) -> list[int]:
    """Sizes of a convolution's result, for VALID, SAME_UPPER and SAME_LOWER."""
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        return [
            -(-n // s) for n, s in zip(input_spatial_shape, strides_spatial)
        ]
    if auto_pad != "VALID":
        raise ValueError(
            f"auto_pad is {auto_pad!r}; VALID, SAME_UPPER or SAME_LOWER is needed"
        )
    return [
        -(-(n - k + 1) // s)
        for n, k, s in zip(
            input_spatial_shape, kernel_spatial_shape, strides_spatial
        )
    ]


def post_order_recursive(root, root_t) -> OrderedDict:
    """{operator: the tensor it was reached by} behind `root`, inputs first."""
    found: OrderedDict = OrderedDict()
    waiting = [(root, root_t, False)]
    seen = set()
    while waiting:
        op, t, is_done = waiting.pop()
        if is_done:
            found[op] = t
            continue
        if op is None or id(op) in seen:
            continue
        seen.add(id(op))
        waiting.append((op, t, True))
        for x in reversed(op.src):
            waiting.append((x.creator, x, False))
    return found


def accuracy(pred, target) -> int:
    """How many rows of pred (n, classes) have their largest element at target."""
    p = np.asarray(pred)
    return int((p.argmax(axis=1) == np.asarray(target).reshape(-1)).sum())

# SPDX-License-Identifier: Apache-2.0
"""libchoir.so by ctypes: its structs, its functions, its failures.

Nothing here computes. `lib` has the functions that the package uses, with
their types; a call that can fail returns a status, and `check(status)` turns
one into the exception of its kind with the library's sentence.
"""

from __future__ import annotations

import ctypes
import functools
import operator
from ctypes import (
    POINTER,
    Structure,
    c_bool,
    c_char,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint64,
    c_void_p,
)

from choir import _find
from choir._sections import lock, locked

MAX_NDIM = 8


# ---- Failures ----


class Error(Exception):
    """The base of Choir's own exceptions."""


class CommError(Error, RuntimeError):
    """A peer died or gave up, or a wait for one took too long.

    The message says who waited, for whom and in which operation.
    """


class StateError(Error, RuntimeError):
    """A call that does not fit what was done before it."""


class NotFoundError(Error, LookupError, FileNotFoundError):
    """A file or a name that is not there."""


class UnavailableError(Error, RuntimeError):
    """This machine, or this build, lacks what was asked for."""


class NotCopied:
    """Base of objects that belong to this process."""

    def __reduce_ex__(self, protocol):
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled; make another"
        )


# By the values of choir_status_code_t.
_KINDS = {
    1: ValueError,
    2: IndexError,
    3: StateError,
    4: NotFoundError,
    5: ValueError,
    6: MemoryError,
    7: NotImplementedError,
    8: UnavailableError,
    9: CommError,
    10: CommError,
    11: Error,
}


# ---- Structs, as in the headers ----


class View(Structure):
    """choir_view_t"""

    _fields_ = [
        ("buffer", c_void_p),
        ("offset", c_int64),
        ("shape", c_int64 * MAX_NDIM),
        ("strides", c_int64 * MAX_NDIM),
        ("ndim", c_int32),
        ("dtype", c_int),
    ]


class Field(Structure):
    """choir_field_t"""

    _fields_ = [
        ("name", c_char_p),
        ("kind", c_int),
        ("offset", c_size_t),
        ("count", c_int32),
        ("default_value", c_double),
        ("default_text", c_char_p),
        ("minimum", c_double),
        ("maximum", c_double),
        ("enum_names", POINTER(c_char_p)),
        ("doc", c_char_p),
    ]


class StructDef(Structure):
    """choir_struct_def_t"""

    _fields_ = [
        ("name", c_char_p),
        ("doc", c_char_p),
        ("bytes", c_size_t),
        ("fields", POINTER(Field)),
        ("field_count", c_size_t),
    ]


class OpInfo(Structure):
    """choir_op_info_t"""

    _fields_ = [
        ("name", c_char_p),
        ("doc", c_char_p),
        ("src_min", c_int32),
        ("src_max", c_int32),
        ("result_count", c_int32),
        ("gradient", c_int),
        ("is_product", c_bool),
        ("attrs", POINTER(StructDef)),
    ]


class Allocator(Structure):
    """choir_allocator_t"""

    _fields_ = [("self", c_void_p), ("alloc", c_void_p), ("free", c_void_p)]


class DeviceOptions(Structure):
    """choir_device_options_t"""

    _fields_ = [
        ("threads", c_int32),
        ("allocator", Allocator),
        ("seed", c_uint64),
        ("index", c_int32),
    ]


class GpuInfo(Structure):
    """choir_gpu_info_t"""

    _fields_ = [
        ("name", c_char * 96),
        ("major", c_int32),
        ("minor", c_int32),
        ("is_supported", c_bool),
        ("total_bytes", c_uint64),
    ]


class GpuPart(Structure):
    """choir_gpu_part_t"""

    _fields_ = [("name", c_char_p), ("version", c_char * 32)]


class PoolStats(Structure):
    """choir_pool_stats_t"""

    _fields_ = [
        ("base_allocations", c_uint64),
        ("in_use_bytes", c_uint64),
        ("cached_bytes", c_uint64),
        ("peak_bytes", c_uint64),
    ]


class Step(Structure):
    """choir_step_t"""

    _fields_ = [
        ("training", c_bool),
        ("seed", c_int64),
        ("step", c_int64),
        ("first_sample", c_int64),
        ("sample_count", c_int64),
        ("global_count", c_int64),
        ("is_partial", c_bool),
        ("batch_number", c_int64),
    ]


class Param(Structure):
    """choir_param_t"""

    _fields_ = [
        ("name", c_char_p),
        ("value", c_void_p),
        ("grad", c_void_p),
        ("trainable", c_bool),
        ("scope", c_void_p),
        ("var", c_void_p),
        ("generation", c_uint64),
    ]


class ParamList(Structure):
    """choir_param_list_t"""

    _fields_ = [("params", POINTER(POINTER(Param))), ("count", c_size_t)]


class NamedTensor(Structure):
    """choir_named_tensor_t"""

    _fields_ = [("name", c_char_p), ("tensor", c_void_p)]


# A callback: see _callback.py. It returns nothing, as ctypes leaves a result
# that was not made undefined.
RUN = ctypes.CFUNCTYPE(None, c_void_p, POINTER(c_void_p), POINTER(c_void_p))


class CallbackStruct(Structure):
    """choir_callback_t"""

    _fields_ = [("run", RUN), ("self", c_void_p)]


class CustomOp(Structure):
    """choir_custom_op_t"""

    _fields_ = [
        ("name", c_char_p),
        ("backward", c_void_p),
        ("self", c_void_p),
    ]


class BackwardOptions(Structure):
    """choir_backward_options_t"""

    _fields_ = [
        ("params", POINTER(c_void_p)),
        ("param_count", c_size_t),
        ("on_grad", c_void_p),
        ("self", c_void_p),
        ("start", c_void_p),
    ]


class ModelDef(Structure):
    """choir_model_def_t"""

    _fields_ = [
        ("name", c_char_p),
        ("define", c_void_p),
        ("forward", c_void_p),
        ("train_one_batch", c_void_p),
    ]


class ModelCallbacks(Structure):
    """choir_model_callbacks_t"""

    _fields_ = [
        ("define", CallbackStruct),
        ("train_one_batch", CallbackStruct),
    ]


class ModelBatch(Structure):
    """choir_model_batch_t"""

    _fields_ = [
        ("x", c_void_p),
        ("y", c_void_p),
        ("first_sample", c_int64),
        ("sample_count", c_int64),
        ("global_count", c_int64),
        ("variant", c_int64),
        ("batch_number", c_int64),
    ]


class Initializer(Structure):
    """choir_initializer_t"""

    _fields_ = [
        ("kind", c_int),
        ("a", c_double),
        ("b", c_double),
        ("fan_in", c_double),
        ("fan_out", c_double),
    ]


class RandomKey(Structure):
    """choir_random_key_t"""

    _fields_ = [
        ("seed", c_uint64),
        ("stream", ctypes.c_uint32),
        ("step", ctypes.c_uint32),
    ]


class CommId(Structure):
    """choir_comm_id_t"""

    _fields_ = [("text", c_char * 33)]


class CommConfig(Structure):
    """choir_comm_config_t"""

    _fields_ = [
        ("backend", c_char_p),
        ("rank", c_int32),
        ("size", c_int32),
        ("id", CommId),
        ("deadline", c_double),
        ("silence", c_double),
        ("segment_bytes", c_size_t),
        ("device", c_void_p),
    ]


class CommTensor(Structure):
    """choir_comm_tensor_t"""

    _fields_ = [("src", c_void_p), ("dst", c_void_p), ("count", c_int64)]


class Collective(Structure):
    """choir_collective_t"""

    _fields_ = [
        ("kind", c_int),
        ("op", c_int),
        ("dtype", c_int),
        ("root", c_int32),
        ("count", c_int64),
        ("src", c_void_p),
        ("dst", c_void_p),
        ("weight", c_double),
        ("weight_is_samples", c_bool),
        ("scales", c_bool),
        ("prescale", c_double),
        ("postscale", c_double),
        ("capacity", c_int64),
        ("count_at", POINTER(c_int64)),
        ("splits", POINTER(c_int64)),
        ("counts", POINTER(c_int64)),
        ("tensors", POINTER(CommTensor)),
        ("tensor_count", c_int32),
        ("in_host_memory", c_bool),
        ("in_step", c_bool),
        ("step", c_int64),
        ("batch", c_int64),
        ("refusal", c_char_p),
        ("refusal_code", c_int),
        ("name", c_char_p),
    ]


class Batch(Structure):
    """choir_batch_t"""

    _fields_ = [
        ("x", c_void_p),
        ("y", c_void_p),
        ("sample_count", c_int64),
        ("global_count", c_int64),
        ("micro_shard", c_int64),
        ("first_in_step", c_int64),
        ("first_sample", c_int64),
        ("epoch", c_int64),
        ("step", c_int64),
        ("samples", POINTER(c_int64)),
    ]


class LoaderPosition(Structure):
    """choir_loader_position_t"""

    _fields_ = [("epoch", c_int64), ("step", c_int64)]


class Synthetic(Structure):
    """choir_dataset_synthetic_t"""

    _fields_ = [
        ("seed", c_int64),
        ("first", c_int64),
        ("count", c_int64),
        ("channels", c_int64),
        ("height", c_int64),
        ("width", c_int64),
        ("class_count", c_int64),
    ]


class Metadata(Structure):
    """choir_metadata_t"""

    _fields_ = [("key", c_char_p), ("value", c_char_p)]


class LaunchConfig(Structure):
    """choir_launch_config_t"""

    _fields_ = [
        ("argv", POINTER(c_char_p)),
        ("workers", c_int32),
        ("comm", c_char_p),
        ("grace", c_double),
    ]


class LaunchReport(Structure):
    """choir_launch_report_t"""

    _fields_ = [
        ("exit_status", c_int),
        ("failed_rank", c_int32),
        ("message", c_char * 2048),
    ]


# ---- Functions ----

_P = c_void_p  # an object of the library's, or a status
_DEF = POINTER(StructDef)
_DIMS = POINTER(c_int64)

# Name: (result, arguments). A status is a pointer: None is OK.
_FUNCTIONS = {
    "version": (c_char_p, []),
    "status_code": (c_int, [_P]),
    "status_message": (c_char_p, [_P]),
    "status_origin": (c_char_p, [_P]),
    "status_free": (None, [_P]),
    "struct_init": (None, [_DEF, _P]),
    "struct_check": (_P, [_DEF, _P]),
    "dtype_name": (c_char_p, [c_int]),
    "dtype_bytes": (c_size_t, [c_int]),
    "device_create": (_P, [c_char_p, POINTER(DeviceOptions), POINTER(_P)]),
    "gpu_driver_version": (_P, [POINTER(c_int32)]),
    "gpu_count": (_P, [POINTER(c_int32)]),
    "gpu_info": (_P, [c_int32, POINTER(GpuInfo)]),
    "gpu_memory": (_P, [c_int32, POINTER(c_uint64), POINTER(c_uint64)]),
    "comm_nccl_version": (_P, [POINTER(c_int32)]),
    "gpu_part_count": (c_int32, []),
    "gpu_part": (_P, [c_int32, POINTER(GpuPart)]),
    "device_threads": (c_int32, [_P]),
    "device_is_host": (c_bool, [_P]),
    "device_stream": (_P, [_P]),
    "device_memory": (PoolStats, [_P]),
    "stream_synchronize": (_P, [_P]),
    "buffer_wrap": (_P, [_P, _P, c_size_t, _P, _P, POINTER(_P)]),
    "buffer_release": (None, [_P]),
    "buffer_data": (_P, [_P]),
    "view_is_contiguous": (c_bool, [POINTER(View)]),
    "view_is_dense": (c_bool, [POINTER(View)]),
    "view_set_contiguous": (None, [POINTER(View)]),
    "view_set_channels_last": (None, [POINTER(View)]),
    "tensor_create": (_P, [_P, c_int, c_int32, _DIMS, POINTER(_P)]),
    "tensor_create_layout": (_P, [_P, POINTER(View), POINTER(_P)]),
    "tensor_from_view": (_P, [POINTER(View), POINTER(_P)]),
    "tensor_retain": (None, [_P]),
    "tensor_release": (None, [_P]),
    "tensor_view": (POINTER(View), [_P]),
    "tensor_count": (c_int64, [_P]),
    "tensor_read": (_P, [_P, _P, c_size_t]),
    "tensor_write": (_P, [_P, _P, c_size_t]),
    "tensor_digest": (_P, [POINTER(NamedTensor), c_size_t, POINTER(c_uint64)]),
    "op_run": (_P, [_P, c_int, POINTER(_P), c_int32, _P, c_bool, POINTER(_P)]),
    "op_info": (OpInfo, [c_int]),
    "scope_create": (_P, [_P, POINTER(_P)]),
    "scope_destroy": (None, [_P]),
    "scope_begin": (None, [_P, POINTER(Step)]),
    "scope_end": (_P, [_P]),
    "scope_is_ok": (c_bool, [_P]),
    "scope_fail": (_P, [_P, _P]),
    "scope_step": (POINTER(Step), [_P]),
    "scope_next_random_stream": (c_int64, [_P]),
    "scope_input": (_P, [_P, _P]),
    "scope_leaf": (_P, [_P, _P]),
    "scope_param": (_P, [_P, POINTER(Param)]),
    "scope_record": (
        _P,
        [_P, c_int, POINTER(_P), c_int32, _P, POINTER(_P)],
    ),
    "scope_record_custom": (
        _P,
        [_P, POINTER(CustomOp), POINTER(_P), c_int32, _P],
    ),
    "custom_op_callback": (_P, [_P, _P, POINTER(_P)]),
    "scope_backward": (None, [_P, _P, POINTER(BackwardOptions)]),
    "var_grad": (_P, [_P]),
    "initialize": (_P, [_P, POINTER(Initializer), RandomKey]),
    "layer_def_get": (_P, [c_int32]),
    "layer_def_config": (_DEF, [_P]),
    "model_create": (_P, [_P, POINTER(ModelDef), _P, c_int64, POINTER(_P)]),
    "model_release": (None, [_P]),
    "model_add_param": (POINTER(Param), [_P, c_char_p, _P, c_bool]),
    "model_compile": (_P, [_P, c_int32, _DIMS]),
    "model_set_updater": (_P, [_P, _P]),
    "model_set_graph": (None, [_P, c_bool, c_bool]),
    "model_print_graphs": (_P, [_P, POINTER(_P)]),
    "model_train_one_batch": (_P, [_P, POINTER(ModelBatch)]),
    "model_backward_and_update": (None, [_P, _P, _P]),
    "model_retract_step": (None, [_P]),
    "model_last_graph": (c_uint64, [_P]),
    "model_step": (c_int64, [_P]),
    "model_set_step": (None, [_P, c_int64]),
    "model_states": (c_size_t, [_P, POINTER(NamedTensor)]),
    "model_digest": (_P, [_P, POINTER(c_uint64)]),
    "updater_consolidate": (_P, [_P]),
    "optimizer_def_get": (_P, [c_int32]),
    "optimizer_def_config": (_DEF, [_P]),
    "optimizer_create": (_P, [_P, _P, POINTER(_P)]),
    "optimizer_release": (None, [_P]),
    "optimizer_updater": (_P, [_P]),
    "optimizer_set_lr": (_P, [_P, c_double]),
    "optimizer_add_param_group": (_P, [_P, _P]),
    "optimizer_set_group_lr": (_P, [_P, c_size_t, c_double]),
    "optimizer_attach": (_P, [_P, _P, ParamList]),
    "optimizer_update": (_P, [_P, _P, c_int64]),
    "optimizer_states": (c_size_t, [_P, POINTER(NamedTensor)]),
    "strategy_def_parse": (_P, [c_char_p, POINTER(_P)]),
    "strategy_def_get": (_P, [c_int32]),
    "strategy_def_config": (_DEF, [_P]),
    "strategy_def_option": (c_char_p, [_P]),
    "comm_id_make": (_P, [POINTER(CommId)]),
    "comm_config_init": (_P, [POINTER(CommConfig)]),
    "comm_create": (_P, [POINTER(CommConfig), POINTER(_P)]),
    "comm_release": (None, [_P]),
    "comm_finalize": (_P, [_P]),
    "comm_shutdown": (_P, []),
    "comm_activity": (c_char_p, [_P]),
    "comm_poll_error": (_P, [_P]),
    "comm_abort": (None, [_P, c_char_p]),
    "comm_rank": (c_int32, [_P]),
    "comm_size": (c_int32, [_P]),
    "comm_local_rank": (c_int32, [_P]),
    "comm_local_size": (c_int32, [_P]),
    "comm_host_index": (c_int32, [_P]),
    "comm_host_count": (c_int32, [_P]),
    "comm_backend": (c_char_p, [_P]),
    "comm_peer": (c_char_p, [_P, c_int32]),
    "comm_run": (_P, [_P, POINTER(Collective)]),
    "comm_check_same": (_P, [_P, c_char_p, c_char_p]),
    "comm_join": (_P, [_P, POINTER(c_int32)]),
    "comm_start": (_P, [_P, POINTER(Collective), POINTER(_P)]),
    "work_is_done": (c_bool, [_P]),
    "work_wait": (_P, [_P]),
    "dist_opt_create": (_P, [_P, _P, _P, POINTER(_P)]),
    "dist_opt_release": (None, [_P]),
    "dist_opt_use": (_P, [_P, _P, _P]),
    "dist_opt_refuse_use": (_P, [_P, _P]),
    "dist_opt_updater": (_P, [_P]),
    "dist_opt_print_strategy": (c_char_p, [_P, c_char_p, c_size_t]),
    "dist_opt_ranks_differ": (c_bool, [_P]),
    "dist_opt_gather_states": (
        _P,
        [_P, POINTER(NamedTensor), c_size_t, POINTER(_P)],
    ),
    "state_read_callback": (_P, [_P, c_char_p, _P, POINTER(c_bool)]),
    "dist_opt_distribute_states": (
        _P,
        [_P, POINTER(NamedTensor), c_size_t, _P, _P],
    ),
    "rank_states_list": (POINTER(NamedTensor), [_P, POINTER(c_size_t)]),
    "rank_states_destroy": (None, [_P]),
    "dist_opt_check_digest": (_P, [_P, c_uint64]),
    "dataset_open_mnist": (_P, [c_char_p, c_int, c_int64, POINTER(_P)]),
    "dataset_open_cifar10": (_P, [c_char_p, c_int, c_int64, POINTER(_P)]),
    "dataset_create_synthetic": (_P, [POINTER(Synthetic), POINTER(_P)]),
    "dataset_release": (None, [_P]),
    "dataset_count": (c_int64, [_P]),
    "dataset_shape": (_DIMS, [_P]),
    "dataset_class_count": (c_int64, [_P]),
    "dataset_image_bytes": (c_int64, [_P]),
    "dataset_pixels": (_P, [_P]),
    "dataset_labels": (_P, [_P]),
    "loader_create": (_P, [_P, _P, c_int32, c_int32, _P, POINTER(_P)]),
    "loader_destroy": (None, [_P]),
    "loader_next": (_P, [_P, POINTER(POINTER(Batch))]),
    "loader_position": (LoaderPosition, [_P]),
    "loader_seek": (_P, [_P, LoaderPosition]),
    "loader_steps": (c_int64, [_P]),
    "checkpoint_save": (
        _P,
        [
            c_char_p,
            POINTER(NamedTensor),
            c_size_t,
            POINTER(Metadata),
            c_size_t,
        ],
    ),
    "checkpoint_open": (_P, [c_char_p, POINTER(_P)]),
    "checkpoint_destroy": (None, [_P]),
    "checkpoint_read": (_P, [_P, c_char_p, _P]),
    "checkpoint_find": (_P, [_P, c_char_p]),
    "checkpoint_metadata_count": (c_size_t, [_P]),
    "checkpoint_metadata_get": (Metadata, [_P, c_size_t]),
    "launch_is_worker": (c_bool, []),
    "launch_run": (_P, [POINTER(LaunchConfig), POINTER(LaunchReport)]),
    "launch_note_failure": (None, [c_int, c_char_p]),
    "profile_create": (_P, [_P, POINTER(_P)]),
    "profile_destroy": (None, [_P]),
    "profile_start": (_P, [_P]),
    "profile_stop": (None, [_P]),
    "profile_reset": (None, [_P]),
    "text_writer_callback": (_P, [_P, c_char_p, c_size_t]),
    "profile_print": (_P, [_P, c_int, _P, _P]),
}


# Those that run work of a device or wait for it: for one thread at a time. Beside
# them op_run, which is called with the lock held.
_COMPUTING = frozenset(
    (
        "checkpoint_read",
        "checkpoint_save",
        "dist_opt_check_digest",
        "dist_opt_create",
        "dist_opt_distribute_states",
        "dist_opt_gather_states",
        "dist_opt_refuse_use",
        "dist_opt_use",
        "initialize",
        "loader_create",
        "loader_next",
        "loader_seek",
        "model_compile",
        "model_create",
        "model_digest",
        "model_set_graph",
        "model_set_updater",
        "model_train_one_batch",
        "optimizer_attach",
        "optimizer_update",
        "profile_destroy",
        "profile_print",
        "profile_reset",
        "profile_start",
        "profile_stop",
        "scope_create",
        "stream_synchronize",
        "tensor_digest",
        "tensor_read",
        "tensor_write",
        "updater_consolidate",
    )
)


def _with_lock(function):
    def call(*arguments):
        with lock:
            return function(*arguments)

    return call


class _Library:
    """The functions, by their names without `choir_`."""

    def __init__(self) -> None:
        self._dll = _find.load_library()
        for name, (result, arguments) in _FUNCTIONS.items():
            try:
                function = getattr(self._dll, f"choir_{name}")
            except AttributeError:
                raise ImportError(
                    f"{self._dll._name} has no choir_{name}: it was built from "
                    "other sources than this package; install both together"
                ) from None
            function.restype = result
            function.argtypes = arguments
            if name in _COMPUTING:
                function = _with_lock(function)
            setattr(self, name, function)
        # Takes a format: its arguments have no fixed types.
        self.status_make = self._dll.choir_status_make
        self.status_make.restype = c_void_p
        self.path: str = self._dll._name
        self.model_def_callbacks = ModelDef.in_dll(
            self._dll, "choir_model_def_callbacks"
        )
        # Variables of the library.
        self.dist_opt_config_def = self._table("dist_opt_config")
        self.loader_config_def = self._table("loader_config")
        self.param_group_def = self._table("param_group")

    def _table(self, name: str):
        return ctypes.pointer(StructDef.in_dll(self._dll, f"choir_{name}_def"))


lib = _Library()


def check(status: int | None) -> None:
    """Raises the exception of a failure's kind; None is OK."""
    if status is None:
        return
    code = lib.status_code(status)
    message = lib.status_message(status).decode(errors="replace")
    origin = lib.status_origin(status).decode(errors="replace")
    lib.status_free(status)
    kind = _KINDS.get(code, Error)
    error = kind(message)
    if origin:
        error.add_note(f"(from {origin.splitlines()[0]})")
    try:
        raise error
    finally:
        del error  # whose traceback has this frame: see _callback.finish


def describe(error: BaseException) -> str:
    """Its kind and sentence; an exception may fail to give one."""
    kind = type(error).__name__
    try:
        return f"{kind}: {error}"
    except BaseException as other:
        return f"{kind} (its sentence raises {type(other).__name__})"


def code_of(error: BaseException) -> int:
    """The choir_status_code_t that it becomes; INVALID_ARGUMENT for others'."""
    for value, kind in _KINDS.items():
        if issubclass(type(error), kind) and kind is not Error:
            return value
    return 1


def make_status(error: BaseException) -> int:
    """A failure for the library to hand on, from an exception."""
    text = describe(error).encode(errors="backslashreplace")
    return lib.status_make(
        c_int(code_of(error)),
        b"python",
        c_int(0),
        b"callback",
        b"%s",
        c_char_p(text),
    )


def ranged(value, what: str, bits: int = 64, signed: bool = True) -> int:
    """A whole number that fits into the library's type, which ctypes would cut
    it to without a word. TypeError for 2.5, OverflowError for 2**64."""
    number = operator.index(value)
    low = -(1 << bits - 1) if signed else 0
    if not low <= number < 1 << bits - signed:
        raise OverflowError(
            f"{what} is {number}, which does not fit into {bits} bits"
        )
    return number


def dims(shape) -> ctypes.Array:
    """A shape as the library takes it."""
    return (c_int64 * max(len(shape), 1))(*shape)


def address_of(function) -> int:
    """Of a function of C's, for a struct's field or another's argument."""
    return ctypes.cast(function, c_void_p).value


def get(function, *arguments) -> int:
    """Calls a function whose last argument is an out-pointer; what it made."""
    out = c_void_p()
    check(function(*arguments, ctypes.byref(out)))
    return out.value


class Owner:
    """Base of what owns an object of the library, its `handle`, and releases it when
    it goes."""

    __slots__ = ()
    _release = tuple  # a call that does nothing
    _computes = False  # releasing it uses a device's stream

    # Without bytecode: an exception that comes into a finalizer, such as
    # KeyboardInterrupt, is printed and lost.
    __del__ = property(operator.attrgetter("_release"))

    def _own(self, release, function, *arguments) -> None:
        """Takes over what `function` makes, whose last argument is an
        out-pointer; also when KeyboardInterrupt comes as soon as it is made."""
        out = c_void_p()
        try:
            check(function(*arguments, ctypes.byref(out)))
        finally:
            self._take(release, out.value)

    def _take(self, release, handle: int | None) -> None:
        """Owns an object that was made, in place of what it owned; the same object
        again is released once."""
        release = functools.partial(release, handle)
        self._release = locked(release) if self._computes else release
        self.handle = handle

    def _release_now(self) -> None:
        release, self._release = self._release, tuple
        release()

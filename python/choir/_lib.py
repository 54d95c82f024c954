# SPDX-License-Identifier: Apache-2.0
"""Structs, enums and functions of libchoir.so that the package uses.

Made by tools/make_lib_py.py from the C headers; run it with --write after a change
of these, or of what the package uses. _calls.py loads the library.
"""
# fmt: off

from ctypes import (
    POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_int, c_int32,
    c_int64, c_size_t, c_uint32, c_uint64, c_void_p,
)

_P = c_void_p

class StatusCode:
    """choir_status_code_t"""
    (
        OK, INVALID_ARGUMENT, OUT_OF_RANGE, FAILED_PRECONDITION, NOT_FOUND,
        ALREADY_EXISTS, OUT_OF_MEMORY, UNIMPLEMENTED, UNAVAILABLE, TIMEOUT,
        ABORTED, INTERNAL,
    ) = range(12)

class FieldKind:
    """choir_field_kind_t"""
    BOOL, INT, FLOAT, ENUM, STRING = range(5)

class Dtype:
    """choir_dtype_t"""
    F32, F64, F16, BF16, I32, I64, U8, BOOL, COUNT = range(9)

class SpanKind:
    """choir_span_kind_t"""
    OP, COMM, WAIT, LOADER, PHASE, KIND_COUNT = range(6)

class OpGradient:
    """choir_op_gradient_t"""
    GRAD, NO_GRAD, INTERNAL = range(3)

class InitializerKind:
    """choir_initializer_kind_t"""
    (
        CONSTANT, UNIFORM, NORMAL, GLOROT_UNIFORM, GLOROT_NORMAL, HE_UNIFORM,
        HE_NORMAL, COUNT,
    ) = range(8)

class Reduce:
    """choir_reduce_t"""
    SUM, AVERAGE, MIN, MAX, PRODUCT, COUNT = range(6)

class CollectiveKind:
    """choir_collective_kind_t"""
    (
        ALL_REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_GATHER_V,
        REDUCE_SCATTER_V, REDUCE, GATHER, GATHER_V, SCATTER, SCATTER_V,
        ALL_TO_ALL, ALL_TO_ALL_V, SEND, RECEIVE, BARRIER, COUNT,
    ) = range(17)

class Allocator(Structure):
    """choir_allocator_t"""
    _fields_ = [("self", _P), ("alloc", _P), ("free", _P)]

class PoolStats(Structure):
    """choir_pool_stats_t"""
    _fields_ = [
        ("base_allocations", c_uint64), ("in_use_bytes", c_uint64),
        ("cached_bytes", c_uint64), ("peak_bytes", c_uint64),
    ]

class Callback(Structure):
    """choir_callback_t"""
    _fields_ = [("run", _P), ("self", _P)]

class Field(Structure):
    """choir_field_t"""
    _fields_ = [
        ("name", c_char_p), ("kind", c_int), ("offset", c_size_t),
        ("count", c_int32), ("default_value", c_double),
        ("default_text", c_char_p), ("minimum", c_double),
        ("maximum", c_double), ("enum_names", POINTER(c_char_p)),
        ("doc", c_char_p),
    ]

class StructDef(Structure):
    """choir_struct_def_t"""
    _fields_ = [
        ("name", c_char_p), ("doc", c_char_p), ("bytes", c_size_t),
        ("fields", POINTER(Field)), ("field_count", c_size_t),
    ]

class View(Structure):
    """choir_view_t"""
    _fields_ = [
        ("buffer", _P), ("offset", c_int64), ("shape", c_int64 * 8),
        ("strides", c_int64 * 8), ("ndim", c_int32), ("dtype", c_int),
    ]

class DeviceOptions(Structure):
    """choir_device_options_t"""
    _fields_ = [
        ("threads", c_int32), ("allocator", Allocator), ("seed", c_uint64),
        ("index", c_int32), ("reproducible", c_bool),
    ]

class GpuInfo(Structure):
    """choir_gpu_info_t"""
    _fields_ = [
        ("name", c_char * 96), ("major", c_int32), ("minor", c_int32),
        ("is_supported", c_bool), ("total_bytes", c_uint64),
    ]

class ProfileTotals(Structure):
    """choir_profile_totals_t"""
    _fields_ = [
        ("seconds", c_double), ("self_seconds", c_double * 5),
        ("outside_seconds", c_double), ("first_seconds", c_double),
        ("events", c_int64), ("lost_events", c_int64),
    ]

class RandomKey(Structure):
    """choir_random_key_t"""
    _fields_ = [("seed", c_uint64), ("stream", c_uint32), ("step", c_uint32)]

class TraceOptions(Structure):
    """choir_trace_options_t"""
    _fields_ = [("path", c_char_p), ("rank", c_int32), ("detail", c_int)]

class GpuPart(Structure):
    """choir_gpu_part_t"""
    _fields_ = [("name", c_char_p), ("version", c_char * 32)]

class Shard(Structure):
    """choir_shard_t"""
    _fields_ = [("start", c_int64), ("whole", View)]

class NamedTensor(Structure):
    """choir_named_tensor_t"""
    _fields_ = [("name", c_char_p), ("tensor", _P), ("shard", POINTER(Shard))]

class OpInfo(Structure):
    """choir_op_info_t"""
    _fields_ = [
        ("name", c_char_p), ("doc", c_char_p), ("src_min", c_int32),
        ("src_max", c_int32), ("result_count", c_int32), ("gradient", c_int),
        ("is_product", c_bool), ("attrs", POINTER(StructDef)),
    ]

class Vars(Structure):
    """choir_vars_t"""
    _fields_ = [("at", POINTER(_P)), ("count", c_int32)]

class Param(Structure):
    """choir_param_t"""
    _fields_ = [
        ("name", c_char_p), ("value", _P), ("grad", _P),
        ("grad_parts", POINTER(_P)), ("grad_part_count", c_int32),
        ("trainable", c_bool), ("scope", _P), ("var", _P),
        ("generation", c_uint64),
    ]

class Step(Structure):
    """choir_step_t"""
    _fields_ = [
        ("training", c_bool), ("seed", c_int64), ("step", c_int64),
        ("first_sample", c_int64), ("sample_count", c_int64),
        ("global_count", c_int64), ("is_partial", c_bool),
        ("batch_number", c_int64), ("random_stream", c_int64), ("cache", _P),
        ("keeps_all", c_bool), ("micro_shard", c_int64),
    ]

class CustomOp(Structure):
    """choir_custom_op_t"""
    _fields_ = [
        ("name", c_char_p), ("backward", _P), ("self", _P),
        ("knows_micro_shards", c_bool),
    ]

class TapeEntry(Structure):
    """choir_tape_entry_t"""
    _fields_ = [
        ("previous", _P), ("op", c_int), ("src_count", c_int32),
        ("srcs", POINTER(_P)), ("results", _P * 4), ("attrs", _P),
        ("label", c_char_p), ("custom", CustomOp),
    ]

class BackwardOptions(Structure):
    """choir_backward_options_t"""
    _fields_ = [
        ("params", POINTER(POINTER(Param))), ("param_count", c_size_t),
        ("on_grad", _P), ("self", _P), ("start", _P),
        ("is_part_of_forward", c_bool), ("round_node", _P),
    ]

class Initializer(Structure):
    """choir_initializer_t"""
    _fields_ = [
        ("kind", c_int), ("a", c_double), ("b", c_double),
        ("fan_in", c_double), ("fan_out", c_double),
    ]

class ModelDef(Structure):
    """choir_model_def_t"""
    _fields_ = [
        ("name", c_char_p), ("define", _P), ("forward", _P),
        ("train_one_batch", _P), ("loss", _P),
    ]

class ModelCallbacks(Structure):
    """choir_model_callbacks_t"""
    _fields_ = [("define", Callback), ("train_one_batch", Callback)]

class ModelBatch(Structure):
    """choir_model_batch_t"""
    _fields_ = [
        ("inputs", _P * 8), ("targets", _P * 8), ("first_sample", c_int64),
        ("sample_count", c_int64), ("global_count", c_int64),
        ("variant", c_int64), ("batch_number", c_int64),
        ("micro_shard", c_int64),
    ]

class PrecisionChoice(Structure):
    """choir_precision_choice_t"""
    _fields_ = [
        ("dtype", c_int), ("f32_seconds", c_double),
        ("bf16_seconds", c_double),
    ]

class SyncBatchNorm(Structure):
    """choir_sync_batch_norm_t"""
    _fields_ = [
        ("name", c_char_p), ("running_mean", _P), ("running_var", _P),
        ("momentum", c_double), ("epsilon", c_double),
        ("only_micro_shards", c_bool),
    ]

class SyncBatchNormUse(Structure):
    """choir_sync_batch_norm_use_t"""
    _fields_ = [
        ("model", _P), ("scope", _P), ("name", c_char_p),
        ("epsilon", c_double), ("x", _P), ("scale", _P), ("mean", _P),
        ("var", _P), ("count", _P), ("unbiased", _P), ("y", _P),
    ]

class OnnxValueInfo(Structure):
    """choir_onnx_value_info_t"""
    _fields_ = [
        ("name", c_char_p), ("type", c_int32), ("ndim", c_int32),
        ("kind", c_char_p), ("shape", c_int64 * 8), ("symbols", c_char_p * 8),
    ]

class OnnxWriteOptions(Structure):
    """choir_onnx_write_options_t"""
    _fields_ = [("fixed_batch", c_bool), ("data_beside", c_bool)]

class OnnxName(Structure):
    """choir_onnx_name_t"""
    _fields_ = [("name", c_char_p), ("var", _P)]

class OnnxTrace(Structure):
    """choir_onnx_trace_t"""
    _fields_ = [
        ("name", c_char_p), ("inputs", POINTER(OnnxName)),
        ("input_count", c_int32), ("results", POINTER(OnnxName)),
        ("result_count", c_int32), ("params", POINTER(NamedTensor)),
        ("param_count", c_int32),
    ]

class Metadata(Structure):
    """choir_metadata_t"""
    _fields_ = [("key", c_char_p), ("value", c_char_p)]

class CheckpointEntry(Structure):
    """choir_checkpoint_entry_t"""
    _fields_ = [
        ("name", c_char_p), ("dtype", c_int), ("ndim", c_int32),
        ("shape", c_int64 * 8), ("bytes", c_size_t),
    ]

class DatasetSynthetic(Structure):
    """choir_dataset_synthetic_t"""
    _fields_ = [
        ("seed", c_int64), ("first", c_int64), ("count", c_int64),
        ("channels", c_int64), ("height", c_int64), ("width", c_int64),
        ("class_count", c_int64),
    ]

class Batch(Structure):
    """choir_batch_t"""
    _fields_ = [
        ("x", _P), ("y", _P), ("sample_count", c_int64),
        ("global_count", c_int64), ("micro_shard", c_int64),
        ("first_in_step", c_int64), ("first_sample", c_int64),
        ("epoch", c_int64), ("step", c_int64), ("samples", POINTER(c_int64)),
    ]

class LoaderPosition(Structure):
    """choir_loader_position_t"""
    _fields_ = [("epoch", c_int64), ("step", c_int64), ("sample", c_int64)]

class Windows(Structure):
    """choir_windows_t"""
    _fields_ = [
        ("first", c_int64), ("count", c_int64), ("length", c_int64),
        ("stride", c_int64),
    ]

class CommId(Structure):
    """choir_comm_id_t"""
    _fields_ = [("text", c_char * 33)]

class CommConfig(Structure):
    """choir_comm_config_t"""
    _fields_ = [
        ("backend", c_char_p), ("rank", c_int32), ("size", c_int32),
        ("id", CommId), ("rendezvous", c_char * 272), ("deadline", c_double),
        ("silence", c_double), ("segment_bytes", c_size_t), ("device", _P),
        ("encrypt", c_bool), ("is_newcomer", c_bool),
        ("rendezvous_fd", c_int32),
    ]

class CommTensor(Structure):
    """choir_comm_tensor_t"""
    _fields_ = [("src", _P), ("dst", _P), ("count", c_int64)]

class Collective(Structure):
    """choir_collective_t"""
    _fields_ = [
        ("kind", c_int), ("op", c_int), ("dtype", c_int), ("root", c_int32),
        ("count", c_int64), ("src", _P), ("dst", _P), ("weight", c_double),
        ("weight_is_samples", c_bool), ("scales", c_bool),
        ("prescale", c_double), ("postscale", c_double), ("capacity", c_int64),
        ("count_at", POINTER(c_int64)), ("splits", POINTER(c_int64)),
        ("counts", POINTER(c_int64)), ("tensors", POINTER(CommTensor)),
        ("tensor_count", c_int32), ("in_host_memory", c_bool),
        ("in_step", c_bool), ("step", c_int64), ("batch", c_int64),
        ("refusal", c_char_p), ("refusal_code", c_int), ("name", c_char_p),
    ]

class Generation(Structure):
    """choir_generation_t"""
    _fields_ = [
        ("number", c_int64), ("comm", _P), ("step", c_int64),
        ("seconds", c_double), ("has_come", c_bool), ("text", c_char * 512),
        ("has_left", c_bool), ("lost", c_int32),
    ]

class LaunchConfig(Structure):
    """choir_launch_config_t"""
    _fields_ = [
        ("argv", POINTER(c_char_p)), ("workers", c_int32), ("comm", c_char_p),
        ("grace", c_double), ("elastic", c_bool),
    ]

class LaunchReport(Structure):
    """choir_launch_report_t"""
    _fields_ = [
        ("exit_status", c_int), ("failed_rank", c_int32),
        ("message", c_char * 2048),
    ]

# Name: (result, arguments). A status is a pointer.
FUNCTIONS = {
    # core/base.h
    "version": (c_char_p, []),
    # core/status.h
    "status_make": (_P, None),
    "status_code": (c_int, [_P]),
    "status_message": (c_char_p, [_P]),
    "status_origin": (c_char_p, [_P]),
    "status_free": (None, [_P]),
    # core/field.h
    "struct_init": (None, [POINTER(StructDef), _P]),
    "struct_check": (_P, [POINTER(StructDef), _P]),
    # core/dtype.h
    "dtype_bytes": (c_size_t, [c_int]),
    "dtype_name": (c_char_p, [c_int]),
    # core/view.h
    "view_is_contiguous": (c_bool, [POINTER(View)]),
    "view_is_dense": (c_bool, [POINTER(View)]),
    "view_set_contiguous": (None, [POINTER(View)]),
    # core/device.h
    "device_create": (_P, [c_char_p, POINTER(DeviceOptions), POINTER(_P)]),
    "device_threads": (c_int32, [_P]),
    "device_is_host": (c_bool, [_P]),
    "device_memory": (PoolStats, [_P]),
    "device_stream": (_P, [_P]),
    "buffer_wrap": (_P, [_P, _P, c_size_t, _P, _P, POINTER(_P)]),
    "buffer_release": (None, [_P]),
    "buffer_data": (_P, [_P]),
    "stream_synchronize": (_P, [_P]),
    # core/gpu.h
    "gpu_driver_version": (_P, [POINTER(c_int32)]),
    "gpu_count": (_P, [POINTER(c_int32)]),
    "gpu_info": (_P, [c_int32, POINTER(GpuInfo)]),
    "gpu_memory": (_P, [c_int32, POINTER(c_uint64), POINTER(c_uint64)]),
    # core/profile.h
    "profile_create": (_P, [_P, POINTER(_P)]),
    "profile_destroy": (None, [_P]),
    "profile_start": (_P, [_P]),
    "profile_stop": (None, [_P]),
    "profile_reset": (None, [_P]),
    "profile_totals": (ProfileTotals, [_P]),
    "text_writer_callback": (_P, [_P, c_char_p, c_size_t]),
    "profile_print": (_P, [_P, c_int, _P, _P]),
    # core/trace.h
    "trace_start": (_P, [_P, POINTER(TraceOptions)]),
    "trace_stop": (_P, [_P]),
    "trace_set_step": (None, [_P, c_int64]),
    # tensor/gpu_parts.h
    "gpu_part_count": (c_int32, []),
    "gpu_part": (_P, [c_int32, POINTER(GpuPart)]),
    # tensor/tensor.h
    "tensor_create": (_P, [_P, c_int, c_int32, POINTER(c_int64), POINTER(_P)]),
    "tensor_create_layout": (_P, [_P, POINTER(View), POINTER(_P)]),
    "tensor_from_view": (_P, [POINTER(View), POINTER(_P)]),
    "tensor_retain": (None, [_P]),
    "tensor_release": (None, [_P]),
    "tensor_view": (POINTER(View), [_P]),
    "tensor_read": (_P, [_P, _P, c_size_t]),
    "tensor_write": (_P, [_P, _P, c_size_t]),
    "named_tensor_take": (_P, [POINTER(NamedTensor), _P]),
    "tensor_digest": (_P, [POINTER(NamedTensor), c_size_t, POINTER(c_uint64)]),
    # tensor/ops.h
    "op_run": (_P, [_P, c_int, POINTER(_P), c_int32, _P, c_bool, POINTER(_P)]),
    "op_info": (OpInfo, [c_int]),
    "op_mixed_dtypes": (c_bool, [
        c_int, c_int, POINTER(c_int), c_int32, POINTER(c_int),
    ]),
    # autograd/scope.h
    "scope_create": (_P, [_P, POINTER(_P)]),
    "scope_destroy": (None, [_P]),
    "scope_begin": (None, [_P, POINTER(Step)]),
    "scope_end": (_P, [_P]),
    "scope_set_precision": (None, [_P, c_int]),
    "scope_step": (POINTER(Step), [_P]),
    "scope_is_ok": (c_bool, [_P]),
    "scope_take_failure": (_P, [_P]),
    "scope_next_random_stream": (c_int64, [_P]),
    "scope_input": (_P, [_P, _P]),
    "scope_samples": (_P, [_P, _P]),
    "scope_param": (_P, [_P, POINTER(Param)]),
    "scope_bind": (None, [_P, POINTER(Param), _P]),
    "scope_record": (_P, [_P, c_int, POINTER(_P), c_int32, _P, POINTER(_P)]),
    "custom_op_callback": (_P, [_P, _P, POINTER(_P)]),
    "scope_record_custom": (_P, [
        _P, POINTER(CustomOp), POINTER(_P), c_int32, _P,
    ]),
    "scope_tape": (POINTER(TapeEntry), [_P]),
    "scope_recompute": (None, [_P, POINTER(TapeEntry), _P]),
    "scope_tuple": (_P, [_P, Vars]),
    "scope_result": (_P, [_P, _P, c_int32]),
    "var_tensor": (_P, [_P]),
    "var_grad": (_P, [_P]),
    "scope_leaf": (_P, [_P, _P]),
    "scope_backward": (None, [_P, _P, POINTER(BackwardOptions)]),
    # model/initializer.h
    "initialize": (_P, [_P, POINTER(Initializer), RandomKey]),
    # model/layers.h
    "layer_def_find": (_P, [c_char_p]),
    "layer_def_get": (_P, [c_int32]),
    "layer_def_config": (POINTER(StructDef), [_P]),
    "layer_forward_list": (_P, [_P, _P, Vars]),
    "layer_create_alone": (_P, [
        _P, c_char_p, _P, _P, c_int64, c_int64, POINTER(_P),
    ]),
    "layer_release": (None, [_P]),
    "layer_param": (POINTER(Param), [_P, c_size_t]),
    # model/param_set.h
    "param_set_create": (_P, [_P, POINTER(_P)]),
    "param_set_release": (None, [_P]),
    "param_set_add": (_P, [_P, c_char_p, _P, c_bool, POINTER(POINTER(Param))]),
    "param_use_grad": (None, [POINTER(Param), _P]),
    # model/updater.h
    "updater_consolidate": (_P, [_P]),
    "updater_gather": (_P, [_P, POINTER(NamedTensor), c_int32, POINTER(_P)]),
    # model/model.h
    "model_create": (_P, [_P, POINTER(ModelDef), _P, c_int64, POINTER(_P)]),
    "model_release": (None, [_P]),
    "model_compile": (_P, [_P, POINTER(View), c_int32]),
    "model_add_param": (POINTER(Param), [_P, c_char_p, _P, c_bool]),
    "model_set_updater": (_P, [_P, _P]),
    "model_updater": (_P, [_P]),
    "model_set_graph": (None, [_P, c_bool, c_bool]),
    "model_precision": (c_int, [_P]),
    "model_set_loss_check": (_P, [_P, c_bool]),
    "model_print_graphs": (_P, [_P, POINTER(_P)]),
    "model_last_graph": (c_uint64, [_P]),
    "model_train_one_batch": (_P, [_P, POINTER(ModelBatch)]),
    "model_backward_and_update": (None, [_P, _P, _P]),
    "model_retract_step": (None, [_P]),
    "model_choose_precision": (_P, [
        _P, POINTER(ModelBatch), POINTER(PrecisionChoice),
    ]),
    "model_step": (c_int64, [_P]),
    "model_set_step": (None, [_P, c_int64]),
    "model_states": (c_size_t, [_P, POINTER(NamedTensor)]),
    "model_digest": (_P, [_P, POINTER(c_uint64)]),
    # model/kv_cache.h
    "kv_cache_destroy": (None, [_P]),
    "kv_cache_count": (c_int64, [_P]),
    "kv_cache_keep": (None, [_P, c_int64]),
    "kv_cache_create_alone": (_P, [_P, c_int64, c_int64, POINTER(_P)]),
    "kv_cache_begin": (_P, [_P, _P]),
    "kv_cache_end": (None, [_P, c_bool]),
    # model/sync_batch_norm.h
    "model_add_sync_batch_norm": (_P, [_P, POINTER(SyncBatchNorm)]),
    "sync_batch_norm_forward": (_P, [
        _P, _P, POINTER(SyncBatchNorm), _P, c_bool, POINTER(SyncBatchNormUse),
    ]),
    "sync_batch_norm_backward": (_P, [_P, _P, POINTER(_P)]),
    # onnx/onnx.h
    "onnx_open": (_P, [c_char_p, POINTER(_P)]),
    "onnx_parse": (_P, [_P, c_size_t, c_char_p, POINTER(_P)]),
    "onnx_release": (None, [_P]),
    "onnx_type_name": (c_char_p, [c_int32]),
    "onnx_type_dtype": (_P, [c_int32, POINTER(c_int)]),
    "onnx_input_count": (c_int32, [_P]),
    "onnx_input": (OnnxValueInfo, [_P, c_int32]),
    "onnx_output_count": (c_int32, [_P]),
    "onnx_output": (OnnxValueInfo, [_P, c_int32]),
    "onnx_select": (_P, [_P, c_int32, POINTER(c_char_p), c_int32]),
    "onnx_result_count": (c_int32, [_P]),
    "onnx_result_type": (c_int32, [_P, c_int32]),
    "onnx_print": (_P, [_P, POINTER(_P)]),
    "onnx_forward": (_P, [_P, _P, Vars]),
    "onnx_place": (_P, [_P, _P]),
    "onnx_param_count": (c_int32, [_P]),
    "onnx_param": (POINTER(Param), [_P, c_int32]),
    "onnx_write": (_P, [
        _P, POINTER(OnnxTrace), c_char_p, POINTER(OnnxWriteOptions),
    ]),
    "onnx_pack": (_P, [
        _P, POINTER(OnnxTrace), POINTER(OnnxWriteOptions), POINTER(_P),
        POINTER(c_size_t),
    ]),
    # opt/optimizer.h
    "optimizer_create": (_P, [_P, _P, POINTER(_P)]),
    "optimizer_release": (None, [_P]),
    "optimizer_def_get": (_P, [c_int32]),
    "optimizer_def_config": (POINTER(StructDef), [_P]),
    "optimizer_updater": (_P, [_P]),
    "optimizer_add_param_group": (_P, [_P, _P]),
    "optimizer_set_clip": (_P, [_P, _P]),
    "optimizer_set_lr": (_P, [_P, c_double]),
    "optimizer_set_group_lr": (_P, [_P, c_size_t, c_double]),
    "optimizer_attach": (_P, [_P, _P, _P]),
    "optimizer_update": (_P, [_P, _P, c_int64]),
    "optimizer_states": (c_size_t, [_P, POINTER(NamedTensor)]),
    # io/byte_pairs.h
    "byte_pairs_open": (_P, [c_char_p, c_char_p, POINTER(_P)]),
    "byte_pairs_destroy": (None, [_P]),
    "byte_pairs_count": (c_int64, [_P]),
    "byte_pairs_find": (c_int32, [_P, c_char_p, c_size_t]),
    "byte_pairs_encode": (_P, [
        _P, c_char_p, c_size_t, POINTER(c_int32), c_size_t, POINTER(c_size_t),
    ]),
    "byte_pairs_decode": (_P, [
        _P, POINTER(c_int32), c_size_t, c_char_p, c_size_t, POINTER(c_size_t),
    ]),
    # io/checkpoint.h
    "checkpoint_save": (_P, [
        c_char_p, POINTER(NamedTensor), c_size_t, POINTER(Metadata), c_size_t,
    ]),
    "checkpoint_open": (_P, [c_char_p, POINTER(_P)]),
    "checkpoint_destroy": (None, [_P]),
    "checkpoint_count": (c_size_t, [_P]),
    "checkpoint_get": (POINTER(CheckpointEntry), [_P, c_size_t]),
    "checkpoint_find": (POINTER(CheckpointEntry), [_P, c_char_p]),
    "checkpoint_metadata_count": (c_size_t, [_P]),
    "checkpoint_metadata_get": (Metadata, [_P, c_size_t]),
    "checkpoint_read": (_P, [_P, c_char_p, _P]),
    "checkpoint_read_all": (_P, [_P, POINTER(NamedTensor), c_size_t]),
    # io/dataset.h
    "dataset_open_mnist": (_P, [c_char_p, c_int, c_int64, POINTER(_P)]),
    "dataset_open_cifar10": (_P, [c_char_p, c_int, c_int64, POINTER(_P)]),
    "dataset_create_synthetic": (_P, [POINTER(DatasetSynthetic), POINTER(_P)]),
    "dataset_release": (None, [_P]),
    "dataset_count": (c_int64, [_P]),
    "dataset_x": (POINTER(View), [_P]),
    "dataset_class_count": (c_int64, [_P]),
    "dataset_shape": (POINTER(c_int64), [_P]),
    "dataset_image_bytes": (c_int64, [_P]),
    "dataset_pixels": (_P, [_P]),
    "dataset_labels": (POINTER(c_int32), [_P]),
    # io/loader.h
    "loader_create": (_P, [_P, _P, c_int32, c_int32, _P, POINTER(_P)]),
    "loader_destroy": (None, [_P]),
    "loader_next": (_P, [_P, POINTER(POINTER(Batch))]),
    "loader_position": (LoaderPosition, [_P]),
    "loader_seek": (_P, [_P, LoaderPosition]),
    "loader_steps": (c_int64, [_P]),
    # io/tokens.h
    "tokens_open_text": (_P, [c_char_p, c_int, POINTER(_P)]),
    "tokens_open_byte_pairs": (_P, [
        c_char_p, c_char_p, c_char_p, POINTER(_P),
    ]),
    "tokens_open_ids": (_P, [c_char_p, c_int32, c_int64, POINTER(_P)]),
    "tokens_release": (None, [_P]),
    "tokens_count": (c_int64, [_P]),
    "tokens_vocabulary": (c_int64, [_P]),
    "tokens_read": (_P, [_P, c_int64, c_int64, POINTER(c_int32)]),
    "tokens_text": (c_char_p, [_P, c_int32, POINTER(c_size_t)]),
    "tokens_encode": (_P, [
        _P, c_char_p, c_size_t, POINTER(c_int32), POINTER(c_int64),
    ]),
    "dataset_create_windows": (_P, [_P, POINTER(Windows), POINTER(_P)]),
    # dist/comm.h
    "comm_id_make": (_P, [POINTER(CommId)]),
    "comm_config_init": (_P, [POINTER(CommConfig)]),
    "comm_create": (_P, [POINTER(CommConfig), POINTER(_P)]),
    "comm_retain": (None, [_P]),
    "comm_release": (None, [_P]),
    "comm_finalize": (_P, [_P]),
    "comm_shutdown": (_P, []),
    "comm_abort": (None, [_P, c_char_p]),
    "comm_rank": (c_int32, [_P]),
    "comm_size": (c_int32, [_P]),
    "comm_is_newcomer": (c_bool, [_P]),
    "comm_local_rank": (c_int32, [_P]),
    "comm_local_size": (c_int32, [_P]),
    "comm_host_index": (c_int32, [_P]),
    "comm_host_count": (c_int32, [_P]),
    "comm_backend": (c_char_p, [_P]),
    "comm_peer": (c_char_p, [_P, c_int32]),
    "comm_host": (c_char_p, [_P, c_int32]),
    "comm_activity": (c_char_p, [_P]),
    "comm_poll_error": (_P, [_P]),
    "comm_check_same": (_P, [_P, c_char_p, c_char_p]),
    "comm_join": (_P, [_P, POINTER(c_int32)]),
    "comm_run": (_P, [_P, POINTER(Collective)]),
    "comm_start": (_P, [_P, POINTER(Collective), POINTER(_P)]),
    "comm_nccl_version": (_P, [POINTER(c_int32)]),
    "work_is_done": (c_bool, [_P]),
    "work_wait": (_P, [_P]),
    # dist/strategy.h
    "strategy_def_parse": (_P, [c_char_p, POINTER(_P)]),
    "strategy_def_get": (_P, [c_int32]),
    "strategy_def_option": (c_char_p, [_P]),
    "strategy_def_config": (POINTER(StructDef), [_P]),
    # dist/dist_opt.h
    "dist_opt_create": (_P, [_P, _P, _P, POINTER(_P)]),
    "dist_opt_release": (None, [_P]),
    "dist_opt_use": (_P, [_P, _P, _P]),
    "dist_opt_refuse_use": (_P, [_P, _P]),
    "dist_opt_print_strategy": (c_char_p, [_P, c_char_p, c_size_t]),
    "dist_opt_generation": (POINTER(Generation), [_P]),
    "dist_opt_updater": (_P, [_P]),
    "dist_opt_ranks_differ": (c_bool, [_P]),
    "dist_opt_check_digest": (_P, [_P, c_uint64]),
    # dist/launch.h
    "launch_is_worker": (c_bool, []),
    "launch_run": (_P, [POINTER(LaunchConfig), POINTER(LaunchReport)]),
    "launch_note_failure": (None, [c_int, c_char_p]),
    # dist/training.h
    "training_save": (_P, [_P, _P, c_char_p, POINTER(Metadata), c_size_t]),
    "training_resume": (_P, [_P, _P, c_char_p, POINTER(Metadata), c_size_t]),
    "training_follow": (_P, [_P, _P]),
    "training_recover": (_P, [_P, _P]),
}

VARIABLES = {
    "model_def_callbacks": ModelDef,
    "param_group_def": StructDef,
    "gradient_clip_def": StructDef,
    "loader_config_def": StructDef,
    "dist_opt_config_def": StructDef,
}

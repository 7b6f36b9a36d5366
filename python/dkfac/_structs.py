"""Enumerations and structs of include/dkfac/c/dkfac.h. tests/python/test_abi.py compares them with the header."""
import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any

ABI = 1
MAX_DIMS = 4
INVERSE_STAGES = 5
SAME_DTYPE = -1
OWNED, OWNER_COPY = 1, 2  # Of dkfac_state_kind.

STATUS = ["OK", "INVALID_ARGUMENT", "MISSING_INPUT", "DATA_ERROR", "IO_ERROR", "DEVICE_ERROR", "COMM_ERROR",
          "NUMERIC_ERROR", "OUT_OF_MEMORY", "CALLBACK_FAILED", "INTERNAL"]
F64, F32, BF16, F16, I32 = range(5)
CPU, CUDA = range(2)
LINEAR, CONV2D, NORM, EMBEDDING, PLAIN = range(5)
NHWC, NCHW = range(2)
LOSS_REDUCTIONS = {"local_mean": 0, "global_mean": 1, "sum": 2}
NORM_FISHERS = {"diagonal": 0, "unit_wise": 1, "full": 2}
INVERSE_METHODS = {"cholesky": 0, "eigen": 1, "ekfac": 2}
DAMPING_SPLITS = {"pi": 0, "equal_traces": 1, "constant": 2}
SUM = 0  # Of dkfac_reduce_op.
STEP_LENGTHS = {"auto": 0, "none": 1, "gradient": 2, "projection": 3, "gradual": 4}
WEIGHT_SHARINGS = {"expand": 0, "reduce": 1}
AVERAGE_STARTS = {"first": 0, "identity": 1, "trace": 2}
STALENESS = {"fixed": 0, "adaptive": 1}
FACTORS = ["a_average", "a_inverse", "a_vectors", "a_values", "g_average", "g_inverse", "g_vectors", "g_values",
           "norm_average", "ekfac_scales"]


class Device(ctypes.Structure):
    _fields_ = [("kind", c_int32), ("index", c_int32)]


class Tensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)), ("ndim", c_int32),
                ("dtype", c_int32), ("device", Device), ("stream", c_void_p)]


class CommOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("timeout_s", c_double), ("check_calls", c_int32), ("piece_bytes", c_int64),
                ("secret", c_char_p), ("require_secret", c_int32)]


class CommCallbacks(ctypes.Structure):
    pass


AllReduce = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int64, c_int32, c_int32)
AllGather = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int64)
Broadcast = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int64, c_int32)
Barrier = ctypes.CFUNCTYPE(c_int, c_void_p)
Split = ctypes.CFUNCTYPE(c_int, c_void_p, c_int32, c_int32, POINTER(CommCallbacks), POINTER(c_int32), POINTER(c_int32))
Abort = ctypes.CFUNCTYPE(None, c_void_p, c_char_p)
Release = ctypes.CFUNCTYPE(None, c_void_p)

CommCallbacks._fields_ = [
    ("struct_size", c_size_t), ("user", c_void_p), ("all_reduce", AllReduce), ("all_gather", AllGather),
    ("broadcast", Broadcast), ("barrier", Barrier), ("split", Split), ("abort", Abort), ("release", Release)]


class LayerSpec(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("kind", c_int32), ("in_", c_int64), ("out", c_int64), ("bias", c_int32),
        ("layout", c_int32), ("kernel", c_int32 * 2), ("stride", c_int32 * 2), ("padding", c_int32 * 2),
        ("dilation", c_int32 * 2), ("same", c_int32), ("groups", c_int32), ("channels", c_int64), ("scale", c_int32),
        ("over_channels", c_int32), ("vocabulary", c_int64), ("width", c_int64), ("plain_weight", c_int64),
        ("plain_bias", c_int64), ("reason", c_char_p), ("max_rows", c_int64), ("sample_rows", c_int64)]


class CurvatureOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("damping", c_double), ("relative_damping", c_double), ("damping_split", c_int32),
        ("norm_damping", c_double),
        ("new_weight", c_double), ("average_start", c_int32), ("statistics_fraction", c_double),
        ("micro_batches", c_int32),
        ("norm_fisher", c_int32), ("sharing", c_int32), ("operand", c_int32), ("low_rank", c_int32),
        ("records_valid_until_step", c_int32), ("staleness", c_int32), ("statistics_interval", c_int32),
        ("inverse_interval", c_int32), ("overhead", c_double), ("early_refreshes", c_int32),
        ("stagger_inverses", c_int32), ("delay_inverses", c_int32), ("similarity", c_double),
        ("max_interval", c_int32), ("inverse_method", c_int32), ("max_failed_refreshes", c_int32),
        ("failure_folder", c_char_p), ("grad_worker_fraction", c_double), ("calibrate", c_int32),
        ("kl_clip", c_double), ("step_length", c_int32), ("precondition_tf32", c_int32), ("dtype", c_int32),
        ("loss_reduction", c_int32),
        ("overlap", c_int32), ("bucket_bytes", c_int64), ("gradient_wire", c_int32), ("statistics_wire", c_int32),
        ("weight_wire", c_int32), ("block_width", c_int32), ("split_factors", c_int32),
        ("split_wide", c_int32), ("local_statistics", c_int32)]


class ContextOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("device", Device), ("threads", c_int32), ("tf32", c_int32),
                ("graphs", c_int32)]


class RecordScale(ctypes.Structure):
    _fields_ = [("loss_scale", c_double), ("global_batch", c_int64)]


class StepArgs(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("lr", c_double), ("momentum", c_double), ("loss_nonfinite", c_int32),
                ("data_error", c_int32), ("stop", c_int32), ("own_seconds", c_double)]


class StepReport(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("step", c_int64), ("updated", c_int32), ("nonfinite_loss", c_int32),
        ("nonfinite_gradient", c_int32), ("nonfinite_statistic", c_int32), ("data_error", c_int32),
        ("numeric_failure", c_int32), ("stop", c_int32), ("statistics_refreshed", c_int32),
        ("inverses_refreshed", c_int32), ("layers_without_inverse", c_int32), ("inverses", c_int32 * INVERSE_STAGES),
        ("inverses_step", c_int64), ("failed_factors", c_int32), ("underflow", c_int64), ("update_step", c_int64),
        ("saturated", c_int64), ("kl_factor", c_double), ("damping", c_double), ("momentum", c_double),
        ("statistics_interval", c_int32), ("inverse_interval", c_int32), ("intervals_chosen", c_int32),
        ("overhead", c_double), ("fixed_overhead", c_double),
        ("flops", c_double), ("flops_skipped", c_double), ("bytes", c_uint64), ("bytes_skipped", c_uint64),
        ("scratch_growths", c_int64), ("seconds_statistics", c_double), ("seconds_exchange", c_double),
        ("seconds_inverse", c_double), ("seconds_update", c_double), ("launches_eager", c_int64),
        ("launches_captured", c_int64), ("launches_replayed", c_int64), ("launches_refused", c_int64)]


class CurvatureSettings(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("damping", c_double), ("relative_damping", c_double),
                ("statistics_interval", c_int32),
                ("inverse_interval", c_int32), ("micro_batches", c_int32), ("new_weight", c_double)]


StateTensor = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_int32, POINTER(Tensor))
StateInteger = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_int32, POINTER(c_int64))
StateReal = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_int32, POINTER(c_double))


class StateVisitor(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("user", c_void_p), ("tensor", StateTensor), ("integer", StateInteger),
                ("real", StateReal)]


class LayerGrad(ctypes.Structure):
    _fields_ = [("layer", c_int32), ("weight", Tensor), ("bias", Tensor)]


def fields(struct: type[ctypes.Structure]) -> dict[str, Any]:
    """{name: type of ctypes} but for the size of the struct, which comes first."""
    return {field[0]: field[1] for field in struct._fields_[1:]}


# C name -> mirror, for the test.
MIRRORS: dict[str, type[ctypes.Structure]] = {
    "dkfac_device": Device, "dkfac_tensor": Tensor, "dkfac_comm_options": CommOptions,
    "dkfac_comm_callbacks": CommCallbacks, "dkfac_layer_spec": LayerSpec,
    "dkfac_curvature_options": CurvatureOptions, "dkfac_context_options": ContextOptions,
    "dkfac_record_scale": RecordScale, "dkfac_step_args": StepArgs, "dkfac_step_report": StepReport,
    "dkfac_curvature_settings": CurvatureSettings, "dkfac_state_visitor": StateVisitor,
    "dkfac_layer_grad": LayerGrad}

#include "c/convert.h"

#include <limits>

#include "dkfac/c/dkfac.h"

namespace dkfac::c {
namespace {

constexpr int kDTypes = 5;

dkfac_layer_spec default_spec(std::int32_t kind) {
  dkfac_layer_spec spec{};
  spec.struct_size = sizeof spec;
  spec.kind = kind;
  spec.bias = 1;
  spec.layout = DKFAC_NCHW;
  for (int i = 0; i < 2; ++i) spec.kernel[i] = spec.stride[i] = spec.dilation[i] = 1;
  spec.groups = 1;
  spec.scale = 1;
  spec.sample_rows = 1;
  return spec;
}

dkfac_step_args default_args() {
  dkfac_step_args args{};
  args.struct_size = sizeof args;
  args.lr = args.momentum = std::numeric_limits<double>::quiet_NaN();
  return args;
}

LayerSpec conv2d_spec(const dkfac_layer_spec& s, Layout layout, const char* operation) {
  Conv2dSpec spec{.in = s.in, .out = s.out};
  spec.window = {.kernel_h = s.kernel[0],
                 .kernel_w = s.kernel[1],
                 .stride_h = s.stride[0],
                 .stride_w = s.stride[1],
                 .pad_h = s.padding[0],
                 .pad_w = s.padding[1],
                 .dilation_h = s.dilation[0],
                 .dilation_w = s.dilation[1]};
  spec.bias = flag_of(s.bias, operation, "bias");
  spec.layout = layout;
  spec.same = flag_of(s.same, operation, "same");
  spec.groups = s.groups;
  spec.max_rows = s.max_rows;
  spec.sample_rows = s.sample_rows;
  return spec;
}

}  // namespace

bool flag_of(std::int32_t value, const char* operation, const char* field) {
  DKFAC_CHECK(value == 0 || value == 1, "[", operation, "] ", field, " is ", value,
              "; a flag is 0 or 1");
  return value == 1;
}

DType dtype_of(std::int32_t value, const char* operation, const char* field) {
  return enum_of<DType>(value, kDTypes, operation, field);
}

std::optional<DType> wire_of(std::int32_t value, const char* operation, const char* field) {
  if (value == DKFAC_SAME_DTYPE) return std::nullopt;
  return dtype_of(value, operation, field);
}

Device device_of(const dkfac_device& device, const char* operation) {
  const auto kind = enum_of<Device::Kind>(device.kind, 2, operation, "the kind of the device");
  DKFAC_CHECK(device.index >= 0, "[", operation, "] the index of the device is ", device.index,
              "; it must be >= 0");
  return kind == Device::Kind::cpu ? Device::cpu() : Device::cuda(device.index);
}

TensorView view_of(const dkfac_tensor* tensor, const char* operation, const char* name) {
  if (tensor == nullptr || (tensor->data == nullptr && tensor->ndim == 0)) return {};
  DKFAC_CHECK(tensor->ndim >= 0 && tensor->ndim <= kMaxDims, "[", operation, "] ", name, " has ",
              tensor->ndim, " dimensions; pass a view of at most ", kMaxDims);
  DKFAC_CHECK(tensor->ndim == 0 || tensor->shape != nullptr, "[", operation, "] ", name,
              " has no shape");
  const auto ndim = static_cast<std::size_t>(tensor->ndim);
  const std::span<const std::int64_t> dims(tensor->shape, ndim);
  for (const std::int64_t n : dims)
    DKFAC_CHECK(n >= 0, "[", operation, "] ", name, " has an extent of ", n);
  const Shape shape(dims);
  DKFAC_CHECK(tensor->data != nullptr || shape.numel() == 0, "[", operation, "] ", name,
              " of shape ", shape, " has no data");
  Strides strides = contiguous_strides(shape);
  if (tensor->strides != nullptr) std::copy_n(tensor->strides, ndim, strides.begin());
  return {tensor->data, dtype_of(tensor->dtype, operation, "the dtype of a tensor"), shape, strides,
          device_of(tensor->device, operation)};
}

Stream stream_on(Device device, void* native) {
  if (!device.is_cuda()) return Stream::cpu();
  return Stream::cuda(static_cast<CUstream_st*>(native), device.index);
}

Stream stream_of(const dkfac_tensor& tensor, const char* operation) {
  return stream_on(device_of(tensor.device, operation), tensor.stream);
}

LayerSpec layer_spec(const dkfac_layer_spec* given, const char* operation) {
  const dkfac_layer_spec s = known_fields(&required(given, operation, "spec"), default_spec(0),
                                          operation, "dkfac_layer_spec");
  const auto layout = enum_of<Layout>(s.layout, 2, operation, "layout");
  switch (enum_of<dkfac_layer_kind>(s.kind, 5, operation, "the kind of the layer")) {
    case DKFAC_LINEAR:
      return LinearSpec{s.in, s.out, flag_of(s.bias, operation, "bias"), s.max_rows, s.sample_rows};
    case DKFAC_CONV2D:
      return conv2d_spec(s, layout, operation);
    case DKFAC_NORM: {
      const bool over_channels = flag_of(s.over_channels, operation, "over_channels");
      return NormSpec{.channels = s.channels,
                      .layout = over_channels ? Layout::nhwc : layout,
                      .scale = flag_of(s.scale, operation, "scale"),
                      .over = over_channels ? NormOver::channels : NormOver::batch};
    }
    case DKFAC_EMBEDDING:
      return EmbeddingSpec{s.vocabulary, s.width};
    case DKFAC_PLAIN:
      break;
  }
  PlainSpec plain{.weight = s.plain_weight, .bias = s.plain_bias};
  if (s.reason != nullptr) plain.reason = s.reason;
  return plain;
}

RecordScale record_scale(const dkfac_record_scale* scale) {
  if (scale == nullptr) return {};
  return {.loss_scale = scale->loss_scale, .global_batch = scale->global_batch};
}

StepArgs step_args(const dkfac_step_args* given, const char* operation) {
  const dkfac_step_args a = known_fields(given, default_args(), operation, "dkfac_step_args");
  StepArgs args{.lr = a.lr};
  if (a.momentum == a.momentum) args.momentum = a.momentum;  // Not NaN.
  args.flags.loss_nonfinite = flag_of(a.loss_nonfinite, operation, "loss_nonfinite");
  args.flags.data_error = flag_of(a.data_error, operation, "data_error");
  args.flags.stop = flag_of(a.stop, operation, "stop");
  return args;
}

double own_seconds(const dkfac_step_args* args, const char* operation) {
  return known_fields(args, default_args(), operation, "dkfac_step_args").own_seconds;
}

kfac::CurvatureSettings curvature_settings(const dkfac_curvature_settings* given,
                                           const char* operation) {
  dkfac_curvature_settings defaults{};
  const dkfac_curvature_settings s = known_fields(&required(given, operation, "settings"), defaults,
                                                  operation, "dkfac_curvature_settings");
  const auto given_or_unchanged = [](auto value) {
    return value == 0 ? std::nullopt : std::optional(value);
  };
  const auto interval = [](std::int32_t value) -> std::optional<int> {
    if (value == 0) return std::nullopt;
    return value == -1 ? 0 : value;
  };
  return {.damping = given_or_unchanged(s.damping),
          .relative_damping = given_or_unchanged(s.relative_damping),
          .statistics_interval = interval(s.statistics_interval),
          .inverse_interval = interval(s.inverse_interval),
          .micro_batches = given_or_unchanged(s.micro_batches),
          .new_weight = given_or_unchanged(s.new_weight)};
}

dkfac_step_report step_report(const kfac::StepReport& report) {
  dkfac_step_report r{};
  r.step = report.step;
  r.updated = report.updated;
  const StepAgreement& agreed = report.agreement;
  r.nonfinite_loss = agreed.nonfinite_loss;
  r.nonfinite_gradient = agreed.nonfinite_gradient;
  r.nonfinite_statistic = agreed.nonfinite_statistic;
  r.data_error = agreed.data_error;
  r.numeric_failure = agreed.numeric_failure;
  r.stop = agreed.stop;
  r.statistics_refreshed = report.statistics_refreshed;
  r.inverses_refreshed = report.inverses_refreshed;
  r.layers_without_inverse = static_cast<std::int32_t>(report.without_inverse.size());
  static_assert(DKFAC_INVERSE_STAGES == kfac::kInverseStages);
  std::copy(report.inverses.begin(), report.inverses.end(), r.inverses);
  r.inverses_step = report.inverses_step;
  r.failed_factors = report.failed_factors;
  r.underflow = report.underflow;
  r.update_step = report.update_step;
  r.saturated = report.saturated;
  r.kl_factor = report.kl_factor;
  r.damping = report.damping;
  r.momentum = report.momentum;
  r.statistics_interval = report.statistics_interval;
  r.inverse_interval = report.inverse_interval;
  r.intervals_chosen = report.intervals_chosen;
  r.overhead = report.overhead;
  r.fixed_overhead = report.fixed_overhead;
  r.flops = report.flops;
  r.flops_skipped = report.flops_skipped;
  r.bytes = report.bytes;
  r.bytes_skipped = report.bytes_skipped;
  r.scratch_growths = report.scratch_growths;
  r.seconds_statistics = report.seconds.statistics;
  r.seconds_exchange = report.seconds.exchange;
  r.seconds_inverse = report.seconds.inverse;
  r.seconds_update = report.seconds.update;
  r.launches_eager = report.preconditioning.eager;
  r.launches_captured = report.preconditioning.captured;
  r.launches_replayed = report.preconditioning.replayed;
  r.launches_refused = report.preconditioning.refused;
  return r;
}

}  // namespace dkfac::c

void dkfac_layer_spec_init(dkfac_layer_spec* spec, size_t struct_size, int32_t kind) {
  dkfac::c::write_fields(spec, struct_size, dkfac::c::default_spec(kind));
}
void dkfac_step_args_init(dkfac_step_args* args, size_t struct_size) {
  dkfac::c::write_fields(args, struct_size, dkfac::c::default_args());
}
void dkfac_curvature_settings_init(dkfac_curvature_settings* settings, size_t struct_size) {
  dkfac::c::write_fields(settings, struct_size, dkfac_curvature_settings{});
}

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "dkfac/c/types.h"
#include "dkfac/comm/secret.h"
#include "dkfac/core/context.h"
#include "dkfac/core/gradients.h"
#include "dkfac/core/layer_spec.h"
#include "dkfac/core/report.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/options.h"
#include "dkfac/kfac/report.h"
#include "dkfac/optim/optimizer.h"

#include "c/errors.h"

/// Conversions between the structs of the C interface and those of the library. They throw
/// InvalidArgument that names `operation` and the field.
namespace dkfac::c {

/// Throws unless the struct has fields, and none that this library does not know. has_init: there
/// is a function that sets struct_size.
template <class T>
void check_size(const T& given, const char* operation, const char* type, bool has_init) {
  DKFAC_CHECK(given.struct_size > sizeof(std::size_t), "[", operation, "] struct_size of ", type,
              " is ", given.struct_size, has_init ? "; call " : "; set it to sizeof(", type,
              has_init ? "_init() first" : ")");
  DKFAC_CHECK(given.struct_size <= sizeof(T), "[", operation, "] ", type, " has ",
              given.struct_size, " bytes and this library knows ", sizeof(T),
              "; it is older than the header of the program");
}

/// Returns the fields of *given that it has, and those of `defaults` beyond its struct_size.
template <class T>
[[nodiscard]] T known_fields(const T* given, const T& defaults, const char* operation,
                             const char* type, bool has_init = true) {
  if (given == nullptr) return defaults;
  check_size(*given, operation, type, has_init);
  T fields = defaults;
  std::memcpy(&fields, given, given->struct_size);
  return fields;
}

/// Writes the fields of `value` that *out has room for. struct_size stays that of the program, also
/// where it has fields that this library does not know: known_fields() refuses those.
template <class T>
void write_fields(T* out, std::size_t struct_size, T value) {
  if (out == nullptr || struct_size < sizeof(std::size_t)) return;
  value.struct_size = struct_size;
  std::memcpy(out, &value, std::min(struct_size, sizeof(T)));
}

/// Returns the enumerator numbered `value` of the `count` first ones.
template <class Enum>
[[nodiscard]] Enum enum_of(std::int32_t value, int count, const char* operation,
                           const char* field) {
  DKFAC_CHECK(value >= 0 && value < count, "[", operation, "] ", field, " is ", value,
              "; it must be 0 to ", count - 1);
  return static_cast<Enum>(value);
}
[[nodiscard]] bool flag_of(std::int32_t value, const char* operation, const char* field);
[[nodiscard]] DType dtype_of(std::int32_t value, const char* operation, const char* field);
/// DKFAC_SAME_DTYPE is nullopt.
[[nodiscard]] std::optional<DType> wire_of(std::int32_t value, const char* operation,
                                           const char* field);
[[nodiscard]] Device device_of(const dkfac_device& device, const char* operation);

/// Returns the view of a tensor of the caller; empty for null and for a tensor without data.
[[nodiscard]] TensorView view_of(const dkfac_tensor* tensor, const char* operation,
                                 const char* name);
/// Returns the stream of a tensor: the inline stream of the host, or its CUDA stream.
[[nodiscard]] Stream stream_of(const dkfac_tensor& tensor, const char* operation);
/// Returns the stream of `device` with the native handle.
[[nodiscard]] Stream stream_on(Device device, void* native);

[[nodiscard]] LayerSpec layer_spec(const dkfac_layer_spec* spec, const char* operation);
[[nodiscard]] RecordScale record_scale(const dkfac_record_scale* scale);
[[nodiscard]] StepArgs step_args(const dkfac_step_args* args, const char* operation);
[[nodiscard]] double own_seconds(const dkfac_step_args* args, const char* operation);
[[nodiscard]] kfac::CurvatureSettings curvature_settings(const dkfac_curvature_settings* settings,
                                                         const char* operation);
[[nodiscard]] dkfac_step_report step_report(const kfac::StepReport& report);

// options.cpp
[[nodiscard]] comm::Options comm_options(const dkfac_comm_options* options, const char* operation);
[[nodiscard]] comm::Secret comm_secret(const dkfac_comm_options* options, const char* operation);
[[nodiscard]] kfac::CurvatureOptions curvature_options(const dkfac_curvature_options* options,
                                                       const char* operation);
struct Execution {
  Device device;
  ContextOptions options;
};
[[nodiscard]] Execution execution(const dkfac_context_options* options, const char* operation);
[[nodiscard]] std::unique_ptr<optim::Optimizer> make_optimizer(
    std::shared_ptr<comm::Communicator> comm, const dkfac_optimizer_options* options,
    const dkfac_curvature_options* curvature, const Execution& execution, const char* operation);

}  // namespace dkfac::c

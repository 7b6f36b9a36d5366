#pragma once

#include <cstdint>
#include <cudnn_graph.h>
#include <span>
#include <string>
#include <vector>

#include "dkfac/core/error.h"

/// The backend ("graph") interface of cuDNN 9: descriptors with attributes that are finalised.
namespace dkfac::nn::cudnn {

/// A call of cuDNN that failed, with its reason.
struct Failure : DeviceError {
  Failure(cudnnStatus_t why, const std::string& message) : DeviceError(message), status(why) {}
  /// Whether cuDNN does not support this, permanently. Other statuses concern the device or the
  /// process: memory, libraries that are not found, earlier work that failed.
  [[nodiscard]] bool is_refusal() const;
  [[nodiscard]] bool wants_memory() const;  ///< Whether memory of the device is lacking.
  cudnnStatus_t status;
};

/// Throws Failure naming the call, the status and cuDNN's message.
void check(cudnnStatus_t status, const char* call);

/// The tag of an attribute's type, derived from the C++ type.
template <class T>
struct Tag;
template <cudnnBackendAttributeType_t value>
struct TagIs {
  static constexpr cudnnBackendAttributeType_t kType = value;
};
// clang-format off
template <> struct Tag<std::int64_t> : TagIs<CUDNN_TYPE_INT64> {};
template <> struct Tag<float> : TagIs<CUDNN_TYPE_FLOAT> {};
template <> struct Tag<bool> : TagIs<CUDNN_TYPE_BOOLEAN> {};
template <> struct Tag<char> : TagIs<CUDNN_TYPE_CHAR> {};
template <> struct Tag<void*> : TagIs<CUDNN_TYPE_VOID_PTR> {};
template <> struct Tag<cudnnHandle_t> : TagIs<CUDNN_TYPE_HANDLE> {};
template <> struct Tag<cudnnDataType_t> : TagIs<CUDNN_TYPE_DATA_TYPE> {};
template <> struct Tag<cudnnConvolutionMode_t> : TagIs<CUDNN_TYPE_CONVOLUTION_MODE> {};
template <> struct Tag<cudnnPointwiseMode_t> : TagIs<CUDNN_TYPE_POINTWISE_MODE> {};
template <> struct Tag<cudnnGenStatsMode_t> : TagIs<CUDNN_TYPE_GENSTATS_MODE> {};
template <> struct Tag<cudnnBackendHeurMode_t> : TagIs<CUDNN_TYPE_HEUR_MODE> {};
template <> struct Tag<cudnnBackendKnobType_t> : TagIs<CUDNN_TYPE_KNOB_TYPE> {};
template <> struct Tag<cudnnBackendNumericalNote_t> : TagIs<CUDNN_TYPE_NUMERICAL_NOTE> {};
template <> struct Tag<cudnnBackendBehaviorNote_t> : TagIs<CUDNN_TYPE_BEHAVIOR_NOTE> {};
// clang-format on

class Descriptor {
 public:
  Descriptor() = default;  ///< Makes an empty descriptor.
  explicit Descriptor(cudnnBackendDescriptorType_t type);
  ~Descriptor();
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  [[nodiscard]] cudnnBackendDescriptor_t raw() const { return raw_; }

  template <class T>
  Descriptor& set(cudnnBackendAttributeName_t name, const T& value) {
    return set_raw(name, Tag<T>::kType, 1, &value);
  }
  template <class T>
  Descriptor& set(cudnnBackendAttributeName_t name, std::span<const T> values) {
    return set_raw(name, Tag<T>::kType, values.size(), values.data());
  }
  Descriptor& link(cudnnBackendAttributeName_t name, const Descriptor& other) {
    return set_raw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other.raw_);
  }
  Descriptor& link(cudnnBackendAttributeName_t name, std::span<const Descriptor* const> others);
  Descriptor& finalize(const char* what);

  /// Returns at most `most` values. Throws Failure where they cannot be read.
  template <class T>
  [[nodiscard]] std::vector<T> get(cudnnBackendAttributeName_t name, std::size_t most) const {
    std::vector<T> values(most);
    values.resize(get_raw(name, Tag<T>::kType, most, values.data()));
    return values;
  }
  /// Returns a text of any length; empty where cuDNN provides none.
  [[nodiscard]] std::string text(cudnnBackendAttributeName_t name) const;
  /// Throws Failure when there is none.
  [[nodiscard]] std::int64_t number(cudnnBackendAttributeName_t name) const;
  /// Returns the descriptors of an attribute, each of this type: all, or at most `most` where cuDNN
  /// does not report their number first.
  [[nodiscard]] std::vector<Descriptor> linked(cudnnBackendAttributeName_t name,
                                               cudnnBackendDescriptorType_t type,
                                               std::size_t most = 0) const;

 private:
  Descriptor& set_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                      std::size_t count, const void* values);
  std::size_t get_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                      std::size_t most, void* values) const;
  cudnnBackendDescriptor_t raw_ = nullptr;
};

}  // namespace dkfac::nn::cudnn

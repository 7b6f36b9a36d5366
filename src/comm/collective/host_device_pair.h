#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"

namespace dkfac::comm {

/// A few numbers that the host and the device tell each other. On the host both are one tensor; on
/// a device the host has them in pinned memory, and nothing here waits: what fetch() copies is
/// there, and what push() copies may be overwritten, once an event has happened that was recorded
/// afterwards on the context's stream.
class HostDevicePair {
 public:
  HostDevicePair() = default;
  HostDevicePair(Context& ctx, Shape shape, DType dtype);  ///< Zero on both sides.

  [[nodiscard]] TensorView device() { return device_.is_set() ? device_ : host_; }
  [[nodiscard]] TensorView host() { return host_; }
  template <class T>
  [[nodiscard]] T* numbers() {
    return host_.data<T>();
  }
  template <class T>
  [[nodiscard]] const T* numbers() const {
    return host_.data<T>();
  }
  void fetch(Context& ctx);  ///< Device to host.
  void push(Context& ctx);   ///< Host to device.

 private:
  Tensor host_, device_;
};

}  // namespace dkfac::comm

#pragma once

#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"

namespace dkfac::comm {

/// Small tensor on the device with a copy in pinned host memory; a single tensor on the host.
/// Copies are asynchronous on the context's stream: the result of fetch() is valid, and the source
/// of push() may be overwritten, once an event recorded afterwards on that stream is complete.
class HostDevicePair {
 public:
  HostDevicePair() = default;
  HostDevicePair(Context& ctx, Shape shape, DType dtype);  ///< Both copies are zero.

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
  void fetch(Context& ctx);  ///< Copies from device to host.
  void push(Context& ctx);   ///< Copies from host to device.

 private:
  Tensor host_, device_;
};

}  // namespace dkfac::comm

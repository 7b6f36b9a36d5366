#pragma once

#include <cstddef>
#include <memory>

#include "dkfac/core/export.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac {

class Context;

/// Owning, move-only, row-major tensor, 64-byte aligned on the host. Copies are explicit. A tensor
/// in use by a device may be destroyed at any time: its memory is reused only after all work
/// enqueued before on streams of contexts and on OwnedStreams has run. Synchronize any other stream
/// that uses it first.
class DKFAC_API Tensor {
 public:
  Tensor() = default;
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  Tensor(Tensor&& other) noexcept;  ///< `other` becomes an empty tensor.
  Tensor& operator=(Tensor&& other) noexcept;
  ~Tensor() = default;

  /// Uninitialised. Throws InvalidArgument when the size overflows.
  [[nodiscard]] static Tensor empty(Context& ctx, Shape shape, DType dtype = DType::f32);
  /// As empty(), but on a device rows (the last dimension) begin at multiples of 16 bytes, as
  /// products on tensor cores need: view() may have gaps between rows. On the host there are none.
  [[nodiscard]] static Tensor empty_aligned(Context& ctx, Shape shape, DType dtype = DType::f32);
  [[nodiscard]] static Tensor zeros(Context& ctx, Shape shape, DType dtype = DType::f32);
  /// Uninitialised pinned host memory, which the device of ctx copies from and to without blocking
  /// the host. Ordinary memory for a host context.
  [[nodiscard]] static Tensor pinned(Context& ctx, Shape shape, DType dtype = DType::f32);
  [[nodiscard]] static Tensor copy_of(Context& ctx, ConstTensorView from);

  [[nodiscard]] TensorView view() { return view_; }
  [[nodiscard]] ConstTensorView view() const { return view_; }
  operator TensorView() { return view_; }             // NOLINT(google-explicit-constructor)
  operator ConstTensorView() const { return view_; }  // NOLINT(google-explicit-constructor)
  [[nodiscard]] const Shape& shape() const { return view_.shape(); }
  [[nodiscard]] DType dtype() const { return view_.dtype(); }
  [[nodiscard]] std::int64_t numel() const { return view_.numel(); }
  [[nodiscard]] std::size_t bytes() const { return view_.bytes(); }
  [[nodiscard]] bool is_set() const { return storage_ != nullptr; }
  template <class T>
  [[nodiscard]] T* data() {
    return view_.data<T>();
  }
  template <class T>
  [[nodiscard]] const T* data() const {
    return ConstTensorView(view_).data<T>();
  }

 private:
  static Tensor make(Context& ctx, Shape shape, DType dtype, bool pinned);
  struct Free {
    Device device;
    bool pinned;  ///< Host memory pinned for `device`.
    void operator()(std::byte* bytes) const noexcept;
  };
  std::unique_ptr<std::byte, Free> storage_;
  TensorView view_;
};

}  // namespace dkfac

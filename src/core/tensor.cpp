#include "dkfac/core/tensor.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"

#include "core/allocation.h"
#include "core/cpu/large_pages.h"
#include "core/cuda/runtime.h"
#include "core/shared/aligned_rows.h"

namespace dkfac {

void Tensor::Free::operator()(std::byte* bytes) const noexcept {
  if (pinned) {
    cuda::release_pinned(device, bytes);
  } else if (device.is_cuda()) {
    cuda::release(device, bytes);
  } else {
    std::free(bytes);
  }
}

Tensor::Tensor(Tensor&& other) noexcept
    : storage_(std::move(other.storage_)), view_(std::exchange(other.view_, {})) {}

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  storage_ = std::move(other.storage_);
  view_ = std::exchange(other.view_, {});
  return *this;
}

namespace {

/// Returns null when the host is out of memory.
std::byte* allocate_host(std::size_t bytes) {
  if (bytes < cpu::kLargeTensor)
    return static_cast<std::byte*>(std::aligned_alloc(detail::kAlignment, bytes));
  const std::size_t pages = (bytes + cpu::kLargePage - 1) / cpu::kLargePage;
  void* data = std::aligned_alloc(cpu::kLargePage, pages * cpu::kLargePage);
  if (data != nullptr) cpu::prefer_large_pages(data, bytes);
  return static_cast<std::byte*>(data);
}

[[noreturn]] void no_memory(Device device, const Shape& shape, DType dtype, std::size_t bytes,
                            bool pinned) {
  const std::string wanted = detail::concat(bytes, " bytes of ", shape, " ", dtype);
  if (device.is_cuda() && !pinned) {
    throw DeviceError(detail::concat("[tensor] ", device, " is out of memory for ", wanted, " (",
                                     cuda::describe_memory(device),
                                     "); use a smaller batch or model, leave wide layers without "
                                     "curvature, or end what else runs "
                                     "there"));
  }
  throw Error(
      detail::concat("[tensor] out of memory for ", wanted, pinned ? ", pinned" : "",
                     "; use a smaller batch or model, or leave wide layers without curvature"));
}

}  // namespace

Tensor Tensor::make(Context& ctx, Shape shape, DType dtype, bool pinned) {
  const Device device = ctx.device();
  pinned = pinned && device.is_cuda();
  // A tensor of no elements has storage too, which distinguishes it from "no tensor".
  const std::size_t bytes =
      std::max(detail::align_up(detail::checked_bytes("tensor", shape, dtype)), detail::kAlignment);
  std::byte* data = pinned             ? cuda::allocate_pinned(device, bytes)
                    : device.is_cuda() ? cuda::allocate(device, ctx.stream().native(), bytes)
                                       : allocate_host(bytes);
  if (data == nullptr) no_memory(device, shape, dtype, bytes, pinned);
  Tensor out;
  out.storage_ = std::unique_ptr<std::byte, Free>(data, Free{device, pinned});
  out.view_ = TensorView(data, dtype, shape, pinned ? Device::cpu() : device);
  return out;
}

Tensor Tensor::empty(Context& ctx, Shape shape, DType dtype) {
  return make(ctx, shape, dtype, false);
}

Tensor Tensor::empty_aligned(Context& ctx, Shape shape, DType dtype) {
  Tensor out = make(ctx, with_aligned_rows(shape, dtype, ctx.device()), dtype, false);
  if (shape.ndim() > 0) out.view_ = out.view_.slice(shape.ndim() - 1, 0, shape[shape.ndim() - 1]);
  return out;
}

Tensor Tensor::pinned(Context& ctx, Shape shape, DType dtype) {
  return make(ctx, shape, dtype, true);
}

Tensor Tensor::zeros(Context& ctx, Shape shape, DType dtype) {
  Tensor out = empty(ctx, shape, dtype);
  ops::fill(ctx, out, 0.0);
  return out;
}

Tensor Tensor::copy_of(Context& ctx, ConstTensorView from) {
  Tensor out = empty(ctx, from.shape(), from.dtype());
  ops::copy(ctx, from, out);
  return out;
}

}  // namespace dkfac

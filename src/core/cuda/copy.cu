#include <limits>
#include <vector>

#include <cuda_runtime_api.h>

#include "dkfac/core/tensor.h"

#include "core/backend.h"
#include "core/cuda/copy_functors.h"
#include "core/cuda/elementwise_functors.h"
#include "core/cuda/map.cuh"
#include "core/shared/cuda/device_guard.h"
#include "core/shared/cuda/handles.h"
#include "core/shared/element.h"

namespace dkfac::cuda {
namespace {

using detail::RowPlan;
using element::Type;

constexpr std::size_t kRows = kMaxDims - 2, kColumns = kMaxDims - 1;

/// Whether rows have no gaps inside and a pitch that the runtime's 2D copies accept.
bool is_pitched(const RowPlan<2>& plan, std::size_t element_size) {
  for (std::size_t dim = 0; dim < kRows; ++dim)
    if (plan.extent[dim] != 1) return false;
  if (!plan.unit()) return false;
  if (plan.extent[kRows] == 1) return true;
  const std::int64_t limit =
      std::numeric_limits<std::int32_t>::max() / static_cast<std::int64_t>(element_size);
  for (const Strides& stride : plan.stride)
    if (stride[kRows] < plan.extent[kColumns] || stride[kRows] > limit) return false;
  return true;
}

void copy_pitched(Context& ctx, ConstTensorView src, TensorView dst, const RowPlan<2>& plan,
                  cudaMemcpyKind kind) {
  const std::size_t size = size_of(src.dtype());
  const auto bytes = [&](std::int64_t elements) {
    return static_cast<std::size_t>(elements) * size;
  };
  const std::size_t width = bytes(plan.extent[kColumns]);
  const DeviceGuard guard(ctx.device());
  if (plan.extent[kRows] == 1) {
    check_runtime(cudaMemcpyAsync(dst.raw(), src.raw(), width, kind, ctx.stream().native()),
                  "cudaMemcpyAsync");
    return;
  }
  check_runtime(
      cudaMemcpy2DAsync(dst.raw(), bytes(plan.stride[1][kRows]), src.raw(),
                        bytes(plan.stride[0][kRows]), width,
                        static_cast<std::size_t>(plan.extent[kRows]), kind, ctx.stream().native()),
      "cudaMemcpy2DAsync");
}

/// Copies a matrix whose rows are contiguous on one side and columns on the other; false otherwise.
template <class T>
bool try_transposition(Context& ctx, ConstTensorView src, TensorView dst, const RowPlan<2>& plan) {
  const auto [s, d] = plan.stride;
  std::int64_t rows = plan.extent[kRows], cols = plan.extent[kColumns];
  for (std::size_t dim = 0; dim < kRows; ++dim)
    if (plan.extent[dim] != 1) return false;
  LoadAt<T> load{src.data<T>(), s[kRows], s[kColumns]};
  StoreAt<T> store{dst.data<T>(), d[kRows], d[kColumns]};
  if (s[kRows] == 1 && d[kColumns] == 1) {
    std::swap(rows, cols);
    std::swap(load.row_stride, load.col_stride);
    std::swap(store.row_stride, store.col_stride);
  } else if (s[kColumns] != 1 || d[kRows] != 1) {
    return false;
  }
  for_each_transposed<T>(ctx.stream(), rows, cols, load, store);
  return true;
}

void copy_on_device(Context& ctx, ConstTensorView src, TensorView dst) {
  const auto plan = detail::plan_rows(src, dst);
  if (plan.unit() && plan.extent[kColumns] == plan.total)
    return copy_pitched(ctx, src, dst, plan, cudaMemcpyDeviceToDevice);
  element::visit_any(src.dtype(), [&]<class T>(Type<T>) {
    if (!plan.unit() && try_transposition<T>(ctx, src, dst, plan)) return;
    map<T, T>(ctx, src, dst, Same<T>{});
  });
}

/// Pageable memory of at most this size is copied to pinned memory, so that the host need not wait.
constexpr std::size_t kStagedBytes = std::size_t{64} << 10;

/// Whether host memory is pageable. The runtime does not promise that it has read or written it
/// when a copy returns (api-sync-behavior.html: "might be synchronous"), so the host has to wait.
bool is_pageable(Context& ctx, ConstTensorView x) {
  const DeviceGuard guard(ctx.device());
  cudaPointerAttributes attributes{};
  check_runtime(cudaPointerGetAttributes(&attributes, x.raw()), "cudaPointerGetAttributes");
  return attributes.type == cudaMemoryTypeUnregistered;
}

/// Contiguous pageable copy of a view on the host.
struct Staged {
  std::vector<std::byte> bytes;
  TensorView view;
  explicit Staged(ConstTensorView like)
      : bytes(like.bytes()), view(bytes.data(), like.dtype(), like.shape()) {}
};

void upload(Context& ctx, ConstTensorView src, TensorView dst) {
  const auto plan = detail::plan_rows(src, dst);
  const bool pitched = is_pitched(plan, size_of(src.dtype())), pageable = is_pageable(ctx, src);
  if ((pageable && src.bytes() <= kStagedBytes) || (!pitched && !src.is_contiguous())) {
    Tensor staged = Tensor::pinned(ctx, src.shape(), src.dtype());  // Freed after it is read.
    cpu::copy(ctx, src, staged);
    return upload(ctx, staged, dst);
  }
  if (pitched) {
    copy_pitched(ctx, src, dst, plan, cudaMemcpyHostToDevice);
    if (pageable) ctx.stream().synchronize();
    return;
  }
  Scratch scratch(ctx);
  const TensorView plain = scratch.take(dst.shape(), dst.dtype());
  upload(ctx, src, plain);
  copy_on_device(ctx, plain, dst);
}

void download(Context& ctx, ConstTensorView src, TensorView dst) {
  const auto plan = detail::plan_rows(src, dst);
  if (is_pitched(plan, size_of(src.dtype()))) {
    copy_pitched(ctx, src, dst, plan, cudaMemcpyDeviceToHost);
    if (is_pageable(ctx, dst)) ctx.stream().synchronize();
    return;
  }
  if (!src.is_contiguous()) {
    Scratch scratch(ctx);
    const TensorView plain = scratch.take(src.shape(), src.dtype());
    copy_on_device(ctx, src, plain);
    return download(ctx, plain, dst);
  }
  Staged staged(dst);  // Pageable, so it has been written when the call below returns.
  download(ctx, src, staged.view);
  cpu::copy(ctx, staged.view, dst);
}

}  // namespace

void copy(Context& ctx, ConstTensorView src, TensorView dst) {
  if (!src.device().is_cuda()) return upload(ctx, src, dst);
  if (!dst.device().is_cuda()) return download(ctx, src, dst);
  copy_on_device(ctx, src, dst);
}

}  // namespace dkfac::cuda

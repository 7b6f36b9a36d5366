#include "nn/backends/workspace.h"

#include <atomic>

#include "dkfac/core/error.h"

namespace dkfac::nn {
namespace {

std::atomic<std::int64_t> losses{0};

/// Releases the old memory first, so that both need not fit at once.
void exchange_for(Context& ctx, Tensor& tensor, const Shape& shape, DType dtype) {
  tensor = Tensor();
  try {
    tensor = Tensor::empty(ctx, shape, dtype);
  } catch (...) {
    ++losses;
    throw;
  }
}

}  // namespace

std::int64_t memory_losses() { return losses.load(); }

TensorView view_in(Context& ctx, Tensor& tensor, const Shape& shape, DType dtype) {
  const bool fits = tensor.is_set() && tensor.dtype() == dtype && tensor.numel() >= shape.numel();
  if (!fits) exchange_for(ctx, tensor, shape, dtype);
  return TensorView(tensor.view().raw(), dtype, shape, tensor.view().device());
}

TensorView Workspace::take(Context& ctx, const Shape& shape, DType dtype) {
  const std::size_t bytes = static_cast<std::size_t>(shape.numel()) * size_of(dtype);
  Block* fits = nullptr;
  Block* largest = nullptr;
  for (Block& block : blocks_) {
    if (block.taken) continue;
    const std::size_t size = block.memory.bytes();
    if (size >= bytes && (fits == nullptr || size < fits->memory.bytes())) fits = &block;
    if (largest == nullptr || size > largest->memory.bytes()) largest = &block;
  }
  if (fits == nullptr) {
    fits = largest != nullptr ? largest : &blocks_.emplace_back();
    const std::size_t unit = size_of(DType::f64), units = (bytes + unit - 1) / unit;
    exchange_for(ctx, fits->memory, Shape{static_cast<std::int64_t>(units == 0 ? 1 : units)},
                 DType::f64);
  }
  fits->taken = true;
  return TensorView(fits->memory.view().raw(), dtype, shape, fits->memory.view().device());
}

Workspace::Block* Workspace::find(ConstTensorView view) {
  for (Block& block : blocks_) {
    if (block.memory.is_set() && block.memory.view().raw() == view.raw()) return &block;
  }
  return nullptr;
}

TensorView Workspace::writable(ConstTensorView view) {
  Block* block = find(view);
  if (block == nullptr) return {};
  return TensorView(block->memory.view().raw(), view.dtype(), view.shape(), view.device());
}

void Workspace::release(ConstTensorView view) {
  Block* block = find(view);
  if (block == nullptr) return;
  DKFAC_CHECK(block->taken, "[workspace] a block of ", block->memory.bytes(),
              " bytes is released that is free; release each view once");
  block->taken = false;
}

void Workspace::release_all() {
  for (Block& block : blocks_) block.taken = false;
}

std::size_t Workspace::bytes() const {
  std::size_t total = 0;
  for (const Block& block : blocks_) total += block.memory.bytes();
  return total;
}

}  // namespace dkfac::nn

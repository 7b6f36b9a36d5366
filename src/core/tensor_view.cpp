#include "dkfac/core/tensor_view.h"

#include <utility>

namespace dkfac {
namespace {

std::ptrdiff_t byte_offset(DType dtype, std::int64_t elements) {
  return static_cast<std::ptrdiff_t>(elements) * static_cast<std::ptrdiff_t>(size_of(dtype));
}

template <class Void>
Void* advance(Void* data, std::ptrdiff_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
  // Some sanitizers reject arithmetic on a null pointer, even with offset 0.
  return data == nullptr ? nullptr : static_cast<Byte*>(data) + bytes;
}

}  // namespace

Strides contiguous_strides(const Shape& shape) noexcept {
  Strides strides{};
  std::uint64_t stride = 1;  // Unsigned: a tensor without elements may have extents that overflow.
  for (int i = shape.ndim() - 1; i >= 0; --i) {
    strides[static_cast<std::size_t>(i)] = static_cast<std::int64_t>(stride);
    stride *= static_cast<std::uint64_t>(shape[i]);
  }
  return strides;
}

template <class Void>
bool BasicTensorView<Void>::is_contiguous() const {
  if (shape_.numel() == 0) return true;
  std::int64_t expected = 1;
  for (int i = ndim() - 1; i >= 0; --i) {
    if (dim(i) != 1 && stride(i) != expected) return false;
    expected *= dim(i);
  }
  return true;
}

template <class Void>
BasicTensorView<Void> BasicTensorView<Void>::reshape(Shape shape) const {
  DKFAC_CHECK(shape.numel() == shape_.numel(), "[reshape] ", shape_, " has ", shape_.numel(),
              " elements, ", shape, " has ", shape.numel());
  if (is_contiguous()) return BasicTensorView(data_, dtype_, shape, device_);
  Strides strides{};
  int from = 0;
  for (int to = 0; to < shape.ndim(); ++to) {
    if (shape[to] == 1) continue;
    while (from < ndim() && dim(from) == 1) ++from;
    DKFAC_CHECK(from < ndim() && dim(from) == shape[to], "[reshape] a view of shape ", shape_,
                " with gaps between its elements cannot become ", shape, "; copy it first");
    strides[static_cast<std::size_t>(to)] = stride(from++);
  }
  return BasicTensorView(data_, dtype_, shape, strides, device_);
}

template <class Void>
BasicTensorView<Void> BasicTensorView<Void>::slice(int dim, std::int64_t first,
                                                   std::int64_t count) const {
  DKFAC_CHECK(dim >= 0 && dim < ndim(), "[slice] dimension ", dim, " of a tensor ", shape_);
  const std::int64_t extent = shape_[dim];
  DKFAC_CHECK(first >= 0 && count >= 0 && first <= extent && count <= extent - first, "[slice] ",
              count, " indices from ", first, " of dimension ", dim, ", which has ", extent);
  std::array<std::int64_t, kMaxDims> dims{};
  for (int i = 0; i < ndim(); ++i) dims[static_cast<std::size_t>(i)] = i == dim ? count : shape_[i];
  const Shape part(std::span<const std::int64_t>(dims.data(), static_cast<std::size_t>(ndim())));
  return BasicTensorView(advance(data_, byte_offset(dtype_, first * stride(dim))), dtype_, part,
                         strides_, device_);
}

template <class Void>
BasicTensorView<Void> BasicTensorView<Void>::transposed() const {
  DKFAC_CHECK(ndim() == 2, "[transposed] a matrix is needed, not a tensor ", shape_);
  Strides strides = strides_;
  std::swap(strides[0], strides[1]);
  return BasicTensorView(data_, dtype_, Shape{shape_[1], shape_[0]}, strides, device_);
}

template class BasicTensorView<void>;
template class BasicTensorView<const void>;

}  // namespace dkfac

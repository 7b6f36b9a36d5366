#pragma once

#include <array>
#include <ranges>
#include <type_traits>

#include "dkfac/core/device.h"
#include "dkfac/core/error.h"
#include "dkfac/core/export.h"
#include "dkfac/core/half.h"
#include "dkfac/core/types.h"

namespace dkfac {

/// Of the types below alone: a view has no other elements.
template <class T>
struct DTypeOf {
  static_assert(sizeof(T) == 0,
                "dkfac has tensors of double, float, dkfac::bf16, dkfac::f16 and std::int32_t");
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<f16> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
/// DType of a C++ element type.
template <class T>
inline constexpr DType dtype_of = DTypeOf<std::remove_const_t<T>>::value;

using Strides = std::array<std::int64_t, kMaxDims>;  ///< In elements, as in DLPack.

/// Strides of a row-major tensor without gaps.
[[nodiscard]] DKFAC_API Strides contiguous_strides(const Shape& shape) noexcept;

/// Non-owning view of a tensor: pointer, dtype, shape, element strides, device. A plain value.
/// `Void` is `void` for a mutable view and `const void` for a read-only one.
template <class Void>
class DKFAC_API BasicTensorView {
  static_assert(std::is_void_v<Void>);
  template <class T>
  using Like = std::conditional_t<std::is_const_v<Void>, const T, T>;

 public:
  BasicTensorView() = default;
  /// View of row-major memory without gaps.
  BasicTensorView(Void* data, DType dtype, Shape shape, Device device = Device::cpu())
      : BasicTensorView(data, dtype, shape, contiguous_strides(shape), device) {}
  BasicTensorView(Void* data, DType dtype, Shape shape, Strides strides, Device device)
      : data_(data), shape_(shape), strides_(strides), device_(device), dtype_(dtype) {}
  /// A mutable view converts to a const one, never the other way.
  template <class Other>
  requires(std::is_const_v<Void> && !std::is_const_v<Other>)
      BasicTensorView(const BasicTensorView<Other>& o)  // NOLINT(google-explicit-constructor)
      : BasicTensorView(o.raw(), o.dtype(), o.shape(), o.strides(), o.device()) {}

  [[nodiscard]] Void* raw() const { return data_; }
  /// Typed pointer. Throws InvalidArgument when T is not the dtype of the view.
  template <class T>
  [[nodiscard]] Like<T>* data() const {
    DKFAC_CHECK(dtype_ == dtype_of<T>, "[tensor] asked for ", dtype_of<T>, " data of a ", dtype_,
                " tensor ", shape_);
    return static_cast<Like<T>*>(data_);
  }
  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] std::int64_t dim(int i) const { return shape_[i]; }
  [[nodiscard]] int ndim() const { return shape_.ndim(); }
  [[nodiscard]] std::int64_t numel() const { return empty() ? 0 : shape_.numel(); }
  [[nodiscard]] const Strides& strides() const { return strides_; }
  [[nodiscard]] std::int64_t stride(int i) const { return strides_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] Device device() const { return device_; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] std::size_t bytes() const {
    return static_cast<std::size_t>(numel()) * size_of(dtype_);
  }
  /// Whether the view is row-major without gaps. Dimensions of extent 1 may have any stride.
  [[nodiscard]] bool is_contiguous() const;
  /// True for a default-constructed view: "no tensor here". A tensor of 0 elements is not empty().
  [[nodiscard]] bool empty() const { return data_ == nullptr && shape_.ndim() == 0; }

  /// View of the same elements with another shape. Where the view has gaps, only dimensions of
  /// extent 1 may appear or disappear.
  [[nodiscard]] BasicTensorView reshape(Shape shape) const;
  [[nodiscard]] BasicTensorView flat() const { return reshape(Shape{numel()}); }
  /// View of `count` indices of dimension `dim`, from `first`.
  [[nodiscard]] BasicTensorView slice(int dim, std::int64_t first, std::int64_t count) const;
  [[nodiscard]] BasicTensorView transposed() const;  ///< Transpose of a matrix; moves no data.

 private:
  Void* data_ = nullptr;
  Shape shape_;
  Strides strides_{};
  Device device_;
  DType dtype_ = DType::f32;
};

using TensorView = BasicTensorView<void>;
using ConstTensorView = BasicTensorView<const void>;

extern template class BasicTensorView<void>;
extern template class BasicTensorView<const void>;

/// View of a plain array in host memory: view_of(ptr, {n, m}).
template <class T>
[[nodiscard]] auto view_of(T* data, Shape shape) {
  using Void = std::conditional_t<std::is_const_v<T>, const void, void>;
  return BasicTensorView<Void>(data, dtype_of<T>, shape);
}

namespace detail {
/// A vector, an array or a span, but no temporary that owns its elements. Eigen's vectors are
/// ranges, too, whose views dkfac/eigen.h makes.
template <class Range>
concept Elements = std::ranges::contiguous_range<Range> && std::ranges::sized_range<Range> &&
    (std::is_lvalue_reference_v<Range> || std::ranges::borrowed_range<Range>)&&!requires {
  std::remove_cvref_t<Range>::IsVectorAtCompileTime;
};
}  // namespace detail

/// View of all elements of a vector, a span, or another range that is contiguous, in host memory:
/// view_of(vector, {n, m}). Throws InvalidArgument unless the shape has as many elements.
template <class Range>
requires(detail::Elements<Range> && !std::is_array_v<std::remove_reference_t<Range>>)
    [[nodiscard]] auto view_of(Range&& range, Shape shape) {
  const auto size = static_cast<std::int64_t>(std::ranges::size(range));
  DKFAC_CHECK(shape.numel() == size, "[view_of] the shape ", shape, " has ", shape.numel(),
              " elements, and the range has ", size);
  return view_of(std::ranges::data(range), shape);
}
/// View of the same in one dimension.
template <detail::Elements Range>
[[nodiscard]] auto view_of(Range&& range) {
  return view_of(std::ranges::data(range), {std::ranges::size(range)});
}

}  // namespace dkfac

#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <span>
#include <string_view>

#include "dkfac/core/export.h"

namespace dkfac {

/// Element types: f64 and f32 for computation, bf16 and f16 for operands and wire formats, i32 for
/// indices and status.
enum class DType : std::uint8_t { f64, f32, bf16, f16, i32 };

[[nodiscard]] DKFAC_API std::size_t size_of(DType dtype) noexcept;       ///< Bytes of one element.
[[nodiscard]] DKFAC_API std::string_view name_of(DType dtype) noexcept;  ///< "f64", "f32", ...
DKFAC_API std::ostream& operator<<(std::ostream& out, DType dtype);

inline constexpr int kMaxDims = 4;

/// One extent, from an integer of any type: std::size_t is not a narrowing.
struct DKFAC_API Extent {
  template <std::integral Integer>
  constexpr Extent(Integer n)  // NOLINT(google-explicit-constructor)
      : value(static_cast<std::int64_t>(n)) {}
  std::int64_t value;
};

/// Shape of a dense tensor: 0 to kMaxDims extents >= 0, outermost first.
class DKFAC_API Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<Extent> dims);
  explicit Shape(std::span<const std::int64_t> dims);
  explicit Shape(std::span<const std::size_t> dims);
  [[nodiscard]] int ndim() const noexcept { return ndim_; }
  [[nodiscard]] std::int64_t operator[](int i) const noexcept {
    return dims_[static_cast<std::size_t>(i)];
  }
  /// Product of the extents, 1 if there are none; saturates.
  [[nodiscard]] std::int64_t numel() const noexcept;
  bool operator==(const Shape&) const = default;

 private:
  void append(std::int64_t extent);

  std::array<std::int64_t, kMaxDims> dims_{};
  int ndim_ = 0;
};

DKFAC_API std::ostream& operator<<(std::ostream& out, const Shape& shape);  ///< "[2, 3]"

}  // namespace dkfac

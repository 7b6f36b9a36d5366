#include "dkfac/core/types.h"

#include <limits>

#include "dkfac/core/error.h"

namespace dkfac {

namespace {

struct TypeInfo {
  std::string_view name;
  std::size_t size;
};
/// In the order of DType.
constexpr std::array<TypeInfo, 5> kTypes{
    {{"f64", 8}, {"f32", 4}, {"bf16", 2}, {"f16", 2}, {"i32", 4}}};

TypeInfo info_of(DType dtype) noexcept {
  const auto place = static_cast<std::size_t>(dtype);
  return place < kTypes.size() ? kTypes[place] : TypeInfo{"?", 0};
}

}  // namespace

std::size_t size_of(DType dtype) noexcept { return info_of(dtype).size; }
std::string_view name_of(DType dtype) noexcept { return info_of(dtype).name; }

std::ostream& operator<<(std::ostream& out, DType dtype) { return out << name_of(dtype); }

Shape::Shape(std::initializer_list<Extent> dims) {
  for (const Extent extent : dims) append(extent.value);
}

Shape::Shape(std::span<const std::int64_t> dims) {
  for (const std::int64_t extent : dims) append(extent);
}

Shape::Shape(std::span<const std::size_t> dims) {
  for (const std::size_t extent : dims) append(static_cast<std::int64_t>(extent));
}

void Shape::append(std::int64_t extent) {
  DKFAC_CHECK(ndim_ < kMaxDims, "[shape] more than ", kMaxDims, " dimensions; at most ", kMaxDims,
              " are possible");
  DKFAC_CHECK(extent >= 0, "[shape] extent ", extent, " of dimension ", ndim_,
              " is negative; it must be >= 0");
  dims_[static_cast<std::size_t>(ndim_++)] = extent;
}

std::int64_t Shape::numel() const noexcept {
  std::int64_t product = 1;
  bool overflow = false;
  for (int i = 0; i < ndim_; ++i) {
    if ((*this)[i] == 0) return 0;
    overflow = __builtin_mul_overflow(product, (*this)[i], &product) || overflow;
  }
  return overflow ? std::numeric_limits<std::int64_t>::max() : product;
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  out << '[';
  for (int i = 0; i < shape.ndim(); ++i) out << (i == 0 ? "" : ", ") << shape[i];
  return out << ']';
}

}  // namespace dkfac

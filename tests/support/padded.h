#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "dkfac/core/tensor_view.h"

#include "support/reference.h"

namespace dkfac::testing {

/// A matrix of f64 or f32 in host memory with padded rows, filled with `poison`. Reads outside of
/// the matrix show in results, writes outside of it in untouched().
class Padded {
 public:
  static constexpr double kPoison = -9.90625;  // exact in every dtype
  static constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

  Padded(DType dtype, std::int64_t rows, std::int64_t cols, double poison = kNan)
      : dtype_(dtype), rows_(rows), cols_(cols), stride_(cols + 5), poison_(poison) {
    const auto size = static_cast<std::size_t>(rows * stride_ + 1);
    f64_.assign(dtype == DType::f64 ? size : 0, poison);
    f32_.assign(dtype == DType::f32 ? size : 0, static_cast<float>(poison));
  }
  /// Holds `values`, rounded to the dtype.
  Padded(DType dtype, const Dense& values, double poison = kNan)
      : Padded(dtype, values.rows, values.cols, poison) {
    for (std::int64_t i = 0; i < rows_; ++i) {
      for (std::int64_t j = 0; j < cols_; ++j) set(i, j, values(i, j));
    }
  }
  /// Holds the lower triangle of `values`; the strict upper one stays poison.
  static Padded lower(DType dtype, const Dense& values, double poison = kNan) {
    Padded out(dtype, values.rows, values.cols, poison);
    for (std::int64_t i = 0; i < out.rows_; ++i) {
      for (std::int64_t j = 0; j <= i; ++j) out.set(i, j, values(i, j));
    }
    return out;
  }

  [[nodiscard]] TensorView view() {
    void* data = dtype_ == DType::f64 ? static_cast<void*>(f64_.data()) : f32_.data();
    return {data, dtype_, Shape{rows_, cols_}, Strides{stride_, 1}, Device::cpu()};
  }
  [[nodiscard]] double get(std::int64_t i, std::int64_t j) const {
    return dtype_ == DType::f64 ? f64_[at(i, j)] : static_cast<double>(f32_[at(i, j)]);
  }
  void set(std::int64_t i, std::int64_t j, double value) {
    dtype_ == DType::f64 ? void(f64_[at(i, j)] = value)
                         : void(f32_[at(i, j)] = static_cast<float>(value));
  }
  [[nodiscard]] Dense values() const {
    return make_dense(rows_, cols_, [&](auto i, auto j) { return get(i, j); });
  }
  /// Whether the gaps between rows still hold the poison.
  [[nodiscard]] bool gaps_untouched() const {
    for (std::int64_t i = 0; i < rows_; ++i) {
      for (std::int64_t j = cols_; j < stride_; ++j) {
        if (!is_poison(get(i, j))) return false;
      }
    }
    return is_poison(get(rows_, 0));
  }
  /// Whether the gaps and the strict upper triangle still hold the poison.
  [[nodiscard]] bool upper_untouched() const {
    for (std::int64_t i = 0; i < rows_; ++i) {
      for (std::int64_t j = i + 1; j < cols_; ++j) {
        if (!is_poison(get(i, j))) return false;
      }
    }
    return gaps_untouched();
  }

 private:
  [[nodiscard]] std::size_t at(std::int64_t i, std::int64_t j) const {
    return static_cast<std::size_t>(i * stride_ + j);
  }
  [[nodiscard]] bool is_poison(double x) const {
    return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(poison_);
  }

  DType dtype_;
  std::int64_t rows_, cols_, stride_;
  double poison_;
  std::vector<double> f64_;
  std::vector<float> f32_;
};

}  // namespace dkfac::testing

#pragma once

#include <string>
#include <vector>

#include "dkfac/core/tensor_view.h"

namespace dkfac::testing {

/// Matrix [rows, columns] inside a larger one: the row stride exceeds the width, and the elements
/// outside hold `poison`, which must be neither read nor written.
template <class T>
class Framed {
 public:
  Framed(std::int64_t rows, std::int64_t columns, T poison)
      : rows_(rows),
        columns_(columns),
        stride_(columns + kGap),
        poison_(poison),
        data_(static_cast<std::size_t>((rows + 2) * stride_), poison) {}

  [[nodiscard]] auto view() {
    return TensorView(at(0, 0), dtype_of<T>, {rows_, columns_}, Strides{stride_, 1}, Device::cpu());
  }
  [[nodiscard]] T* at(std::int64_t r, std::int64_t c) {
    return data_.data() + (r + 1) * stride_ + c;
  }
  template <class F>
  void set(F&& f) {
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t c = 0; c < columns_; ++c) *at(r, c) = f(r, c);
    }
  }
  /// Whether everything outside still holds the poison, compared by `same`.
  template <class Same>
  [[nodiscard]] bool untouched(Same&& same) {
    for (std::int64_t r = -1; r <= rows_; ++r) {
      for (std::int64_t c = 0; c < stride_; ++c) {
        const bool inside = r >= 0 && r < rows_ && c < columns_;
        if (!inside && !same(*at(r, c), poison_)) return false;
      }
    }
    return true;
  }

 private:
  static constexpr std::int64_t kGap = 5;
  std::int64_t rows_, columns_, stride_;
  T poison_;
  std::vector<T> data_;
};

/// Names of typed tests.
struct TypeNames {
  template <class T>
  static std::string GetName(int) {
    return std::string(name_of(dtype_of<T>));
  }
};

}  // namespace dkfac::testing

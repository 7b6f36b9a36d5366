#pragma once

#include <cmath>
#include <cstdint>

#include "core/shared/cuda/device_code.h"

/// drift() of staleness.h as one reduction.
namespace dkfac::kfac {

/// Sums of squares of x - y and of y, over the elements of the full matrices.
struct DriftSums {
  double difference, old;
};
DKFAC_HD inline DriftSums operator+(DriftSums a, DriftSums b) {
  return {a.difference + b.difference, a.old + b.old};
}

/// Terms of the reduction: first every element, with weight 2 in triangles and 1 elsewhere. Then a
/// correction of the elements with another weight: diagonals of triangles with -1, or the second
/// row of unit-wise blocks, which is off the diagonal, with 1.
template <class T>
class DriftTerm {
 public:
  /// dim, cross: as in SymmetricForm. channels: of a BatchNorm.
  DriftTerm(std::int64_t dim, bool cross, const T* x, const T* y, std::int64_t numel,
            std::int64_t channels)
      : x_(x), y_(y), numel_(numel), dim_(dim), channels_(channels) {
    if (dim > 0)
      again_ = numel / (dim * (dim + 1) / 2) * dim;
    else
      again_ = cross ? channels : 0;
  }
  [[nodiscard]] std::int64_t count() const { return numel_ + again_; }

  DKFAC_HD DriftSums operator()(std::int64_t /*row*/, std::int64_t k) const {
    if (k < numel_) return term(k, dim_ > 0 ? 2 : 1);
    k -= numel_;
    if (dim_ == 0) return term(channels_ + k, 1);
    const std::int64_t size = dim_ * (dim_ + 1) / 2, r = k % dim_;
    return term(k / dim_ * size + r * (r + 3) / 2, -1);
  }

 private:
  DKFAC_HD DriftSums term(std::int64_t i, double weight) const {
    const auto old = static_cast<double>(y_[i]);
    const double difference = static_cast<double>(x_[i]) - old;
    return {weight * (difference * difference), weight * (old * old)};
  }

  const T *x_, *y_;
  std::int64_t numel_, dim_, channels_, again_;
};

struct StoreDrift {
  double* out;
  DKFAC_HD void operator()(std::int64_t /*row*/, DriftSums sums) const {
    *out = -1;
    if (!(sums.old > 0)) return;
    const double squared = sums.difference > 0 ? sums.difference / sums.old : 0;
    // The drift stays unknown (-1) for sums that are not finite; x - x is 0 for finite x.
    if (sums.difference - sums.difference == 0 && squared - squared == 0) *out = std::sqrt(squared);
  }
};

}  // namespace dkfac::kfac

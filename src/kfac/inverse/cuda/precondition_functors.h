#pragma once

#include <cstdint>

#include "core/shared/cuda/device_code.h"
#include "kfac/inverse/applied_damping.h"
#include "kfac/inverse/norm_gradient.h"

/// Elementwise operations of preconditioning; docs/math.md has the formulas. Host code calls
/// SolveNorm as well.
namespace dkfac::kfac::cuda {

/// x[r,c] /= rows[r]*columns[c] + lambda.
template <class T>
struct DivideByProducts {
  T* x;
  std::int64_t stride;  ///< Row stride of x.
  const T *rows, *columns;
  AppliedDamping damping;
  DKFAC_HD void operator()(std::int64_t r, std::int64_t c) const {
    x[r * stride + c] /= rows[r] * columns[c] + static_cast<T>(damping.lambda());
  }
};

/// x[r,c] /= scales[r,c] + lambda.
template <class T>
struct DivideByScales {
  T* x;
  std::int64_t stride;  ///< Row stride of x.
  const T* scales;
  std::int64_t width;  ///< Of the scales, which have no gaps.
  AppliedDamping damping;
  DKFAC_HD void operator()(std::int64_t r, std::int64_t c) const {
    x[r * stride + c] /= scales[r * width + c] + static_cast<T>(damping.lambda());
  }
};

/// x[r,c] /= by[0].
template <class T>
struct Divide {
  T* x;
  std::int64_t stride;
  const double* by;
  DKFAC_HD void operator()(std::int64_t r, std::int64_t c) const {
    x[r * stride + c] /= static_cast<T>(*by);
  }
};

/// Solves channel c of precondition_norm(); gamma null: beta alone.
template <class T>
struct SolveNorm {
  const T *gg, *gb, *bb;  ///< gb null: no cross term.
  AppliedDamping damping;
  T *gamma, *beta;
  DKFAC_HD void operator()(std::int64_t c) const {
    const double shift = damping.lambda();
    if (gamma == nullptr) {
      beta[c] /= bb[c] + static_cast<T>(shift);
      return;
    }
    // In f64, because the determinant cancels. The exact a d - b^2 is not negative
    // (Cauchy-Schwarz), but may be slightly negative for rounded statistics.
    const double a = gg[c], d = bb[c], b = gb == nullptr ? 0.0 : static_cast<double>(gb[c]);
    const double x = gamma[c], y = beta[c];
    const double cancelled = a * d - b * b, exact = cancelled > 0.0 ? cancelled : 0.0;
    const double determinant = exact + shift * (a + d) + shift * shift;
    gamma[c] = static_cast<T>(((d + shift) * x - b * y) / determinant);
    beta[c] = static_cast<T>(((a + shift) * y - b * x) / determinant);
  }
};

template <class T>
[[nodiscard]] SolveNorm<T> solve_norm(NormFisher mode, const NormGradient& norm) {
  const std::int64_t channels = norm.beta.numel();
  const T* gg = norm.fisher.data<T>();
  return {gg,
          mode == NormFisher::diagonal ? nullptr : gg + channels,
          gg + (norm.fisher.dim(0) - 1) * channels,
          norm.damping,
          norm.gamma.numel() == 0 ? nullptr : norm.gamma.data<T>(),
          norm.beta.data<T>()};
}

/// SolveNorm of several normalisations, whose channels are numbered one after the other. They are
/// arguments of the kernel, of which there may be 4 KiB, so no table has to be written first.
template <class T>
struct SolveNorms {
  static constexpr int kMost = 60;
  SolveNorm<T> of[kMost];
  std::int64_t ends[kMost];  ///< Channels up to and with each.
  int count;

  [[nodiscard]] DKFAC_HD std::int64_t end(int i) const { return i < 0 ? 0 : ends[i]; }
  [[nodiscard]] std::int64_t channels() const { return end(count - 1); }
  void add(std::int64_t width, const SolveNorm<T>& norm) {
    of[count] = norm;
    ends[count] = channels() + width;
    ++count;
  }
  DKFAC_HD void operator()(std::int64_t k) const {
    int first = 0;
    for (int last = count - 1; first < last;) {
      const int middle = (first + last) / 2;
      if (k < ends[middle]) {
        last = middle;
      } else {
        first = middle + 1;
      }
    }
    of[first](k - end(first - 1));
  }
};

}  // namespace dkfac::kfac::cuda

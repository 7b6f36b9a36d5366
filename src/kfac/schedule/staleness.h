#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"
#include "dkfac/kfac/options.h"

/// The adaptive rule of SP-NGD, algorithms 1-2 (docs/math.md, "Staleness"): when a statistic is
/// refreshed next, from how far its last three values lie apart.
namespace dkfac::kfac {

/// The last two intervals of a statistic, in steps whose vote passed.
struct Intervals {
  std::int64_t last = 1;    ///< Delta_-1: since the refresh before, and until the next one.
  std::int64_t before = 1;  ///< Delta_-2
  bool operator==(const Intervals&) const = default;
};

/// Intervals are sent as two digits to this base, which f16 holds exactly.
inline constexpr std::int64_t kIntervalBase = 1024;
inline constexpr std::int64_t kMaxInterval = kIntervalBase * kIntervalBase - 1;

/// After a refresh: half of the last interval (at least 1) when the new value is not similar to the
/// last one, the same when it is not similar to the one before either, else the sum of the last two
/// intervals; never more than max_interval (0: kMaxInterval).
[[nodiscard]] Intervals next_intervals(Intervals intervals, bool similar_to_last,
                                       bool similar_to_before, std::int64_t max_interval);

/// How the elements of a statistic stand for those of symmetric matrices.
struct SymmetricForm {
  std::int64_t dim = 0;  ///< Of packed triangles, one after the other; 0: rows of a BatchNorm.
  bool cross = false;    ///< BatchNorm: the second of three rows is off the diagonal.
};
/// |x - y|_F / |y|_F of the full matrices, off-diagonal elements counting twice; -1 when y is zero
/// or the quotient is not finite. x, y: contiguous, of equal shape and dtype; BatchNorm: [rows,c].
[[nodiscard]] double drift(SymmetricForm form, ConstTensorView x, ConstTensorView y);

/// The last two values of a statistic, as its owner keeps them.
class StatisticHistory {
 public:
  StatisticHistory() = default;
  StatisticHistory(Context& ctx, const Shape& shape, DType dtype);

  struct Similarity {
    bool to_last = false, to_before = false;
    double drift = -1;  ///< From the last value; negative while unknown.
  };
  /// drifts[2] (f64, where x is): of x, the value of this refresh, from the last value, and from
  /// the one before where similarity() asks for it, else perhaps -1. A missing value is zero, which
  /// is similar to nothing.
  void compare(Context& ctx, SymmetricForm form, ConstTensorView x, double alpha,
               TensorView drifts) const;
  /// x takes the place of the oldest value.
  void keep(Context& ctx, ConstTensorView x);
  [[nodiscard]] static Similarity similarity(double to_last, double to_before, double alpha);

  [[nodiscard]] bool is_set() const { return last_.is_set(); }
  [[nodiscard]] Tensor& last() { return last_; }
  [[nodiscard]] Tensor& before() { return before_; }
  [[nodiscard]] int& known() { return known_; }

 private:
  Tensor last_, before_;
  int known_ = 0;  ///< How many of them hold a value.
};

}  // namespace dkfac::kfac

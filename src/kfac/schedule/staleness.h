#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"
#include "dkfac/kfac/options.h"

/// The adaptive rule of SP-NGD, algorithms 1-2 (docs/math.md, "Staleness"): derives the step of a
/// statistic's next refresh from the distances between its last three values.
namespace dkfac::kfac {

/// The last two intervals of a statistic, in accepted steps.
struct Intervals {
  std::int64_t last =
      1;  ///< Delta_-1: from the previous refresh to the last, and from the last to the next.
  std::int64_t before = 1;  ///< Delta_-2
  bool operator==(const Intervals&) const = default;
};

inline constexpr std::int64_t kMaxInterval = (1 << 20) - 1;

/// Returns the intervals after a refresh. The next one is
/// - half of the last interval (at least 1) when the new value is not similar to the last one;
/// - the last interval when it is similar to the last value, but not to the one before;
/// - else the sum of the last two intervals.
///
/// It never exceeds max_interval (0: kMaxInterval).
[[nodiscard]] Intervals next_intervals(Intervals intervals, bool similar_to_last,
                                       bool similar_to_before, std::int64_t max_interval);

/// How the elements of a statistic map to symmetric matrices.
struct SymmetricForm {
  std::int64_t dim =
      0;  ///< Width of packed triangles, stored one after the other; 0: rows of a BatchNorm.
  bool cross = false;  ///< BatchNorm: the second of three rows is off the diagonal.
};
/// Returns |x - y|_F / |y|_F of the full matrices, off-diagonal elements counting twice; -1 when y
/// is zero or the quotient is not finite. x, y: contiguous, of equal shape and dtype; BatchNorm:
/// [rows,c].
[[nodiscard]] double drift(SymmetricForm form, ConstTensorView x, ConstTensorView y);

/// The last two values of a statistic, kept by its owner.
class StatisticHistory {
 public:
  StatisticHistory() = default;
  StatisticHistory(Context& ctx, const Shape& shape, DType dtype);

  struct Similarity {
    bool to_last = false, to_before = false;
    double drift = -1;  ///< From the last value; negative while unknown.
  };
  /// Computes drifts[2] (f64, on the device of x): the drift of x, the value of this refresh, from
  /// the last value, and from the one before. The second may be -1 where the rule does not need it.
  /// A missing value is zero, which is similar to nothing.
  void compare(Context& ctx, SymmetricForm form, ConstTensorView x, double alpha,
               TensorView drifts) const;
  /// Replaces the oldest value by x.
  void keep(Context& ctx, ConstTensorView x);
  [[nodiscard]] static Similarity similarity(double to_last, double to_before, double alpha);

  [[nodiscard]] bool is_set() const { return last_.is_set(); }
  [[nodiscard]] Tensor& last() { return last_; }
  [[nodiscard]] Tensor& before() { return before_; }
  [[nodiscard]] int& known() { return known_; }

 private:
  Tensor last_, before_;
  int known_ = 0;  ///< Number of values stored.
};

}  // namespace dkfac::kfac

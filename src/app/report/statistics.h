#pragma once

#include <cstdint>
#include <optional>

namespace dkfac::app {

/// Returns P(T <= t) of Student's t distribution with `freedom` > 0 degrees of freedom, by the
/// finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4.
[[nodiscard]] double student_t_cdf(double t, std::int64_t freedom);
/// Returns the t with student_t_cdf(t) = p, 0 < p < 1.
[[nodiscard]] double student_t_quantile(double p, std::int64_t freedom);

/// Returns half the width of the 95 % confidence interval of a mean: t(0.975, n-1) stddev /
/// sqrt(n). Unset for fewer than two values.
[[nodiscard]] std::optional<double> confidence_half_width(double stddev, std::int64_t count);

}  // namespace dkfac::app

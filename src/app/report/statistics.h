#pragma once

#include <cstdint>
#include <optional>

namespace dkfac::app {

/// P(T <= t) of Student's t distribution with `freedom` > 0 degrees of freedom, by the regularized
/// incomplete beta function.
[[nodiscard]] double student_t_cdf(double t, double freedom);
/// The t with student_t_cdf(t) = p, 0 < p < 1.
[[nodiscard]] double student_t_quantile(double p, double freedom);

/// Half the width of the 95 % confidence interval of a mean: t(0.975, n-1) stddev / sqrt(n). Unset
/// for fewer than two values.
[[nodiscard]] std::optional<double> confidence_half_width(double stddev, std::int64_t count);

}  // namespace dkfac::app

#include "app/report/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace dkfac::app {

double student_t_cdf(double t, std::int64_t freedom) {
  const double angle = std::atan(t / std::sqrt(static_cast<double>(freedom)));
  const bool odd = freedom % 2 == 1;
  double term = odd ? std::cos(angle) : 1, sum = freedom == 1 ? 0 : term;
  for (std::int64_t k = odd ? 3 : 2; k <= freedom - 2; k += 2) {
    const auto n = static_cast<double>(k);
    term *= (n - 1) / n * std::cos(angle) * std::cos(angle);
    sum += term;
  }
  const double inside =  // P(-t <= T <= t), with the sign of t.
      odd ? 2 / std::numbers::pi * (angle + std::sin(angle) * sum) : std::sin(angle) * sum;
  return 0.5 * (1 + inside);
}

double student_t_quantile(double p, std::int64_t freedom) {
  if (p < 0.5) return -student_t_quantile(1 - p, freedom);
  double low = 0, high = 1;
  while (student_t_cdf(high, freedom) < p && std::isfinite(high)) high *= 2;
  for (int i = 0; i < 200 && high - low > high * std::numeric_limits<double>::epsilon(); ++i) {
    const double middle = 0.5 * (low + high);
    (student_t_cdf(middle, freedom) < p ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

std::optional<double> confidence_half_width(double stddev, std::int64_t count) {
  if (count < 2) return std::nullopt;
  constexpr double kConfidence = 0.95;
  return student_t_quantile(0.5 * (1 + kConfidence), count - 1) * stddev /
         std::sqrt(static_cast<double>(count));
}

}  // namespace dkfac::app

#include "app/report/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dkfac::app {
namespace {

constexpr double kConfidence = 0.95;

/// The continued fraction of the incomplete beta function, evaluated from its top (Lentz' method).
double beta_fraction(double a, double b, double x) {
  constexpr double kTiny = 1e-300, kEnough = 1e-16;
  constexpr int kMaxTerms = 10000;
  double c = 1, d = 1 / std::max(kTiny, 1 - (a + b) * x / (a + 1)), value = d;
  const auto step = [&](double coefficient) {
    d = 1 + coefficient * d;
    c = 1 + coefficient / c;
    if (std::abs(d) < kTiny) d = kTiny;
    if (std::abs(c) < kTiny) c = kTiny;
    d = 1 / d;
    value *= c * d;
    return std::abs(c * d - 1);
  };
  for (int m = 1; m < kMaxTerms; ++m) {
    step(m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)));
    if (step(-(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))) < kEnough) break;
  }
  return value;
}

/// I_x(a, b): converges fast on the side of the mean where it is used.
double regularized_beta(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  const double front = std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) +
                                a * std::log(x) + b * std::log1p(-x));
  if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(a, b, x) / a;
  return 1 - front * beta_fraction(b, a, 1 - x) / b;
}

}  // namespace

double student_t_cdf(double t, double freedom) {
  const double tail = 0.5 * regularized_beta(freedom / 2, 0.5, freedom / (freedom + t * t));
  return t > 0 ? 1 - tail : tail;
}

double student_t_quantile(double p, double freedom) {
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
  const auto n = static_cast<double>(count);
  return student_t_quantile(0.5 * (1 + kConfidence), n - 1) * stddev / std::sqrt(n);
}

}  // namespace dkfac::app

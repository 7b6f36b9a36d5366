#include "dkfac/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "dkfac/core/error.h"

namespace dkfac::optim {

namespace {

using Knots = std::vector<std::pair<double, double>>;

/// Returns the first knot after the epoch.
Knots::const_iterator knot_after(const Knots& knots, double epoch) {
  return std::upper_bound(knots.begin(), knots.end(), epoch,
                          [](double e, const auto& knot) { return e < knot.first; });
}

void check_knots(const char* what, const Knots& knots) {
  DKFAC_CHECK(!knots.empty(), "[", what, "] there are no knots; give at least one");
  for (std::size_t i = 0; i < knots.size(); ++i) {
    const auto [epoch, lr] = knots[i];
    DKFAC_CHECK(std::isfinite(epoch) && lr >= 0 && std::isfinite(lr), "[", what, "] knot ", i,
                " is (", epoch, ", ", lr,
                "); epochs must be finite, rates finite and not negative");
    DKFAC_CHECK(i == 0 || knots[i - 1].first < epoch, "[", what, "] knot ", i, " is at epoch ",
                epoch, ", not after the one before it; epochs must ascend");
  }
}

void check_ends(const char* what, double lr0, double last, double start, double end) {
  DKFAC_CHECK(lr0 >= 0 && std::isfinite(lr0) && last >= 0 && std::isfinite(last), "[", what,
              "] lr0 is ", lr0, " and last is ", last, "; both must be finite and not negative");
  DKFAC_CHECK(start >= 0 && end > start && std::isfinite(end), "[", what, "] start is ", start,
              " and end is ", end, "; end > start >= 0 must hold");
}

}  // namespace

double PolynomialLr::at(double epoch) const {
  if (std::isnan(epoch)) return epoch;
  if (epoch < start) return lr0;
  if (epoch >= end) return last;
  return last + (lr0 - last) * std::pow(1 - (epoch - start) / (end - start), power);
}

void PolynomialLr::validate() const {
  check_ends("polynomial lr", lr0, last, start, end);
  DKFAC_CHECK(power > 0 && std::isfinite(power), "[polynomial lr] power is ", power,
              "; it must be positive and finite");
}

double PiecewiseLinearLr::at(double epoch) const {
  if (std::isnan(epoch)) return epoch;
  const auto after = knot_after(knots, epoch);
  if (after == knots.begin()) return knots.empty() ? 0 : knots.front().second;
  const auto [e0, lr_at_e0] = *std::prev(after);
  if (after == knots.end()) return lr_at_e0;
  const auto [e1, lr_at_e1] = *after;
  return std::lerp(lr_at_e0, lr_at_e1, (epoch - e0) / (e1 - e0));
}

void PiecewiseLinearLr::validate() const { check_knots("piecewise linear lr", knots); }

double CosineLr::at(double epoch) const {
  if (std::isnan(epoch)) return epoch;
  if (epoch <= start) return lr0;
  if (epoch >= end) return last;
  const double t = (epoch - start) / (end - start);
  return std::lerp(last, lr0, (1 + std::cos(std::numbers::pi * t)) / 2);
}

void CosineLr::validate() const { check_ends("cosine lr", lr0, last, start, end); }

double StepLr::at(double epoch) const {
  if (std::isnan(epoch)) return epoch;
  const auto after = knot_after(knots, epoch);
  if (after == knots.begin()) return knots.empty() ? 0 : knots.front().second;
  return std::prev(after)->second;
}

void StepLr::validate() const { check_knots("step lr", knots); }

double warmup_factor(double epoch, double epochs, double first) {
  DKFAC_CHECK(epochs >= 0 && std::isfinite(epochs), "[warmup factor] epochs is ", epochs,
              "; it must be finite and not negative");
  DKFAC_CHECK(std::isfinite(first), "[warmup factor] first is ", first, "; it must be finite");
  if (std::isnan(epoch)) return epoch;
  if (epoch >= epochs) return 1;
  return std::lerp(first, 1.0, std::max(epoch, 0.0) / epochs);
}

}  // namespace dkfac::optim

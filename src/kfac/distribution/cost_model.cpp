#include "kfac/distribution/cost_model.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <vector>

#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"

#include "core/shared/index.h"
#include "kfac/inverse/apply_factor.h"
#include "kfac/inverse/robust_inverse.h"
#include "kfac/schedule/budget.h"

namespace dkfac::kfac {
namespace {

constexpr std::int64_t kWidths[] = {64, 256, 768};
/// After a width that took this long, the next, about 30 times as much work, is skipped.
constexpr double kLongest = 3e-3;
constexpr int kRepeats = 3;
constexpr double kSecondsOfByte = 1e-10;  ///< 10 GB/s between two ranks.

std::size_t at(const FactorPlan& plan) { return index_of(plan.form->of_group()->index); }

/// Shortest of some runs, which excludes interference; fewer runs where they are long.
template <class Work>
double seconds_of(Stream stream, Work work) {
  double best = std::numeric_limits<double>::infinity(), total = 0;
  for (int i = 0; i < kRepeats && total < kLongest; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    stream.synchronize();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    best = std::min(best, taken.count());
    total += taken.count();
  }
  return best;
}

/// x_ij = 0.9^|i-j|, row by row: positive definite where it is square, with distinct eigenvalues.
std::vector<double> decaying(std::int64_t rows, std::int64_t columns, bool triangle) {
  std::vector<double> x;
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < (triangle ? i + 1 : columns); ++j)
      x.push_back(std::pow(0.9, static_cast<double>(std::abs(i - j))));
  return x;
}

MeasuredCost measure(Context& ctx, DType dtype, const FactorPlan& plan) {
  const std::int64_t height = plan.factorised(), values_numel = plan.has_values() ? plan.dim : 0;
  std::vector<double> numbers = decaying(height, plan.dim, !plan.has_rows());
  Tensor average = Tensor::empty(ctx, plan.average_shape(), dtype),
         inverse = Tensor::empty_aligned(ctx, {height, plan.dim}, dtype),
         values = Tensor::zeros(ctx, {values_numel}, dtype),
         x = Tensor::zeros(ctx, {plan.dim, kCostColumns}, dtype),
         y = Tensor::zeros(ctx, {plan.dim, kCostColumns}, dtype);
  Context host;
  Tensor rounded = Tensor::empty(host, average.shape(), dtype);
  ops::cast(host, view_of(numbers.data(), rounded.shape()), rounded);
  ops::copy(ctx, rounded, average);
  ops::fill(ctx, inverse, 0);
  ops::fill(ctx, x, 1);
  const FactorGroup block{
      .form = plan.form, .average = average, .inverse = inverse, .values = values};
  constexpr double kShift = 1;
  Tensor shift = Tensor::empty(ctx, {1}, DType::f64);
  ops::fill(ctx, shift, kShift);
  MeasuredCost cost;
  cost.refresh = seconds_of(ctx.stream(), [&] { (void)rebuild_inverse(ctx, block, kShift); });
  cost.apply = seconds_of(ctx.stream(), [&] {
    if (!plan.has_values())
      return apply_left(
          ctx,
          {.form = plan.form, .inverse = inverse, .shift = kShift, .device_shift = shift.view()},
          {x, {}});
    ops::gemm(ctx, ops::Trans::yes, ops::Trans::no, 1, inverse, x, 0, y);
    ops::gemm(ctx, ops::Trans::no, ops::Trans::no, 1, inverse, y, 0, x);
  });
  return cost;
}

void measure_form(FactorPlan plan, const MeasureCost& measure, CostModel& model) {
  std::vector<CostSample> refresh, apply;
  for (const std::int64_t width : kWidths) {
    plan.dim = width;
    if (plan.has_rows()) plan.rows = width / 8;
    const MeasuredCost cost = measure(plan);
    refresh.push_back({refresh_operations(plan), cost.refresh});
    apply.push_back({apply_operations(plan, kCostColumns), cost.apply});
    if (cost.refresh + cost.apply > kLongest) break;
  }
  model.refresh[at(plan)] = fit_cost(refresh);
  model.apply[at(plan)] = fit_cost(apply);
}

double seconds(const LinearCost& cost, double operations) {
  return cost.fixed + cost.per_operation * operations;
}

}  // namespace

double refresh_seconds(const CostModel& model, const FactorPlan& plan) {
  return plan.is_set() ? seconds(model.refresh[at(plan)], refresh_operations(plan)) : 0;
}

double apply_seconds(const CostModel& model, const FactorPlan& plan, std::int64_t columns) {
  return plan.is_set() ? seconds(model.apply[at(plan)], apply_operations(plan, columns)) : 0;
}

FactorLoads factor_seconds(const CostModel& model, const LayerSpec& spec,
                           const CurvatureOptions& options, Device device) {
  const int width = options.inverse.block_width;
  FactorLoads loads{.bytes = factor_loads(spec, options.dtype, width).bytes};
  if (!has_factors(spec)) return loads;
  const FactorPlan a = plan_a(spec, options, device), g = plan_g(spec, options, device);
  const double steps = rebuild_interval(options.refresh),
               byte = kSecondsOfByte * static_cast<double>(size_of(options.dtype));
  loads.a = refresh_seconds(model, a) / steps;
  loads.g = refresh_seconds(model, g) / steps;
  loads.apply = apply_seconds(model, a, g.width()) + apply_seconds(model, g, a.width());
  loads.send_a = byte * static_cast<double>(sent_numel(a)) / steps;
  loads.send_g = byte * static_cast<double>(sent_numel(g)) / steps;
  return loads;
}

LinearCost fit_cost(std::span<const CostSample> samples) {
  // Least squares of (a + b x) / s - 1: with u = 1/s and v = x/s, of a u + b v - 1.
  double uu = 0, uv = 0, vv = 0, u1 = 0, v1 = 0;
  for (const CostSample& sample : samples) {
    constexpr double kTick = 1e-9;  // Lower bound: a measured time may be 0.
    const double u = 1 / std::max(sample.seconds, kTick), v = sample.operations * u;
    uu += u * u;
    uv += u * v;
    vv += v * v;
    u1 += u;
    v1 += v;
  }
  const double determinant = uu * vv - uv * uv;
  if (samples.size() > 1 && determinant > 0) {
    const double a = (vv * u1 - uv * v1) / determinant, b = (uu * v1 - uv * u1) / determinant;
    if (a >= 0 && b > 0) return {a, b};
  }
  return {0, v1 / vv};
}

MeasureCost measure_on(Context& ctx, DType dtype) {
  return [&ctx, dtype](const FactorPlan& plan) { return measure(ctx, dtype, plan); };
}

CostModel calibrate(comm::Communicator& comm, const CurvatureOptions& options,
                    const MeasureCost& measure, Device device) {
  CostModel model;
  if (comm.rank() == 0)
    for (const FactorPlan& plan : possible_plans(options, device))
      measure_form(plan, measure, model);
  std::array<double, 4 * kForms> numbers{};
  const auto visit = [&](auto move) {
    std::size_t i = 0;
    for (auto* costs : {&model.refresh, &model.apply})
      for (LinearCost& cost : *costs)
        for (double* number : {&cost.fixed, &cost.per_operation}) move(numbers[i++], *number);
  };
  visit([](double& sent, double& number) { sent = number; });
  comm.broadcast(view_of(numbers.data(), {std::ssize(numbers)}), 0, Stream::cpu(), "costs");
  visit([](double& sent, double& number) { number = sent; });
  return model;
}

}  // namespace dkfac::kfac

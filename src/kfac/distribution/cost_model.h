#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"
#include "dkfac/core/layer_spec.h"
#include "dkfac/kfac/options.h"

#include "kfac/inverse/factor_plan.h"

/// What the owner of a layer spends on it, for the choice of owners.
namespace dkfac::kfac {

/// Seconds of work that costs a + b n: the calls, and each of its operations.
struct LinearCost {
  double fixed = 0;              ///< a
  double per_operation = 1e-11;  ///< b
};

/// Over refresh_operations() and apply_operations(), which grow as the third power of the width.
struct CostModel {
  std::array<LinearCost, kFactorForms> refresh{}, apply{};  ///< By FactorForm.
};

[[nodiscard]] double refresh_seconds(const CostModel& model, const FactorPlan& plan);
[[nodiscard]] double apply_seconds(const CostModel& model, const FactorPlan& plan,
                                   std::int64_t columns);
/// Of one step: both factors applied, and rebuilt once per inverse_interval. 0 without factors.
[[nodiscard]] double layer_seconds(const CostModel& model, const LayerSpec& spec,
                                   const CurvatureOptions& options, Device device = Device::cpu());

struct CostSample {
  double operations = 0, seconds = 0;
};
/// The line through samples (at least one) with the least squares of relative errors; where that
/// has a < 0 or b <= 0, the best one through the origin. Always b > 0 and a >= 0.
[[nodiscard]] LinearCost fit_cost(std::span<const CostSample> samples);

/// Seconds of one rebuild of a factor and of applying it to kCostColumns columns.
struct MeasuredCost {
  double refresh = 0, apply = 0;
};
inline constexpr std::int64_t kCostColumns = 128;
using MeasureCost = std::function<MeasuredCost(const FactorPlan&)>;
/// Runs both on `ctx`.
[[nodiscard]] MeasureCost measure_on(Context& ctx, DType dtype);

/// Rank 0 measures factors 64, 256 and 768 wide in each form that the options may ask for, leaving
/// out what takes longer than some tens of milliseconds; all ranks return its numbers, so that what
/// follows from them is equal everywhere. Forms that are not measured keep their default.
/// Collective.
[[nodiscard]] CostModel calibrate(comm::Communicator& comm, const CurvatureOptions& options,
                                  const MeasureCost& measure, Device device = Device::cpu());

}  // namespace dkfac::kfac

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"
#include "dkfac/core/layer_spec.h"
#include "dkfac/kfac/assignment.h"
#include "dkfac/kfac/options.h"

#include "kfac/inverse/factor_plan.h"

/// Predicted time that the owner of a layer spends on it, for the assignment of owners.
namespace dkfac::kfac {

/// Seconds a + b n of n operations: a for the calls, b per operation.
struct LinearCost {
  double fixed = 0;              ///< a
  double per_operation = 1e-11;  ///< b
};

/// Costs per refresh_operations() and apply_operations(), which grow as the third power of the
/// width.
struct CostModel {
  std::array<LinearCost, kForms> refresh{}, apply{};  ///< Indexed by the form.
};

[[nodiscard]] double refresh_seconds(const CostModel& model, const FactorPlan& plan);
[[nodiscard]] double apply_seconds(const CostModel& model, const FactorPlan& plan,
                                   std::int64_t columns);
/// factor_loads() in seconds of one step: factors are rebuilt, and inverses sent, once per
/// inverse_interval. 0 without factors.
[[nodiscard]] FactorLoads factor_seconds(const CostModel& model, const LayerSpec& spec,
                                         const CurvatureOptions& options,
                                         Device device = Device::cpu());

struct CostSample {
  double operations = 0, seconds = 0;
};
/// Fits a line to at least one sample, by least squares of relative errors. Where that gives a < 0
/// or b <= 0, fits the best line through the origin. Always b > 0 and a >= 0.
[[nodiscard]] LinearCost fit_cost(std::span<const CostSample> samples);

/// Measured seconds of rebuilding a factor and of applying it to kCostColumns columns.
struct MeasuredCost {
  double refresh = 0, apply = 0;
};
inline constexpr std::int64_t kCostColumns = 128;
using MeasureCost = std::function<MeasuredCost(const FactorPlan&)>;
/// Returns a function that measures both on `ctx`.
[[nodiscard]] MeasureCost measure_on(Context& ctx, DType dtype);

/// Measures the costs on rank 0, for factors 64, 256 and 768 wide in each form that the options may
/// use, and broadcasts them; collective. Widths that would take longer than some tens of
/// milliseconds are left out. Forms that are not measured keep their default.
[[nodiscard]] CostModel calibrate(comm::Communicator& comm, const CurvatureOptions& options,
                                  const MeasureCost& measure, Device device = Device::cpu());

}  // namespace dkfac::kfac

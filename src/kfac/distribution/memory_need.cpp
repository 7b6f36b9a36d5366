#include "kfac/distribution/memory_need.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <numeric>

#include "dkfac/core/error.h"

#include "comm/collective/host_device_pair.h"
#include "core/shared/available_memory.h"
#include "core/shared/index.h"
#include "kfac/distribution/kept_bytes.h"
#include "kfac/distribution/layer_work.h"
#include "kfac/distribution/split_plan.h"
#include "kfac/inverse/split_inverse.h"

namespace dkfac::kfac {
namespace {

/// A need of all ranks together that is not compared with what is there.
constexpr double kSmallNeed = 0x1p26;
constexpr double kLongRebuild = 2;  ///< Seconds.
/// Speed of a GPU relative to the host, where costs are not measured: 10 TFLOP/s.
constexpr double kDeviceSpeed = 100;

/// Bytes that a rebuild holds beside the inverses: one of the matrices that it writes, at a time.
double bytes_of_rebuild(const PlannedLayers& plan, const FactorPlan& factor) {
  if (!factor.is_set() || factor.is_diagonal()) return 0;
  return static_cast<double>(size_of(plan.options.dtype)) *
         static_cast<double>(factor.inverse_shape().numel() / factor.groups);
}

/// Raises what each rank holds at most in a rebuild by one of `factor`.
void add_rebuild(const PlannedLayers& plan, const FactorPlan& factor, int averager, int ranks,
                 std::vector<double>& rebuild) {
  const double element = static_cast<double>(size_of(plan.options.dtype)),
               scratch =
                   ranks > 1 ? element * static_cast<double>(split_scratch(factor.dim, ranks)) : 0;
  for_group(averager, ranks, [&](int r) {
    const double own = scratch + (r == averager ? bytes_of_rebuild(plan, factor) : 0);
    rebuild[index_of(r)] = std::max(rebuild[index_of(r)], own);
  });
}

FactorPlan a_of(const PlannedLayers& plan, std::size_t i) {
  return plan_a(plan.specs[i], plan.options, plan.device);
}
FactorPlan g_of(const PlannedLayers& plan, std::size_t i) {
  return plan_g(plan.specs[i], plan.options, plan.device);
}

double bytes_of_layer(const PlannedLayers& plan, std::size_t i) {
  const CurvatureBytes bytes = curvature_bytes(plan.specs[i], plan.options, plan.device);
  return 2 * static_cast<double>(bytes.averages) +
         static_cast<double>(bytes.earlier + bytes.inverses) +
         std::max(bytes_of_rebuild(plan, a_of(plan, i)), bytes_of_rebuild(plan, g_of(plan, i)));
}

double rebuild_seconds(const PlannedLayers& plan, const FactorPlan& factor,
                       const CostModel& costs) {
  const double seconds = refresh_seconds(costs, factor);
  const bool default_rate = !plan.options.distribution.calibrate;
  return plan.device.is_cuda() && default_rate ? seconds / kDeviceSpeed : seconds;
}

double seconds_of_layer(const PlannedLayers& plan, std::size_t i, const CostModel& costs) {
  return rebuild_seconds(plan, a_of(plan, i), costs) + rebuild_seconds(plan, g_of(plan, i), costs);
}

template <class Size>
std::size_t largest(const PlannedLayers& plan, Size size) {
  std::vector<double> sizes;
  for (std::size_t i = 0; i < plan.specs.size(); ++i) sizes.push_back(size(i));
  return static_cast<std::size_t>(std::ranges::max_element(sizes) - sizes.begin());
}

/// E.g. "'head' with factors of 769 (A) and 50257 (G) rows".
std::string layer_text(const PlannedLayers& plan, std::size_t i) {
  const FactorPlan a = a_of(plan, i), g = g_of(plan, i);
  std::string text = "'" + plan.names[i] + "'";
  if (a.is_set() && g.is_set())
    return detail::concat(text, " with factors of ", a.width(), " (A) and ", g.width(),
                          " (G) rows");
  return g.is_set() ? detail::concat(text, " with a matrix of ", g.dim, " rows") : text;
}

constexpr const char* kLeaveOut =
    "give that layer the first-order update (a PlainSpec; DKFAC_PLAIN in C, skip_layers in Python)";

std::string remedies(const PlannedLayers& plan, std::size_t widest, double need) {
  std::string text = kLeaveOut;
  const CurvatureOptions& o = plan.options;
  if (o.inverse.block_width == -1)
    text += ", or keep diagonal blocks of wide factors (block_width)";
  const auto* linear = std::get_if<LinearSpec>(&plan.specs[widest]);
  if (linear != nullptr && o.inverse.method == InverseMethod::cholesky &&
      !plan_g(*linear, o, plan.device).has_rows())
    text +=
        ", or keep the rows of its factors where they are few (new_weight = 1 and "
        "LinearSpec::max_rows)";
  if (plan.workers > 1) text += ", or lower grad_worker_fraction";
  if (o.dtype == DType::f64) text += ", or use dtype f32";
  if (2 * bytes_of_layer(plan, widest) < need)
    text += ", or use more ranks on other machines, which share the layers";
  return text;
}

}  // namespace

std::vector<double> memory_need(const PlannedLayers& plan) {
  std::vector<KeptBytes> kept(index_of(plan.ranks));
  std::vector<double> need, rebuild(kept.size());
  double staging = 0;
  for (std::size_t i = 0; i < plan.specs.size(); ++i) {
    const LayerOwners& owners = plan.owners[i];
    staging +=
        static_cast<double>(curvature_bytes(plan.specs[i], plan.options, plan.device).averages);
    add_kept(plan.specs[i], owners, plan.options, plan.device, plan.workers, kept);
    add_rebuild(plan, a_of(plan, i), owners.a, owners.ranks_a, rebuild);
    add_rebuild(plan, g_of(plan, i), owners.g, owners.ranks_g, rebuild);
  }
  const bool local = plan.options.distribution.local_statistics && plan.ranks > 1;
  for (std::size_t r = 0; r < kept.size(); ++r)
    need.push_back(kept[r].averages + kept[r].earlier + kept[r].inverses +
                   (local ? kept[r].averages : staging) + rebuild[r]);
  return need;
}

std::string memory_shortage(const PlannedLayers& plan, std::span<const RankMemory> memory) {
  struct Group {
    double need = 0, available = std::numeric_limits<double>::infinity();
    int ranks = 0, first = 0;
  };
  const std::vector<double> need = memory_need(plan);
  std::map<double, Group> groups;
  for (int r = plan.ranks - 1; r >= 0; --r) {
    Group& group = groups[memory[index_of(r)].group];
    group.need += need[index_of(r)];
    group.available = std::min(group.available, memory[index_of(r)].available);
    group.first = r;
    ++group.ranks;
  }
  const Group* short_of = nullptr;
  for (const auto& [key, group] : groups)
    if (group.need > group.available && (short_of == nullptr || group.first < short_of->first))
      short_of = &group;
  if (short_of == nullptr) return {};
  const std::size_t widest = largest(plan, [&](std::size_t i) { return bytes_of_layer(plan, i); });
  const std::string others = short_of->ranks > 1 ? detail::concat(" and the ", short_of->ranks - 1,
                                                                  " that share its memory")
                                                 : "";
  return detail::concat("[prepare] statistics and inverses need ", bytes_text(short_of->need),
                        " of memory at least on rank ", short_of->first, others, ", and there are ",
                        bytes_text(short_of->available), "; the largest are those of layer ",
                        layer_text(plan, widest), ", ", bytes_text(bytes_of_layer(plan, widest)),
                        ": ", remedies(plan, widest, short_of->need));
}

void check_memory(Context& ctx, const comm::WorkerGrid& grid, const PlannedLayers& plan) {
  const std::vector<double> need = memory_need(plan);
  // Equal on all ranks, so that they agree on whether there is a collective.
  if (std::accumulate(need.begin(), need.end(), 0.0) < kSmallNeed) return;
  const int rank = grid.world->rank();
  comm::HostDevicePair all(ctx, {2 * std::int64_t{plan.ranks}}, DType::f64);
  double* own = all.numbers<double>() + 2 * index_of(rank);
  // Ranks on devices rarely share one; each is compared on its own.
  own[0] = ctx.device().is_cuda() ? rank : static_cast<double>(memory_group());
  own[1] = available_memory(ctx.device()).value_or(std::numeric_limits<double>::infinity());
  all.push(ctx);
  grid.world->all_reduce(all.device(), comm::ReduceOp::sum, ctx.stream(), "memory");
  all.fetch(ctx);
  ctx.stream().synchronize();
  std::vector<RankMemory> memory;
  for (std::size_t r = 0; r < need.size(); ++r)
    memory.push_back({all.numbers<double>()[2 * r], all.numbers<double>()[2 * r + 1]});
  const std::string shortage = memory_shortage(plan, memory);
  if (!shortage.empty()) throw InvalidArgument(shortage);
}

std::string slow_rebuild(const PlannedLayers& plan, const CostModel& costs) {
  if (plan.specs.empty()) return {};
  std::vector<double> ranks(index_of(plan.ranks));
  for (std::size_t i = 0; i < plan.specs.size(); ++i) {
    const LayerOwners& at = plan.owners[i];
    const auto part = [&](const FactorPlan& factor, int together) {
      return rebuild_seconds(plan, factor, costs) * split_part(factor, together);
    };
    for_work({.a = part(a_of(plan, i), at.ranks_a), .g = part(g_of(plan, i), at.ranks_g)}, at,
             [&](int rank, double seconds) { ranks[index_of(rank)] += seconds; });
  }
  const auto busiest = std::ranges::max_element(ranks);
  if (!(*busiest > kLongRebuild)) return {};
  const std::size_t slowest =
      largest(plan, [&](std::size_t i) { return seconds_of_layer(plan, i, costs); });
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, *busiest < 10 ? "%.1f" : "%.0f", *busiest);
  return detail::concat("[prepare] rebuilding inverses takes rank ", busiest - ranks.begin(),
                        " about ", seconds, " s in the first step and wherever they are due (",
                        plan.options.distribution.calibrate ? "from measured costs"
                        : plan.device.is_cuda()             ? "at 10 TFLOP/s"
                                                            : "at 100 GFLOP/s",
                        "), most of it for layer ", layer_text(plan, slowest), "; ", kLeaveOut,
                        ", or raise inverse_interval, which makes such steps rare");
}

}  // namespace dkfac::kfac

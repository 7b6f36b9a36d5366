#include "app/plan/strategy.h"

#include <numeric>

#include <fmt/core.h>

namespace dkfac::app::planning {

namespace {

Strategy at(const kfac::CurvatureOptions& base, Intervals intervals, std::string name) {
  Strategy s{.name = std::move(name), .curvature = base};
  s.curvature.refresh.staleness = kfac::Staleness::fixed;
  s.curvature.refresh.statistics_interval = intervals.statistics;
  s.curvature.refresh.inverse_interval = intervals.inverses;
  s.curvature.refresh.stagger_inverses = false;
  s.curvature.distribution = {};
  return s;
}

}  // namespace

std::vector<Strategy> strategies(const kfac::CurvatureOptions& base, Intervals intervals, int ranks,
                                 int per_node, double refreshed) {
  std::vector<Strategy> all;
  const optim::OptimizerOptions options;
  optim::for_each_optimizer(options, [&](const auto& entry, const auto&) {
    if (entry.type == optim::OptimizerType::kfac) return;
    Strategy s = at(base, intervals, std::string(entry.name));
    s.type = entry.type;
    all.push_back(std::move(s));
  });
  const std::string steps = fmt::format(" {}/{}", intervals.statistics, intervals.inverses);
  all.push_back(at(base, {1, 1}, "kfac 1/1"));
  all.push_back(at(base, intervals, "kfac" + steps));
  all.push_back(at(base, intervals, "kfac" + steps + " staggered"));
  all.back().curvature.refresh.stagger_inverses = true;
  all.push_back(at(base, intervals, "kfac" + steps + " split factors"));
  all.back().curvature.distribution.split_factors = true;
  if (ranks > 1 && base.inverse.method == kfac::InverseMethod::cholesky) {
    all.push_back(at(base, intervals, "kfac" + steps + " split wide"));
    all.back().curvature.distribution.split_wide = true;
  }
  if (base.inverse.method != kfac::InverseMethod::ekfac) {
    all.push_back(at(base, intervals, "kfac" + steps + " local statistics"));
    all.back().curvature.distribution.local_statistics = true;
  }
  const int workers = std::gcd(ranks, per_node);
  if (workers > 1) {
    all.push_back(at(base, intervals, fmt::format("kfac{} {} workers", steps, workers)));
    all.back().curvature.distribution.grad_worker_fraction = static_cast<double>(workers) / ranks;
  }
  if (base.inverse.method == kfac::InverseMethod::cholesky) {
    all.push_back(at(base, intervals, "kfac" + steps + " low rank"));
    all.back().curvature.statistics.new_weight = 1;
    all.back().curvature.statistics.low_rank = true;
  }
  if (base.inverse.method != kfac::InverseMethod::ekfac) {
    all.push_back(at(base, intervals, "kfac adaptive"));
    all.back().curvature.refresh.staleness = kfac::Staleness::adaptive;
    all.back().refreshed = refreshed;
  }
  return all;
}

std::vector<Strategy> distributions(const kfac::CurvatureOptions& base, Intervals intervals,
                                    int ranks) {
  constexpr int kMostWorkers = 64;
  std::vector<Strategy> all;
  for (int workers = 1; workers <= kMostWorkers && ranks % workers == 0; workers *= 2)
    for (const bool wide : {false, true}) {
      if (wide && (ranks == 1 || base.inverse.method != kfac::InverseMethod::cholesky)) continue;
      std::string name = fmt::format("kfac {}/{}", intervals.statistics, intervals.inverses);
      if (workers > 1) name += fmt::format(" {} workers", workers);
      if (wide) name += " split wide";
      all.push_back(at(base, intervals, std::move(name)));
      all.back().curvature.distribution.split_wide = wide;
      if (workers > 1)
        all.back().curvature.distribution.grad_worker_fraction =
            static_cast<double>(workers) / ranks;
    }
  return all;
}

}  // namespace dkfac::app::planning

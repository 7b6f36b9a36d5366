#include "app/logging/curvature_totals.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "dkfac/kfac/statistics.h"

namespace dkfac::app {

namespace {

using kfac::StatisticKind;
using nlohmann::ordered_json;

constexpr std::size_t kMostIntervals = 256;
constexpr std::array<const char*, 3> kKinds{"a", "g", "norm"};
constexpr std::array<const char*, kfac::kInverseStages> kStages{"damped", "more_damped", "f64",
                                                                "clipped", "kept"};

std::size_t index_of(StatisticKind kind) { return static_cast<std::size_t>(kind); }

/// Keeps the intervals of steps 1, 1 + k, 1 + 2k, ...; k doubles when there are too many.
void add_intervals(std::vector<CurvatureResult::Intervals>& all, const kfac::StepReport& report) {
  const std::int64_t stride = all.size() < 2 ? 1 : all[1].step - all[0].step;
  if (!all.empty() && report.step < all.back().step + stride) return;
  CurvatureResult::Intervals now{.step = report.step};
  now.a = means_of(report.statistics, StatisticKind::a).interval;
  now.g = means_of(report.statistics, StatisticKind::g).interval;
  now.norm = means_of(report.statistics, StatisticKind::norm).interval;
  all.push_back(now);
  if (all.size() < kMostIntervals) return;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < all.size(); i += 2) all[kept++] = all[i];
  all.erase(all.begin() + static_cast<std::ptrdiff_t>(kept), all.end());
}

ordered_json number_or_null(double x) { return std::isfinite(x) ? ordered_json(x) : nullptr; }
/// Formats a drift; null if it is unknown.
ordered_json drift(double x) { return x >= 0 ? number_or_null(x) : nullptr; }

ordered_json object(const KindMeans& means) {
  return {{"renewed", means.renewed},
          {"count", means.count},
          {"interval", number_or_null(means.interval)},
          {"age", number_or_null(means.age)},
          {"drift", drift(means.drift)}};
}

ordered_json object(const kfac::StatisticReport& report, std::span<const std::string> layers) {
  const auto layer = static_cast<std::size_t>(report.layer);
  return {{"layer", layer < layers.size() ? layers[layer] : std::to_string(report.layer)},
          {"kind", kKinds.at(index_of(report.kind))},
          {"renewed", report.refreshed},
          {"interval", report.interval},
          {"age", report.age},
          {"drift", drift(report.drift)}};
}

}  // namespace

StatisticSizes statistic_sizes(const LayerSpec& spec, kfac::NormFisher norm_fisher) {
  const auto* norm = std::get_if<NormSpec>(&spec);
  return {static_cast<double>(kfac::a_size(spec)), static_cast<double>(kfac::g_size(spec)),
          norm == nullptr ? 0 : static_cast<double>(kfac::norm_size(*norm, norm_fisher))};
}

void add_step(CurvatureResult& result, const kfac::StepReport& report,
              std::span<const StatisticSizes> layers, KeepIntervals keep) {
  if (report.statistics.empty() || !report.agreement.may_update()) return;
  for (const kfac::StatisticReport& statistic : report.statistics) {
    const double size =
        layers[static_cast<std::size_t>(statistic.layer)].at(index_of(statistic.kind));
    const bool a = statistic.kind == StatisticKind::a;
    (a ? result.a_all : result.g_all) += size;
    if (statistic.refreshed) (a ? result.a_renewed : result.g_renewed) += size;
  }
  result.bytes += static_cast<double>(report.bytes);
  result.bytes_skipped += static_cast<double>(report.bytes_skipped);
  result.flops += report.flops;
  result.flops_skipped += report.flops_skipped;
  if (keep == KeepIntervals::yes) add_intervals(result.intervals, report);
}

KindMeans means_of(std::span<const kfac::StatisticReport> statistics, StatisticKind kind) {
  KindMeans means;
  double drift = 0;
  int drifts = 0;
  for (const kfac::StatisticReport& s : statistics) {
    if (s.kind != kind) continue;
    ++means.count;
    means.renewed += s.refreshed ? 1 : 0;
    means.interval += static_cast<double>(s.interval);
    means.age += static_cast<double>(s.age);
    if (s.drift < 0) continue;
    drift += s.drift;
    ++drifts;
  }
  if (means.count > 0) {
    means.interval /= means.count;
    means.age /= means.count;
  }
  if (drifts > 0) means.drift = drift / drifts;
  return means;
}

std::string curvature_json(const kfac::StepReport& report, const CurvatureResult& result,
                           std::span<const std::string> layers) {
  ordered_json kinds = ordered_json::object(), statistics = ordered_json::array();
  for (const StatisticKind kind : {StatisticKind::a, StatisticKind::g, StatisticKind::norm}) {
    const KindMeans means = means_of(report.statistics, kind);
    if (means.count > 0) kinds[kKinds.at(index_of(kind))] = object(means);
  }
  for (const kfac::StatisticReport& s : report.statistics) statistics.push_back(object(s, layers));
  ordered_json inverses = ordered_json::object();
  for (std::size_t i = 0; i < kStages.size(); ++i)
    inverses[kStages.at(i)] = static_cast<std::int64_t>(result.inverses.at(i));
  const ordered_json json = {{"kl_factor", number_or_null(report.kl_factor)},
                             {"without_inverse", report.without_inverse},
                             {"statistics_interval", report.statistics_interval},
                             {"inverse_interval", report.inverse_interval},
                             {"overhead", number_or_null(report.overhead)},
                             {"bytes_skipped", report.bytes_skipped},
                             {"flops", number_or_null(report.flops)},
                             {"flops_skipped", number_or_null(report.flops_skipped)},
                             {"a_kept", number_or_null(result.a_kept())},
                             {"g_kept", number_or_null(result.g_kept())},
                             {"run_bytes_skipped", number_or_null(result.bytes_skipped)},
                             {"run_flops_skipped", number_or_null(result.flops_skipped)},
                             {"run_bytes_saved", number_or_null(result.bytes_saved())},
                             {"run_flops_saved", number_or_null(result.flops_saved())},
                             {"inverses", std::move(inverses)},
                             {"kinds", std::move(kinds)},
                             {"statistics", std::move(statistics)}};
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace dkfac::app

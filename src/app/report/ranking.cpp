#include "app/report/ranking.h"

#include <algorithm>
#include <cmath>

namespace dkfac::app {
namespace {

/// Closer than this, relatively, is a tie: means of equal values may differ by rounding.
constexpr double kTie = 1e-9;

bool equal(double a, double b) {
  return std::abs(a - b) <= kTie * std::max(std::abs(a), std::abs(b));
}

double share_of(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

std::optional<Standing> to_target(const GroupSummary& group, const std::optional<Spread>& spread) {
  if (!spread || group.reached == 0) return std::nullopt;
  return Standing{share_of(group.reached, group.runs), spread->mean};
}

std::optional<Standing> over_good_runs(const GroupSummary& group, const Spread& spread) {
  if (spread.count == 0) return std::nullopt;
  return Standing{share_of(group.runs - group.failed, group.runs), spread.mean};
}

}  // namespace

std::vector<Ranked> rank(const std::vector<GroupSummary>& groups, Better better,
                         const Judge& judge) {
  struct Entry {
    std::size_t group;
    Standing standing;
  };
  std::vector<Entry> entries;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (const auto standing = judge(groups[i])) entries.push_back({i, *standing});
  }
  const auto tied = [](const Standing& a, const Standing& b) {
    return equal(a.share, b.share) && equal(a.value, b.value);
  };
  std::ranges::stable_sort(entries, [&](const Entry& a, const Entry& b) {
    if (!equal(a.standing.share, b.standing.share)) return a.standing.share > b.standing.share;
    const double x = a.standing.value, y = b.standing.value;
    return better == Better::less ? x < y : x > y;
  });
  std::vector<Ranked> out;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const bool same = i > 0 && tied(entries[i].standing, entries[i - 1].standing);
    out.push_back({entries[i].group, same ? out.back().place : i});
  }
  return out;
}

std::vector<Ranked> rank_epochs(const std::vector<GroupSummary>& groups) {
  return rank(groups, Better::less, [](const auto& g) { return to_target(g, g.epochs); });
}

std::vector<Ranked> rank_seconds(const std::vector<GroupSummary>& groups) {
  return rank(groups, Better::less, [](const auto& g) { return to_target(g, g.seconds); });
}

std::vector<Ranked> rank_final(const std::vector<GroupSummary>& groups) {
  return rank(groups, Better::more,
              [](const auto& g) { return over_good_runs(g, g.final_accuracy); });
}

std::vector<Ranked> rank_best(const std::vector<GroupSummary>& groups) {
  return rank(groups, Better::more,
              [](const auto& g) { return over_good_runs(g, g.best_accuracy); });
}

std::vector<Ranked> rank_step(const std::vector<GroupSummary>& groups) {
  return rank(groups, Better::less, [](const auto& g) -> std::optional<Standing> {
    if (g.seconds_per_step.count == 0) return std::nullopt;
    return Standing{1.0, g.seconds_per_step.mean};
  });
}

}  // namespace dkfac::app

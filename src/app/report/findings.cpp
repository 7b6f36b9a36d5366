#include "app/report/findings.h"

#include <algorithm>
#include <functional>

#include <fmt/core.h>

#include "app/report/ranking.h"

namespace dkfac::app {
namespace {

/// How one respect is read off a group and put into words.
struct Respect {
  std::string what, claim, claim_plural;
  std::vector<Ranked> ranked;
  std::function<const Spread&(const GroupSummary&)> spread;
  std::function<std::string(const Spread&)> text;
  std::function<std::string(double winner, double other)> difference;
};

bool overlap(const Spread& a, const Spread& b) {
  return a.count > 1 && b.count > 1 && a.min <= b.max && b.min <= a.max;
}

std::optional<Finding> find(const Comparison& comparison, const Respect& respect) {
  if (respect.ranked.empty()) return std::nullopt;
  Finding out{respect.what, respect.claim, respect.claim_plural, {}, {}, {}, {}};
  const GroupSummary& first = comparison.groups[respect.ranked.front().group];
  const Spread& best = respect.spread(first);
  out.value = respect.text(best);
  for (const Ranked& entry : respect.ranked) {
    const GroupSummary& group = comparison.groups[entry.group];
    if (entry.place == 0) {
      out.winners.push_back(entry.group);
      continue;
    }
    const Spread& other = respect.spread(group);
    if (overlap(best, other)) out.overlaps = group.name;
    out.next = fmt::format("{} with {} ({}{})", group.name, respect.text(other),
                           respect.difference(best.mean, other.mean),
                           out.overlaps.empty() ? "" : "; the ranges over seeds overlap");
    break;
  }
  return out;
}

std::function<std::string(double, double)> times(const std::string& as_much) {
  return [as_much](double winner, double other) {
    const double ratio = winner > 0 ? other / winner : 0;
    // A group may be faster and yet stand behind, because fewer of its runs arrived.
    return ratio < 1 ? "in fewer of its runs" : fmt::format("{:.2f} times {}", ratio, as_much);
  };
}

std::string points(double winner, double other) {
  if (other > winner) return "in fewer of its runs";
  return fmt::format("{:.2f} points less", 100 * (winner - other));
}

std::vector<Respect> respects(const Comparison& comparison, Dash dash) {
  std::vector<Respect> out;
  const auto& groups = comparison.groups;
  if (comparison.target) {
    const std::string target = percent_target(*comparison.target);
    out.push_back({"Fewest epochs to " + target, "reaches " + target + " in the fewest epochs",
                   "reach " + target + " in the fewest epochs", rank_epochs(groups),
                   [](const auto& g) -> const Spread& { return *g.epochs; },
                   [dash](const Spread& s) { return epochs_text(s, dash) + " epochs"; },
                   times("as many")});
    out.push_back({"Fewest seconds to " + target, "reaches " + target + " in the fewest seconds",
                   "reach " + target + " in the fewest seconds", rank_seconds(groups),
                   [](const auto& g) -> const Spread& { return *g.seconds; },
                   [dash](const Spread& s) { return seconds_text(s, dash) + " s"; },
                   times("as long")});
  }
  out.push_back({"Highest final accuracy", "ends with the highest test accuracy",
                 "end with the highest test accuracy", rank_final(groups),
                 [](const auto& g) -> const Spread& { return g.final_accuracy; },
                 [dash](const Spread& s) { return percent_text(s, dash) + " %"; }, points});
  out.push_back(
      {"Cheapest step", "has the cheapest step", "have the cheapest step", rank_step(groups),
       [](const auto& g) -> const Spread& { return g.seconds_per_step; },
       [dash](const Spread& s) { return milliseconds_text(s, dash) + " ms"; }, times("as much")});
  return out;
}

}  // namespace

std::vector<Finding> findings(const Comparison& comparison, Dash dash) {
  std::vector<Finding> out;
  for (const Respect& respect : respects(comparison, dash)) {
    if (auto finding = find(comparison, respect)) out.push_back(std::move(*finding));
  }
  return out;
}

std::vector<std::string> caveats(const Comparison& comparison) {
  std::vector<std::string> out;
  std::int64_t most_runs = 0, reached = 0;
  for (const GroupSummary& group : comparison.groups) {
    most_runs = std::max(most_runs, group.runs);
    reached += group.reached;
  }
  if (comparison.target && reached == 0) {
    out.push_back(
        fmt::format("No run reached the target of {}.", percent_target(*comparison.target)));
  }
  for (const GroupSummary& group : comparison.groups) {
    if (comparison.target && reached > 0 && group.reached < group.runs) {
      out.push_back(group.reached == 0
                        ? fmt::format("{} never reached the target ({} run{}).", group.name,
                                      group.runs, group.runs == 1 ? "" : "s")
                        : fmt::format("{} reached the target in {} of {} runs; its numbers to the "
                                      "target are of those.",
                                      group.name, group.reached, group.runs));
    }
    if (group.failed > 0) {
      out.push_back(
          fmt::format("{} of {} runs of {} failed.", group.failed, group.runs, group.name));
    }
  }
  if (comparison.groups.size() > 1 && most_runs == 1) {
    out.emplace_back("One seed each: a small difference may be chance.");
  }
  return out;
}

std::string verdict(const Comparison& comparison) {
  std::string out;
  const bool alone = comparison.groups.size() == 1;
  for (const Finding& finding : findings(comparison, Dash::plain)) {
    std::vector<std::string> names;
    for (const std::size_t winner : finding.winners)
      names.push_back(comparison.groups[winner].name);
    if (alone) {
      // Nobody to win against: only what the run did.
      out += fmt::format("{}: {}.\n", capitalized(finding.what.substr(finding.what.find(' ') + 1)),
                         finding.value);
      continue;
    }
    out += fmt::format("{} {}: {}{}.\n", join_names(names),
                       names.size() == 1 ? finding.claim : finding.claim_plural, finding.value,
                       finding.next.empty() ? "" : "; next " + finding.next);
  }
  for (const std::string& caveat : caveats(comparison)) out += caveat + "\n";
  return out;
}

}  // namespace dkfac::app

#include "app/report/findings.h"

#include <algorithm>

#include <fmt/core.h>

namespace dkfac::app {
namespace {

/// Wording of a respect.
struct Words {
  Respect respect;
  std::string best, what, verb, verb_of_several, rest, alone;
  std::string unit;
  double factor;                ///< From values to differences in their unit.
  std::string difference_unit;  ///< Accuracies differ by points.
  std::string as_much;          ///< Of ratios; empty where there are none.
};

std::vector<Words> words_of(const Targets& target) {
  const std::string to = target_text(target);
  return {{Respect::epochs, "Fewest epochs to " + to, "epochs to " + to, "reaches", "reach",
           to + " in the fewest epochs", "alone reaches " + to, "epochs", 1, "epochs", "as many"},
          {Respect::seconds, "Fewest seconds to " + to, "seconds to " + to, "reaches", "reach",
           to + " in the fewest seconds", "alone reaches " + to, "s", 1, "s", "as long"},
          {Respect::final_accuracy, "Highest final accuracy", "final accuracy", "ends", "end",
           "with the highest test accuracy", "alone has a final accuracy", "%", 100, "points", ""},
          {Respect::final_loss, "Lowest final test loss", "final test loss", "ends", "end",
           "with the lowest test loss", "alone has a final test loss", "", 1, "", "as high"},
          {Respect::step, "Cheapest step", "time of a step", "has", "have", "the cheapest step",
           "alone has the time of a step", "ms", 1e3, "ms", "as much"}};
}

std::string with_unit(const std::string& number, const std::string& unit) {
  return unit.empty() ? number : number + " " + unit;
}

/// Makes the finding of one respect.
class Finder {
 public:
  Finder(const Comparison& comparison, const Standing& standing, const Words& words, Dash dash)
      : comparison_(comparison), standing_(standing), words_(words), dash_(dash) {}

  [[nodiscard]] Finding operator()() const {
    const std::vector<Place>& places = standing_.places;
    const bool one_group = comparison_.groups.size() == 1, alone = places.size() == 1;
    Finding out;
    out.subject = words_.what;
    out.winners = standing_.best();
    if (alone) out.winners = {places.front().group};
    out.what = out.winners.empty() || alone ? capitalized(words_.what) : words_.best;
    if (one_group) {
      out.value = text(places.front());
      return out;
    }
    if (out.winners.empty()) {
      out.value = all();
      return out;
    }
    std::vector<std::string> names;
    for (const std::size_t group : out.winners) names.push_back(name(group));
    out.names = join_names(names);
    out.claim =
        alone ? words_.alone
              : (names.size() == 1 ? words_.verb : words_.verb_of_several) + " " + words_.rest;
    out.value = values_of_best();
    const auto next = std::ranges::find_if(places, &Place::worse);
    if (next != places.end()) out.next = name(next->group) + " with " + beside_first(*next);
    return out;
  }

 private:
  [[nodiscard]] const std::string& name(std::size_t group) const {
    return comparison_.groups[group].name;
  }
  [[nodiscard]] const Spread& spread(const Place& place) const {
    return comparison_.groups[place.group].values[words_.respect];
  }
  [[nodiscard]] std::string text(const Place& place) const {
    return with_unit(value_text(words_.respect, spread(place), dash_), words_.unit);
  }

  /// Formats a value with its distance from the first: "3 epochs (1.50 times as many, +1.00 ± 0.88
  /// epochs)".
  [[nodiscard]] std::string beside_first(const Place& place) const {
    const double first = spread(standing_.places.front()).mean, own = spread(place).mean;
    std::vector<std::string> parts;
    if (!words_.as_much.empty() && first > 0)
      parts.push_back(fmt::format("{:.2f} times {}", own / first, words_.as_much));
    if (place.difference.count > 0)
      parts.push_back(with_unit(with_interval(place.difference, words_.factor, Sign::always),
                                words_.difference_unit));
    // A group may be better and yet stand lower, because fewer of its runs reached the target.
    if (words_.as_much.empty() ? own > first : own < first)
      parts.emplace_back("in fewer of its runs");
    std::string inside;
    for (const std::string& part : parts) inside += (inside.empty() ? "" : ", ") + part;
    return text(place) + (inside.empty() ? "" : " (" + inside + ")");
  }

  /// Formats the values of the winners, with the differences that are not shown between them.
  [[nodiscard]] std::string values_of_best() const {
    std::vector<std::string> values;
    for (const Place& place : standing_.places)
      if (!place.worse) values.push_back(values.empty() ? text(place) : beside_first(place));
    return join_names(values) + (values.size() > 1 ? ", no difference shown" : "");
  }

  [[nodiscard]] std::string all() const {
    std::string out;
    for (const Place& place : standing_.places)
      out += out.empty() ? name(place.group) + " " + text(place)
                         : ", " + name(place.group) + " " + beside_first(place);
    return out;
  }

  const Comparison& comparison_;
  const Standing& standing_;
  const Words& words_;
  Dash dash_;
};

/// Says why no difference can be shown, where no pair of groups has two seeds in common.
std::string missing_intervals(const Comparison& comparison) {
  bool any_pair = false, any_interval = false;
  std::int64_t most_runs = 0;
  for (const GroupSummary& group : comparison.groups) most_runs = std::max(most_runs, group.runs);
  for (const Standing& standing : comparison.standings) {
    any_pair = any_pair || standing.places.size() > 1;
    for (const Place& place : standing.places)
      any_interval = any_interval || place.difference.half_width;
  }
  if (!any_pair || any_interval) return {};
  return most_runs == 1 ? "One seed each: no interval exists, so no difference is shown."
                        : "No two groups have two good runs with the same seeds: no interval "
                          "exists, so no difference is shown.";
}

void add_target_caveats(const Comparison& comparison, std::vector<std::string>& out) {
  if (!comparison.target.any()) return;
  const auto reached = [](const GroupSummary& group) { return group.reached > 0; };
  if (std::ranges::none_of(comparison.groups, reached)) {
    out.push_back(fmt::format("No run reached the target of {}.", target_text(comparison.target)));
    return;
  }
  for (const GroupSummary& group : comparison.groups)
    if (group.reached < group.runs)
      out.push_back(group.reached == 0
                        ? fmt::format("{} never reached the target ({} run{}).", group.name,
                                      group.runs, group.runs == 1 ? "" : "s")
                        : fmt::format("{} reached the target in {} of {} runs; its numbers to the "
                                      "target are of those.",
                                      group.name, group.reached, group.runs));
}

/// Names the groups with a run at chance whose accuracy, or the lower end of its interval, is not
/// above chance either.
void add_chance_caveat(const Comparison& comparison, std::vector<std::string>& out) {
  constexpr double kNear = 0.01;
  for (const GroupSummary& group : comparison.groups) {
    const Spread& accuracy = group.values[Respect::final_accuracy];
    if (!group.chance || accuracy.count == 0 || accuracy.min > *group.chance + kNear) continue;
    if (accuracy.mean - accuracy.half_width.value_or(0) > *group.chance) continue;
    out.push_back(
        fmt::format("{} is not shown to be above chance: {} % of the test data are of one class.",
                    group.name, fixed(100 * *group.chance, 2)));
  }
}

}  // namespace

std::string Finding::sentence() const {
  if (winners.empty()) return fmt::format("No difference shown in {}: {}.", subject, value);
  if (names.empty()) return what + ": " + value + ".";
  return fmt::format("{} {}: {}{}.", names, claim, value, next.empty() ? "" : "; next " + next);
}

std::vector<Finding> findings(const Comparison& comparison, Dash dash) {
  std::vector<Finding> out;
  for (const Words& words : words_of(comparison.target))
    for (const Standing& standing : comparison.standings)
      if (standing.respect == words.respect && !standing.places.empty())
        out.push_back(Finder(comparison, standing, words, dash)());
  return out;
}

std::vector<std::string> caveats(const Comparison& comparison) {
  std::vector<std::string> out;
  if (const std::string missing = missing_intervals(comparison); !missing.empty())
    out.push_back(missing);
  add_target_caveats(comparison, out);
  for (const GroupSummary& group : comparison.groups)
    if (group.failed > 0)
      out.push_back(
          fmt::format("{} of {} runs of {} failed.", group.failed, group.runs, group.name));
  add_chance_caveat(comparison, out);
  return out;
}

std::string lead(const Comparison& comparison, Dash dash) {
  if (comparison.groups.size() < 2) return {};
  std::string out, names;
  std::vector<std::string> claims, open;
  const auto add = [&out](const std::string& text) { out += (out.empty() ? "" : "; ") + text; };
  const auto flush = [&] {
    if (!claims.empty()) add(names + " " + join_names(claims));
    claims.clear();
  };
  for (const Finding& finding : findings(comparison, dash)) {
    if (finding.winners.empty()) {
      open.push_back(finding.subject);
      continue;
    }
    if (finding.names != names) flush();
    names = finding.names;
    claims.push_back(fmt::format("{} ({})", finding.claim, finding.value));
  }
  flush();
  if (out.empty() && open.empty()) return "No run has a result.";
  if (!open.empty())
    add((out.empty() ? "No" : "no") + (" difference shown in " + join_names(open)));
  const std::string missing = missing_intervals(comparison);
  return out + "." + (missing.empty() ? "" : " " + missing);
}

std::string verdict(const Comparison& comparison) {
  std::string out;
  for (const Finding& finding : findings(comparison, Dash::plain)) out += finding.sentence() + "\n";
  for (const std::string& caveat : caveats(comparison)) out += caveat + "\n";
  return out;
}

}  // namespace dkfac::app

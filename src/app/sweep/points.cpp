#include "app/sweep/points.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <set>

#include <fmt/core.h>

#include "dkfac/core/error.h"

#include "app/config/settings.h"
#include "app/shared/config.h"

namespace dkfac::app {

namespace {

constexpr std::size_t kMostPoints = 10000;

/// splitmix64 (Steele, Lea and Flood 2014), a hash of 64 bits.
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

std::uint64_t hash_of(std::uint64_t seed, const std::string& key, std::int64_t index) {
  std::uint64_t h = mixed(seed);
  for (const char c : key) h = mixed(h ^ static_cast<unsigned char>(c));
  return mixed(h ^ static_cast<std::uint64_t>(index));
}

void check_size(std::size_t points) {
  DKFAC_CHECK(points <= kMostPoints, "[sweep] more than ", kMostPoints,
              " points; draw at random, or leave values out of the grid");
}

std::vector<KeyValues> grid_points(const SweepSpec& spec) {
  std::vector<KeyValues> points{{}};
  for (const auto& [key, values] : spec.grid) {
    check_size(points.size() * values.size());
    std::vector<KeyValues> next;
    for (const KeyValues& point : points)
      for (const std::string& value : values) {
        next.push_back(point);
        next.back()[key] = value;
      }
    points = std::move(next);
  }
  return points;
}

/// Checks that a key has its values from one source only.
void check_places(const SweepSpec& spec) {
  const auto check = [&](const std::string& key, const char* table) {
    DKFAC_CHECK(!spec.set.contains(key), "[sweep] ", key, " is set for all runs to ",
                spec.set.at(key), ", and tried in ", table, "; take it out of one of them");
  };
  for (const auto& [key, values] : spec.grid) check(key, "[grid]");
  for (const Round& round : spec.rounds)
    for (const auto& [key, draw] : round.keys) {
      check(key, "[random]");
      DKFAC_CHECK(!spec.grid.contains(key), "[sweep] ", key,
                  " is tried in [grid] and in [random]; take it out of one of them");
    }
}

std::vector<KeyValues> all_settings(const SweepSpec& spec) {
  check_places(spec);
  const std::vector<KeyValues> grid = grid_points(spec);
  if (spec.rounds.empty()) return grid;
  std::vector<KeyValues> out;
  for (const Round& round : spec.rounds)
    for (std::int64_t i = 0; i < round.count; ++i) {
      KeyValues draws;
      for (const auto& [key, draw] : round.keys) draws[key] = drawn(draw, round.seed, key, i);
      for (const KeyValues& point : grid) {
        out.push_back(draws);
        for (const auto& [key, value] : point) out.back()[key] = value;
      }
      check_size(out.size());
    }
  return out;
}

/// Returns the settings without the keys that have no effect with this configuration. A choice
/// affects the keys that come after it in the table.
KeyValues applicable(Config config, const KeyValues& settings) {
  KeyValues kept;
  for (const Key& key : config_keys()) {
    const auto at = settings.find(key.path);
    if (at == settings.end() || !applies(key, config)) continue;
    kept.insert(*at);
    const bool known = std::ranges::find(key.choices, at->second) != key.choices.end();
    if (key.type == KeyType::choice && known) key.set(config, at->second);
  }
  // A phase may choose its own schedule: whether its keys count is known once it is read.
  for (const auto& [path, value] : settings)
    if (find_key(path) == nullptr) kept.emplace(path, value);
  return kept;
}

/// Returns the value of a key at a point.
Value value_at(const Config& base, const KeyValues& point, const std::string& path) {
  const Key& key = *find_key(path);
  const auto at = point.find(path);
  return at == point.end() ? key.get(base) : read_value(key, at->second);
}

/// Returns whether a key has one of the values, which are compared as numbers where they are some.
bool has_one_of(const Config& base, const KeyValues& point, const std::string& path,
                const std::vector<std::string>& values) {
  const Value now = value_at(base, point, path);
  return std::ranges::any_of(
      values, [&](const std::string& value) { return read_value(*find_key(path), value) == now; });
}

/// Drops the keys whose condition does not hold, until all that remain count.
KeyValues conditional(const SweepSpec& spec, const Config& base, KeyValues point) {
  const auto holds = [&](const std::string& key) {
    const auto at = spec.when.find(key);
    return at == spec.when.end() || std::ranges::all_of(at->second, [&](const auto& condition) {
             const auto& [selector, values] = condition;
             return has_one_of(base, point, selector, values);
           });
  };
  while (true) {
    const auto out =
        std::ranges::find_if(point, [&](const auto& setting) { return !holds(setting.first); });
    if (out == point.end()) return point;
    point.erase(out);
  }
}

}  // namespace

std::string drawn(const Draw& draw, std::uint64_t seed, const std::string& key,
                  std::int64_t index) {
  const std::uint64_t bits = hash_of(seed, key, index);
  if (draw.kind == Draw::Kind::choice) return draw.choices[bits % draw.choices.size()];
  const double u = std::ldexp(static_cast<double>(bits >> 11), -53);  // In [0, 1).
  const double x =
      draw.kind == Draw::Kind::uniform
          ? draw.low + u * (draw.high - draw.low)
          : std::exp(std::log(draw.low) + u * (std::log(draw.high) - std::log(draw.low)));
  if (draw.whole) return fmt::format("{:.0f}", x);
  const std::string text = fmt::format("{:.4g}", x);
  double rounded = x;
  std::from_chars(text.data(), text.data() + text.size(), rounded);
  return fmt::format("{}", std::clamp(rounded, draw.low, draw.high));  // Rounding may leave the
                                                                       // range.
}

std::vector<std::string> overrides_of(const SweepSpec& spec, const Trial& point) {
  std::vector<std::string> out;
  for (const auto& [key, value] : spec.set)
    if (!point.settings.contains(key)) out.push_back(key + "=" + value);
  for (const auto& [key, value] : point.settings) out.push_back(key + "=" + value);
  return out;
}

namespace {

/// Every epoch can be the last one before a selection.
void check_evaluated(const SweepSpec& spec, const Config& config) {
  DKFAC_CHECK(spec.metric == Metric::train_loss || config.run.eval_every == 1,
              "[config] run.eval_every = ", config.run.eval_every, ", and sweep.metric is \"",
              name_of(spec.metric), "\", which each epoch must have; set run.eval_every to 1");
}

}  // namespace

std::vector<Trial> points_of(const SweepSpec& spec) {
  std::vector<Trial> points;
  const std::vector<KeyValues> all = all_settings(spec);
  for (const std::filesystem::path& config : spec.configs) {
    const std::vector<std::string> shared = overrides_of(spec, Trial{});
    const Config base = load_config(config, shared);
    std::set<KeyValues> seen;
    for (const KeyValues& settings : all) {
      Trial point{.config = config,
                  .settings = applicable(base, conditional(spec, base, settings))};
      if (!seen.insert(point.settings).second) continue;
      point.name = fmt::format("run-{:03}", points.size() + 1);
      try {
        const Config whole = load_config(config, overrides_of(spec, point));
        check_evaluated(spec, whole);
        point.epochs = whole.run.epochs;
      } catch (const InvalidArgument& error) {
        throw InvalidArgument(fmt::format("[sweep] the point {} cannot run: {}",
                                          label_of(point.settings), error.what()));
      }
      points.push_back(std::move(point));
      check_size(points.size());
    }
  }
  return points;
}

std::vector<std::int64_t> rungs_of(const SweepSpec& spec, const std::vector<Trial>& points) {
  std::int64_t epochs = 0;
  for (const Trial& point : points) epochs = std::max(epochs, point.epochs);
  if (!spec.halving) return {epochs};
  for (const Trial& point : points)
    DKFAC_CHECK(point.epochs == epochs,
                "[sweep] [halving] compares runs after equally many epochs, ", "but run.epochs is ",
                epochs, " and ", point.epochs, "; leave run.epochs out of the grid");
  DKFAC_CHECK(spec.halving->first < epochs, "[sweep] halving.first = ", spec.halving->first,
              " drops nothing before the end of runs of run.epochs = ", epochs,
              "; lower it, or leave [halving] out");
  std::vector<std::int64_t> rungs;
  for (std::int64_t at = spec.halving->first; at < epochs; at *= spec.halving->eta)
    rungs.push_back(at);
  rungs.push_back(epochs);
  return rungs;
}

std::vector<std::size_t> ranked(std::span<const double> scores, Metric metric) {
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    if (std::isnan(scores[a]) || std::isnan(scores[b]))
      return !std::isnan(scores[a]) && std::isnan(scores[b]);
    return higher_is_better(metric) ? scores[a] > scores[b] : scores[a] < scores[b];
  });
  return order;
}

std::size_t survivors(std::size_t runs, std::int64_t eta) {
  return std::max<std::size_t>(1, runs / static_cast<std::size_t>(eta));
}

std::string label_of(const KeyValues& settings) {
  const auto last = [](const std::string& key) { return key.substr(key.rfind('.') + 1); };
  std::multiset<std::string> names;
  for (const auto& [key, value] : settings) names.insert(last(key));
  std::string out;
  for (const auto& [key, value] : settings)
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ",
                       names.count(last(key)) > 1 ? key : last(key), value);
  return out.empty() ? "as configured" : out;
}

}  // namespace dkfac::app

// The table of keys: names, defaults, conditions, and the field of each key.

#include "app/config/keys.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "app/config/settings.h"

namespace dkfac::app {
namespace {

TEST(ConfigTable, NamesEachKeyOnceAndKeepsSectionsTogether) {
  std::set<std::string> paths, sections;
  std::string section;
  for (const Key& key : config_keys()) {
    EXPECT_TRUE(paths.insert(key.path).second) << key.path;
    const std::string mine = key.path.substr(0, key.path.find('.'));
    if (mine != section) {
      EXPECT_TRUE(sections.insert(mine).second) << key.path;
    }
    section = mine;
    EXPECT_FALSE(key.help.empty()) << key.path;
  }
  EXPECT_EQ(sections, (std::set<std::string>{"run", "data", "augment", "model", "train",
                                             "optimizer", "lr", "checkpoint"}));
}

TEST(ConfigTable, DefaultsAreAllowedAndConditionsNameEarlierChoices) {
  const Config defaults;
  std::set<std::string> seen;
  for (const Key& key : config_keys()) {
    const Value value = key.get(defaults);
    SCOPED_TRACE(key.path);
    if (key.type == KeyType::integer) {
      EXPECT_TRUE(key.range.contains(static_cast<double>(std::get<std::int64_t>(value))));
    } else if (key.type == KeyType::real) {
      EXPECT_TRUE(key.range.contains(std::get<double>(value)));
    } else if (key.type == KeyType::choice) {
      EXPECT_EQ(std::count(key.choices.begin(), key.choices.end(), std::get<std::string>(value)),
                1);
    }
    if (!key.only.selector.empty()) {
      EXPECT_EQ(seen.count(key.only.selector), 1u) << key.path;
      for (const std::string& choice : key.only.values) {
        const Key& selector = *find_key(key.only.selector);
        EXPECT_TRUE(fulfils(key.only, read_value(selector, choice))) << key.path;
      }
    }
    seen.insert(key.path);
  }
}

// Every key is set to a value that differs from its default, so a setter tied to the wrong field
// shows.
std::string other_value(const Key& key, const Config& defaults) {
  if (key.path == "model.widths") return "\"8-4\"";
  if (key.path == "run.device") return "\"cuda:3\"";
  if (key.path == "data.crop_max_aspect") return "1.625";  // At least 1.
  const Value value = key.get(defaults);
  switch (key.type) {
    case KeyType::boolean:
      return to_toml(Value(!std::get<bool>(value)));
    case KeyType::integer:
      return to_toml(Value(std::get<std::int64_t>(value) + 1));
    case KeyType::seed:
      return to_toml(Value(~std::get<std::uint64_t>(value)));
    case KeyType::real:
      return to_toml(Value(0.625));
    case KeyType::text:
      return "\"a \\\"quoted\\\" text\"";
    case KeyType::choice:
      return to_toml(Value(key.choices.front() == std::get<std::string>(value)
                               ? key.choices.back()
                               : key.choices.front()));
    case KeyType::knots:
      return "[[0.0, 0.125], [5.0, 0.5]]";
  }
  return "";
}

/// Settings without which the other value of a key is refused.
std::vector<std::string> needed_for(const std::string& path) {
  if (path == "lr.start") return {"lr.end=5"};
  if (path == "model.width") return {"model.name=resnet20"};
  if (path.ends_with("tf32")) return {"run.device=cuda"};
  if (path == "augment.erase_min_area") return {"augment.erase_max_area=1"};
  if (path == "run.tta") return {"data.name=synthetic-photos"};  // Crops are of photographs.
  if (path == "lr.batch_scaling") return {"lr.base_batch=1"};
  if (path.starts_with("optimizer.damping_") && path != "optimizer.damping_split")
    return {"optimizer.damping=0.001"};
  if (path == "optimizer.step_length")  // The other value is the quadratic model.
    return {"optimizer.damping=0.001", "optimizer.statistics_fraction=0.5"};
  // A ramp has two ends.
  if (path.starts_with("optimizer.first_") || path.starts_with("optimizer.interval_"))
    return {"optimizer.statistics_interval=3", "optimizer.inverse_interval=6"};
  return {};
}

TEST(ConfigTable, EveryKeyReadsBackWhatWasSet) {
  for (const Key& key : config_keys()) {
    // piecewise is refused without knots; see below.
    if (key.path == "lr.schedule" || key.path == "optimizer.damping_schedule" ||
        key.path == "optimizer.momentum_schedule")
      continue;
    std::vector<std::string> overrides;
    // A selector may have one, too.
    for (const Key* k = &key; !k->only.selector.empty(); k = find_key(k->only.selector))
      overrides.push_back(k->only.selector + '=' + k->only.values.front());
    const std::vector<std::string> needed = needed_for(key.path);
    overrides.insert(overrides.end(), needed.begin(), needed.end());
    const std::string value = other_value(key, Config{});
    overrides.push_back(key.path + '=' + value);
    SCOPED_TRACE(overrides.back());
    Config config;
    ASSERT_NO_THROW(config = parse_config("", overrides, "test"));
    EXPECT_EQ(to_toml(key.get(config)), value);
    // And no other key moved, but the selector that was set for it.
    Config base;
    for (const Key* k = &key; !k->only.selector.empty(); k = find_key(k->only.selector))
      find_key(k->only.selector)
          ->set(base, read_value(*find_key(k->only.selector), k->only.values.front()));
    for (const std::string& one : needed) {
      const auto [path, text] = split_override(one);
      find_key(path)->set(base, read_value(*find_key(path), text));
    }
    for (const Key& other : config_keys()) {
      if (other.path == key.path) continue;
      EXPECT_EQ(to_toml(other.get(config)), to_toml(other.get(base))) << other.path;
    }
  }
}

}  // namespace
}  // namespace dkfac::app

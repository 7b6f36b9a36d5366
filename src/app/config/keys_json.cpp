#include <cmath>

#include <nlohmann/json.hpp>

#include "dkfac/core/device_info.h"

#include "app/config/keys.h"
#include "app/config/phases.h"

namespace dkfac::app {

namespace {

using nlohmann::ordered_json;

void add_range(const Range& range, ordered_json& entry) {
  if (std::isfinite(range.low)) entry[range.open_low ? "above" : "least"] = range.low;
  if (std::isfinite(range.high)) entry[range.open_high ? "below" : "most"] = range.high;
}

ordered_json values_json(const Condition& only) {
  ordered_json values = ordered_json::array();
  for (const std::string& value : only.values)
    if (find_key(only.selector)->type == KeyType::real)
      values.push_back(std::stod(value));
    else
      values.push_back(value);
  return values;
}

ordered_json key_json(const Key& key, const Config& defaults) {
  ordered_json entry = {{"path", key.path},
                        {"type", name_of(key.type)},
                        {"default", to_toml(key.get(defaults))},
                        {"allowed", expectation(key)},
                        {"help", key.help},
                        {"phase", may_change(key.path)}};
  add_range(key.range, entry);
  if (!key.choices.empty()) entry["choices"] = key.choices;
  if (!key.booleans.empty()) entry["booleans"] = key.booleans;
  if (!key.only.selector.empty())
    entry["only"] = {{"selector", key.only.selector}, {"values", values_json(key.only)}};
  return entry;
}

}  // namespace

std::string config_listing_json() {
  const Config defaults;
  ordered_json keys = ordered_json::array();
  for (const Key& key : config_keys()) keys.push_back(key_json(key, defaults));
  return ordered_json{{"version", version()}, {"keys", std::move(keys)}}.dump(1) + "\n";
}

}  // namespace dkfac::app

#pragma once

#include <cmath>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

/// What both files of results are written with.
namespace dkfac::app {

using nlohmann::ordered_json;

/// JSON has no NaN or infinity; both become null, as do unset values.
[[nodiscard]] inline ordered_json number(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? ordered_json(*value) : ordered_json(nullptr);
}
/// Replaces text that is not UTF-8 (a path, an error message) rather than failing.
[[nodiscard]] inline std::string dump(const ordered_json& json) {
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace dkfac::app

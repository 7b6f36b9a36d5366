#include "app/sweep/state.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <sstream>
#include <tuple>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "dkfac/core/device_info.h"
#include "dkfac/core/error.h"

#include "app/checkpoint/durable.h"
#include "app/checkpoint/run_record.h"
#include "app/shared/config.h"
#include "core/shared/printable.h"

namespace dkfac::app {

namespace {

using nlohmann::ordered_json;

constexpr int kStateFormat = 1;

ordered_json finite_or_null(double x) {
  return std::isfinite(x) ? ordered_json(x) : ordered_json(nullptr);
}

/// The part of the spec that determines the runs and the survivors; where runs execute may change.
ordered_json plan_json(const SweepState& state) {
  ordered_json points = ordered_json::array();
  for (const SweepRun& run : state.runs)
    points.push_back({{"config", run.point.config.filename().string()},
                      {"settings", run.point.settings},
                      {"epochs", run.point.epochs}});
  return {{"set", state.spec.set},
          {"metric", name_of(state.spec.metric)},
          {"score", name_of(state.spec.over)},
          {"eta", state.spec.halving ? state.spec.halving->eta : 0},
          {"rungs", state.rungs},
          {"points", std::move(points)}};
}

ordered_json run_json(const SweepRun& run, std::size_t place) {
  ordered_json scores = ordered_json::object();
  for (const auto& [epochs, score] : run.scores)
    scores[std::to_string(epochs)] = finite_or_null(score);
  ordered_json json = {{"name", run.point.name},
                       {"place", place},
                       {"config", run.point.config.filename().string()},
                       {"settings", run.point.settings},
                       {"status", run.status},
                       {"epochs", run.result.epochs.size()},
                       {"scores", std::move(scores)}};
  if (!run.result.epochs.empty()) {
    const EpochRecord& last = run.result.epochs.back();
    json["test_accuracy"] = finite_or_null(last.test_accuracy);
    json["best_accuracy"] = finite_or_null(run.result.best_accuracy);
    json["test_loss"] = finite_or_null(last.test_loss);
    json["train_loss"] = finite_or_null(last.train_loss);
    json["train_seconds"] = finite_or_null(run.result.train_seconds);
  }
  if (!run.error.empty()) json["error"] = run.error;
  if (run.exit_code != 0) json["exit_code"] = run.exit_code;
  return json;
}

struct Impossible : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void restore_run(const ordered_json& json, SweepRun& run) {
  run.status = json.at("status").get<std::string>();
  const auto states = {"waiting", "ok", "dropped", "failed"};
  if (std::ranges::find(states, run.status) == states.end())
    throw Impossible(fmt::format("{} is '{}'", run.point.name, printable(run.status)));
  run.error = json.value("error", "");
  run.exit_code = json.value("exit_code", 0);
  for (const auto& [text, score] : json.at("scores").items()) {
    std::int64_t epochs = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), epochs);
    if (error != std::errc() || end != text.data() + text.size() || epochs < 1 ||
        epochs > run.point.epochs)
      throw Impossible(fmt::format("{} has a score after {} of {} epochs", run.point.name,
                                   printable(text), run.point.epochs));
    run.scores[epochs] =
        score.is_null() ? std::numeric_limits<double>::quiet_NaN() : score.get<double>();
  }
}

void restore_runs(const ordered_json& json, SweepState& state) {
  const ordered_json& done = json.at("rungs_done");
  if (!done.is_number_unsigned() || done.get<std::uint64_t>() > state.rungs.size())
    throw Impossible(fmt::format("rungs_done is none of 0 to {}", state.rungs.size()));
  state.rungs_done = done.get<std::int64_t>();
  for (std::size_t i = 0; i < state.runs.size(); ++i)
    restore_run(json.at("runs").at(i), state.runs[i]);
}

/// Describes the first line in which two configurations differ.
std::string first_difference(const std::string& before, const std::string& now) {
  std::istringstream old_lines(before), new_lines(now);
  std::string was, is;
  do {
    if (!std::getline(old_lines, was)) was = "nothing";
    if (!std::getline(new_lines, is)) is = "nothing";
  } while (was == is && (old_lines || new_lines));
  return fmt::format("'{}' was '{}'", is, was);
}

/// Checks that the configurations still are what the runs so far were trained with. A sweep.json of
/// an earlier version does not have them.
void check_contents(const ordered_json& json, const std::string& source, const SweepState& state) {
  const auto known = json.find("configurations");
  if (known == json.end()) return;
  for (std::size_t i = 0; i < state.configurations.size(); ++i) {
    // Reading it adds the keys that are new in this version, with their defaults.
    Config config = parse_config(known->at(i).get<std::string>(), {}, source);
    const std::string& now = state.configurations[i];
    config.data.path = parse_config(now, {}, source).data.path;  // The data may have moved.
    const std::string before = to_toml(config, Comments::none);
    DKFAC_CHECK(before == now, "[sweep] '", state.spec.configs.at(i).string(),
                "' has changed since the runs in '", source,
                "' began: ", printable(first_difference(before, now), 300),
                "; change it back, choose another --out, or overwrite it with --force");
  }
}

}  // namespace

SweepState new_state(const SweepSpec& spec) {
  SweepState state{.spec = spec};
  const std::vector<Trial> points = points_of(spec);
  state.rungs = rungs_of(spec, points);
  for (const Trial& point : points) state.runs.push_back({.point = point});
  for (const std::filesystem::path& file : spec.configs)
    state.configurations.push_back(
        to_toml(load_config(file, overrides_of(spec, Trial{})), Comments::none));
  return state;
}

double last_score(const SweepRun& run) {
  return run.scores.empty() ? std::numeric_limits<double>::quiet_NaN()
                            : run.scores.rbegin()->second;
}

std::vector<std::size_t> ranking(const SweepState& state) {
  std::vector<double> scores;
  for (const SweepRun& run : state.runs) scores.push_back(last_score(run));
  std::vector<std::size_t> order = ranked(scores, state.spec.metric);
  const auto group = [&](std::size_t i) {
    const SweepRun& run = state.runs[i];
    const std::int64_t epochs = run.scores.empty() ? 0 : run.scores.rbegin()->first;
    // Without halving, runs may have different numbers of epochs, and each trains all of its own.
    return std::tuple(run.status == "failed", state.spec.halving ? -epochs : 0);
  };
  std::ranges::stable_sort(order, {}, group);
  return order;
}

std::string to_json(const SweepState& state) {
  std::vector<std::size_t> places(state.runs.size());
  const std::vector<std::size_t> order = ranking(state);
  for (std::size_t i = 0; i < order.size(); ++i) places[order[i]] = i + 1;
  ordered_json runs = ordered_json::array();
  for (std::size_t i = 0; i < state.runs.size(); ++i)
    runs.push_back(run_json(state.runs[i], places[i]));
  const ordered_json json = {{"format", kStateFormat},
                             {"name", state.spec.name},
                             {"version", version()},
                             {"rungs_done", state.rungs_done},
                             {"plan", plan_json(state)},
                             {"runs", std::move(runs)},
                             {"configurations", state.configurations}};
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

void restore(std::string_view text, const std::string& source, SweepState& state) {
  const auto refuse = [&](std::string_view why) {
    throw DataError(fmt::format("[sweep] '{}' cannot be read ({}); overwrite it with --force",
                                source, printable(why, 300)));
  };
  try {
    const auto json = ordered_json::parse(text);
    DKFAC_CHECK(json.at("format") == kStateFormat && json.at("plan") == plan_json(state),
                "[sweep] '", source,
                "' is of another sweep than the file asks for; choose another ",
                "--out, or overwrite it with --force");
    check_contents(json, source, state);
    restore_runs(json, state);
  } catch (const nlohmann::json::exception& error) {
    refuse(error.what());
  } catch (const Impossible& error) {
    refuse(error.what());
  }
}

void read_result(const std::filesystem::path& folder, SweepRun& run) {
  const std::filesystem::path path = folder / "result.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return;
  run.result = parse_result(as_text(read_bytes(path)), path.string());
}

}  // namespace dkfac::app

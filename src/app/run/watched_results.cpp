#include "app/run/watched_results.h"

#include <chrono>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "dkfac/core/error.h"

#include "app/checkpoint/durable.h"
#include "app/checkpoint/run_record.h"
#include "app/logging/run_summary.h"
#include "app/run/run_folder.h"
#include "app/run/run_lock.h"

namespace dkfac::app {

namespace {

namespace fs = std::filesystem;

struct Tested {
  double loss = 0, accuracy = 0;
  std::optional<double> top5;
};

std::map<std::int64_t, Tested> tested_by_step(const fs::path& evaluations) {
  std::map<std::int64_t, Tested> out;
  std::ifstream in(evaluations);
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    const auto number = [&](const char* key) {
      return json.contains(key) && json[key].is_number();
    };
    if (!json.is_object() || !number("step") || !(number("accuracy") || number("loss"))) continue;
    Tested tested{.loss = number("loss") ? json["loss"].get<double>() : NAN,
                  .accuracy = number("accuracy") ? json["accuracy"].get<double>() : NAN,
                  .top5 = {}};
    if (number("top5")) tested.top5 = json["top5"].get<double>();
    out[json["step"].get<std::int64_t>()] = tested;
  }
  return out;
}

RunLock lock_when_free(const fs::path& folder) {
  const auto start = std::chrono::steady_clock::now();
  for (;;) try {
      return RunLock(folder);
    } catch (const InvalidArgument&) {
      if (std::chrono::steady_clock::now() - start > std::chrono::seconds(10)) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
}

}  // namespace

WatchedEpochs add_evaluations(RunResult& result, const fs::path& evaluations) {
  WatchedEpochs counts;
  const std::map<std::int64_t, Tested> tested = tested_by_step(evaluations);
  std::vector<EpochMetrics> epochs = result.epochs;
  for (EpochMetrics& epoch : epochs) {
    if (epoch.evaluated) continue;
    const auto at = tested.find(epoch.step);
    if (at == tested.end()) {
      ++counts.missing;
      continue;
    }
    epoch.evaluated = true;
    epoch.test_loss = at->second.loss;
    epoch.test_accuracy = at->second.accuracy;
    epoch.test_top5 = at->second.top5;
    ++counts.added;
  }
  replace_epochs(result, epochs);
  return counts;
}

WatchedEpochs add_evaluations_to_run(const fs::path& folder) {
  const fs::path path = folder / "result.json";
  if (!fs::exists(path)) return {};
  const auto read = [&] { return parse_result(as_text(read_bytes(path)), path.string()); };
  RunResult result = read();
  // The lock becomes newer than result.json, by which another watch sees a run under way. So it is
  // taken only where the file is written.
  if (const WatchedEpochs counts = add_evaluations(result, folder / kEvaluationsFile);
      counts.added == 0)
    return counts;
  const RunLock lock = lock_when_free(folder);
  result = read();
  const WatchedEpochs counts = add_evaluations(result, folder / kEvaluationsFile);
  write_result(folder, result);
  return counts;
}

}  // namespace dkfac::app

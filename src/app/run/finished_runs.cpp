#include "app/run/finished_runs.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "dkfac/core/error.h"

#include "app/checkpoint/durable.h"
#include "app/checkpoint/run_record.h"
#include "app/logging/run_summary.h"
#include "app/report/settings.h"
#include "app/run/run_lock.h"
#include "app/shared/errors.h"
#include "app/shared/report.h"
#include "core/shared/printable.h"

namespace dkfac::app {
namespace {

namespace fs = std::filesystem;

constexpr const char* kResultFile = "result.json";

struct FinishedRun {
  std::string folder;
  RunResult result;
  std::map<std::string, std::string> settings;
};

[[noreturn]] void throw_no_result(const fs::path& folder) {
  const std::string name = folder.string();
  const char* why = !fs::is_directory(folder) ? "is no folder; --runs takes the folders of runs"
                    : fs::exists(folder / kComparisonFile)
                        ? "is a comparison; name the folders of its runs, NAME/seed-N in it"
                        : "holds no result.json, which a run writes with its first epoch; name the "
                          "folder of a finished run";
  throw MissingInput(fmt::format("[compare] '{}' {}", name, why));
}

/// Whether a failed run had done what it could, by the exit code that its rank 0 left.
bool has_diverged(const fs::path& folder) {
  const fs::path path = folder / "rank-0.error.json";
  if (!fs::exists(path)) return false;
  const auto json = nlohmann::json::parse(as_text(read_bytes(path)), nullptr, false);
  return json.is_object() && json.contains("code") &&
         json["code"] == static_cast<int>(ExitCode::numeric);
}

void check_finished(const fs::path& folder, const RunResult& run) {
  const std::string name = folder.string();
  DKFAC_CHECK(!is_locked(folder), "[compare] the run in '", name,
              "' is under way; compare it when it has ended");
  const bool failed = run.status == "failed";
  DKFAC_CHECK(run.status == "ok" || (failed && has_diverged(folder)), "[compare] the run in '",
              name, "' is not finished (",
              failed ? "failed: " + run.error : run.status + ", after step ",
              failed ? "" : std::to_string(run.steps), "); finish it with 'dkfac train --resume ",
              shell_word(name), "', or leave it out");
  DKFAC_CHECK(failed || any_evaluated(run), "[compare] the run in '", name,
              "' was never evaluated, which leaves nothing to compare; evaluate its checkpoints "
              "with 'dkfac eval --watch ",
              shell_word(name), "'");
}

FinishedRun read_run(const fs::path& folder) {
  const fs::path path = folder / kResultFile;
  if (!fs::exists(path)) throw_no_result(folder);
  FinishedRun run{folder.string(), parse_result(as_text(read_bytes(path)), path.string()), {}};
  check_finished(folder, run.result);
  run.settings = settings_of(run.result.configuration);
  return run;
}

void check_comparable(const FinishedRun& run, const FinishedRun& first) {
  const auto same = [&](const char* what, const std::string& own, const std::string& other) {
    DKFAC_CHECK(own == other, "[compare] the run in '", run.folder, "' has ", what, " ", own,
                ", and that in '", first.folder, "' ", other, "; compare runs of the same ", what);
  };
  const auto held_out = [](const FinishedRun& of) {
    const auto at = of.settings.find("data.hold_out");
    return at == of.settings.end() ? "0" : at->second;
  };
  same("model", run.result.model, first.result.model);
  same("number of parameters", std::to_string(run.result.parameters),
       std::to_string(first.result.parameters));
  same("data", run.result.data, first.result.data);
  same("data.hold_out", held_out(run), held_out(first));
}

/// Whether two runs differ in nothing that decides what a step computes, but the seed.
bool same_group(const FinishedRun& a, const FinishedRun& b) {
  const auto kind = [](const FinishedRun& run) {
    auto settings = run.settings;
    for (const char* key : {"run.seed", "data.path"}) settings.erase(key);
    return settings;
  };
  return a.result.name == b.result.name && kind(a) == kind(b);
}

using Group = std::vector<FinishedRun>;

std::vector<Group> grouped_runs(std::span<const fs::path> folders) {
  std::vector<Group> groups;
  for (const fs::path& folder : folders) {
    FinishedRun run = read_run(folder);
    if (!groups.empty()) check_comparable(run, groups.front().front());
    const auto own = std::ranges::find_if(
        groups, [&](const Group& group) { return same_group(group.front(), run); });
    if (own == groups.end()) {
      groups.push_back({std::move(run)});
      continue;
    }
    for (const FinishedRun& other : *own)
      DKFAC_CHECK(other.result.seed != run.result.seed, "[compare] the runs in '", other.folder,
                  "' and '", run.folder, "' have one configuration and the same seed, ",
                  run.result.seed, "; leave one of them out");
    own->push_back(std::move(run));
  }
  return groups;
}

}  // namespace

std::vector<RunGroup> read_finished_runs(std::span<const fs::path> folders) {
  std::vector<Group> groups = grouped_runs(folders);
  std::map<std::string, int> named;
  for (const Group& group : groups) ++named[group.front().result.name];
  std::vector<RunGroup> out;
  for (Group& group : groups) {
    const FinishedRun& first = group.front();
    std::string name = first.result.name;
    if (named[name] > 1) name += fmt::format(" ({})", printable(first.folder));
    out.push_back({std::move(name), {}});
    for (FinishedRun& run : group) out.back().runs.push_back(std::move(run.result));
  }
  return out;
}

std::string other_machines_text(std::span<const RunGroup> groups) {
  std::set<std::string> machines;
  for (const RunGroup& group : groups)
    for (const RunResult& run : group.runs)
      machines.insert(fmt::format("{} on {}", run.ranks, run.device));
  if (machines.size() < 2) return {};
  return fmt::format(
      "[compare] these runs had different ranks or devices ({}): compare their epochs and "
      "accuracies, and no seconds",
      fmt::join(machines, ", "));
}

}  // namespace dkfac::app

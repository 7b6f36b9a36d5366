#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>
#include <unistd.h>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "dkfac/core/error.h"

#include "app/checkpoint/manifest.h"
#include "app/checkpoint/store.h"
#include "app/commands/eval_checkpoint.h"
#include "app/run/agreement.h"
#include "app/run/job.h"
#include "app/run/run_folder.h"
#include "app/run/signals.h"
#include "app/run/watched_results.h"

namespace dkfac::app {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr auto kNap = std::chrono::milliseconds(50);

/// Messages of rank 0 for the next action: one of these words, or the path of a checkpoint.
constexpr const char *kWait = "wait", *kEnd = "end", *kStop = "stop";

/// Writer of evaluations.jsonl, one line per evaluated step.
class Evaluations {
 public:
  explicit Evaluations(fs::path path) : path_(std::move(path)) { read(); }
  /// Reads the file again: a run that goes back to an earlier checkpoint removes later lines.
  void read() {
    steps_.clear();
    whole_ = true;
    std::ifstream in(path_);
    for (std::string line; std::getline(in, line);) {
      whole_ = !in.eof();
      const auto json = nlohmann::json::parse(line, nullptr, false);
      if (json.is_object() && json.contains("step") && json["step"].is_number_integer())
        steps_.insert(json["step"].get<std::int64_t>());
    }
  }
  [[nodiscard]] bool has(std::int64_t step) const { return steps_.contains(step); }
  [[nodiscard]] std::int64_t last() const { return steps_.empty() ? 0 : *steps_.rbegin(); }

  void add(std::int64_t step, const std::string& line) {
    std::ofstream out(path_, std::ios::app);
    // A partial line of a terminated process stays a separate line, which no reader parses.
    out << (whole_ ? "" : "\n") << line << std::endl;
    if (!out)
      throw IoError(fmt::format("[eval] cannot write '{}'; check free space and permissions",
                                path_.string()));
    whole_ = true;
    steps_.insert(step);
  }

 private:
  fs::path path_;
  std::set<std::int64_t> steps_;
  bool whole_ = true;
};

std::string status_of(const fs::path& result) {
  std::ifstream in(result);
  const auto json = nlohmann::json::parse(in, nullptr, false);
  if (!json.is_object()) return {};
  const auto status = json.find("status");
  return status != json.end() && status->is_string() ? status->get<std::string>() : "";
}

/// Returns whether the process named in run.lock belongs to this machine and no longer exists. The
/// lock itself is not acquired, because a training that starts at that moment would fail.
bool writer_is_gone(const fs::path& lock) {
  std::ifstream in(lock);
  std::string process, on, host;
  long id = 0;
  if (!(in >> process >> id >> on >> host) || id <= 0) return false;
  std::array<char, 256> here{};
  if (::gethostname(here.data(), here.size() - 1) != 0 || host != here.data()) return false;
  return ::kill(static_cast<pid_t>(id), 0) != 0 && errno == ESRCH;
}

/// Returns whether a run has ended. A result from before the run was resumed is older than its
/// lock.
bool has_ended(const fs::path& run) {
  std::error_code no_result, no_lock;
  const auto result = fs::last_write_time(run / "result.json", no_result);
  const auto lock = fs::last_write_time(run / "run.lock", no_lock);
  if (no_lock) return !no_result && status_of(run / "result.json") != "running";
  if (!no_result && result >= lock && status_of(run / "result.json") != "running") return true;
  return writer_is_gone(run / "run.lock");
}

/// Checks that a run has begun in a folder, since one without a run would be watched for ever.
void require_run(const fs::path& folder) {
  if (!fs::is_directory(folder))
    throw MissingInput(fmt::format(
        "[eval] there is no run folder '{}'; --watch needs the folder of a run that has begun",
        folder.string()));
  for (const char* file : {"run.lock", "config.toml", "result.json"})
    if (fs::exists(folder / file)) return;
  if (list_checkpoints(folder / kCheckpointFolder).empty())
    throw MissingInput(fmt::format(
        "[eval] '{}' holds no run (run.lock, config.toml, result.json or checkpoints); --watch "
        "needs the folder of a run that has begun: --out of 'dkfac train', or FOLDER/NAME/seed-<n> "
        "of a comparison",
        folder.string()));
}

class Watcher {
 public:
  Watcher(const EvalCommand& command, DataCache& cache, const Terminal& terminal,
          std::shared_ptr<comm::Communicator> comm)
      : command_(command), cache_(cache), terminal_(terminal), comm_(std::move(comm)) {}

  void operator()() {
    if (comm_->rank() == 0) done_.emplace(command_.where / kEvaluationsFile);
    for (;;) {
      const std::string next = comm::all_gather_strings(*comm_, choose()).front();
      if (next == kEnd) break;
      if (next == kStop)
        throw_stopped(position_.step, command_.where, "repeat the command to continue");
      if (next != kWait) evaluate_one(next);
    }
    if (comm_->rank() != 0) return;
    const WatchedEpochs epochs =
        has_ended(command_.where) ? add_evaluations_to_run(command_.where) : WatchedEpochs{};
    if (epochs.missing > 0)
      terminal_.err << warning_line(fmt::format(
                           "[eval] {} epochs have no evaluation, because their checkpoints are "
                           "gone; raise checkpoint.keep, or set checkpoint.every_epochs to 1",
                           epochs.missing))
                    << std::endl;
    terminal_.out << count_text(epochs) << std::flush;
  }

 private:
  /// Chooses the next action on rank 0; returns an empty text on other ranks.
  std::string choose() {
    if (comm_->rank() != 0) return {};
    if (stop_requested()) return kStop;
    if (command_.until_step > 0 && done_->last() >= command_.until_step) return kEnd;
    if (Clock::now() < next_look_) {
      std::this_thread::sleep_for(kNap);
      return kWait;
    }
    done_->read();
    const bool ended =
        has_ended(command_.where);  // Before listing, so that no checkpoint is missed.
    std::vector<std::pair<std::int64_t, fs::path>> left;
    for (const fs::path& checkpoint : list_checkpoints(command_.where / kCheckpointFolder)) {
      const std::int64_t step = step_of(checkpoint.filename().string()).value_or(0);
      std::error_code gone;
      const bool complete = fs::exists(checkpoint / kManifestFile, gone);
      if (complete && !done_->has(step) && !left_out_.contains(step))
        left.emplace_back(step, checkpoint);
    }
    if (!left.empty()) return std::ranges::min_element(left)->second.string();
    if (ended) return kEnd;
    next_look_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                    std::chrono::duration<double>(command_.poll));
    return kWait;
  }

  void evaluate_one(const fs::path& checkpoint) {
    EvalRequest request;
    position_.activity = "checkpoint";
    const Clock::time_point start = Clock::now();
    Tally tally;
    try {
      run_and_agree(*comm_, position_, [&] { request = eval_request(checkpoint, command_.set); });
    } catch (const RunError& error) {
      return leave_out(checkpoint, error);
    }
    position_.step = request.point.record.result.steps;
    prepare(request);
    try {
      tally = evaluate_checkpoint(request, *data_, *placement_, position_);
    } catch (const RunError& error) {
      return leave_out(checkpoint, error);
    }
    if (comm_->rank() == 0)
      write(request, tally, std::chrono::duration<double>(Clock::now() - start).count());
  }

  /// Prepares the device once, and the data of the checkpoint's phase.
  void prepare(const EvalRequest& request) {
    if (!placement_) {
      print_remarks(request.config, comm_->rank(), terminal_);
      placement_.emplace(place_evaluation(request.config, comm_, position_));
      comm_ = placement_->comm;
    }
    position_.activity = "data";
    run_and_agree(*comm_, position_, [&] { data_ = cache_.get(request.config); });
    if (comm_->rank() == 0) print_warnings(cache_.take_remarks(), terminal_);
  }

  /// Skips a checkpoint that cannot be read. A run may remove old checkpoints while they are read.
  void leave_out(const fs::path& checkpoint, const RunError& error) {
    const ExitCode code = error.failure.code;
    if (error.scope != RunError::Scope::every_rank ||
        (code != ExitCode::missing_input && code != ExitCode::io && code != ExitCode::bad_data))
      throw error;
    if (comm_->rank() != 0) return;
    std::error_code ignored;
    const bool there = fs::exists(checkpoint / kManifestFile, ignored);
    // One that is gone may be saved anew.
    if (there) left_out_.insert(step_of(checkpoint.filename().string()).value_or(0));
    ++(there ? damaged_ : vanished_);
    terminal_.err << warning_line(there
                                      ? error.failure.what
                                      : fmt::format("[eval] {} was removed before it was evaluated",
                                                    checkpoint.string()))
                  << std::endl;
  }

  void write(const EvalRequest& request, const Tally& tally, double seconds) {
    const RunResult& run = request.point.record.result;
    nlohmann::ordered_json line = {{"step", run.steps},
                                   {"epoch", run.epochs.size()},
                                   {"samples", data_->test.count},
                                   {"loss", tally.mean_loss()},
                                   {"accuracy", tally.accuracy()},
                                   {"seconds", seconds},
                                   {"checkpoint", request.point.checkpoint.filename().string()}};
    const double target = request.config.run.target_top5;
    if (const auto top5 = top5_accuracy(tally, data_->test.classes, target)) line["top5"] = *top5;
    done_->add(run.steps, line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    ++evaluated_;
    if (command_.json)
      terminal_.out << line.dump() << std::endl;
    else
      terminal_.out << fmt::format("step {}: {}\n", run.steps,
                                   accuracy_text(tally, data_->test.classes, target))
                    << std::flush;
    check_output(terminal_);  // Otherwise it would continue until the run ends without a reader.
  }

  [[nodiscard]] std::string count_text(const WatchedEpochs& epochs) const {
    if (command_.json) return {};
    std::string out = fmt::format("{} checkpoints evaluated, in {}", evaluated_,
                                  (command_.where / kEvaluationsFile).string());
    if (vanished_ > 0) out += fmt::format("; {} removed before", vanished_);
    if (damaged_ > 0) out += fmt::format("; {} damaged", damaged_);
    if (epochs.added > 0) out += fmt::format("; {} epochs of result.json completed", epochs.added);
    return out + "\n";
  }

  const EvalCommand& command_;
  DataCache& cache_;
  const Terminal& terminal_;
  std::shared_ptr<comm::Communicator> comm_;
  Position position_;
  std::optional<DevicePlacement> placement_;
  std::shared_ptr<const data::DataSplits> data_;
  // On rank 0 only:
  std::optional<Evaluations> done_;
  std::set<std::int64_t> left_out_;
  Clock::time_point next_look_ = {};
  std::int64_t evaluated_ = 0, vanished_ = 0, damaged_ = 0;
};

/// Returns the options of the communication. A run that is about to begin has no config.toml yet.
Connection watch_connection(const EvalCommand& command) {
  const fs::path file = command.where / "config.toml";
  if (fs::exists(file)) return connection(load_config(file, command.set));
  std::vector<std::string> own;
  std::ranges::copy_if(command.set, std::back_inserter(own), [](const std::string& text) {
    return text.starts_with("run.comm_") || text.starts_with("run.require_secret");
  });
  return connection(parse_config("", own, "--set"));
}

}  // namespace

int watch(const EvalCommand& command, const Terminal& terminal) {
  Job job{.ranks = command.ranks};
  job.early = attempt("checkpoint", [&] {
    require_run(command.where);
    job.connection = watch_connection(command);
  });
  DataCache cache;
  return run_job(job, terminal, [&](std::shared_ptr<comm::Communicator> comm) {
    Watcher(command, cache, terminal, std::move(comm))();
  });
}

}  // namespace dkfac::app

#include "app/sweep/runner.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include <fmt/core.h>

#include "dkfac/core/error.h"
#include "dkfac/core/threads.h"

#include "app/checkpoint/durable.h"
#include "app/checkpoint/resume.h"
#include "app/checkpoint/store.h"
#include "app/run/run_lock.h"
#include "app/run/signals.h"
#include "app/shared/config.h"
#include "app/shared/errors.h"
#include "app/sweep/process.h"
#include "app/sweep/table.h"

namespace dkfac::app {

namespace {

namespace fs = std::filesystem;

constexpr auto kLook = std::chrono::milliseconds(50);
constexpr auto kLongestSave = std::chrono::minutes(5);

void fill_in(std::string& text, const std::string& what, const std::string& value) {
  for (std::size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + value.size()))
    text.replace(at, what.size(), value);
}

/// Returns the words before the program: variables for every run, and its launcher.
std::vector<std::string> launcher_words(const Slots& slots, const std::string& name, int slot) {
  constexpr const char* kThreads = "OMP_NUM_THREADS";
  // A single run limits its threads itself; concurrent runs are not aware of each other.
  const bool crowded =
      slots.parallel > 1 && slots.hosts.empty() && std::getenv(kThreads) == nullptr;
  const int share = std::max(1, available_cores() / (slots.parallel * slots.ranks));
  std::vector<std::string> words;
  if (slots.threads > 0 || crowded)
    words = {"env", fmt::format("{}={}", kThreads, slots.threads > 0 ? slots.threads : share)};
  std::istringstream in(slots.launcher);
  const std::string host = slots.hosts.empty()
                               ? "localhost"
                               : slots.hosts[static_cast<std::size_t>(slot) % slots.hosts.size()];
  for (std::string word; in >> word;) {
    fill_in(word, "{ranks}", std::to_string(slots.ranks));
    fill_in(word, "{host}", host);
    fill_in(word, "{slot}", std::to_string(slot));
    fill_in(word, "{name}", name);
    words.push_back(std::move(word));
  }
  return words;
}

/// Extracts the error line of a failed run from its output.
std::string error_in(const fs::path& log, std::uintmax_t begin, int end) {
  std::ifstream in(log, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(begin));
  std::string last, error;
  for (std::string line; std::getline(in, line);) {
    if (line.find("ERROR rank=") != std::string::npos) error = line;
    if (!line.empty()) last = line;
  }
  if (!error.empty()) return error;
  const std::string how = end < 0 ? fmt::format("ended by signal {}", -end)
                                  : fmt::format("ended with exit code {}", end);
  return last.empty() ? how : how + ": " + last;
}

/// Returns the command that starts or resumes a run, up to the end of epoch `until` (0: its own
/// end).
std::vector<std::string> command_of(const SweepSpec& spec, const SweepRun& run,
                                    const fs::path& folder, int slot, std::int64_t until) {
  std::vector<std::string> words = launcher_words(spec.slots, run.point.name, slot);
  words.insert(words.end(), {this_program().string(), "train"});
  if (!list_checkpoints(folder / kCheckpointFolder).empty()) {
    words.insert(words.end(), {"--resume", folder.string()});
    // The data may have moved since: nothing else may have changed.
    const Config now = load_config(run.point.config, overrides_of(spec, run.point));
    words.insert(words.end(), {"--set", "data.path=" + now.data.path});
  } else {
    words.push_back(run.point.config.string());
    for (const std::string& set : overrides_of(spec, run.point))
      words.insert(words.end(), {"--set", set});
    words.insert(words.end(),
                 {"--set", "run.name=" + run.point.name, "--out", folder.string(), "--force"});
  }
  if (until > 0) words.insert(words.end(), {"--until-epoch", std::to_string(until)});
  if (spec.slots.launcher.empty() && spec.slots.ranks > 1)
    words.insert(words.end(), {"--ranks", std::to_string(spec.slots.ranks)});
  words.emplace_back("--quiet");
  return words;
}

/// Waits until no process uses the folder of a run: that of a killed sweep saves a checkpoint
/// first. After some minutes the new process tells who uses it.
void wait_until_free(const fs::path& folder) {
  const auto end = std::chrono::steady_clock::now() + kLongestSave;
  while (fs::exists(folder / kLockFile) && !stop_requested()) try {
      (void)RunLock(folder);
      return;
    } catch (const InvalidArgument&) {
      if (std::chrono::steady_clock::now() > end) return;
      std::this_thread::sleep_for(kLook);
    }
}

class SweepRunner {
 public:
  SweepRunner(SweepState& state, const fs::path& folder, const Terminal& terminal, bool quiet)
      : state_(state), folder_(folder), terminal_(terminal), quiet_(quiet) {}

  bool operator()() {
    fs::create_directories(folder_ / "logs");
    save();
    while (state_.rungs_done < std::ssize(state_.rungs)) {
      const std::int64_t rung = state_.rungs[static_cast<std::size_t>(state_.rungs_done)];
      if (!run_to(rung)) return false;
      score_runs(rung);
      save();
    }
    return true;
  }

 private:
  struct Slot {
    std::optional<Process> process;
    std::size_t run = 0;
    std::uintmax_t log_begin = 0;  ///< Bytes of its log before this process.
  };

  [[nodiscard]] fs::path folder_of(const SweepRun& run) const { return folder_ / run.point.name; }
  [[nodiscard]] fs::path log_of(const SweepRun& run) const {
    return folder_ / "logs" / (run.point.name + ".log");
  }
  void save() const { write_file(folder_ / kSweepFile, to_json(state_)); }
  void say(const std::string& line) const {
    if (!quiet_) terminal_.out << line << std::endl;
  }

  /// Scores a run that has completed the epochs of a rung, or all of its own.
  void score(SweepRun& run, std::int64_t rung) const {
    const std::int64_t epochs = std::min(rung, run.point.epochs);
    run.scores[epochs] = score_of(run.result.epochs, epochs, state_.spec.metric, state_.spec.over);
    if (rung >= run.point.epochs) run.status = "ok";
  }
  [[nodiscard]] static bool has_epochs(const SweepRun& run, std::int64_t rung) {
    return std::ssize(run.result.epochs) >= std::min(rung, run.point.epochs);
  }

  /// Trains the runs up to a rung. Returns false after a signal.
  bool run_to(std::int64_t rung) {
    std::deque<std::size_t> todo;
    for (std::size_t i = 0; i < state_.runs.size(); ++i) {
      SweepRun& run = state_.runs[i];
      if (run.status != "waiting") continue;
      if (has_epochs(run, rung))
        score(run, rung);
      else
        todo.push_back(i);
    }
    if (!todo.empty())
      say(fmt::format("{} run{} to epoch {}", todo.size(), todo.size() == 1 ? "" : "s", rung));
    std::vector<Slot> slots(static_cast<std::size_t>(state_.spec.slots.parallel));
    const auto busy = [](const Slot& slot) { return slot.process.has_value(); };
    while ((!todo.empty() && !stopped_) || std::ranges::any_of(slots, busy)) {
      if (stop_requested() && !stopped_) {
        stopped_ = true;
        for (const Slot& slot : slots)
          if (slot.process) slot.process->ask_to_stop();
      }
      for (std::size_t s = 0; s < slots.size(); ++s) {
        Slot& slot = slots[s];
        if (slot.process && slot.process->ended()) finish(slot, rung);
        if (slot.process || todo.empty() || stopped_) continue;
        slot.run = todo.front();
        todo.pop_front();
        start(slot, static_cast<int>(s), rung);
      }
      std::this_thread::sleep_for(kLook);
    }
    return !stopped_;
  }

  void start(Slot& slot, int number, std::int64_t rung) const {
    const SweepRun& run = state_.runs[slot.run];
    const fs::path log = log_of(run);
    const std::int64_t until = rung < run.point.epochs ? rung : 0;
    wait_until_free(folder_of(run));
    std::error_code none;
    slot.log_begin = fs::exists(log, none) ? fs::file_size(log) : 0;
    slot.process.emplace(command_of(state_.spec, run, folder_of(run), number, until), log);
  }

  void finish(Slot& slot, std::int64_t rung) {
    const int end = *slot.process->ended();
    slot.process.reset();
    SweepRun& run = state_.runs[slot.run];
    try {
      read_result(folder_of(run), run);
      if (end != 0 && stopped_) return;  // Stopped on request.
      if (end == 0 && has_epochs(run, rung)) {
        score(run, rung);
      } else {
        run.status = "failed";
        run.error = end == 0 ? "ended without the epochs it was to train"
                             : error_in(log_of(run), slot.log_begin, end);
        run.exit_code = std::max(0, end);
      }
    } catch (const Error& error) {
      run.status = "failed";
      run.error = error.what();
    }
    save();
    say("  " + line_of(state_, run));
  }

  /// Scores the runs, and drops the worse ones under successive halving.
  void score_runs(std::int64_t rung) {
    std::vector<std::size_t> here;
    std::vector<double> scores;
    for (std::size_t i = 0; i < state_.runs.size(); ++i) {
      SweepRun& run = state_.runs[i];
      if (run.status == "dropped" || run.status == "failed") continue;
      score(run, rung);
      here.push_back(i);
      scores.push_back(last_score(run));
    }
    ++state_.rungs_done;
    if (!state_.spec.halving || rung == state_.rungs.back() || here.empty()) return;
    const std::vector<std::size_t> order = ranked(scores, state_.spec.metric);
    const std::size_t kept = survivors(order.size(), state_.spec.halving->eta);
    for (std::size_t i = kept; i < order.size(); ++i)
      state_.runs[here[order[i]]].status = "dropped";
    say(fmt::format("{} of {} go on after epoch {}", kept, order.size(), rung));
  }

  SweepState& state_;
  const fs::path& folder_;
  const Terminal& terminal_;
  bool quiet_, stopped_ = false;
};

}  // namespace

bool run_sweep(SweepState& state, const fs::path& folder, const Terminal& terminal, bool quiet) {
  return SweepRunner(state, folder, terminal, quiet)();
}

}  // namespace dkfac::app

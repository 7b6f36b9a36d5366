#include "app/sweep/runner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <sstream>
#include <thread>

#include <fmt/core.h>

#include "dkfac/core/error.h"
#include "dkfac/core/threads.h"

#include "app/checkpoint/resume.h"
#include "app/checkpoint/store.h"
#include "app/report/format.h"
#include "app/run/signals.h"
#include "app/shared/errors.h"
#include "app/shared/report.h"
#include "app/sweep/table.h"

namespace dkfac::app {

namespace {

namespace fs = std::filesystem;

constexpr auto kLook = std::chrono::milliseconds(50);

void fill_in(std::string& text, const std::string& what, const std::string& value) {
  for (std::size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + value.size()))
    text.replace(at, what.size(), value);
}

std::vector<std::string> launcher_words(const Slots& slots, const std::string& name, int slot) {
  std::vector<std::string> words;
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

/// The line that says why a run failed, out of what it printed.
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

}  // namespace

std::vector<std::string> command_of(const SweepSpec& spec, const SweepRun& run,
                                    const fs::path& folder, int slot, std::int64_t until,
                                    bool go_on) {
  std::vector<std::string> words = launcher_words(spec.slots, run.point.name, slot);
  words.push_back(this_program().string());
  words.emplace_back("train");
  if (go_on) {
    words.insert(words.end(), {"--resume", folder.string()});
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

std::map<std::string, std::string> environment_of(const Slots& slots) {
  constexpr const char* kThreads = "OMP_NUM_THREADS";
  if (slots.threads > 0) return {{kThreads, std::to_string(slots.threads)}};
  // A run alone takes its share by itself; runs beside each other do not know of each other.
  if (slots.parallel == 1 || !slots.hosts.empty() || std::getenv(kThreads) != nullptr) return {};
  const int share = available_cores() / (slots.parallel * slots.ranks);
  return {{kThreads, std::to_string(std::max(1, share))}};
}

SweepRunner::SweepRunner(SweepState& state, fs::path folder, const Terminal& terminal, bool quiet)
    : state_(state),
      folder_(std::move(folder)),
      terminal_(terminal),
      quiet_(quiet),
      environment_(environment_of(state.spec.slots)) {
  fs::create_directories(folder_ / "logs");
}

fs::path SweepRunner::folder_of(const SweepRun& run) const { return folder_ / run.point.name; }

fs::path SweepRunner::log_of(const SweepRun& run) const {
  return folder_ / "logs" / (run.point.name + ".log");
}

std::int64_t SweepRunner::target(const SweepRun& run, std::int64_t rung) const {
  return std::min(rung, run.point.epochs);
}

bool SweepRunner::operator()() {
  save();
  for (std::size_t r = static_cast<std::size_t>(state_.rungs_done); r < state_.rungs.size(); ++r) {
    if (!run_to(state_.rungs[r])) return false;
    judge(state_.rungs[r]);
    save();
  }
  return true;
}

bool SweepRunner::run_to(std::int64_t rung) {
  std::deque<std::size_t> todo;
  for (std::size_t i = 0; i < state_.runs.size(); ++i) {
    const SweepRun& run = state_.runs[i];
    const bool done = std::ssize(run.result.epochs) >= target(run, rung);
    if (run.status == "waiting" && !done) todo.push_back(i);
    if (run.status == "waiting" && done)
      state_.runs[i].status = rung >= run.point.epochs ? "ok" : "waiting";
  }
  if (!quiet_ && !todo.empty())
    terminal_.out << fmt::format("{} run{} to epoch {}", todo.size(), todo.size() == 1 ? "" : "s",
                                 rung)
                  << std::endl;
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
      start(slot, static_cast<int>(s), todo.front(), rung);
      todo.pop_front();
    }
    std::this_thread::sleep_for(kLook);
  }
  return !stopped_;
}

void SweepRunner::start(Slot& slot, int number, std::size_t index, std::int64_t rung) {
  const SweepRun& run = state_.runs[index];
  const fs::path folder = folder_of(run), log = log_of(run);
  const bool go_on = !list_checkpoints(folder / kCheckpointFolder).empty();
  const std::int64_t until = rung < run.point.epochs ? rung : 0;
  std::error_code none;
  slot.run = index;
  slot.log_begin = fs::exists(log, none) ? fs::file_size(log) : 0;
  slot.process.emplace(command_of(state_.spec, run, folder, number, until, go_on), environment_,
                       log);
}

void SweepRunner::finish(Slot& slot, std::int64_t rung) {
  const int end = *slot.process->ended();
  slot.process.reset();
  SweepRun& run = state_.runs[slot.run];
  try {
    read_result(folder_of(run), run);
    const bool enough = std::ssize(run.result.epochs) >= target(run, rung);
    if (end != 0 && stopped_) return;  // As asked.
    if (end == 0 && enough) {
      if (rung >= run.point.epochs) run.status = "ok";
      run.scores[target(run, rung)] =
          score_of(run.result.epochs, target(run, rung), state_.spec.metric, state_.spec.over);
    } else {
      run.status = "failed";
      run.error = end == 0 ? "ended without the epochs it was to train"
                           : error_in(log_of(run), slot.log_begin, end);
    }
  } catch (const Error& error) {
    run.status = "failed";
    run.error = error.what();
  }
  save();
  if (!quiet_) terminal_.out << "  " << line_of(state_, run) << std::endl;
}

void SweepRunner::judge(std::int64_t rung) {
  std::vector<std::size_t> here;
  std::vector<double> scores;
  for (std::size_t i = 0; i < state_.runs.size(); ++i) {
    SweepRun& run = state_.runs[i];
    if (run.status == "dropped" || run.status == "failed") continue;
    const double score =
        score_of(run.result.epochs, target(run, rung), state_.spec.metric, state_.spec.over);
    run.scores[target(run, rung)] = score;
    here.push_back(i);
    scores.push_back(score);
  }
  ++state_.rungs_done;
  if (!state_.spec.halving || rung == state_.rungs.back() || here.empty()) return;
  const std::vector<std::size_t> order = ranked(scores, state_.spec.metric);
  const std::size_t kept = survivors(order.size(), state_.spec.halving->eta);
  for (std::size_t i = kept; i < order.size(); ++i) state_.runs[here[order[i]]].status = "dropped";
  if (!quiet_)
    terminal_.out << fmt::format("{} of {} go on after epoch {}", kept, order.size(), rung)
                  << std::endl;
}

void SweepRunner::save() const { write_file(folder_ / kSweepFile, to_json(state_)); }

}  // namespace dkfac::app

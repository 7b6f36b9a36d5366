#include "app/sweep/table.h"

#include <cmath>

#include <fmt/core.h>

namespace dkfac::app {

namespace {

bool several_configs(const SweepState& state) { return state.spec.configs.size() > 1; }

std::string place_text(const SweepState& state, const SweepRun& run) {
  return several_configs(state)
             ? run.point.config.stem().string() + ", " + label_of(run.point.settings)
             : label_of(run.point.settings);
}

}  // namespace

std::set<std::string> keys_of(const SweepState& state) {
  std::set<std::string> keys;
  for (const SweepRun& run : state.runs)
    for (const auto& [key, value] : run.point.settings) keys.insert(key);
  return keys;
}

std::string score_text(double score, Metric metric) {
  if (!std::isfinite(score)) return "-";
  return metric == Metric::test_accuracy ? fixed(100 * score, 2) + " %" : three_digits(score);
}

Table table_of(const SweepState& state) {
  Table out;
  std::vector<const SweepRun*> runs;
  for (const std::size_t i : ranking(state)) runs.push_back(&state.runs[i]);
  const auto column = [&](Head head, const auto& read) {
    add_column(out, std::move(head), runs, [&](const SweepRun* run) { return read(*run); });
  };
  using Run = const SweepRun&;
  column({"", "run"}, [](Run run) { return run.point.name; });
  if (several_configs(state))
    column({"", "configuration"}, [](Run run) { return run.point.config.stem().string(); });
  for (const std::string& key : keys_of(state)) {
    const std::size_t dot = key.find('.');
    column({key.substr(0, dot), key.substr(dot + 1)}, [&](Run run) {
      const auto at = run.point.settings.find(key);
      return at == run.point.settings.end() ? "-" : at->second;
    });
  }
  column({"", "epochs"}, [](Run run) { return fmt::format("{}", run.result.epochs.size()); });
  column({std::string(name_of(state.spec.metric)), std::string(name_of(state.spec.over))},
         [&](Run run) {
           const bool best = &run == runs.front() && run.status != "failed";
           return Cell{score_text(last_score(run), state.spec.metric),
                       best && std::isfinite(last_score(run))};
         });
  const auto known = [&](Head head, const auto& read) {
    column(std::move(head), [&](Run run) {
      return run.result.epochs.empty() ? std::string("-") : read(run.result);
    });
  };
  known({"best", "accuracy, %"}, [](const auto& r) { return fixed(100 * r.best_accuracy, 2); });
  known({"train", "seconds"}, [](const auto& r) { return three_digits(r.train_seconds); });
  column({"", "became"}, [](Run run) { return run.status; });
  return out;
}

std::string line_of(const SweepState& state, const SweepRun& run) {
  if (run.status == "failed")
    return fmt::format("{} ({}): {}", run.point.name, place_text(state, run), run.error);
  return fmt::format("{} ({}): {} after {} epochs", run.point.name, place_text(state, run),
                     score_text(last_score(run), state.spec.metric), run.result.epochs.size());
}

std::string summary_of(const SweepState& state) {
  std::string out;
  const std::vector<std::size_t> order = ranking(state);
  const SweepRun& best = state.runs[order.front()];
  if (best.status != "failed" && !best.scores.empty())
    out += fmt::format("Best by the {} {}: {}.\n", name_of(state.spec.over),
                       name_of(state.spec.metric), line_of(state, best));
  std::int64_t epochs = 0, all = 0;
  for (const SweepRun& run : state.runs) {
    epochs += std::ssize(run.result.epochs);
    all += run.point.epochs;
  }
  out += fmt::format("{} epochs were trained; all runs to their ends would have taken {}.\n",
                     epochs, all);
  for (const std::size_t i : order)
    if (state.runs[i].status == "failed") out += "Failed: " + line_of(state, state.runs[i]) + "\n";
  return out;
}

std::string plan_text(const SweepState& state) {
  std::string out;
  for (const SweepRun& run : state.runs)
    out += fmt::format("{}  {}\n", run.point.name, place_text(state, run));
  std::size_t runs = state.runs.size();
  std::int64_t before = 0, total = 0;
  for (const std::int64_t rung : state.rungs) {
    out += fmt::format("{} run{} to epoch {}\n", runs, runs == 1 ? "" : "s", rung);
    if (state.spec.halving) total += static_cast<std::int64_t>(runs) * (rung - before);
    before = rung;
    if (state.spec.halving) runs = survivors(runs, state.spec.halving->eta);
  }
  if (!state.spec.halving)
    for (const SweepRun& run : state.runs) total += run.point.epochs;
  return out + fmt::format("{} epochs in all, {} at a time\n", total, state.spec.slots.parallel);
}

}  // namespace dkfac::app

#include "app/sweep/table.h"

#include <cmath>

#include <fmt/core.h>

#include "app/report/format.h"

namespace dkfac::app {

namespace {

bool several_configs(const SweepState& state) { return state.spec.configs.size() > 1; }

std::string value_of(const Settings& settings, const std::string& key) {
  const auto at = settings.find(key);
  return at == settings.end() ? "-" : at->second;
}

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
  out.heads = {{"", "run"}};
  if (several_configs(state)) out.heads.push_back({"", "configuration"});
  const std::set<std::string> keys = keys_of(state);
  for (const std::string& key : keys) {
    const std::size_t dot = key.find('.');
    out.heads.push_back({key.substr(0, dot), key.substr(dot + 1)});
  }
  out.heads.push_back({"", "epochs"});
  out.heads.push_back(
      {std::string(name_of(state.spec.metric)), std::string(name_of(state.spec.over))});
  out.heads.push_back({"best", "accuracy, %"});
  out.heads.push_back({"train", "seconds"});
  out.heads.push_back({"", "became"});
  bool first = true;
  for (const std::size_t i : ranking(state)) {
    const SweepRun& run = state.runs[i];
    std::vector<Cell> row{{run.point.name}};
    if (several_configs(state)) row.push_back({run.point.config.stem().string()});
    for (const std::string& key : keys) row.push_back({value_of(run.point.settings, key)});
    const bool any = !run.result.epochs.empty();
    row.push_back({fmt::format("{}", run.result.epochs.size())});
    row.push_back({score_text(last_score(run), state.spec.metric),
                   first && std::isfinite(last_score(run)) && run.status != "failed"});
    row.push_back({any ? fixed(100 * run.result.best_accuracy, 2) : "-"});
    row.push_back({any ? three_digits(run.result.train_seconds) : "-"});
    row.push_back({run.status});
    out.rows.push_back(std::move(row));
    first = false;
  }
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

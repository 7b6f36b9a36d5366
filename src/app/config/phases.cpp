#include "app/config/phases.h"

#include <algorithm>

#include <fmt/core.h>

#include "dkfac/core/error.h"

#include "app/config/settings.h"

namespace dkfac::app {

namespace {

// A star matches any suffix. Keys that are not listed determine the network, the optimizer's state
// and its owners, or the samples themselves.
constexpr std::string_view kChangeable[] = {"run.eval_batch",
                                            "data.path",
                                            "data.synthetic_size",
                                            "data.image_size",
                                            "data.crop*",
                                            "data.test_resized",
                                            "data.rectangular",
                                            "augment.*",
                                            "train.global_batch",
                                            "train.micro_batches",
                                            "train.label_smoothing",
                                            "optimizer.momentum",
                                            "optimizer.momentum_schedule",
                                            "optimizer.momentum_knots",
                                            "optimizer.damping",
                                            "optimizer.relative_damping",
                                            "optimizer.damping_schedule",
                                            "optimizer.damping_initial",
                                            "optimizer.damping_warmup_steps",
                                            "optimizer.damping_knots",
                                            "optimizer.statistics_interval",
                                            "optimizer.inverse_interval",
                                            "optimizer.interval_schedule",
                                            "optimizer.first_*",
                                            "optimizer.interval_ramp_steps",
                                            "lr.*"};

bool matches(std::string_view path, std::string_view pattern) {
  if (!pattern.ends_with('*')) return path == pattern;
  pattern.remove_suffix(1);
  return path.starts_with(pattern);
}

bool gives(const PhaseChanges& changes, std::initializer_list<std::string_view> patterns) {
  return std::ranges::any_of(changes.changes, [&](const auto& change) {
    return std::ranges::any_of(patterns,
                               [&](auto pattern) { return matches(change.first, pattern); });
  });
}

Phase::Own own_schedules(const PhaseChanges& p) {
  return {.lr = gives(p, {"lr.schedule", "lr.lr", "lr.start", "lr.end", "lr.final", "lr.power",
                          "lr.knots"}),
          .warmup = gives(p, {"lr.warmup_*"}),
          .momentum = gives(p, {"optimizer.momentum_schedule", "optimizer.momentum_knots"}),
          .damping = gives(p, {"optimizer.damping_schedule", "optimizer.damping_initial",
                               "optimizer.damping_warmup_steps", "optimizer.damping_knots"}),
          .intervals = gives(p, {"optimizer.interval_schedule", "optimizer.first_*",
                                 "optimizer.interval_ramp_steps"})};
}

Phase phase_of(const Config& sections, const PhaseChanges& changes, std::int64_t first_epoch) {
  Phase phase{.first_epoch = first_epoch,
              .epochs = changes.epochs,
              .config = sections,
              .own = own_schedules(changes)};
  for (const auto& [path, value] : changes.changes) {
    const Key* key = find_key(path);
    DKFAC_CHECK(may_change(path), "[config] a phase has the key '", path,
                "', which cannot change; 'dkfac info config' lists the keys that can");
    key->set(phase.config, read_value(*key, value));
    phase.changed.push_back(path);
  }
  LrConfig& lr = phase.config.lr;
  if (phase.own.lr && lr.end == 0) lr.end = static_cast<double>(changes.epochs);
  return phase;
}

}  // namespace

bool may_change(std::string_view path) {
  return find_key(path) != nullptr &&
         std::ranges::any_of(kChangeable, [&](auto pattern) { return matches(path, pattern); });
}

std::vector<std::string> phase_keys() {
  std::vector<std::string> paths;
  for (const Key& key : config_keys())
    if (may_change(key.path)) paths.push_back(key.path);
  return paths;
}

std::int64_t sum_of_epochs(const std::vector<PhaseChanges>& phases) {
  std::int64_t sum = 0;
  for (const PhaseChanges& phase : phases) sum += phase.epochs;
  return sum;
}

std::vector<Phase> phases_of(const Config& config) {
  if (config.phases.empty()) return {{.epochs = config.run.epochs, .config = config}};
  Config sections = config;
  sections.phases.clear();
  std::vector<Phase> phases;
  std::int64_t first_epoch = 1;
  for (const PhaseChanges& changes : config.phases) {
    phases.push_back(phase_of(sections, changes, first_epoch));
    first_epoch += changes.epochs;
  }
  return phases;
}

const Phase& phase_at(const std::vector<Phase>& phases, std::int64_t epoch) {
  const auto after = std::ranges::upper_bound(phases, epoch, {}, &Phase::first_epoch);
  return after == phases.begin() ? phases.front() : *std::prev(after);
}

std::string phase_text(const std::vector<Phase>& phases, std::size_t i) {
  const Phase& phase = phases[i];
  return fmt::format(" (phase {}, epochs {} to {})", i + 1, phase.first_epoch,
                     phase.first_epoch + phase.epochs - 1);
}

std::string phases_to_toml(const Config& config, Comments comments) {
  std::string out;
  const auto add = [&](const std::string& line, const std::string& help) {
    out += comments == Comments::help ? fmt::format("{:<36} # {}\n", line, help) : line + '\n';
  };
  for (const PhaseChanges& phase : config.phases) {
    out += "\n[[phase]]\n";
    add(fmt::format("epochs = {}", phase.epochs), "of this phase");
    for (const auto& [path, value] : phase.changes)
      add(fmt::format("{} = {}", path, value), find_key(path)->help);
  }
  return out;
}

}  // namespace dkfac::app

#include <array>
#include <numeric>

#include <fmt/core.h>

#include "app/logging/number_text.h"
#include "app/logging/progress.h"
#include "app/training/phases.h"

namespace dkfac::app {

namespace {

using Row = std::vector<std::string>;

std::string operations_text(double flops) {
  constexpr std::array<const char*, 5> kUnits{"MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"};
  std::size_t unit = 0;
  double scaled = flops * 1e-6;
  for (; scaled >= 1000 && unit + 1 < kUnits.size(); ++unit) scaled /= 1000;
  return fmt::format("{:.4g} {}", scaled, kUnits.at(unit));
}

std::string time_text(double seconds) {
  constexpr double kMinute = 60;
  return seconds < kMinute ? three_digits(seconds) + " s" : duration_text(seconds);
}

std::string from_to(double first, double last) {
  const std::string from = fmt::format("{:.4g}", first), to = fmt::format("{:.4g}", last);
  return from == to ? from : from + " - " + to;
}

std::string count_text(double images) {
  return images < 1e6 ? fmt::format("{:.0f}", images) : fmt::format("{:.4g} M", images * 1e-6);
}

std::string per_rank_text(std::int64_t batch, int ranks) {
  return batch % ranks == 0 ? std::to_string(batch / ranks)
                            : fmt::format("{:.1f}", static_cast<double>(batch) / ranks);
}

double images_of(const PhasePlan& plan) { return static_cast<double>(plan.images(plan.steps())); }

double operations_of(const PhasePlan& plan) { return plan.image_flops * images_of(plan); }

Row row_of(const PhasePlan& plan, std::size_t number, int ranks) {
  const Phase& phase = plan.phase;
  const TrainConfig& train = phase.config.train;
  const Shape image = image_of(plan);
  const auto begin = static_cast<double>(phase.first_epoch - 1);
  const double last =
      begin + static_cast<double>(plan.steps() - 1) / static_cast<double>(plan.steps_per_epoch);
  return {std::to_string(number),
          fmt::format("{} - {}", phase.first_epoch, phase.first_epoch + phase.epochs - 1),
          fmt::format("{}x{}", image[0], image[1]),
          std::to_string(train.global_batch),
          per_rank_text(train.global_batch, ranks),
          std::to_string(plan.steps()),
          from_to(learning_rate(phase, begin), learning_rate(phase, last)),
          from_to(momentum(phase, begin), momentum(phase, last)),
          count_text(images_of(plan)),
          operations_text(operations_of(plan))};
}

}  // namespace

std::string phase_table(const std::vector<PhasePlan>& plan, int ranks,
                        std::span<const double> seconds) {
  std::vector<Row> rows{{"phase", "epochs", "image", "batch", "per rank", "steps", "lr", "momentum",
                         "images", "operations"}};
  double images = 0, operations = 0;
  for (const PhasePlan& p : plan) {
    rows.push_back(row_of(p, rows.size(), ranks));
    images += images_of(p);
    operations += operations_of(p);
  }
  if (plan.size() > 1)
    rows.push_back({"all",
                    std::to_string(plan.back().phase.first_epoch + plan.back().phase.epochs - 1),
                    "", "", "", std::to_string(total_steps(plan)), "", "", count_text(images),
                    operations_text(operations)});
  if (!seconds.empty()) {
    rows.front().emplace_back("time");
    for (std::size_t i = 0; i < plan.size(); ++i) rows[i + 1].push_back(time_text(seconds[i]));
    if (plan.size() > 1)
      rows.back().push_back(time_text(std::accumulate(seconds.begin(), seconds.end(), 0.0)));
  }
  return lines_of(rows, FirstColumn::right);
}

}  // namespace dkfac::app

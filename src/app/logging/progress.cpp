#include "app/logging/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/core.h>

#include "app/logging/number_text.h"
#include "app/logging/run_summary.h"
#include "core/shared/printable.h"

namespace dkfac::app {

namespace {

constexpr double kRedrawSeconds = 0.1;

bool wants_colour(const Terminal& terminal) {
  const char* no_colour = std::getenv("NO_COLOR");
  return terminal.interactive && (no_colour == nullptr || *no_colour == '\0');
}

/// Describes how loading photographs kept up in the last epoch.
std::string loading_text(const RunResult& result) {
  if (result.epochs.empty() || !result.epochs.back().loading) return {};
  const LoadingMetrics& l = *result.epochs.back().loading;
  const double all = l.all_s();
  std::string text =
      fmt::format("\nloading: {:.1f}% of the time waited for", 100 * l.wait_fraction);
  if (all > 0)
    text += fmt::format(
        ", {} img/s a thread (read {:.0f}%, decode {:.0f}%, resize {:.0f}%, normalise {:.0f}%)",
        three_digits(l.images / all), 100 * l.read_s / all, 100 * l.decode_s / all,
        100 * l.resize_s / all, 100 * l.normalise_s / all);
  if (l.bad > 0) text += fmt::format(", damaged files: {:.0f}", l.bad);
  for (const std::string& name : result.bad_photos) text += "\n  " + printable(name, 1000);
  return text;
}

/// Formats "2 epochs", and the steps since, "2 epochs and 3 steps", or alone.
std::string length_text(const RunResult& result) {
  const std::int64_t before = result.epochs.empty() ? 0 : result.epochs.back().step;
  const std::string steps = fmt::format("{} steps", result.steps - before);
  if (result.epochs.empty()) return steps;
  const std::string epochs = fmt::format("{} epochs", result.epochs.size());
  return result.steps > before ? epochs + " and " + steps : epochs;
}

/// Describes the fusions and how many pairs were fused.
std::string shared_work_text(const RunResult& result) {
  std::string text;
  const auto add = [&](const char* key, const std::optional<SharedWork>& work) {
    if (work) text += fmt::format("\n{}: {} of {} pairs", key, work->fused, work->pairs);
  };
  add("model.fused_moments", result.fused_moments);
  add("model.fused_backward", result.fused_backward);
  return text;
}

}  // namespace

std::string duration_text(double seconds) {
  if (!(seconds < 1e12)) return fmt::format("{:.2g} s", seconds);
  const auto total = static_cast<std::int64_t>(std::max(0.0, std::round(seconds)));
  const std::int64_t hours = total / 3600, minutes = total / 60 % 60, rest = total % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, rest)
                   : fmt::format("{}:{:02}", minutes, rest);
}

namespace {

/// Formats " acc 91.2%"; nothing for a network without labels.
std::string acc_text(double accuracy, int decimals) {
  return std::isnan(accuracy) ? std::string()
                              : fmt::format(" acc {:.{}f}%", 100 * accuracy, decimals);
}

std::string tested_text(const RunResult& result) {
  if (!any_evaluated(result)) return "not evaluated";
  if (!has_accuracy(result))
    return fmt::format("test loss {:.4f} (best {:.4f})", result.final_loss, result.best_loss);
  const auto tested = std::ranges::count_if(result.epochs, &EpochMetrics::evaluated);
  return fmt::format("test accuracy {:.2f}% (best {:.2f}%{})", 100 * result.final_accuracy,
                     100 * result.best_accuracy,
                     tested < 5 ? std::string()
                                : fmt::format(", median of the last five epochs {:.2f}%",
                                              100 * result.median_accuracy));
}

}  // namespace

std::string progress_line(const std::string& label, const StepMetrics& metrics, double elapsed,
                          double before, std::size_t width) {
  // Steps of different phases are weighted by their work, since image and batch sizes differ.
  const double done = metrics.work - before;
  const double left = done > 0 ? elapsed / done * (metrics.total_work - metrics.work) : 0;
  const std::string accuracy = acc_text(metrics.accuracy, 1);
  std::string line =
      fmt::format("{}  epoch {}/{}  step {}/{}  loss {:.3f}{}  {} img/s  ETA {}  lr {:.3g}", label,
                  metrics.epoch, metrics.epochs, metrics.step, metrics.total_steps, metrics.loss,
                  accuracy.empty() ? accuracy : " " + accuracy,
                  three_digits(metrics.images_per_second), duration_text(left), metrics.lr);
  if (metrics.skipped_steps > 0) line += fmt::format("  skipped {}", metrics.skipped_steps);
  return line.substr(0, width);
}

std::string epoch_line(const std::string& label, const RunResult& result, std::int64_t epochs) {
  const EpochMetrics& last = result.epochs.back();
  const std::string tested = last.evaluated ? fmt::format("test loss {:.4f}{}", last.test_loss,
                                                          acc_text(last.test_accuracy, 2))
                                            : "not evaluated";
  std::string line = fmt::format("{}  epoch {:>{}}/{}  train loss {:.4f}{}  {}  {:.1f} s  {} img/s",
                                 label, last.epoch, std::to_string(epochs).size(), epochs,
                                 last.train_loss, acc_text(last.train_accuracy, 2), tested,
                                 last.train_seconds, three_digits(last.images_per_second));
  if (last.utilisation) line += fmt::format("  MFU {:.1f}%", 100 * *last.utilisation);
  if (last.peak_memory) line += fmt::format("  {:.2f} GiB", *last.peak_memory / (1 << 30));
  if (last.test_top5) line += fmt::format("  top-5 {:.2f}%", 100 * *last.test_top5);
  if (last.plain_accuracy) line += fmt::format("  plain acc {:.2f}%", 100 * *last.plain_accuracy);
  if (last.skipped_steps > 0) line += fmt::format("  skipped {}", last.skipped_steps);
  const CurvatureResult& curvature = result.curvature;
  if (!curvature.intervals.empty())
    line += fmt::format("  statistics A {:.0f}% G {:.0f}%", 100 * curvature.a_kept(),
                        100 * curvature.g_kept());
  if (curvature.inverses.back() > 0)
    line += fmt::format("  kept inverses {:.0f}", curvature.inverses.back());
  return line;
}

std::string run_text(const RunResult& result) {
  const std::string tested = tested_text(result);
  std::string text = fmt::format("{}: {}, {}, {} in {} s of training", result.name, result.status,
                                 tested, length_text(result), three_digits(result.train_seconds));
  // The median over epochs, which has no value before the first has ended.
  if (!result.epochs.empty())
    text += fmt::format(", {} img/s", three_digits(result.images_per_second));
  if (!result.epochs.empty() && result.epochs.back().test_top5)
    text +=
        fmt::format("\nlabel among the first five: {:.2f}%", 100 * *result.epochs.back().test_top5);
  if (!result.epochs.empty() && result.epochs.back().plain_accuracy)
    text += fmt::format("\nof the weights themselves and one view of each image: {:.2f}%",
                        100 * *result.epochs.back().plain_accuracy);
  text += loading_text(result) + shared_work_text(result);
  if (const auto dollars = result.dollars(result.total_seconds))
    text += fmt::format("\ncost {:.2f} dollars, with evaluation and checkpoints", *dollars);
  const auto& [accuracy, top5, loss] = result.target;
  if (!result.target.any()) return text;
  text += "\ntarget";
  if (accuracy) text += fmt::format(" {:.2f}%", 100 * *accuracy);
  if (top5) text += fmt::format("{} top-5 {:.2f}%", accuracy ? " and" : "", 100 * *top5);
  if (loss) text += fmt::format("{} loss {:.6g}", accuracy || top5 ? " and" : "", *loss);
  text += ": ";
  if (!result.epochs.empty() && !any_evaluated(result))
    return text + "unknown until 'dkfac eval --watch' has ended";
  if (!result.epochs_to_target) return text + "not reached";
  return text + fmt::format("epoch {:.0f}, after {:.1f} s of training", *result.epochs_to_target,
                            *result.seconds_to_target);
}

std::size_t terminal_width() {
  if (const char* columns = std::getenv("COLUMNS")) {
    const int width = std::atoi(columns);
    if (width > 0) return static_cast<std::size_t>(width);
  }
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

Progress::Progress(const Terminal& terminal, std::string label, std::int64_t epochs)
    : terminal_(terminal),
      label_(std::move(label)),
      epochs_(epochs),
      colour_(wants_colour(terminal)) {}

void Progress::step(const StepMetrics& metrics) {
  if (before_ < 0) before_ = metrics.work_before;
  if (!terminal_.interactive || (shown_ && since_shown_.seconds() < kRedrawSeconds)) return;
  // The last column stays free: writing into it would wrap on some terminals.
  const std::string line =
      progress_line(label_, metrics, total_.seconds(), before_, terminal_width() - 1);
  terminal_.out << "\r\033[K" << (colour_ ? "\033[36m" : "") << line << (colour_ ? "\033[0m" : "")
                << std::flush;
  shown_ = true;
  since_shown_.lap();
}

void Progress::epoch(const RunResult& result) {
  clear();
  terminal_.out << epoch_line(label_, result, epochs_) << std::endl;
}

void Progress::clear() {
  if (shown_) terminal_.out << "\r\033[K" << std::flush;
  shown_ = false;
}

}  // namespace dkfac::app

#pragma once

#include <string>

#include "app/logging/stopwatch.h"
#include "app/shared/commands.h"
#include "app/shared/result.h"
#include "app/shared/trainer.h"

namespace dkfac::app {

/// Formats "kfac  epoch 2/10  step 13/50  loss 0.812  acc 71.2%  5210 img/s  ETA 0:42  lr 0.05",
/// cut to `width` characters. `elapsed`: seconds for the work (see StepMetrics) done since
/// `before`.
[[nodiscard]] std::string progress_line(const std::string& label, const StepMetrics& metrics,
                                        double elapsed, double before, std::size_t width);
[[nodiscard]] std::string epoch_line(const std::string& label, const RunResult& result,
                                     std::int64_t epochs);
/// Formats status, accuracy, time and target of a finished run in one or two lines.
[[nodiscard]] std::string run_text(const RunResult& result);
[[nodiscard]] std::string duration_text(double seconds);  ///< "0:42", "1:02:03"

/// Returns the columns of the terminal: COLUMNS, else the reported size, else 80.
[[nodiscard]] std::size_t terminal_width();

/// Prints the progress of a run: one line per epoch, and on a terminal an overwritten line in
/// between.
class Progress {
 public:
  Progress(const Terminal& terminal, std::string label, std::int64_t epochs);
  void step(const StepMetrics& metrics);
  void epoch(const RunResult& result);
  void clear();  ///< Erases the overwritten line.

 private:
  const Terminal& terminal_;
  std::string label_;
  std::int64_t epochs_;
  double before_ = -1;  ///< Work of earlier parts of the run; negative until known.
  bool colour_, shown_ = false;
  Stopwatch total_, since_shown_;
};

}  // namespace dkfac::app

#pragma once

#include <string>

#include "app/record/phase_timer.h"
#include "app/shared/commands.h"
#include "app/shared/result.h"
#include "app/shared/trainer.h"

namespace dkfac::app {

/// "kfac  epoch 2/10  step 13/50  loss 0.812  acc 71.2%  5210 img/s  ETA 0:42  lr 0.05", cut to
/// `width` characters. `elapsed` in seconds for the work (StepRecord) after `before`.
[[nodiscard]] std::string progress_line(const std::string& label, const StepRecord& record,
                                        double elapsed, double before, std::size_t width);
[[nodiscard]] std::string epoch_line(const std::string& label, const RunResult& result,
                                     std::int64_t epochs);
/// Status, accuracy, time and target of a finished run, in one or two lines.
[[nodiscard]] std::string run_text(const RunResult& result);
[[nodiscard]] std::string duration_text(double seconds);  ///< "0:42", "1:02:03"

/// Columns of the terminal: COLUMNS, else what the terminal says, else 80.
[[nodiscard]] std::size_t terminal_width();

/// Shows a run: one line per epoch, and on a terminal a line in between that is overwritten.
class Progress {
 public:
  Progress(const Terminal& terminal, std::string label, std::int64_t epochs);
  void step(const StepRecord& record);
  void epoch(const RunResult& result);
  void clear();  ///< Removes the line that would be overwritten.

 private:
  const Terminal& terminal_;
  std::string label_;
  std::int64_t epochs_;
  double before_ = -1;  ///< Work of earlier parts of the run, once known.
  bool colour_, shown_ = false;
  Stopwatch total_, since_shown_;
};

}  // namespace dkfac::app

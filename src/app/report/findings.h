#pragma once

#include <string>
#include <vector>

#include "app/report/format.h"
#include "app/shared/report.h"

namespace dkfac::app {

/// The outcome of a comparison in one respect, in words.
struct Finding {
  std::string what;     ///< Title: "Fewest epochs to 90 %"; "Epochs to 90 %" if none is shown to
                        ///< be better than another.
  std::string subject;  ///< "epochs to 90 %"
  std::string claim;    ///< Of the winners: "reaches 90 % in the fewest epochs".
  /// Indices into Comparison::groups: Standing::best(), or the only group with a value. None: no
  /// difference is shown.
  std::vector<std::size_t> winners;
  std::string names;  ///< Names of the winners: "kfac and sgd"; empty in a comparison of one group.
  std::string value;  ///< Values of the winners, or of all groups where there are none, with unit.
  std::string next;   ///< "sgd with 8.2 epochs (1.9 times as many, +3.9 ± 1.1 epochs)"; empty
                      ///< without a winner, or without others.
  /// Returns the finding as a sentence.
  [[nodiscard]] std::string sentence() const;
};
[[nodiscard]] std::vector<Finding> findings(const Comparison& comparison, Dash dash);
/// Returns caveats of the comparison: no interval over seeds, targets missed, failures, accuracies
/// at chance level.
[[nodiscard]] std::vector<std::string> caveats(const Comparison& comparison);
/// Returns all findings in one sentence, what is shown first; empty for one group.
[[nodiscard]] std::string lead(const Comparison& comparison, Dash dash);

}  // namespace dkfac::app

#pragma once

#include "dkfac/core/export.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac {

/// What one rank brings to a step's vote beside what the library finds itself.
struct DKFAC_API StepFlags {
  bool loss_nonfinite = false;
  bool data_error = false;
  bool stop = false;  ///< A signal asked this rank to stop after the step.
  /// One f64 where the optimizer is, e.g. the sum of the losses, that nobody has waited for: not
  /// finite raises loss_nonfinite. Read on the stream of the step, before it returns.
  ConstTensorView loss = {};

  /// Of this rank, as far as the host knows. It may have had no batch at all, so what is missing of
  /// it is forgiven.
  [[nodiscard]] bool rejects() const { return loss_nonfinite || data_error; }
};

/// Outcome of the vote: how many ranks raised each flag; the same on every rank.
struct DKFAC_API StepAgreement {
  int nonfinite_loss = 0;
  int nonfinite_gradient = 0;
  int nonfinite_statistic = 0;
  int data_error = 0;
  int numeric_failure = 0;  ///< Owners past max_failed_refreshes at the previous step.
  int stop = 0;
  [[nodiscard]] bool may_update() const {
    return nonfinite_loss + nonfinite_gradient + nonfinite_statistic + data_error == 0;
  }
};

}  // namespace dkfac

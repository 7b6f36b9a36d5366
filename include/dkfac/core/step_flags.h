#pragma once

#include "dkfac/core/export.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac {

/// Flags of one rank for the agreement on a step, in addition to those that the library detects.
struct DKFAC_API StepFlags {
  bool loss_nonfinite = false;
  bool data_error = false;
  bool stop = false;  ///< A signal asked this rank to stop after the step.
  /// One f64 on the optimizer's device, e.g. the sum of the losses; a value that is not finite
  /// raises loss_nonfinite. It is read on the stream of the step, without a host synchronization,
  /// before the step returns.
  ConstTensorView loss = {};

  /// Whether the host flags of this rank reject the step. Such a rank may have had no batch, so
  /// missing records and gradients of it are allowed.
  [[nodiscard]] bool rejects() const { return loss_nonfinite || data_error; }
};

/// Outcome of the agreement on a step: the number of ranks that raised each flag, the same on every
/// rank.
struct DKFAC_API StepAgreement {
  int nonfinite_loss = 0;
  int nonfinite_gradient = 0;
  int nonfinite_statistic = 0;
  int data_error = 0;
  int numeric_failure = 0;  ///< Owners beyond max_failed_refreshes at the previous step.
  int stop = 0;
  /// Whether the ranks accept the step.
  [[nodiscard]] bool may_update() const {
    return nonfinite_loss + nonfinite_gradient + nonfinite_statistic + data_error == 0;
  }
};

}  // namespace dkfac

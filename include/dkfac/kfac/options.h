#pragma once

#include <cstdint>
#include <optional>

#include "dkfac/core/types.h"

namespace dkfac::kfac {

/// Curvature of a batch normalisation (docs/math.md, "Batch normalisation").
enum class BatchNormFisher : std::uint8_t {
  diagonal,  ///< E[g_gamma^2], E[g_beta^2] per channel.
  unit_wise  ///< The 2x2 block of (gamma, beta) per channel: SP-NGD eq. 14-17.
};

/// How the damped curvature is inverted.
enum class InverseMethod : std::uint8_t {
  cholesky,  ///< pi-split damping of each factor, explicit inverses: one potrf + potri each.
  eigen      ///< Eigenvectors of each factor; lambda is added to products of eigenvalues: exact.
};

/// How the loss whose gradients come in was reduced; decides how the per-sample gradient is
/// recovered, so that damping means the same at every batch size.
enum class LossReduction : std::uint8_t {
  local_mean,   ///< Mean over this rank's batch; ranks are averaged.
  global_mean,  ///< This rank's samples divided by the global batch; ranks are summed.
  sum           ///< Sum over this rank's samples.
};

struct CurvatureOptions {
  /// Tikhonov damping lambda of (F + lambda I), split between A and G by pi. > 0.
  double damping = 1e-3;
  /// BatchNorm blocks use F_c + bn_damping * lambda * I. Published code: 16. > 0.
  double bn_damping = 1;
  /// Weight of the newest statistic in the bias-corrected running average. In (0, 1]; 1 is the
  /// paper: no average.
  double new_weight = 0.05;
  /// Steps between two refreshes of the statistics, and of the inverses. >= 1.
  int statistics_interval = 1;
  int inverse_interval = 1;
  /// Records of each layer per step, which add up (gradient accumulation). >= 1.
  int micro_batches = 1;
  InverseMethod inverse = InverseMethod::cholesky;
  BatchNormFisher batch_norm = BatchNormFisher::unit_wise;
  /// Operands of the factor products are rounded to this type; sums stay in `dtype`. Unset: the
  /// type of the data. f16 operands are first multiplied by a power of two (docs/math.md).
  std::optional<DType> operand = std::nullopt;
  /// Type of factors and inverses: f32 or f64.
  DType dtype = DType::f32;
  LossReduction loss_reduction = LossReduction::local_mean;
  /// Consecutive failed refreshes of one factor that are survived with the last good inverse. >= 0.
  int max_failed_refreshes = 3;
  /// Statistics and gradients leave while forward and backward still run.
  bool overlap = true;
  /// A reduction starts once about this many bytes are waiting for it. > 0.
  std::int64_t bucket_bytes = std::int64_t{4} << 20;

  void validate() const;  ///< Throws InvalidArgument that names the field and its value.
};

/// How a recorded gradient relates to the loss of one sample.
struct RecordScale {
  double loss_scale = 1;  ///< Factor of mixed precision that is still in the gradient.
  /// Samples of the step over all ranks; 0: samples of the record times ranks and micro-batches.
  std::int64_t global_batch = 0;
};

}  // namespace dkfac::kfac

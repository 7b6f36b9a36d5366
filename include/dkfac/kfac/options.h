#pragma once

#include <optional>
#include <string>

#include "dkfac/core/export.h"
#include "dkfac/core/gradients.h"
#include "dkfac/core/types.h"

namespace dkfac::kfac {

/// Curvature of a normalisation, over the batch or over channels (docs/math.md, "Batch
/// normalisation").
enum class BatchNormFisher : std::uint8_t {
  diagonal,   ///< E[g_gamma^2], E[g_beta^2] per channel.
  unit_wise,  ///< The 2x2 block of (gamma, beta) per channel: SP-NGD eq. 14-17.
  full        ///< All of E[g g'] for g = [g_gamma, g_beta]: 2c rows. Published code of SP-NGD.
};

/// How the damped curvature is inverted.
enum class InverseMethod : std::uint8_t {
  cholesky,  ///< Split damping of each factor, explicit inverses: one potrf + potri each.
  eigen,     ///< Eigenvectors of each factor; lambda is added to products of eigenvalues: exact.
  /// The same vectors with the second moments of the gradient along their products in place of
  /// products of eigenvalues (George et al. 2018): the best diagonal in that basis. Where a
  /// statistic has fewer rows than its width, the basis of its null space is arbitrary, and the
  /// result depends on it: then it is repeated bit for bit only with the same number of ranks.
  /// Needs an inverse_interval above statistics_interval: a rebuild forgets the moments.
  ekfac
};

/// How the two factors of a layer share lambda: A gets pi*sqrt(lambda), G sqrt(lambda)/pi
/// (docs/math.md, "Damping").
enum class DampingSplit : std::uint8_t {
  pi,            ///< pi^2 = (tr A/dim A)/(tr G/dim G): SP-NGD eq. 12.
  equal_traces,  ///< pi^2 = tr A/tr G: as if the factors were first scaled to equal traces.
  constant       ///< pi = 1: sqrt(lambda) on both.
};

/// What a weight that is applied at several positions of one sample (a convolution, a linear layer
/// on [n,t,in]) counts as in its factors (Eschenhagen et al. 2023).
enum class WeightSharing : std::uint8_t {
  expand,  ///< Every position is a row of both factors: A averaged, G summed over positions.
  reduce   ///< One row per sample: the mean input, the summed gradient.
};

/// When statistics and inverses are renewed.
enum class Staleness : std::uint8_t {
  fixed,    ///< At statistics_interval and inverse_interval.
  adaptive  ///< Each statistic at its own interval, which follows its drift: SP-NGD algorithms 1-2.
};

/// Tikhonov damping of (F + lambda I) for the two factors of a layer, which share it.
struct DKFAC_API Damping {
  double lambda;  ///< > 0
  DampingSplit split;
  constexpr Damping(double value, DampingSplit rule = DampingSplit::pi)
      : lambda(value), split(rule) {}
};

/// Tikhonov damping of F + lambda I.
struct DKFAC_API DampingOptions {
  double lambda = 1e-3;  ///< > 0
  /// How A and G share lambda. InverseMethod::cholesky only: the others split nothing.
  DampingSplit split = DampingSplit::pi;
  /// Blocks of normalisations use F_c + normalization * lambda * I. Published code: 16. > 0.
  double normalization = 1;
};

/// What the factors are made of.
struct DKFAC_API StatisticsOptions {
  /// Weight of the newest statistic in the bias-corrected running average. In (0, 1]; 1 is the
  /// paper: no average.
  double new_weight = 0.05;
  /// Share of each record's samples that statistics are made of: the first ones, at least one. In
  /// (0, 1].
  double fraction = 1;
  /// Records of each layer per step, which add up (gradient accumulation). >= 1.
  int micro_batches = 1;
  BatchNormFisher batch_norm = BatchNormFisher::unit_wise;
  WeightSharing sharing = WeightSharing::expand;
  /// Operands of the factor products are rounded to this type; sums stay in
  /// CurvatureOptions::dtype. Unset: the type of the data. f16 operands are first multiplied by a
  /// power of two (docs/math.md).
  std::optional<DType> operand = std::nullopt;
  /// Factors whose rows are fewer than their width (LinearSpec::max_rows) are kept as rows and
  /// applied by the Woodbury identity, which is exact; new_weight 1, Cholesky and fixed intervals
  /// only.
  bool low_rank = true;
  /// On a CUDA device: the caller leaves untouched what was recorded until step() has been called,
  /// so that statistics are made on a stream of low priority beside the pass. Else the caller's
  /// stream waits for each record. Nothing for nn::Model, which uses the memory of activations and
  /// their gradients again within a pass.
  bool records_valid_until_step = false;
};

/// When statistics and inverses are made anew.
struct DKFAC_API RefreshOptions {
  Staleness staleness = Staleness::fixed;
  /// Steps between two refreshes of the statistics, and of the inverses. >= 1. Staleness::fixed
  /// only.
  int statistics_interval = 1;
  int inverse_interval = 1;
  /// Staleness::fixed: each inverse keeps its own step within inverse_interval, so that steps cost
  /// the same, instead of all being rebuilt in one. The first refresh rebuilds all. Owners choose
  /// the steps, so that results depend on the number of ranks at the start.
  bool stagger_inverses = false;
  /// Of the adaptive rule: two values of a statistic X are similar when |X - Y|_F / |Y|_F is less.
  /// >= 0.
  double similarity = 0.1;
  int max_interval = 0;  ///< Bound of the adaptive intervals; 0: none, as the paper.
};

struct DKFAC_API InverseOptions {
  InverseMethod method = InverseMethod::cholesky;
  /// Consecutive failed refreshes of one factor that are survived with the last good inverse, and
  /// consecutive statistics of one factor that are refused because their sum is not finite: each is
  /// counted by itself. >= 0.
  int max_failed_refreshes = 3;
  /// Where the owner saves a factor that could not be inverted too often, as a file of NumPy that
  /// is named after layer, factor and damping; empty: nowhere. May differ between ranks.
  std::string failure_folder = {};
};

/// Which ranks work on a layer.
struct DKFAC_API DistributionOptions {
  /// Share of the ranks that hold the inverses of a layer and precondition it: w/P for a divisor w
  /// of the P ranks. 0: 1/P, the owner alone (least memory and inverses' traffic); 1: every rank,
  /// and nothing is gathered (KAISA, Pauloski et al. 2021). Above 1/P ranks make the same update
  /// each, so that they need the same backend and number of threads: prepare() compares them.
  double grad_worker_fraction = 0;
  /// Owners are chosen by times that rank 0 measures in prepare(), not by counts of operations.
  bool calibrate = false;
};

/// The curvature of all layers. Ranks have to agree on all fields but failure_folder and
/// records_valid_until_step; prepare() compares them.
struct DKFAC_API CurvatureOptions {
  DampingOptions damping = {};
  StatisticsOptions statistics = {};
  RefreshOptions refresh = {};
  InverseOptions inverse = {};
  DistributionOptions distribution = {};
  CommunicationOptions communication = {};
  /// kappa of the KL clip: all preconditioned gradients are multiplied by
  /// min(1, sqrt(kappa / (lr^2 sum <U, V>))). 0: off.
  double kl_clip = 0;
  DType dtype = DType::f32;  ///< Of factors and inverses: f32 or f64.
  LossReduction loss_reduction = LossReduction::local_mean;

  void validate() const;  ///< Throws InvalidArgument that names the field and its value.
  [[nodiscard]] Damping factor_damping() const { return {damping.lambda, damping.split}; }
};

/// What a schedule may change between two steps; equal on all ranks.
struct DKFAC_API CurvatureSettings {
  double damping = 0;           ///< > 0
  int statistics_interval = 1;  ///< >= 1
  int inverse_interval = 1;     ///< >= 1
  int micro_batches = 0;        ///< >= 1, or 0: as it was.
  bool operator==(const CurvatureSettings&) const = default;
};

}  // namespace dkfac::kfac

#pragma once

#include <optional>
#include <string>

#include "dkfac/core/export.h"
#include "dkfac/core/gradients.h"
#include "dkfac/core/types.h"

namespace dkfac::kfac {

/// Which Fisher approximation a normalisation uses, over the batch or over channels (docs/math.md,
/// "Batch normalisation").
enum class NormFisher : std::uint8_t {
  diagonal,   ///< E[g_gamma^2], E[g_beta^2] per channel.
  unit_wise,  ///< The 2x2 block of (gamma, beta) per channel: SP-NGD eq. 14-17.
  full  ///< The whole matrix E[g g'], g = [g_gamma, g_beta]: 2c rows. As in the authors' code.
};

/// How the damped curvature is inverted.
enum class InverseMethod : std::uint8_t {
  cholesky,  ///< Split damping of each factor, explicit inverses: one potrf + potri each.
  eigen,     ///< Eigenvectors of each factor; lambda is added to products of eigenvalues: exact.
  /// Eigenvectors of each factor, with the second moments of the gradient along their products
  /// instead of products of eigenvalues (George et al. 2018): the optimal diagonal in that basis.
  /// Where a statistic has fewer rows than its width, the basis of its null space is arbitrary and
  /// the result depends on it. Results are then bitwise reproducible only with the same number of
  /// ranks. Requires inverse_interval > statistics_interval, since every rebuild discards the
  /// moments.
  ekfac
};

/// How lambda is split between the two factors of a layer: A gets pi*sqrt(lambda), G gets
/// sqrt(lambda)/pi (docs/math.md, "Damping").
enum class DampingSplit : std::uint8_t {
  pi,            ///< pi^2 = (tr A/dim A)/(tr G/dim G): SP-NGD eq. 12.
  equal_traces,  ///< pi^2 = tr A/tr G: as if the factors were first scaled to equal traces.
  constant       ///< pi = 1: sqrt(lambda) on both.
};

/// How a weight that is applied at several positions of one sample enters its factors (Eschenhagen
/// et al. 2023). Examples are a convolution and a linear layer on [n,t,in].
enum class WeightSharing : std::uint8_t {
  expand,  ///< Every position is a row of both factors: A averaged, G summed over positions.
  reduce   ///< One row per sample: the mean input, the summed gradient.
};

/// Where the running average of a statistic begins (docs/math.md, "Average"). Without effect at
/// StatisticsOptions::new_weight 1, and so on factors that are kept as rows.
enum class AverageStart : std::uint8_t {
  first,  ///< At the first statistic; the average is corrected for its bias.
  /// At the identity, in the units of the statistic: kfac-pytorch. Where statistics are much
  /// smaller than 1, directions are close to the plain gradient for several times 1/new_weight of
  /// them.
  identity,
  /// At the multiple of the identity that has the trace of the first statistic that is not zero:
  /// independent of the scale of the loss. Each group of a convolution, and gamma and beta of a
  /// normalisation, have their own. EKFAC's second moments begin at the products of eigenvalues,
  /// here and with `identity`.
  trace
};

/// Refresh policy of statistics and inverses ("stale statistics" of SP-NGD).
enum class Staleness : std::uint8_t {
  fixed,    ///< At statistics_interval and inverse_interval.
  adaptive  ///< Each statistic at its own interval, set from its drift: SP-NGD algorithms 1-2.
};

/// What gives the preconditioned gradient U of a layer (weight and bias together) its length,
/// beside its gradient V (docs/math.md, "Step length"). With `gradient`, `projection` and
/// `gradual` a length is at most 1.4 times the mean of the layer's last ones.
enum class StepLength : std::uint8_t {
  /// `gradient`; `gradual` in make_kfac() with AdamW's update; `none` with a KL clip, which is a
  /// length of its own.
  automatic,
  none,  ///< U itself: a step of the natural gradient, which needs a rate of its own.
  /// |V|/(|U| sqrt(cos)) U with their cosine, turned towards V where that is below 0.3, and up to
  /// the shorter `projection` in a layer's first steps and while gradients oppose the steps before
  /// them: rates, momentum and clipping of the optimizer behind it stay right.
  gradient,
  projection,  ///< <U,V>/|U|^2 U, which is never longer: descends wherever the gradient would.
  /// As `gradient`, but nearer to V in a layer's first 60 steps, while gradients agree with the
  /// steps before them: for an optimizer that divides by the size of its gradients, as Adam does.
  gradual,
  /// Rates of U and of the last step from the quadratic model of the loss (Martens and Grosse 2015;
  /// docs/math.md, "Quadratic model"): optim::make_kfac() alone, which then needs
  /// Optimizer::set_curvature_along().
  quadratic
};

/// Tikhonov damping F + lambda I of one layer, and its split between the two factors.
struct DKFAC_API Damping {
  double lambda;  ///< > 0
  DampingSplit split;
  // NOLINTNEXTLINE(google-explicit-constructor): a number is a damping with the default split.
  constexpr Damping(double value, DampingSplit rule = DampingSplit::pi)
      : lambda(value), split(rule) {}
};

/// How the factors are estimated.
struct DKFAC_API StatisticsOptions {
  /// Weight of the newest statistic in the bias-corrected running average, in (0, 1]: 0.05
  /// here is factor_decay = 0.95 of kfac-pytorch. 1 disables the average, as in the SP-NGD paper.
  double new_weight = 0.05;
  AverageStart average_start = AverageStart::first;
  /// Fraction of each record's samples that enter the statistics, in (0, 1]: the first ones, at
  /// least one.
  double fraction = 1;
  /// Records of each layer per step; they are summed (gradient accumulation). >= 1.
  int micro_batches = 1;
  NormFisher norm_fisher = NormFisher::unit_wise;
  WeightSharing sharing = WeightSharing::expand;
  /// Type to which the operands of the factor products are rounded; sums stay in
  /// CurvatureOptions::dtype. Unset: the type of the data. f16 operands are first multiplied by a
  /// power of two (docs/math.md).
  std::optional<DType> operand = std::nullopt;
  /// Keeps factors with fewer rows than their width (LinearSpec::max_rows) as rows and applies them
  /// by the Woodbury identity, which is exact. Has an effect with new_weight 1, Cholesky and fixed
  /// intervals only.
  bool low_rank = true;
  /// CUDA only. The caller promises not to overwrite recorded tensors before step(); statistics are
  /// then computed on a low-priority stream that overlaps with the pass. Otherwise the caller's
  /// stream waits for each record. Must be off for nn::Model, which reuses the memory of
  /// activations and their gradients within a pass.
  bool records_valid_until_step = false;
};

/// When statistics and inverses are refreshed.
struct DKFAC_API RefreshOptions {
  Staleness staleness = Staleness::fixed;
  /// Steps between two refreshes of the statistics, and between two rebuilds of the inverses.
  /// Staleness::fixed only. 0: chosen by `overhead` from what steps cost, which the object measures
  /// from step 20 on (docs/math.md, "Intervals from a budget"); 10 and 50 until then. The choice is
  /// rank 0's, is made again only where costs have changed twofold, and is part of the state: a run
  /// that loads one measures nothing, and has equal bits. Other runs may choose otherwise.
  int statistics_interval = 0;
  int inverse_interval = 0;
  /// What K-FAC may add to a step on average, as a fraction of the step without it. > 0. Only where
  /// an interval is 0.
  double overhead = 0.25;
  /// Refreshes statistics in each of the first 10 steps, whatever the interval, and rebuilds
  /// inverses after the statistics 1, 2, 3, 5, 8, 12, 18, 27, ... (k, then 1.5 k rounded up) until
  /// these are inverse_interval steps apart: the first inverses, of few samples, are soon replaced.
  /// No effect with Staleness::adaptive, which does so by itself.
  bool early_refreshes = true;
  /// Spreads the rebuilds of the inverses over the steps of inverse_interval, to even out the cost
  /// of a step, instead of rebuilding all in one. Staleness::fixed only. Both inverses of a layer
  /// are rebuilt in the same step. The first refresh rebuilds all. Owners choose the steps, so
  /// results depend on the number of ranks at the start.
  bool stagger_inverses = false;
  /// Uses rebuilt inverses from the next step on: the step that rebuilds them preconditions with
  /// the earlier ones. On CUDA, with one worker per layer, they are then rebuilt on streams of low
  /// priority beside the next pass. In steps before which a layer has no inverse, and for the
  /// blocks of a normalisation, nothing is delayed. Not with InverseMethod::ekfac.
  bool delay_inverses = false;
  /// Threshold of the adaptive rule, >= 0: two values X and Y of a statistic are similar when
  ///   |X - Y|_F / |Y|_F < similarity.
  double similarity = 0.1;
  int max_interval = 0;  ///< Upper bound of the adaptive intervals; 0: none, as in the paper.
};

struct DKFAC_API InverseOptions {
  InverseMethod method = InverseMethod::cholesky;
  /// Factors of a Linear or Conv2d that are wider keep diagonal blocks of at most this width: whole
  /// input or output channels of a convolution, at least one, and the bias in the last block
  /// (docs/math.md, "Diagonal blocks"). Also the G of an Embedding; not groups of a convolution,
  /// and not a factor that is kept as rows. 0: chosen by counted work in prepare() (describe()
  /// names it); -1: none. InverseMethod::cholesky only: the others keep whole factors.
  int block_width = 0;
  /// Consecutive failed inversions of one factor that are tolerated by keeping its last good
  /// inverse. Also, counted separately, consecutive statistics of one factor that are rejected
  /// because their sum is not finite. >= 0.
  int max_failed_refreshes = 3;
  /// Folder in which the owner saves a factor whose inversion failed too often, as a NumPy file
  /// named after layer, factor and damping. Empty: it is not saved. May differ between ranks.
  std::string failure_folder = {};
};

/// Which ranks invert and precondition a layer.
struct DKFAC_API DistributionOptions {
  /// Fraction w/P of the P ranks that hold the inverses of a layer and precondition it (KAISA,
  /// Pauloski et al. 2021), for a divisor w of P.
  /// - 0: 1/P, the owner alone (MEM-OPT): the least memory, and inverses are not communicated.
  /// - 1: every rank (COMM-OPT): updated weights or preconditioned gradients are not gathered.
  /// - between: HYBRID-OPT.
  ///
  /// Above 1/P, several ranks compute the same update and need the same backend and number of
  /// threads, which prepare() compares.
  double grad_worker_fraction = 0;
  /// Assigns owners by times that rank 0 measures in prepare(), instead of by operation counts.
  bool calibrate = false;
  /// Lets the two factors of a layer be averaged and inverted by different ranks, where that evens
  /// out their work (docs/distribution.md, "Factors on different ranks"). Traces then travel before
  /// a rebuild, and the new inverse after it, to the rank that preconditions the layer. Without
  /// effect on one rank, and with InverseMethod::ekfac, whose second moments belong to both bases.
  bool split_factors = false;
  /// Lets 2, 4 or 8 ranks invert a wide factor together, where one has more work with it than a
  /// rank on average (docs/distribution.md, "A factor on several ranks"). With
  /// InverseMethod::cholesky; groups of a convolution, diagonal blocks, rows and diagonals stay
  /// with one rank. The bits of such an inverse depend on the number of its ranks.
  bool split_wide = false;
  /// Computes a statistic from the samples of the rank that averages it alone (DP-KFAC, Zhang et
  /// al. 2022): no statistic is sent, and each rank computes its own only, from a batch that is
  /// smaller by the number of ranks. Every rank needs samples in each step. The factors, and so the
  /// weights, depend on which rank owns a layer (docs/distribution.md, "Statistics of the owner's
  /// samples"). Without effect on one rank; not with InverseMethod::ekfac, whose second moments are
  /// those of all ranks.
  bool local_statistics = false;
};

/// Options of the curvature of all layers. All fields must be equal on all ranks, except
/// failure_folder and records_valid_until_step; prepare() compares them.
struct DKFAC_API CurvatureOptions {
  double damping = 0;  ///< lambda of F + lambda I (Tikhonov). >= 0; 0: relative_damping
  /// Where damping is 0, each layer (each group of a convolution) has a lambda of its own, of each
  /// rebuild: relative_damping times the mean eigenvalues of A and of G, those of G weighted by
  /// themselves (docs/math.md). > 0
  double relative_damping = 0.3;
  /// How lambda is split between A and G. InverseMethod::cholesky only: the other methods add
  /// lambda to the whole product.
  DampingSplit damping_split = DampingSplit::pi;
  /// Normalisations use F_c + norm_damping * lambda * I. The SP-NGD authors' code: 16. > 0.
  double norm_damping = 1;
  StatisticsOptions statistics = {};
  RefreshOptions refresh = {};
  InverseOptions inverse = {};
  DistributionOptions distribution = {};
  CommunicationOptions communication = {};
  /// kappa of the KL clip: all preconditioned gradients are multiplied by
  ///   min(1, sqrt(kappa / sum lr_p^2 <U_p, V_p>)),
  /// summed over parameters p, weight and bias apart, with the rate lr_p of each: StepArgs::lr
  /// times its multiplier (LayerParams::weight_lr, bias_lr; Preconditioner::set_rates()). 0: off.
  double kl_clip = 0;
  /// Not with a KL clip, which bounds the length of the whole step.
  StepLength step_length = StepLength::automatic;
  /// CUDA only, for factors in f32: products that precondition a gradient round their operands to
  /// TF32, with 10 bits after the leading one. Sums stay f32; inverses, their checks and the
  /// low-rank form stay exact. ContextOptions::tf32 includes this.
  bool precondition_tf32 = false;
  DType dtype = DType::f32;  ///< Of factors and inverses: f32 or f64.
  LossReduction loss_reduction = LossReduction::local_mean;

  void validate() const;  ///< Throws InvalidArgument that names the field and its value.
  [[nodiscard]] Damping factor_damping() const { return {damping, damping_split}; }
  /// The rule of each layer's length, never automatic; none with StepLength::quadratic.
  [[nodiscard]] StepLength length_rule() const;
};

/// Settings that a schedule may change between two steps; equal on all ranks. A field that is left
/// out stays as it is.
struct DKFAC_API CurvatureSettings {
  std::optional<double> damping = std::nullopt;           ///< > 0; from then on absolute.
  std::optional<double> relative_damping = std::nullopt;  ///< > 0; in place of the absolute one.
  /// >= 0; 0: chosen by the overhead, from now on or again.
  std::optional<int> statistics_interval = std::nullopt;
  std::optional<int> inverse_interval = std::nullopt;
  std::optional<int> micro_batches = std::nullopt;  ///< >= 1
  /// In (0, 1]. Not where factors are kept as rows (StatisticsOptions::low_rank).
  std::optional<double> new_weight = std::nullopt;
  bool operator==(const CurvatureSettings&) const = default;
};

}  // namespace dkfac::kfac

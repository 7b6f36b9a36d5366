#pragma once

#include "dkfac/kfac/options.h"

#include "core/shared/fields.h"

namespace dkfac::kfac {

inline constexpr NamedValue<DampingSplit> kDampingSplits[] = {
    {"pi", DampingSplit::pi},
    {"equal_traces", DampingSplit::equal_traces},
    {"constant", DampingSplit::constant}};
inline constexpr NamedValue<Staleness> kStalenesses[] = {{"fixed", Staleness::fixed},
                                                         {"adaptive", Staleness::adaptive}};
inline constexpr NamedValue<AverageStart> kAverageStarts[] = {{"first", AverageStart::first},
                                                              {"identity", AverageStart::identity},
                                                              {"trace", AverageStart::trace}};
inline constexpr NamedValue<InverseMethod> kInverseMethods[] = {
    {"cholesky", InverseMethod::cholesky},
    {"eigen", InverseMethod::eigen},
    {"ekfac", InverseMethod::ekfac}};
inline constexpr NamedValue<NormFisher> kNormFishers[] = {{"diagonal", NormFisher::diagonal},
                                                          {"unit_wise", NormFisher::unit_wise},
                                                          {"full", NormFisher::full}};
inline constexpr NamedValue<WeightSharing> kWeightSharings[] = {{"expand", WeightSharing::expand},
                                                                {"reduce", WeightSharing::reduce}};
inline constexpr NamedValue<StepLength> kStepLengths[] = {
    {"auto", StepLength::automatic},    {"none", StepLength::none},
    {"gradient", StepLength::gradient}, {"projection", StepLength::projection},
    {"gradual", StepLength::gradual},   {"quadratic", StepLength::quadratic}};
inline constexpr NamedValue<std::optional<DType>> kOperands[] = {{"data", std::nullopt},
                                                                 {"f64", DType::f64},
                                                                 {"f32", DType::f32},
                                                                 {"bf16", DType::bf16},
                                                                 {"f16", DType::f16}};
inline constexpr NamedValue<DType> kFactorTypes[] = {{"f32", DType::f32}, {"f64", DType::f64}};

/// Field lists of CurvatureOptions and its parts; a key precedes those that depend on it.
template <OptionsOf<StatisticsOptions> Options, class Visit>
void for_each_field(Options& options, Visit&& visit) {
  auto& [new_weight, average_start, fraction, micro_batches, norm_fisher, sharing, operand,
         low_rank, records_valid_until_step] = options;
  visit(norm_fisher, {"statistics.norm_fisher", "Fisher approximation of a normalisation"},
        NamedValues<NormFisher>(kNormFishers));
  visit(sharing,
        {"statistics.sharing",
         "positions of a sample are rows of the factors, or are summed up first"},
        NamedValues<WeightSharing>(kWeightSharings));
  visit(fraction, {.name = "statistics.fraction",
                   .help = "fraction of the samples that statistics are made of",
                   .range = above_up_to(0, 1),
                   .key = "statistics_fraction"});
  visit(operand, {"statistics.operand", "factor products round their operands to this"},
        NamedValues<std::optional<DType>>(kOperands));
  visit(new_weight, {"statistics.new_weight",
                     "weight of the newest statistic in its running average", above_up_to(0, 1)});
  visit(average_start,
        {"statistics.average_start",
         "averages begin at the first statistic, the identity, or a multiple of it of equal trace"},
        NamedValues<AverageStart>(kAverageStarts));
  visit(low_rank, {"statistics.low_rank",
                   "keep factors with fewer rows than columns as rows; new_weight = 1 only"});
  visit(micro_batches, {.name = "statistics.micro_batches", .range = count_from(1)});
  visit(records_valid_until_step, {.name = "statistics.records_valid_until_step", .agreed = false});
}

template <OptionsOf<RefreshOptions> Options, class Visit>
void for_each_field(Options& options, Visit&& visit) {
  auto& [staleness, statistics_interval, inverse_interval, overhead, early_refreshes,
         stagger_inverses, delay_inverses, similarity, max_interval] = options;
  visit(
      staleness,
      {"refresh.staleness", "statistics at fixed intervals, or each at one that follows its drift"},
      NamedValues<Staleness>(kStalenesses));
  visit(statistics_interval,
        {"refresh.statistics_interval",
         "steps between two refreshes of the statistics; 0: chosen by overhead", count_from(0),
         "staleness", "fixed"});
  visit(inverse_interval, {"refresh.inverse_interval",
                           "steps between two refreshes of the inverses; 0: chosen by overhead",
                           count_from(0), "staleness", "fixed"});
  visit(overhead,
        {"refresh.overhead",
         "what K-FAC may add to a step, as a fraction of it: chooses intervals that are 0",
         above(0), "staleness", "fixed"});
  visit(early_refreshes,
        {"refresh.early_refreshes",
         "statistics in each of the first ten steps, inverses at growing distances",
         {},
         "staleness",
         "fixed"});
  visit(stagger_inverses,
        {"refresh.stagger_inverses",
         "each inverse has its own step within inverse_interval, so that steps cost the same",
         {},
         "staleness",
         "fixed"});
  visit(delay_inverses,
        {"refresh.delay_inverses", "rebuilt inverses are used from the next step on"});
  visit(similarity, {.name = "refresh.similarity",
                     .help = "two values of a statistic are similar below this relative distance",
                     .range = at_least(0),
                     .only = "staleness",
                     .is = "adaptive"});
  visit(max_interval, {"refresh.max_interval", "bound of the intervals that follow drift; 0: none",
                       count_from(0), "staleness", "adaptive"});
}

template <OptionsOf<InverseOptions> Options, class Visit>
void for_each_field(Options& options, Visit&& visit) {
  auto& [method, block_width, max_failed_refreshes, failure_folder] = options;
  visit(method,
        {.name = "inverse.method",
         .help = "inverses of damped factors, damped eigenvalues, or damped second moments along "
                 "eigenvectors",
         .key = "inverse_method"},
        NamedValues<InverseMethod>(kInverseMethods));
  visit(block_width,
        {"inverse.block_width",
         "wider factors keep diagonal blocks of this width; 0: chosen by counted work; -1: none",
         count_from(-1), "inverse_method", "cholesky"});
  visit(max_failed_refreshes,
        {"inverse.max_failed_refreshes", "failed inversions of a factor in a row that are survived",
         count_from(0)});
  visit(
      failure_folder,
      {.name = "inverse.failure_folder",
       .help = "where a factor that has failed too often is saved; empty: inside the run's folder",
       .agreed = false});
}

template <OptionsOf<DistributionOptions> Options, class Visit>
void for_each_field(Options& options, Visit&& visit) {
  auto& [grad_worker_fraction, calibrate, split_factors, split_wide, local_statistics] = options;
  visit(grad_worker_fraction,
        {"distribution.grad_worker_fraction",
         "fraction of the ranks that precondition a layer; 0: its owner alone", between(0, 1)});
  visit(calibrate,
        {"distribution.calibrate", "measure what inversions cost before owners are chosen"});
  visit(split_factors, {"distribution.split_factors",
                        "let different ranks invert the two factors of a layer where that gains"});
  visit(split_wide, {.name = "distribution.split_wide",
                     .help = "let several ranks invert a wide factor together where that gains",
                     .only = "inverse_method",
                     .is = "cholesky"});
  visit(local_statistics, {"distribution.local_statistics",
                           "statistics are of the samples of the rank that averages them"});
}

template <OptionsOf<CurvatureOptions> Options, class Visit>
void for_each_field(Options& options, Visit&& visit) {
  auto& [damping, relative_damping, damping_split, norm_damping, statistics, refresh, inverse,
         distribution, communication, kl_clip, step_length, precondition_tf32, dtype,
         loss_reduction] = options;
  for_each_field(statistics, visit);
  for_each_field(refresh, visit);
  for_each_field(inverse, visit);
  visit(damping, {"damping", "lambda of (F + lambda I); 0: of each layer, by relative_damping",
                  at_least(0)});
  visit(relative_damping,
        {"relative_damping",
         "lambda of a layer in mean eigenvalues of its factors, those of G weighted by themselves",
         above(0), "damping", "0"});
  visit(norm_damping, {"norm_damping", "factor of lambda for normalisations", above(0)});
  visit(
      damping_split,
      {"damping_split",
       "what balances lambda between the factors: their mean eigenvalues, their traces, or nothing",
       {},
       "inverse_method",
       "cholesky"},
      NamedValues<DampingSplit>(kDampingSplits));
  visit(kl_clip, {"kl_clip", "bound of an update's KL divergence, kappa; 0: none", at_least(0)});
  visit(
      step_length,
      {"step_length",
       "length of a layer's direction: its own, that of the gradient (gradual: and nearer to it at "
       "first), or of its projection; auto: that of the gradient, gradual with update adamw, its "
       "own with kl_clip"},
      NamedValues<StepLength>(kStepLengths));
  visit(precondition_tf32,
        {"precondition_tf32",
         "on a GPU, products with f32 inverses round their operands to TF32; inverses stay exact"});
  for_each_field(distribution, visit);
  for_each_field(communication, visit);
  visit(communication.statistics_wire,
        {"communication.statistics_wire", "type in which statistics travel; sums are taken in f32"},
        NamedValues<std::optional<DType>>(kWires));
  visit(communication.weight_wire,
        {"communication.weight_wire",
         "type in which new weights travel and are used; masters keep theirs"},
        NamedValues<std::optional<DType>>(kWires));
  visit(dtype, {"dtype"}, NamedValues<DType>(kFactorTypes));
  visit(loss_reduction, {"loss_reduction"}, NamedValues<LossReduction>(kLossReductions));
}

}  // namespace dkfac::kfac

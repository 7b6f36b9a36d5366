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
inline constexpr NamedValue<InverseMethod> kInverseMethods[] = {
    {"cholesky", InverseMethod::cholesky},
    {"eigen", InverseMethod::eigen},
    {"ekfac", InverseMethod::ekfac}};
inline constexpr NamedValue<BatchNormFisher> kBatchNormFishers[] = {
    {"diagonal", BatchNormFisher::diagonal},
    {"unit_wise", BatchNormFisher::unit_wise},
    {"full", BatchNormFisher::full}};
inline constexpr NamedValue<WeightSharing> kWeightSharings[] = {{"expand", WeightSharing::expand},
                                                                {"reduce", WeightSharing::reduce}};
inline constexpr NamedValue<LossReduction> kLossReductions[] = {
    {"local_mean", LossReduction::local_mean},
    {"global_mean", LossReduction::global_mean},
    {"sum", LossReduction::sum}};
inline constexpr NamedValue<std::optional<DType>> kOperands[] = {{"data", std::nullopt},
                                                                 {"f64", DType::f64},
                                                                 {"f32", DType::f32},
                                                                 {"bf16", DType::bf16},
                                                                 {"f16", DType::f16}};
inline constexpr NamedValue<DType> kFactorTypes[] = {{"f32", DType::f32}, {"f64", DType::f64}};

/// The list of CurvatureOptions; a key stands before those that depend on it.
template <OptionsOf<CurvatureOptions> Options, class Visit>
void for_each_field(Options& options, Visit&& visit) {
  auto& [damping, damping_split, bn_damping, new_weight, statistics_interval, inverse_interval,
         staleness, staleness_alpha, max_interval, spread_inverses, micro_batches, inverse,
         batch_norm, sharing, statistics_fraction, low_rank, kl_clip, operand, dtype,
         loss_reduction, max_failed_refreshes, failure_folder, overlap, bucket_bytes, records_stay,
         statistics_wire, worker_fraction, calibrate] = options;
  visit(batch_norm, {"batch_norm", "curvature of a BatchNorm"},
        NamedValues<BatchNormFisher>(kBatchNormFishers));
  visit(sharing,
        {"sharing", "positions of a sample are rows of the factors, or are summed up first"},
        NamedValues<WeightSharing>(kWeightSharings));
  visit(statistics_fraction,
        {"statistics_fraction", "share of the samples that statistics are made of",
         above_up_to(0, 1)});
  visit(operand, {"operand", "factor products round their operands to this"},
        NamedValues<std::optional<DType>>(kOperands));
  visit(new_weight,
        {"new_weight", "weight of the newest statistic in its running average", above_up_to(0, 1)});
  visit(damping, {"damping", "lambda of (F + lambda I)", above(0)});
  visit(bn_damping, {"bn_damping", "factor of lambda for BatchNorm", above(0)});
  visit(kl_clip, {"kl_clip", "bound of an update's KL divergence, kappa; 0: none", at_least(0)});
  visit(staleness,
        {"staleness", "statistics at fixed intervals, or each at one that follows its drift"},
        NamedValues<Staleness>(kStalenesses));
  visit(statistics_interval,
        {"statistics_interval", "steps between two refreshes of the statistics", count_from(1),
         "staleness", "fixed"});
  visit(inverse_interval, {"inverse_interval", "steps between two refreshes of the inverses",
                           count_from(1), "staleness", "fixed"});
  visit(spread_inverses,
        {"spread_inverses",
         "each inverse has its own step within inverse_interval, so that steps cost the same",
         {},
         "staleness",
         "fixed"});
  visit(staleness_alpha,
        {"staleness_alpha", "two values of a statistic are similar below this relative distance",
         at_least(0), "staleness", "adaptive"});
  visit(max_interval, {"max_interval", "bound of the intervals that follow drift; 0: none",
                       count_from(0), "staleness", "adaptive"});
  visit(inverse,
        {"inverse",
         "inverses of damped factors, damped eigenvalues, or damped second moments along "
         "eigenvectors"},
        NamedValues<InverseMethod>(kInverseMethods));
  visit(damping_split,
        {"damping_split",
         "what balances lambda between the factors: their mean eigenvalues, their traces, or "
         "nothing",
         {},
         "inverse",
         "cholesky"},
        NamedValues<DampingSplit>(kDampingSplits));
  visit(low_rank,
        {"low_rank", "keep factors with fewer rows than columns as rows; new_weight = 1 only"});
  visit(max_failed_refreshes,
        {"max_failed_refreshes", "failed inversions of a factor in a row that are survived",
         count_from(0)});
  visit(
      failure_folder,
      {.name = "failure_folder",
       .help = "where a factor that has failed too often is saved; empty: inside the run's folder",
       .agreed = false});
  visit(worker_fraction,
        {"worker_fraction", "share of the ranks that precondition a layer; 0: its owner alone",
         between(0, 1)});
  visit(calibrate, {"calibrate", "measure what inversions cost before owners are chosen"});
  visit(statistics_wire,
        {"statistics_wire", "type in which statistics travel; sums are taken in f32"},
        NamedValues<std::optional<DType>>(kWires));
  visit(overlap, {"overlap", "communicate while forward and backward run"});
  visit(bucket_bytes,
        {"bucket_bytes", "a reduction starts once about this much is waiting", at_least(1)});
  visit(micro_batches, {.name = "micro_batches", .range = count_from(1)});
  visit(dtype, {"dtype"}, NamedValues<DType>(kFactorTypes));
  visit(loss_reduction, {"loss_reduction"}, NamedValues<LossReduction>(kLossReductions));
  visit(records_stay, {.name = "records_stay", .agreed = false});
}

}  // namespace dkfac::kfac

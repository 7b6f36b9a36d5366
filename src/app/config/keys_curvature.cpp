#include "app/config/table.h"

namespace dkfac::app {

namespace {

using kfac::BatchNormFisher;
using kfac::DampingSplit;
using kfac::InverseMethod;
using kfac::Staleness;
using kfac::WeightSharing;
using optim::MomentumRule;
using optim::Rescale;

constexpr const char* kStaleness = "optimizer.staleness";

void add_fisher(KeyTable& t) {
  t.choice<Fisher>("optimizer.fisher", DKFAC_FIELD(optimizer.fisher),
                   {{"empirical", Fisher::empirical}, {"monte_carlo", Fisher::monte_carlo}},
                   "curvature of the training loss' gradients, or of those of labels drawn from "
                   "the model");
  t.choice<BatchNormFisher>("optimizer.batch_norm", DKFAC_FIELD(optimizer.curvature.batch_norm),
                            {{"diagonal", BatchNormFisher::diagonal},
                             {"unit_wise", BatchNormFisher::unit_wise},
                             {"full", BatchNormFisher::full}},
                            "curvature of a BatchNorm");
  t.choice<WeightSharing>("optimizer.sharing", DKFAC_FIELD(optimizer.curvature.sharing),
                          {{"expand", WeightSharing::expand}, {"reduce", WeightSharing::reduce}},
                          "positions of a sample are rows of the factors, or are summed up first");
  t.real("optimizer.statistics_fraction", DKFAC_FIELD(optimizer.curvature.statistics_fraction),
         above_up_to(0, 1), "share of the samples that statistics are made of");
  t.choice<std::optional<DType>>("optimizer.operand", DKFAC_FIELD(optimizer.curvature.operand),
                                 {{"data", std::nullopt},
                                  {"f64", DType::f64},
                                  {"f32", DType::f32},
                                  {"bf16", DType::bf16},
                                  {"f16", DType::f16}},
                                 "factor products round their operands to this");
  t.real("optimizer.new_weight", DKFAC_FIELD(optimizer.curvature.new_weight), above_up_to(0, 1),
         "weight of the newest statistic in its running average");
}

void add_damping(KeyTable& t) {
  const std::string schedule = "optimizer.damping_schedule";
  t.real("optimizer.damping", DKFAC_FIELD(optimizer.curvature.damping), above(0),
         "lambda of (F + lambda I)");
  t.real("optimizer.bn_damping", DKFAC_FIELD(optimizer.curvature.bn_damping), above(0),
         "factor of lambda for BatchNorm");
  t.choice<DampingSchedule>(schedule, DKFAC_FIELD(optimizer.damping_schedule),
                            {{"constant", DampingSchedule::constant},
                             {"warmup", DampingSchedule::warmup},
                             {"piecewise", DampingSchedule::piecewise}},
                            "how lambda changes over the run");
  t.real("optimizer.damping_initial", DKFAC_FIELD(optimizer.damping_initial), above(0),
         "lambda of the first step, from which it goes to optimizer.damping")
      .where(schedule, {"warmup"});
  t.integer("optimizer.damping_warmup_steps", DKFAC_FIELD(optimizer.damping_warmup_steps),
            at_least(0), "steps that it takes")
      .where(schedule, {"warmup"});
  t.knots("optimizer.damping_knots", DKFAC_FIELD(optimizer.damping_knots),
          "[[epoch, lambda], ...], straight lines between")
      .where(schedule, {"piecewise"});
  t.real("optimizer.kl_clip", DKFAC_FIELD(optimizer.curvature.kl_clip), at_least(0),
         "bound of an update's KL divergence, kappa; 0: none");
}

void add_fixed_intervals(KeyTable& t) {
  const Range interval = between(1, 1 << 30);
  const std::string schedule = "optimizer.interval_schedule";
  t.integer("optimizer.statistics_interval", DKFAC_FIELD(optimizer.curvature.statistics_interval),
            interval, "steps between two refreshes of the statistics")
      .where(kStaleness, {"fixed"});
  t.integer("optimizer.inverse_interval", DKFAC_FIELD(optimizer.curvature.inverse_interval),
            interval, "steps between two refreshes of the inverses")
      .where(kStaleness, {"fixed"});
  t.boolean("optimizer.spread_inverses", DKFAC_FIELD(optimizer.curvature.spread_inverses),
            "each inverse has its own step within inverse_interval, so that steps cost the same")
      .where(kStaleness, {"fixed"});
  t.choice<IntervalSchedule>(
       schedule, DKFAC_FIELD(optimizer.interval_schedule),
       {{"constant", IntervalSchedule::constant}, {"ramp", IntervalSchedule::ramp}},
       "whether the intervals grow from smaller ones")
      .where(kStaleness, {"fixed"});
  t.integer("optimizer.first_statistics_interval", DKFAC_FIELD(optimizer.first_statistics_interval),
            interval, "statistics interval at the first step")
      .where(schedule, {"ramp"});
  t.integer("optimizer.first_inverse_interval", DKFAC_FIELD(optimizer.first_inverse_interval),
            interval, "inverse interval at the first step")
      .where(schedule, {"ramp"});
  t.integer("optimizer.interval_ramp_steps", DKFAC_FIELD(optimizer.interval_ramp_steps),
            at_least(0), "steps until both have reached their last value")
      .where(schedule, {"ramp"});
}

void add_staleness(KeyTable& t) {
  t.choice<Staleness>(kStaleness, DKFAC_FIELD(optimizer.curvature.staleness),
                      {{"fixed", Staleness::fixed}, {"adaptive", Staleness::adaptive}},
                      "statistics at fixed intervals, or each at one that follows its drift");
  add_fixed_intervals(t);
  t.real("optimizer.staleness_alpha", DKFAC_FIELD(optimizer.curvature.staleness_alpha), at_least(0),
         "two values of a statistic are similar below this relative distance")
      .where(kStaleness, {"adaptive"});
  t.integer("optimizer.max_interval", DKFAC_FIELD(optimizer.curvature.max_interval),
            between(0, 1 << 30), "bound of the intervals that follow drift; 0: none")
      .where(kStaleness, {"adaptive"});
}

void add_inverse(KeyTable& t) {
  t.choice<InverseMethod>(
      "optimizer.inverse", DKFAC_FIELD(optimizer.curvature.inverse),
      {{"cholesky", InverseMethod::cholesky},
       {"eigen", InverseMethod::eigen},
       {"ekfac", InverseMethod::ekfac}},
      "inverses of damped factors, damped eigenvalues, or damped second moments "
      "along eigenvectors");
  t.choice<DampingSplit>("optimizer.damping_split", DKFAC_FIELD(optimizer.curvature.damping_split),
                         {{"pi", DampingSplit::pi},
                          {"equal_traces", DampingSplit::equal_traces},
                          {"constant", DampingSplit::constant}},
                         "what balances lambda between the factors: their mean eigenvalues, their "
                         "traces, or nothing")
      .where("optimizer.inverse", {"cholesky"});
  t.boolean("optimizer.low_rank", DKFAC_FIELD(optimizer.curvature.low_rank),
            "keep factors with fewer rows than columns as rows; new_weight = 1 only");
  t.integer("optimizer.max_failed_refreshes", DKFAC_FIELD(optimizer.curvature.max_failed_refreshes),
            between(0, 1 << 30), "failed inversions of a factor in a row that are survived");
  t.text("optimizer.failure_folder", DKFAC_FIELD(optimizer.curvature.failure_folder),
         "where a factor that has failed too often is saved; empty: inside the run's folder");
}

void add_distribution(KeyTable& t) {
  t.real("optimizer.worker_fraction", DKFAC_FIELD(optimizer.curvature.worker_fraction),
         between(0, 1), "share of the ranks that precondition a layer; 0: its owner alone");
  t.boolean("optimizer.calibrate", DKFAC_FIELD(optimizer.curvature.calibrate),
            "measure what inversions cost before owners are chosen");
  add_wire(t, "optimizer.statistics_wire", DKFAC_FIELD(optimizer.curvature.statistics_wire),
           "type in which statistics travel; sums are taken in f32");
  add_wire(t, "optimizer.weight_wire", DKFAC_FIELD(optimizer.weight_wire),
           "type in which new weights travel and are used; masters keep theirs");
}

void add_kfac_update(KeyTable& t) {
  t.choice<MomentumRule>("optimizer.momentum_rule", DKFAC_FIELD(optimizer.momentum_rule),
                         {{"constant", MomentumRule::constant},
                          {"corrected", MomentumRule::corrected},
                          {"paper", MomentumRule::paper}},
                         "how the momentum follows the learning rate");
  t.choice<Rescale>(
      "optimizer.rescale", DKFAC_FIELD(optimizer.rescale),
      {{"off", Rescale::off}, {"always", Rescale::always}, {"shrink", Rescale::shrink}},
      "weights to the norm sqrt(2 * outputs) after each update");
}

}  // namespace

void add_curvature_keys(KeyTable& t) {
  const std::size_t first = t.keys.size();
  add_fisher(t);
  add_damping(t);
  add_staleness(t);
  add_inverse(t);
  add_distribution(t);
  add_kfac_update(t);
  for (std::size_t i = first; i < t.keys.size(); ++i)
    if (t.keys[i].only.selector.empty()) t.keys[i].where("optimizer.type", {"kfac"});
}

}  // namespace dkfac::app

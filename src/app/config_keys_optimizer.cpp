#include "app/config_table.h"

namespace dkfac::app {

namespace {

void add_update_rule(Table& t) {
  const std::string type = "optimizer.type";
  t.choice<OptimizerType>(
      type, DKFAC_FIELD(optimizer.type),
      {{"sgd", OptimizerType::sgd}, {"lars", OptimizerType::lars}, {"kfac", OptimizerType::kfac}},
      "update rule");
  t.real("optimizer.momentum", DKFAC_FIELD(optimizer.momentum), from_to_below(0, 1),
         "share of the last update that is kept");
  t.boolean("optimizer.nesterov", DKFAC_FIELD(optimizer.nesterov), "look ahead along the momentum")
      .where(type, {"sgd", "lars"});
  t.real("optimizer.weight_decay", DKFAC_FIELD(optimizer.weight_decay), at_least(0),
         "of weights, not of BatchNorm scales; decoupled for kfac");
  t.real("optimizer.bias_lr_scale", DKFAC_FIELD(optimizer.bias_lr_scale), at_least(0),
         "learning rate of biases and BatchNorm shifts in multiples of the weights'");
  t.real("optimizer.bias_decay_scale", DKFAC_FIELD(optimizer.bias_decay_scale), at_least(0),
         "weight decay of biases and BatchNorm shifts in multiples of optimizer.weight_decay");
  t.boolean("optimizer.momentum_correction", DKFAC_FIELD(optimizer.momentum_correction),
            "rescale the momentum when the learning rate changes")
      .where(type, {"sgd"});
  t.real("optimizer.eta", DKFAC_FIELD(optimizer.eta), above(0), "trust coefficient")
      .where(type, {"lars"});
  t.real("optimizer.epsilon", DKFAC_FIELD(optimizer.epsilon), at_least(0),
         "added to the denominator of the trust ratio")
      .where(type, {"lars"});
  t.boolean("optimizer.overlap", DKFAC_FIELD(optimizer.overlap),
            "communicate while forward and backward run");
  t.integer("optimizer.bucket_bytes", DKFAC_FIELD(optimizer.bucket_bytes), at_least(1),
            "a reduction starts once about this much is waiting");
}

using kfac::BatchNormFisher;
using kfac::InverseMethod;
using kfac::MomentumRule;
using kfac::Rescale;

void add_curvature(Table& t) {
  t.real("optimizer.damping", DKFAC_FIELD(optimizer.curvature.damping), above(0),
         "lambda of (F + lambda I)");
  t.real("optimizer.bn_damping", DKFAC_FIELD(optimizer.curvature.bn_damping), above(0),
         "factor of lambda for BatchNorm");
  t.real("optimizer.new_weight", DKFAC_FIELD(optimizer.curvature.new_weight), above_up_to(0, 1),
         "weight of the newest statistic in its running average");
  t.integer("optimizer.statistics_interval", DKFAC_FIELD(optimizer.curvature.statistics_interval),
            between(1, 1 << 30), "steps between two refreshes of the statistics");
  t.integer("optimizer.inverse_interval", DKFAC_FIELD(optimizer.curvature.inverse_interval),
            between(1, 1 << 30), "steps between two refreshes of the inverses");
  t.choice<BatchNormFisher>(
      "optimizer.batch_norm", DKFAC_FIELD(optimizer.curvature.batch_norm),
      {{"diagonal", BatchNormFisher::diagonal}, {"unit_wise", BatchNormFisher::unit_wise}},
      "curvature of a BatchNorm");
  t.choice<InverseMethod>("optimizer.inverse", DKFAC_FIELD(optimizer.curvature.inverse),
                          {{"cholesky", InverseMethod::cholesky}, {"eigen", InverseMethod::eigen}},
                          "inverses of damped factors, or damped eigenvalues");
  t.choice<std::optional<DType>>("optimizer.operand", DKFAC_FIELD(optimizer.curvature.operand),
                                 {{"data", std::nullopt},
                                  {"f64", DType::f64},
                                  {"f32", DType::f32},
                                  {"bf16", DType::bf16},
                                  {"f16", DType::f16}},
                                 "factor products round their operands to this");
  t.integer("optimizer.max_failed_refreshes", DKFAC_FIELD(optimizer.curvature.max_failed_refreshes),
            between(0, 1 << 30), "failed inversions of a factor in a row that are survived");
}

void add_kfac(Table& t) {
  const std::size_t first = t.keys.size();
  add_curvature(t);
  t.choice<MomentumRule>("optimizer.momentum_rule", DKFAC_FIELD(optimizer.momentum_rule),
                         {{"constant", MomentumRule::constant},
                          {"corrected", MomentumRule::corrected},
                          {"paper", MomentumRule::paper}},
                         "how the momentum follows the learning rate");
  t.choice<Rescale>(
      "optimizer.rescale", DKFAC_FIELD(optimizer.rescale),
      {{"off", Rescale::off}, {"always", Rescale::always}, {"shrink", Rescale::shrink}},
      "weights to the norm sqrt(2 * outputs) after each update");
  for (std::size_t i = first; i < t.keys.size(); ++i) t.keys[i].where("optimizer.type", {"kfac"});
}

}  // namespace

void add_optimizer_keys(Table& t) {
  add_update_rule(t);
  add_kfac(t);
}

}  // namespace dkfac::app

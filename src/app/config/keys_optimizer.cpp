#include "app/config/table.h"

namespace dkfac::app {

namespace {

void add_update_rule(KeyTable& t) {
  const std::string type = "optimizer.type";
  t.choice<OptimizerType>(
      type, DKFAC_FIELD(optimizer.type),
      {{"sgd", OptimizerType::sgd}, {"lars", OptimizerType::lars}, {"kfac", OptimizerType::kfac}},
      "update rule");
  t.real("optimizer.momentum", DKFAC_FIELD(optimizer.momentum), from_to_below(0, 1),
         "share of the last update that is kept");
  const std::string momentum = "optimizer.momentum_schedule";
  t.choice<MomentumSchedule>(
      momentum, DKFAC_FIELD(optimizer.momentum_schedule),
      {{"constant", MomentumSchedule::constant}, {"piecewise", MomentumSchedule::piecewise}},
      "how that share changes over the run");
  t.knots("optimizer.momentum_knots", DKFAC_FIELD(optimizer.momentum_knots),
          "[[epoch, momentum], ...], straight lines between; each below 1")
      .where(momentum, {"piecewise"});
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
  add_wire(t, "optimizer.gradient_wire", DKFAC_FIELD(optimizer.gradient_wire),
           "type in which gradients travel; sums are taken in f32");
}

}  // namespace

void add_optimizer_keys(KeyTable& t) {
  add_update_rule(t);
  add_curvature_keys(t);
}

}  // namespace dkfac::app

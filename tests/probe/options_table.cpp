#include "probe/configuration.h"

namespace dkfac::probe {

using enum kfac::InverseMethod;
using kfac::NormFisher, kfac::WeightSharing, optim::MomentumRule, optim::Rescale;
using C = Configuration;

namespace {

void add_first_order(Table& t) {
  const auto sgd = [&t](const std::string& name, auto change) {
    t.add("sgd." + name, Method::sgd, [change](C& c) { change(c.sgd); });
  };
  using Sgd = optim::SgdOptions;
  sgd("nesterov", [](Sgd& o) { o.nesterov = true; });
  sgd("uncorrected", [](Sgd& o) { o.momentum_correction = false; });
  sgd("plain", [](Sgd& o) { o.momentum = 0; });
  sgd("decay", [](Sgd& o) { o.weight_decay = 0.01; });
  t.add("lars.nesterov", Method::lars, [](C& c) { c.lars.nesterov = true; });
  t.add("lars.epsilon", Method::lars, [](C& c) { c.lars.epsilon = 1e-3; });
  t.add("lars.larc", Method::lars, [](C& c) { c.lars.form = optim::LarsForm::larc; });
  t.add("lars.joint_norm", Method::lars, [](C& c) { c.lars.form = optim::LarsForm::joint_norm; });
  t.add("lars.clipped", Method::lars, [](C& c) { c.lars.form = optim::LarsForm::clipped; });
}

void add_curvature(Table& t) {
  t.kfac("damping", [](C& c) { c.curvature.damping = 0.1, c.curvature.norm_damping = 16; });
  t.kfac("average", [](C& c) { c.curvature.statistics.new_weight = 0.3; });
  t.both("eigen", [](C& c) { c.curvature.inverse.method = eigen; });
  const auto ekfac_every = [](C& c, int interval) {
    c.curvature.inverse.method = ekfac;
    c.curvature.refresh.inverse_interval = interval;
    c.curvature.distribution.grad_worker_fraction = 1;
  };
  t.both("ekfac", [=](C& c) { ekfac_every(c, 5); });
  t.kfac("ekfac.reduce", [=](C& c) {
    ekfac_every(c, 6);
    c.curvature.refresh.statistics_interval = 2;
    c.curvature.statistics.sharing = WeightSharing::reduce;
  });
  t.both("low_rank", [](C& c) { c.curvature.statistics.new_weight = 1; });
  t.kfac("low_rank.lazy", [](C& c) {
    c.curvature.statistics.new_weight = 1;
    c.curvature.refresh.inverse_interval = 3;
    c.curvature.statistics.sharing = WeightSharing::reduce;
  });
  t.kfac("low_rank.off", [](C& c) {
    c.curvature.statistics.new_weight = 1, c.curvature.statistics.low_rank = false;
  });
  t.both("bn.diagonal", [](C& c) { c.curvature.statistics.norm_fisher = NormFisher::diagonal; });
  t.both("bn.full", [](C& c) { c.curvature.statistics.norm_fisher = NormFisher::full; });
  t.kfac("bn.full.eigen", [](C& c) {
    c.curvature.statistics.norm_fisher = NormFisher::full;
    c.curvature.inverse.method = eigen;
  });
  t.kfac("reduce", [](C& c) { c.curvature.statistics.sharing = WeightSharing::reduce; });
  t.kfac("fraction", [](C& c) { c.curvature.statistics.fraction = 0.5; });
  t.both("kl_clip", [](C& c) { c.curvature.kl_clip = 1e-3; });
  if (t.device().is_cuda())
    t.both("records_valid_until_step",
           [](C& c) { c.curvature.statistics.records_valid_until_step = true; });
}

void add_updates(Table& t) {
  t.kfac("constant", [](C& c) { c.kfac.momentum_rule = MomentumRule::constant; });
  t.kfac("paper", [](C& c) {
    c.kfac.momentum_rule = MomentumRule::paper;
    c.kfac.initial_lr = 0.05;
    c.kfac.rescale = Rescale::always;
  });
  t.kfac("shrink", [](C& c) { c.kfac.rescale = Rescale::shrink; });
  t.kfac("decay", [](C& c) { c.kfac.weight_decay = 0.01; });
}

/// Which ranks precondition a layer, and the types of what they send.
void add_communication(Table& t) {
  const Axes several{.ranks = {2, 3}}, square{.ranks = {4}}, single{.dtypes = {DType::f32}};
  t.both(
      "all_workers", [](C& c) { c.curvature.distribution.grad_worker_fraction = 1; }, several);
  t.kfac(
      "all_workers.kl_clip",
      [](C& c) { c.curvature.distribution.grad_worker_fraction = 1, c.curvature.kl_clip = 1e-3; },
      several);
  const auto grid = [](C& c) {
    c.curvature.distribution.grad_worker_fraction = 0.5, c.curvature.kl_clip = 1e-3;
  };
  t.both("grid", grid, square);
  t.kfac(
      "grid.wires",
      [=](C& c) {
        grid(c);
        c.curvature.communication.statistics_wire = c.kfac.curvature.communication.weight_wire =
            DType::bf16;
        c.kfac.curvature.communication.gradient_wire = DType::f16;
      },
      square);
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    const std::string name(name_of(type));
    t.both("statistics_" + name, [=](C& c) { c.curvature.communication.statistics_wire = type; });
    t.kfac("gradients_" + name, [=](C& c) { c.kfac.curvature.communication.gradient_wire = type; });
    t.add("sgd.gradients_" + name, Method::sgd,
          [=](C& c) { c.sgd.communication.gradient_wire = type; });
    t.add("lars.gradients_" + name, Method::lars,
          [=](C& c) { c.lars.communication.gradient_wire = type; });
    t.kfac("weights_" + name, [=](C& c) { c.kfac.curvature.communication.weight_wire = type; });
    t.both("operand_" + name, [=](C& c) { c.curvature.statistics.operand = type; });
    t.both("data_" + name, [=](C& c) { c.data = type; });
    t.kfac("data_and_operand_" + name,
           [=](C& c) { c.data = type, c.curvature.statistics.operand = type; });
  }
  t.both(
      "f64_factors", [](C& c) { c.curvature.dtype = DType::f64; }, single);
}

}  // namespace

void add_options(Table& t) {
  t.every("base", [](C&) {});
  t.every("sum", [](C& c) { c.reduction = LossReduction::sum; });
  t.every("global", [](C& c) { c.reduction = LossReduction::global_mean; });
  t.every("reference", [](C& c) { c.context.backend = Backend::reference; });
  t.every("one_bucket", [](C& c) {
    c.curvature.communication.overlap = c.sgd.communication.overlap = c.lars.communication.overlap =
        false;
    c.curvature.communication.bucket_bytes = c.sgd.communication.bucket_bytes =
        c.lars.communication.bucket_bytes = 1 << 22;
  });
  add_first_order(t);
  add_curvature(t);
  add_updates(t);
  add_communication(t);
}

}  // namespace dkfac::probe

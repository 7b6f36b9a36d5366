#include "dkfac/core/ops.h"

#include "kfac/engine.h"

namespace dkfac::kfac {
namespace {

void visit_factor(StateVisitor& visitor, const std::string& name, Factor& factor) {
  visitor.number(name + "_good", Held::owner, factor.good);
  visitor.tensor(name + "_average", Held::owner, factor.average);
  visitor.tensor(name + "_inverse", Held::owner, factor.inverse);
  if (factor.values.is_set()) visitor.tensor(name + "_values", Held::owner, factor.values);
}

void visit_curvature(StateVisitor& visitor, const std::string& layer, LayerCurvature& curvature) {
  visitor.number(layer + ".statistics", Held::owner, curvature.statistics);
  visitor.number(layer + ".stale", Held::owner, curvature.stale);
  visitor.number(layer + ".failures", Held::owner, curvature.failures);
  if (curvature.a.average.is_set()) visit_factor(visitor, layer + ".a", curvature.a);
  if (curvature.g.average.is_set()) visit_factor(visitor, layer + ".g", curvature.g);
  if (curvature.fisher.is_set()) visitor.tensor(layer + ".fisher", Held::owner, curvature.fisher);
}

}  // namespace

void Engine::visit_state(StateVisitor& visitor) {
  visitor.integer("accepted", Held::same, accepted_);
  visitor.number("stale", Held::same, stale_);
  visitor.tensor("ranges", Held::any, ranges_);
  for (int i = 0; i < layers(); ++i) {
    Layer& layer = layers_[static_cast<std::size_t>(i)];
    visitor.number(name(i) + ".has_input_range", Held::same, layer.input.has_range);
    visitor.number(name(i) + ".has_output_range", Held::same, layer.output.has_range);
    if (owns(i)) visit_curvature(visitor, name(i), layer.curvature);
    layer.input.records = layer.output.records = 0;
  }
  ops::fill(ctx_, underflow_, 0);
  ops::fill(ctx_, nonfinite_, 0);
  failed_layer_ = -1;
  note_failed();
}

}  // namespace dkfac::kfac

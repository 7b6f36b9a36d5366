#pragma once

#include <concepts>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dkfac/kfac/assignment.h"

#include "comm/collective/all_gather.h"
#include "core/shared/activity_timer.h"
#include "optim/frame.h"

/// Rules whose update of a weight needs its whole gradient as a matrix. As with K-FAC, each layer
/// has an owner, which receives its averaged gradient, updates it and sends its parameters to the
/// other ranks, so that the ranks share the work and the state.
namespace dkfac::optim {

/// A weight at its owner, as a matrix [rows, columns] whose rows are the outputs of the layer.
struct OwnedMatrix {
  std::string layer;
  TensorView gradient = {};  ///< Averaged; the rule may overwrite it.
  TensorView weight = {};
  double lr = 1;  ///< Multiplier of the learning rate.
};

/// A rule of FirstOrder that has, in addition,
/// - static double matrix_flops(rows, columns): operations of one update, from which owners follow;
/// - void add_matrix(Context&, OwnedMatrix), called by prepare() for every matrix of this rank:
///   update() has to update it, visit_state() to visit its state as StateKind::owned. The table of
///   update() has the other parameters of this rank's layers.
template <class Rule>
concept MatrixRule = requires(Rule rule, Context& ctx, std::int64_t extent) {
  { Rule::matrix_flops(extent, extent) } -> std::convertible_to<double>;
  rule.add_matrix(ctx, OwnedMatrix{});
};

/// Shape of the weight of a Linear, and of a Conv2d as [out, (in/groups)*kh*kw]. Other layers have
/// no matrix: a row of an Embedding is no output.
[[nodiscard]] inline std::optional<Shape> matrix_shape(const ParameterLayer& layer) {
  const std::int64_t rows = output_rows(layer.spec);
  return rows > 0 ? std::optional(Shape{rows, layer.weight / rows}) : std::nullopt;
}

/// Work and memory of each layer for its owner; empty for a rule without matrices.
template <class Rule>
[[nodiscard]] std::vector<kfac::LayerLoad> loads_of(const OptimizerFrame& frame) {
  std::vector<kfac::LayerLoad> loads;
  if constexpr (MatrixRule<Rule>)
    for (const ParameterLayer& layer : frame.layers) {
      const std::optional<Shape> shape = matrix_shape(layer);
      loads.push_back({.flops = shape ? Rule::matrix_flops((*shape)[0], (*shape)[1]) : 0,
                       .bytes = layer.numel() * static_cast<std::int64_t>(size_of(frame.dtype()))});
    }
  return loads;
}

/// Gives the weight of `layer` to a rule with matrices, if it is one. `layer` and its `gradient`,
/// [weight + bias elements], are then what is left: the bias.
template <class Rule>
void take_matrix(Context& ctx, Rule& rule, ParameterLayer& layer, TensorView& gradient) {
  if constexpr (MatrixRule<Rule>) {
    const std::optional<Shape> shape = matrix_shape(layer);
    if (!shape) return;
    rule.add_matrix(ctx, {.layer = layer.name,
                          .gradient = gradient.slice(0, 0, layer.weight).reshape(*shape),
                          .weight = layer.params.weight.reshape(*shape),
                          .lr = layer.params.weight_lr});
    gradient = gradient.slice(0, std::exchange(layer.weight, 0), layer.bias);
  }
}

/// Which rank updates which layer.
class OwnedLayers {
 public:
  /// After OptimizerFrame::agree(). loads: of all layers, which kfac::assign() divides over the
  /// ranks; empty: every rank updates all layers.
  OwnedLayers(OptimizerFrame& frame, std::span<const kfac::LayerLoad> loads)
      : frame_(frame), owners_(frame.layers.size(), 0) {
    if (loads.empty()) return;
    owners_ = kfac::assign(loads, frame.comm->size());
    weights_.emplace(frame.ctx, frame.grid, "weights", frame.blocks(owners_), frame.dtype());
  }

  [[nodiscard]] const std::vector<int>& owners() const { return owners_; }
  [[nodiscard]] comm::Recipients recipients() const {
    return weights_ ? comm::Recipients::owners : comm::Recipients::all;
  }
  /// Of the state that a rule keeps for a layer.
  [[nodiscard]] StateKind state_kind() const {
    return weights_ ? StateKind::owned : StateKind::replicated;
  }
  /// Whether this rank updates a layer.
  [[nodiscard]] bool updates(std::size_t layer) const {
    return !weights_ || owners_[layer] == frame_.comm->rank();
  }
  /// Sends the updated parameters of each layer from its owner to all ranks.
  void gather(kfac::StepReport& report) {
    if (!weights_ || !weights_->needed()) return;
    const ActivityTimer timer(report.seconds.exchange, "exchange"), part(report.seconds.gather);
    const auto each = [&](bool own, auto move) {
      for (std::size_t i = 0; i < owners_.size(); ++i)
        if (updates(i) == own)
          move(frame_.ctx, frame_.layers[i], weights_->block(static_cast<int>(i)));
    };
    each(true, pack_parameters);
    weights_->run();
    each(false, [](Context& ctx, const ParameterLayer& layer, TensorView block) {
      unpack_parameters(ctx, block, layer);
    });
  }

 private:
  OptimizerFrame& frame_;
  std::vector<int> owners_;
  std::optional<comm::AllGather> weights_;
};

}  // namespace dkfac::optim

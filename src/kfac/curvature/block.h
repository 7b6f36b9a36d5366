#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/layer_spec.h"
#include "dkfac/core/state.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/factors.h"
#include "dkfac/kfac/options.h"

#include "core/shared/checks.h"
#include "kfac/curvature/inverse_sharing.h"
#include "kfac/curvature/statistic.h"
#include "kfac/inverse/layer_curvature.h"
#include "kfac/inverse/refresh.h"

namespace dkfac::kfac {

class KroneckerBlock;

/// How often in a row something of a statistic has failed.
struct FailureCounts {
  int statistic = 0;  ///< Its sum was not finite.
  int inversion = 0;
  int scales = 0;  ///< EKFAC, counted with G: the sum of its scales was not finite.
};

/// A layer as the curvature sees it. What the kinds of layers do differently is virtual, and what
/// is answered here is the answer of a layer without curvature (PlainSpec); the rest follows from
/// which averages and inverses are held.
class CurvatureBlock {
 public:
  CurvatureBlock(std::string layer_name, LayerSpec layer_spec);
  virtual ~CurvatureBlock() = default;
  CurvatureBlock(const CurvatureBlock&) = delete;
  CurvatureBlock& operator=(const CurvatureBlock&) = delete;

  const std::string name;
  const LayerSpec spec;
  int owner = -1;
  StatisticId a = kNoStatistic, g = kNoStatistic;  ///< g: whatever output gradients bring.
  int scale_slot = -1;                             ///< EKFAC: of its scales.
  int scale_records = 0;                           ///< In this step.
  std::string saved_as;  ///< Where the factor that failed too often has been saved.

  /// A before G.
  [[nodiscard]] virtual std::span<const StatisticTraits> statistics() const { return {}; }
  [[nodiscard]] bool covered() const { return !statistics().empty(); }
  [[nodiscard]] bool needs_input() const {
    return covered() && statistics().front().kind == StatisticKind::a;
  }

  /// On ranks that precondition the layer. Only its owner averages; the other workers are given its
  /// inverses.
  void allocate(Context& ctx, const CurvatureOptions& options, bool owns);
  /// EKFAC: elements of the scales, else 0.
  [[nodiscard]] std::int64_t scales_numel() const { return curvature_.scales.numel(); }

  /// The block that record_input() and record_grad_output() are for; null: they are ignored. Throws
  /// where another call records the layer.
  [[nodiscard]] virtual KroneckerBlock* factors(const Caller&) { return nullptr; }
  /// What record_normalization() is for. Throws where other calls record the layer, or none.
  [[nodiscard]] virtual const NormSpec& normalization(const Caller& caller) const;
  virtual void forget_records() { scale_records = 0; }

  /// As merge_factor(); `finite` is finite_check. False: the sum was refused.
  [[nodiscard]] virtual bool merge(Context&, const CurvatureOptions&, StatisticKind,
                                   ConstTensorView /*sum*/, double /*finite*/) {
    return true;
  }
  [[nodiscard]] bool merge_scales(Context& ctx, const CurvatureOptions& options,
                                  ConstTensorView sum, double finite);
  void damping_changed();
  void add_tasks(Context& ctx, const CurvatureOptions& options, RefreshParts parts,
                 std::vector<RefreshTask>& tasks);
  /// What the other workers of the layer are given once the statistic has been renewed.
  virtual void add_shared(StatisticKind, std::vector<SharedPart>&) {}
  [[nodiscard]] bool has_inverse() const { return kfac::has_inverse(spec, curvature_); }
  /// As apply_curvature().
  void precondition(Context& ctx, const CurvatureOptions& options, TensorView weight,
                    TensorView bias) const;

  [[nodiscard]] virtual FailureCounts failures(StatisticKind) const { return {}; }
  /// Of the factor that could not be inverted: fills `saved_as`.
  void save_failed(Context& ctx, const CurvatureOptions& options, StatisticKind kind);

  /// kind: StateKind::owned, or StateKind::owner_copy of workers that do not own the layer.
  void visit_state(StateVisitor& visitor, StateKind kind);
  /// On a device: of a state of the host whose inverse lies in a form that only the host applies,
  /// the average is taken, and the inverse has to be made anew: true. (The host applies every
  /// form.)
  [[nodiscard]] bool drop_foreign(Context& ctx, StatisticKind kind);
  /// Waits for the device.
  void copy_to(Context& ctx, LayerFactors& out) const;

 protected:
  [[nodiscard]] Factor& factor(StatisticKind kind) {
    return kind == StatisticKind::a ? curvature_.a : curvature_.g;
  }
  [[nodiscard]] const Factor& factor(StatisticKind kind) const {
    return kind == StatisticKind::a ? curvature_.a : curvature_.g;
  }

  LayerCurvature curvature_;
};

/// The kind that the specification asks for.
[[nodiscard]] std::unique_ptr<CurvatureBlock> make_block(std::string name, LayerSpec spec);

}  // namespace dkfac::kfac

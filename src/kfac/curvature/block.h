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
#include "dkfac/kfac/assignment.h"
#include "dkfac/kfac/options.h"

#include "core/shared/checks.h"
#include "kfac/curvature/shared_part.h"
#include "kfac/curvature/statistic.h"
#include "kfac/inverse/layer_curvature.h"
#include "kfac/inverse/refresh.h"

namespace dkfac::kfac {

struct LayerRecord;
struct Recording;

/// EKFAC: the scales of a layer in this step.
struct ScaleRecords {
  int slot = -1;           ///< In their reduction.
  int records = 0;         ///< Of output gradients, in this step.
  bool has_input = false;  ///< An input is kept for the next of them.
  std::int64_t moves = 0;  ///< How often the memory of inputs has moved.
};

/// Consecutive failures of one statistic.
struct FailureCounts {
  int statistic = 0;  ///< Its sum was not finite.
  int inversion = 0;
  int scales = 0;  ///< EKFAC, counted with G: the sum of the scales was not finite.
};

/// What a rank does for a layer.
struct LayerShare {
  bool works = false;         ///< Preconditions it.
  bool owns = false;          ///< Owns it.
  bool a = false, g = false;  ///< Averages and inverts A, and G or the Fisher of a normalisation.
  [[nodiscard]] bool any() const { return works || a || g; }
};

/// The curvature of one layer: its averages and inverses. Functions that differ between kinds of
/// layers are virtual, and this base implements a layer without curvature (PlainSpec).
class CurvatureBlock {
 public:
  CurvatureBlock(std::string layer_name, LayerSpec layer_spec);
  virtual ~CurvatureBlock() = default;
  CurvatureBlock(const CurvatureBlock&) = delete;
  CurvatureBlock& operator=(const CurvatureBlock&) = delete;

  const std::string name;
  const LayerSpec spec;
  LayerOwners owners = -1;
  StatisticId a = kNoStatistic, g = kNoStatistic;  ///< g: G, or the Fisher of a normalisation.

  /// The statistics of the layer, A before G.
  [[nodiscard]] virtual std::span<const StatisticTraits> statistics() const { return {}; }
  [[nodiscard]] bool has_curvature() const { return !statistics().empty(); }
  [[nodiscard]] bool needs_input() const {
    return has_curvature() && statistics().front().kind == StatisticKind::a;
  }

  /// The rank that averages and inverts a statistic.
  [[nodiscard]] int averager(StatisticKind kind) const {
    return kind == StatisticKind::a ? owners.a : owners.g;
  }
  /// The ranks that invert it together.
  [[nodiscard]] int together(StatisticKind kind) const {
    return kind == StatisticKind::a ? owners.ranks_a : owners.ranks_g;
  }
  /// Allocates the averages of a rank's share, the inverses of these, and on a worker all inverses.
  void allocate(Context& ctx, const CurvatureOptions& options, LayerShare share);
  [[nodiscard]] LayerCurvature& curvature() { return curvature_; }
  [[nodiscard]] Factor& factor(StatisticKind kind) {
    return kind == StatisticKind::a ? curvature_.a : curvature_.g;
  }
  /// The records of the EKFAC scales; null where the layer has none.
  [[nodiscard]] virtual ScaleRecords* scales() { return nullptr; }
  /// Number of their elements, or 0.
  [[nodiscard]] std::int64_t scales_numel() const { return curvature_.scales.numel(); }

  /// Adds a record to the statistics of the layer, where they are due; without curvature it is
  /// ignored. Throws InvalidArgument for a layer that is recorded by another call, and for data
  /// that does not fit it.
  virtual void record(const Recording& on, const LayerRecord& record);

  /// Merges a sum over ranks into the average, as merge_factor(); `finite` is the result of
  /// check_finite(). Returns false where the sum was rejected.
  [[nodiscard]] virtual bool merge(Context&, const CurvatureOptions&, StatisticKind,
                                   ConstTensorView /*sum*/, double /*finite*/) {
    return true;
  }
  void damping_changed();
  /// Forgets failed inversions, and that one was saved.
  void forget_failures();
  /// Appends what the other workers of the layer receive once the statistic has been refreshed.
  virtual void add_shared(StatisticKind, std::vector<SharedPart>&) {}
  [[nodiscard]] bool has_inverse() const { return kfac::has_inverse(spec, curvature_); }
  /// Whether EKFAC's scales are applied, not the products of eigenvalues.
  [[nodiscard]] bool has_scales() const { return curvature_.scale_statistics > 0; }
  /// The gradient with this curvature, for apply_curvature().
  [[nodiscard]] LayerGradient gradient(TensorView weight, TensorView bias) const {
    return {&spec, &curvature_, weight, bias};
  }

  [[nodiscard]] virtual FailureCounts failures(StatisticKind) const { return {}; }
  /// Saves the factor whose inversion failed too often, unless it has been.
  void save_failed(Context& ctx, const CurvatureOptions& options, StatisticKind kind);
  /// The file of a factor whose inversion failed too often; empty where it has not been saved.
  [[nodiscard]] const std::string& saved_as(StatisticKind kind) const {
    return kind == StatisticKind::a ? saved_a_ : saved_g_;
  }

  /// Visits the averages and inverses of a rank's share: as StateKind::owned where it averages
  /// them, else as StateKind::owner_copy. Numbers of failures that are loaded are at most `limit`.
  void visit_state(StateVisitor& visitor, LayerShare share, int limit);
  /// CUDA only, after loading a state that was saved on the host, which supports more forms of
  /// inverses: discards an inverse in a form that the device cannot apply. Returns true where one
  /// was discarded, now or by an earlier call; it is then rebuilt from the average.
  [[nodiscard]] bool drop_foreign(Context& ctx, StatisticKind kind);

 protected:
  [[nodiscard]] const Factor& factor(StatisticKind kind) const {
    return kind == StatisticKind::a ? curvature_.a : curvature_.g;
  }

  LayerCurvature curvature_;

 private:
  std::string saved_a_, saved_g_;
};

/// Makes the block for a layer specification.
[[nodiscard]] std::unique_ptr<CurvatureBlock> make_block(std::string name, LayerSpec spec);

}  // namespace dkfac::kfac

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"
#include "dkfac/kfac/curvature.h"
#include "dkfac/kfac/layer_spec.h"
#include "dkfac/kfac/options.h"
#include "dkfac/kfac/report.h"
#include "dkfac/kfac/state.h"

#include "kfac/exchange.h"
#include "kfac/layer_curvature.h"
#include "kfac/refresh.h"
#include "kfac/vote.h"

namespace dkfac::kfac {

/// Statistics of all layers on their way into the averages and inverses of their owners: what
/// Preconditioner and the K-FAC optimizer have in common. Records fill the slots of two exchanges;
/// nothing else changes until the vote has passed and absorb() is called.
class Engine {
 public:
  Engine(Context& ctx, std::shared_ptr<comm::Communicator> comm, CurvatureOptions options);

  void add_layer(std::string name, LayerSpec spec);
  /// Fixes owners, allocates averages, inverses and staging. vote_tail: elements at the end of the
  /// last G bucket.
  void prepare(std::int64_t vote_tail);

  [[nodiscard]] const CurvatureOptions& options() const { return options_; }
  void set_damping(double damping);
  [[nodiscard]] int layers() const { return static_cast<int>(names_.size()); }
  [[nodiscard]] const std::string& name(int layer) const;
  [[nodiscard]] const LayerSpec& spec(int layer) const;
  [[nodiscard]] int owner(int layer) const { return owners_[static_cast<std::size_t>(layer)]; }
  [[nodiscard]] std::string describe() const;

  /// Whether this step refreshes; counted in steps whose vote passed.
  [[nodiscard]] bool statistics_due() const {
    return accepted_ % options_.statistics_interval == 0;
  }
  [[nodiscard]] bool inverses_due() const { return accepted_ % options_.inverse_interval == 0; }

  /// As in Preconditioner; ignored where statistics are not due, and for plain layers.
  void record_input(LayerId id, ConstTensorView input, RecordScale scale);
  void record_grad_output(LayerId id, ConstTensorView grad_output, RecordScale scale);
  void record_batch_norm(LayerId id, ConstTensorView x, ConstTensorView mean,
                         ConstTensorView inv_std, ConstTensorView grad_output, RecordScale scale);

  [[nodiscard]] Exchange& a_exchange() { return *a_exchange_; }
  [[nodiscard]] Exchange& g_exchange() { return *g_exchange_; }
  /// Throws InvalidArgument naming the first layer that lacks a record. forgive: this rank votes
  /// against the step anyway, so what is missing becomes zero.
  void require_records(bool forgive);
  void fill_ballot(Ballot& ballot) const;

  /// After a passed vote: merges the reduced statistics and rebuilds the inverses that are due, of
  /// the layers that this rank owns.
  void absorb(StepReport& report);
  /// Preconditions the gradients of an owned layer in place; shapes as apply_curvature().
  void apply(int layer, TensorView weight, TensorView bias);
  /// Ends the step; `accepted`: the vote passed.
  void end_step(bool accepted, StepReport& report);
  /// Between two steps: averages, inverses and what is known about them; not the options.
  void visit_state(StateVisitor& visitor);
  /// The error of a vote that reports a failed layer.
  [[noreturn]] void throw_failure(const Outcome& outcome) const;

 private:
  struct Recording {
    int slot = -1;
    bool has_range = false;  ///< ranges_ holds that of an accepted step.
    int records = 0;         ///< In this step.
  };
  struct Layer {
    Recording input, output;  ///< A; G or the BatchNorm Fisher.
    LayerCurvature curvature;
  };

  Layer& at(LayerId id, const char* operation);
  std::int64_t begin_record(const char* operation, int layer, const Recording& record,
                            ConstTensorView data, RecordScale scale);
  void end_record(Exchange& exchange, Recording& record);
  Operand operand(const Recording& record, ConstTensorView data, std::int64_t range);
  OperandStats operand_stats(std::int64_t range);
  void check_range(std::int64_t range);
  template <class Compute>
  void record_factor(Exchange& exchange, Recording& record, std::int64_t dim, Compute compute);
  bool merge(int layer);
  void merge_owned(StepReport& report);
  void refresh_owned(StepReport& report);
  void note_failed();
  [[nodiscard]] bool owns(int layer) const { return owner(layer) == comm_->rank(); }

  Context& ctx_;
  std::shared_ptr<comm::Communicator> comm_;
  CurvatureOptions options_;
  std::vector<std::string> names_;
  std::vector<LayerSpec> specs_;
  std::vector<int> owners_;
  std::vector<Layer> layers_;
  RefreshWorkers workers_;
  std::vector<RefreshTask> tasks_;
  std::optional<Exchange> a_exchange_, g_exchange_;
  /// f32[2 * layers]: largest magnitudes of operands, input then output; of the last accepted step
  /// with statistics, and of this one.
  Tensor ranges_, new_ranges_;
  Tensor underflow_;  ///< f32[1]
  Tensor nonfinite_;  ///< f32[1]
  std::int64_t accepted_ = 0;
  bool stale_ = false;  ///< Averages or damping have changed since the last refresh.
  int failed_layer_ = -1;
  double statistics_seconds_ = 0;
};

}  // namespace dkfac::kfac

#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"
#include "dkfac/kfac/assignment.h"
#include "dkfac/kfac/optimizer.h"

#include "comm/collective/exchange.h"
#include "comm/collective/mirror.h"
#include "comm/collective/pipeline.h"
#include "comm/collective/stream_join.h"
#include "kfac/optimizer/parameters.h"

namespace dkfac::kfac {

/// What Sgd, Lars and Kfac share: registration, the exchange of gradients, the vote. A subclass
/// says who needs the sums and what is done with them once the vote has passed.
class DistributedOptimizer : public Optimizer {
 public:
  [[nodiscard]] LayerId add_layer(std::string name, LayerSpec spec, LayerParams params) final;
  void prepare() final;
  void grads_ready(LayerId layer, Stream stream, RecordScale scale) final;
  StepReport step(const StepArgs& args, Stream stream) final;
  void visit_state(StateVisitor& caller) final;

 protected:
  struct ExchangeSettings {
    comm::Recipients recipients = comm::Recipients::all;
    LossReduction loss_reduction = LossReduction::local_mean;
    bool overlap = true;
    std::int64_t bucket_bytes = 0;
    double worker_fraction = 0;  ///< Of comm::Recipients::workers.
    std::optional<DType> wire = std::nullopt;
  };
  DistributedOptimizer(std::shared_ptr<comm::Communicator> comm, ExchangeSettings settings,
                       Device device, ContextOptions context);

  /// Everything that must be equal on all ranks, one option per line.
  [[nodiscard]] virtual std::string options_text() const = 0;
  virtual void on_add(const ParameterLayer&) {}
  virtual void on_prepare() = 0;   ///< Allocate state; owners must be known when it returns.
  virtual void on_exchange() = 0;  ///< gradient(i) stand where they do from here on.
  [[nodiscard]] virtual int owner_of(int /*layer*/) const { return 0; }
  /// Begins the exchanges of the coming step beside the gradients.
  virtual void add_active(std::vector<comm::Exchange*>&) {}
  /// Before everything leaves. forgive: this rank votes against the step, so records may be
  /// missing.
  virtual void on_records(bool /*forgive*/) {}
  virtual void on_ballot(comm::Ballot&) {}  ///< Before the vote, after all else has been launched.
  /// The sums are there for work on the context's stream: what the host has to know of them once
  /// it has waited for the vote is asked for now.
  virtual void on_submitted() {}
  /// The host has waited for a vote that reports no failure, whatever else it says.
  virtual void on_outcome(const comm::Outcome&, StepReport&) {}
  [[noreturn]] virtual void on_failure(const comm::Outcome& outcome) const;
  /// The vote has passed: gradient(i) holds the averaged gradient. May take back report.updated.
  virtual void update(const StepArgs& args, StepReport& report) = 0;
  virtual void on_step_end(StepReport&) {}
  virtual void on_visit(StateVisitor& visitor) = 0;
  /// The momentum buffers, one per layer; those that are not set are left out.
  void visit_velocity(StateVisitor& visitor, Held held, std::vector<Tensor>& velocity);

  [[nodiscard]] TensorView gradient(int layer);  ///< [weight + bias elements]
  /// Staging and wire, for a description.
  [[nodiscard]] std::vector<NamedBytes> gradient_buffers() const;
  void require_prepared(const char* operation) const;
  [[nodiscard]] DType dtype() const;

  /// Around everything that a caller's stream hands in or takes back.
  void enter(std::string_view operation, Stream caller) {
    join_.enter(operation, caller, ctx_.stream());
  }
  void leave(Stream caller) { join_.leave(caller, ctx_.stream()); }
  void poll() { pipeline_->poll(); }
  /// Before the first record of a step, when what is due in it has changed.
  void begin_again() {
    if (prepared_) begin_step();
  }
  /// Drops what is under way; for destructors.
  void stop() { pipeline_.reset(); }

  std::shared_ptr<comm::Communicator> comm_;
  comm::WorkerGrid grid_;  ///< From prepare() on.
  Context ctx_;
  std::vector<ParameterLayer> layers_;

 private:
  void begin_step();
  void complete_gradients(bool forgive);
  void agree_on_magnitudes();
  void set_magnitudes();

  ExchangeSettings settings_;
  comm::StreamJoin join_;
  bool prepared_ = false;
  std::int64_t steps_ = 0;
  double packing_seconds_ = 0;
  Tensor nonfinite_;  ///< f32[1]
  /// f32[layers], with an f16 wire: largest parts of the gradients of the last step on any rank.
  std::optional<comm::Mirror> magnitudes_;
  std::optional<comm::Exchange> gradients_;
  std::vector<comm::Exchange*> active_;
  std::optional<comm::Pipeline> pipeline_;  ///< After the buffers, so that it ends before they do.
};

}  // namespace dkfac::kfac

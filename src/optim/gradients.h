#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dkfac/core/tensor.h"
#include "dkfac/kfac/assignment.h"

#include "comm/collective/bucketed_reduce.h"
#include "comm/collective/host_device_pair.h"
#include "optim/frame.h"

namespace dkfac::optim {

struct GradientOptions {
  comm::Recipients recipients = comm::Recipients::all;
  LossReduction loss_reduction = LossReduction::local_mean;
  std::int64_t bucket_bytes = 0;
  std::optional<DType> wire = std::nullopt;
};

/// Gradients of all layers on their way to the ranks that update with them: packed and checked as
/// backward announces them, summed over ranks in buckets whose last one carries the flags of the
/// step.
class Gradients {
 public:
  /// owners: of the layers; which segment of a bucket a layer stands in.
  Gradients(OptimizerFrame& frame, const GradientOptions& options, std::span<const int> owners);

  /// Of a step: starts the exchange and appends it.
  void begin(std::vector<comm::BucketedReduce*>& active);
  void announce(LayerId id, Stream caller, RecordScale scale);
  /// Throws InvalidArgument naming the first layer that was not announced. allow_missing: what is
  /// missing becomes zero.
  void complete(bool allow_missing);
  void raise_flags(comm::FlagMessage& flags) const { flags.gradient_count = nonfinite_; }
  /// Of magnitudes, for an f16 wire: before the host waits, and afterwards. Of this step also where
  /// it does not pass: after an overflow the next one has to do better.
  void request();
  void collect(UpdateReport& report);

  /// [weight + bias elements]: this rank's part, then the sum. The same memory in every step.
  [[nodiscard]] TensorView of(int layer) { return exchange_.slot(slot_of(layer)); }
  [[nodiscard]] std::vector<kfac::NamedBytes> buffers() const;  ///< Staging and wire.
  void visit_state(StateVisitor& visitor);

 private:
  /// Gradients come from the last layer to the first.
  [[nodiscard]] int slot_of(int layer) const { return exchange_.slots() - 1 - layer; }
  void set_magnitudes();

  OptimizerFrame& frame_;
  LossReduction reduction_;
  Tensor nonfinite_;  ///< f32[1]
  comm::BucketedReduce exchange_;
  /// f32[layers], with an f16 wire: largest parts of the gradients of the last step on any rank.
  std::optional<comm::HostDevicePair> magnitudes_;
  double packing_seconds_ = 0;
};

}  // namespace dkfac::optim

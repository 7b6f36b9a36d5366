#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dkfac/core/export.h"
#include "dkfac/core/types.h"

namespace dkfac {

/// Reduction of the loss whose gradients are recorded. It determines how per-sample gradients are
/// recovered, so that damping has the same meaning at every batch size.
enum class LossReduction : std::uint8_t {
  /// Mean over all of this rank's samples in the step, as under DDP. With m micro-batches of equal
  /// size, loss / m of each is back-propagated. The library averages over ranks. A loss that is
  /// divided by the global batch belongs to global_mean: here all its gradients would be P times as
  /// short. The library cannot notice that, since a loss with a weight of 1/P looks the same.
  local_mean,
  /// Sum over this rank's samples divided by the global batch. The library sums over ranks.
  global_mean,
  /// Sum over this rank's samples. The library sums over ranks and divides by the global batch.
  sum
};

/// Scale of a recorded gradient relative to the loss of one sample.
struct DKFAC_API RecordScale {
  double loss_scale = 1;  ///< Loss scale of mixed precision that the gradient still contains.
  /// Samples of the step over all ranks. 0: the samples of the record (at least one then) times
  /// ranks and micro-batches.
  std::int64_t global_batch = 0;
};

/// What the records of a step have counted so far, and what the device work of further ones depends
/// on beside their arguments. From equal `words`, equal record calls enqueue equal work, as long as
/// the memory that it uses has not moved.
struct DKFAC_API PassState {
  std::vector<std::int64_t> words = {};  ///< Comparable with those of the same object only.
  std::int64_t moves = 0;                ///< How often this memory has moved.
};

/// Options of the communication of gradients, statistics and parameters.
struct DKFAC_API CommunicationOptions {
  bool overlap = true;  ///< Overlaps communication with forward and backward.
  /// Size of a bucket: a reduction starts once about this many bytes are pending. > 0.
  std::int64_t bucket_bytes = std::int64_t{4} << 20;
  /// Wire formats: f32, bf16 or f16. bf16 and f16 are summed in f32 in one order; otherwise sums
  /// are those of the communicator. Unset: the type of the computation. First-order methods
  /// communicate gradients only, Preconditioner statistics only, K-FAC as an optimizer gradients,
  /// statistics and weights.
  std::optional<DType> gradient_wire = std::nullopt, statistics_wire = std::nullopt;
  /// Wire format of updated weights as they are gathered. The workers of a layer keep master
  /// weights in the parameters' type. Every rank, workers included and regardless of their number,
  /// continues with the rounded weights. Values out of its range saturate to its largest number;
  /// StepReport::saturated counts them.
  std::optional<DType> weight_wire = std::nullopt;
};

}  // namespace dkfac

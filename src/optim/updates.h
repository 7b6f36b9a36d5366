#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"

#include "optim/elementwise_passes.h"
#include "optim/kfac_rule.h"
#include "optim/update_rules.h"

/// Update rules over all parameters of a step at once: one pass per parameter on the host; on a
/// device, a number of kernels independent of the number of parameters. The host does not wait;
/// factors that depend on norms are computed and applied on the device of the parameters.
namespace dkfac::optim {

/// One parameter tensor and the memory of its update: flat and contiguous, on the device of the
/// table, of its type and of equal lengths.
struct UpdatedPart {
  TensorView gradient = {};   ///< Or the preconditioned direction.
  TensorView states = {};     ///< The state tensors, [states, elements]; rows may have gaps.
  TensorView parameter = {};  ///< The caller's.
  TensorView master = {};  ///< K-FAC: the master weight, updated instead of `parameter`, which gets
                           ///< a copy rounded to weight_wire; empty: none.
  TensorView block =
      {};  ///< K-FAC: send buffer of the updated weight, in the wire type; empty: `parameter` is
           ///< sent. Without a master the update is written here alone.
  double lr = 1;                ///< Multiplier of the learning rate.
  double decay = 1;             ///< Multiplier of the weight decay.
  bool is_weight = true;        ///< LARS: has its own trust ratio.
  bool preconditioned = false;  ///< K-FAC: the KL clip applies to it.
  std::int64_t d_out = 0;       ///< K-FAC: rows of a weight to rescale; 0: not rescaled.

  [[nodiscard]] std::int64_t numel() const { return parameter.numel(); }
  [[nodiscard]] TensorView state(std::int64_t s) const { return states.slice(0, s, 1).flat(); }
  [[nodiscard]] TensorView from() const { return master.empty() ? parameter : master; }
  [[nodiscard]] TensorView out() const { return master.empty() && !block.empty() ? block : from(); }
};

/// A fixed list of parts, with memory that every update reuses.
struct UpdateTable {
  DType dtype = DType::f32;
  std::vector<UpdatedPart> parts;  ///< None is empty.
  // On a CUDA device (optim/cuda/update_functors.h):
  Tensor entries, chunks;                         ///< Tables for the kernels, as 8-byte words.
  Tensor sums;                                    ///< f64[2 chunks]: sums of squares.
  Tensor factors;                                 ///< f64[parts]: trust ratios, or rescaling.
  std::int64_t chunk_count = 0, most_chunks = 0;  ///< Of all parts; of the longest.
};
/// Makes a table; parts without elements are omitted. Throws InvalidArgument for views of different
/// lengths, types or devices.
[[nodiscard]] UpdateTable make_update_table(Context& ctx, DType dtype,
                                            std::vector<UpdatedPart> parts);

/// Apply an elementwise pass. pass: that of a part whose multipliers are 1.
#define DKFAC_DECLARE(kernel, Pass) void update(Context& ctx, UpdateTable& table, const Pass& pass);
DKFAC_ELEMENTWISE_PASSES(DKFAC_DECLARE)
#undef DKFAC_DECLARE
/// Applies LARS, with momentum and weight decay from the options.
void lars_update(Context& ctx, UpdateTable& table, const LarsOptions& options, double lr);

struct KfacUpdate {
  DirectionPass pass;  ///< That of a part whose multipliers are 1.
  Rescale rescale = Rescale::off;
  ConstTensorView clip = {};  ///< f64[1]: the factor of the KL clip; empty: 1.
  std::optional<DType> wire =
      std::nullopt;  ///< Wire type of weights, where the parts have masters.
  TensorView saturated =
      {};  ///< f64[1], with masters: number of elements out of the range of the wire.
};
void kfac_update(Context& ctx, UpdateTable& table, const KfacUpdate& update);

}  // namespace dkfac::optim

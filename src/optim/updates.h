#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"

#include "optim/elementwise_passes.h"
#include "optim/update_rules.h"

/// Update rules over all parameters of a step at once: on the host one pass after the other, on a
/// device a number of kernels that does not depend on that of the parameters. No wait of the host;
/// what depends on norms is computed and used where the parameters are.
namespace dkfac::optim {

/// One parameter tensor, and where its update reads and writes: flat and contiguous, on the device
/// of the table, of its type and of equal lengths.
struct UpdatedPart {
  TensorView gradient = {};   ///< Or the direction that the curvature made of it.
  TensorView slots = {};      ///< State, [slots, elements]; rows may have gaps between them.
  TensorView parameter = {};  ///< The caller's.
  TensorView master = {};     ///< K-FAC: what is updated instead of `parameter`, which gets a copy
                              ///< rounded to the wire of weights; empty: none.
  TensorView block = {};  ///< K-FAC: where all ranks will read the new weight, in the type of the
                          ///< wire; empty: from `parameter`. Without a master it goes there alone.
  double lr = 1;          ///< Multiplies the learning rate.
  double decay = 1;       ///< Multiplies the weight decay.
  bool is_weight = true;  ///< LARS: has a trust ratio of its own.
  bool preconditioned = false;  ///< K-FAC: the KL clip applies to it.
  std::int64_t d_out = 0;       ///< K-FAC: rows of the weight to rescale; 0: never.

  [[nodiscard]] std::int64_t numel() const { return parameter.numel(); }
  [[nodiscard]] TensorView slot(std::int64_t s) const { return slots.slice(0, s, 1).flat(); }
  [[nodiscard]] TensorView from() const { return master.empty() ? parameter : master; }
  [[nodiscard]] TensorView out() const { return master.empty() && !block.empty() ? block : from(); }
};

/// Made once for a fixed list of parts; its memory is used by every update.
struct UpdateTable {
  DType dtype = DType::f32;
  std::vector<UpdatedPart> parts;  ///< None is empty.
  // On a CUDA device (kfac/cuda/update_functors.h):
  Tensor entries, chunks;                         ///< What the kernels read, as words.
  Tensor sums;                                    ///< f64[2 chunks]: sums of squares.
  Tensor factors;                                 ///< f64[parts]: rates, or rescaling.
  std::int64_t chunk_count = 0, most_chunks = 0;  ///< Of all parts; of the longest.
};
/// Parts without elements are left out. Throws InvalidArgument for views that are not alike.
[[nodiscard]] UpdateTable make_update_table(Context& ctx, DType dtype,
                                            std::vector<UpdatedPart> parts);

/// pass: of a part whose multiples are 1.
#define DKFAC_DECLARE(Pass) void update(Context& ctx, UpdateTable& table, const Pass& pass);
DKFAC_ELEMENTWISE_PASSES(DKFAC_DECLARE)
#undef DKFAC_DECLARE
/// Momentum and weight decay are the options'.
void lars_update(Context& ctx, UpdateTable& table, const LarsOptions& options, double lr);

struct KfacUpdate {
  KfacPass pass;  ///< Of a part whose multiples are 1.
  Rescale rescale = Rescale::off;
  ConstTensorView clip = {};                 ///< f64[1]: the factor of the KL clip; empty: 1.
  std::optional<DType> wire = std::nullopt;  ///< Of weights, where the parts have masters.
  TensorView saturated = {};  ///< f64[1], with masters: elements past the range of the wire.
};
void kfac_update(Context& ctx, UpdateTable& table, const KfacUpdate& update);

}  // namespace dkfac::optim

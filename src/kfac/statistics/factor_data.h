#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"
#include "dkfac/kfac/statistics.h"

#include "core/shared/checks.h"

/// The data that a factor sums over, in one representation for all layers: patches of images. A
/// linear layer's input is an image of P x 1 pixels under a 1x1 kernel, and so is an output
/// gradient.
namespace dkfac::kfac {

struct FactorData {
  ConstTensorView x;        ///< [n,h,w,c] or [n,c,h,w]; [rows,c] of any row stride if `is_matrix`.
  ops::PatchSpec patches;   ///< Over the channels of all groups.
  bool is_matrix = false;   ///< Every row is a sample with one position.
  std::int64_t groups = 1;  ///< Number of channel ranges, each with its own factor.
  bool bias = false;        ///< Patches end in a 1.

  [[nodiscard]] std::int64_t positions() const { return patches.out_h() * patches.out_w(); }
  /// Width of one group's factor.
  [[nodiscard]] std::int64_t dim() const { return patches.width() / groups + (bias ? 1 : 0); }
};

/// Wrap the recorded data of a layer. Throw InvalidArgument for data that does not fit the layer:
/// shape, strides, type, a null pointer, and a_data() for a layer whose A is no sum over rows.
[[nodiscard]] FactorData a_data(const Caller& caller, const LayerSpec& spec, ConstTensorView input);
[[nodiscard]] FactorData g_data(const Caller& caller, const LayerSpec& spec,
                                ConstTensorView grad_output);

/// Reduces the patches of each sample to one, their sum or mean, in type `compute`. The result uses
/// memory of `scratch`.
enum class OverPositions : std::uint8_t { sum, mean };
[[nodiscard]] FactorData one_per_sample(Context& ctx, Scratch& scratch, const FactorData& data,
                                        OverPositions how, DType compute);

/// Diagonal blocks of a factor that is `whole` wide: `count` of them, `width` wide each, but for
/// the last one, which has what is left.
struct DiagonalBlocks {
  std::int64_t count, width, whole;
};
/// compute_a() or compute_g() of such blocks: lower triangles of out[count,width,width].
void compute_a_blocks(Context& ctx, const LayerSpec& spec, const DiagonalBlocks& blocks,
                      const FactorRecord& record, TensorView out);
void compute_g_blocks(Context& ctx, const LayerSpec& spec, const DiagonalBlocks& blocks,
                      const FactorRecord& record, TensorView out);

void check_statistic(const Caller& caller, const LayerSpec& spec, double global_batch,
                     const Operand& operand);
void check_scale(const Caller& caller, double sample_scale);

}  // namespace dkfac::kfac

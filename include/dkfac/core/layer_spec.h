#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "dkfac/core/export.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/types.h"

namespace dkfac {

using Layout = ops::Layout;

/// y = x W' + b for x[n,in], or x[n,...,in] with several positions per sample; W[out,in], b[out].
struct DKFAC_API LinearSpec {
  std::int64_t in = 0, out = 0;
  bool bias = true;
  /// Most rows (samples times positions) of one step over all ranks; 0: not known. Only for
  /// StatisticsOptions::low_rank. Each rank has room for its share of the max_rows / sample_rows
  /// samples, which is as even as can be, the first ranks taking one more: where ranks share
  /// batches otherwise, ranks times the largest share of one.
  std::int64_t max_rows = 0;
  std::int64_t sample_rows = 1;  ///< Rows of one sample, its positions; divides max_rows.
};

/// Two-dimensional convolution. `layout` fixes activations and weights alike, and with them the
/// order of A's columns: nhwc has x[n,h,w,in], W[out,kh,kw,in]; nchw has x[n,in,h,w],
/// W[out,in,kh,kw]. A mismatch would permute A silently. With groups, W has in/groups in the place
/// of in, and every group has a factor pair of its own.
struct DKFAC_API Conv2dSpec {
  std::int64_t in = 0, out = 0;
  int kernel_h = 1, kernel_w = 1;
  int stride_h = 1, stride_w = 1;
  int pad_h = 0, pad_w = 0;
  bool bias = true;
  Layout layout = Layout::nhwc;
  int dilation_h = 1, dilation_w = 1;
  /// Padded so that the output is as large as the input, the odd row or column after it; stride 1
  /// and pad 0 only.
  bool same = false;
  int groups = 1;             ///< Divides in and out.
  std::int64_t max_rows = 0;  ///< As in LinearSpec, with output positions.
  std::int64_t sample_rows = 1;
};

/// What the convolution reads of n images h x w.
[[nodiscard]] DKFAC_API ops::PatchSpec patch_spec(const Conv2dSpec& spec, std::int64_t n,
                                                  std::int64_t h, std::int64_t w);

/// Which elements of x a normalisation takes a mean and a deviation of.
enum class NormOver : std::uint8_t {
  batch,    ///< Those of a channel, over samples and positions: batch normalisation.
  channels  ///< Those of a row, over channels, for each sample and position: layer normalisation.
};

/// Scale gamma[channels] and shift beta[channels] of a normalisation.
struct DKFAC_API NormSpec {
  std::int64_t channels = 0;
  /// x[n,h,w,c] or x[n,c] (nhwc); x[n,c,h,w] (nchw). NormOver::channels: nhwc, for x[n,...,c].
  Layout layout = Layout::nhwc;
  bool scale = true;  ///< False: gamma is fixed, so there is no weight, only beta.
  NormOver over = NormOver::batch;
};

/// Rows W[vocabulary,width] of a table by index: a Linear without bias of one-hot inputs, W
/// transposed. Its A, the second moment of these, is diagonal: how often each index occurs.
struct DKFAC_API EmbeddingSpec {
  std::int64_t vocabulary = 0, width = 0;
};

/// Parameters without a curvature block: they get the first-order update. `reason` says why, for
/// describe().
struct DKFAC_API PlainSpec {
  std::int64_t weight = 0, bias = 0;  ///< Numbers of elements.
  std::string reason = "no curvature block for this layer";
};

using LayerSpec = std::variant<LinearSpec, Conv2dSpec, NormSpec, EmbeddingSpec, PlainSpec>;

enum class LayerId : int {};

[[nodiscard]] DKFAC_API bool has_factors(const LayerSpec& spec);     ///< Linear, Conv2d, Embedding.
[[nodiscard]] DKFAC_API bool has_diagonal_a(const LayerSpec& spec);  ///< Embedding.
/// Factor pairs: 1, or those of a Conv2d.
[[nodiscard]] DKFAC_API int factor_groups(const LayerSpec& spec);
/// Width of A of one group: in/groups*kh*kw, + 1 for a bias; vocabulary.
[[nodiscard]] DKFAC_API std::int64_t a_dim(const LayerSpec& spec);
/// Width of G of one group: out/groups; width.
[[nodiscard]] DKFAC_API std::int64_t g_dim(const LayerSpec& spec);
[[nodiscard]] DKFAC_API std::int64_t weight_numel(const LayerSpec& spec);
/// W as the structs above write it; [channels] of a BatchNorm, [weight] of a PlainSpec, [0] where
/// there is none.
[[nodiscard]] DKFAC_API Shape weight_shape(const LayerSpec& spec);
[[nodiscard]] DKFAC_API std::int64_t bias_numel(const LayerSpec& spec);  ///< 0 without a bias.
/// "conv 16->32 3x3/2 p1 nhwc bias"
[[nodiscard]] DKFAC_API std::string describe(const LayerSpec& spec);
/// Throws InvalidArgument naming `layer` and the field that is out of range.
DKFAC_API void validate(const LayerSpec& spec, std::string_view layer);

}  // namespace dkfac

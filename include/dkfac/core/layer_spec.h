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
using Window = ops::Window;

/// Linear layer y = x W' + b for x[n,in], or x[n,...,in] with several positions per sample;
/// W[out,in], b[out].
struct DKFAC_API LinearSpec {
  std::int64_t in = 0, out = 0;
  bool bias = true;
  /// Upper bound on the rows (samples times positions) of one step, summed over ranks; 0: unknown,
  /// which disables StatisticsOptions::low_rank for this layer. The capacity of a rank is its share
  /// of the max_rows / sample_rows samples, divided as evenly as possible. For uneven shards it is
  /// the number of ranks times the rows of the largest shard.
  std::int64_t max_rows = 0;
  std::int64_t sample_rows = 1;  ///< Rows (positions) of one sample; divides max_rows.
};

/// Two-dimensional convolution. `layout` is that of activations and weights, and fixes the order of
/// A's columns: nhwc has x[n,h,w,in], W[out,kh,kw,in]; nchw has x[n,in,h,w], W[out,in,kh,kw]. A
/// wrong layout permutes A without an error. With groups, W has in/groups in the place of in, and
/// every group has its own factor pair.
struct DKFAC_API Conv2dSpec {
  std::int64_t in = 0, out = 0;
  Window window = {};
  bool bias = true;
  Layout layout = Layout::nhwc;
  bool same = false;          ///< Pad as Window::same(); requires stride 1 and no other padding.
  int groups = 1;             ///< Divides in and out.
  std::int64_t max_rows = 0;  ///< As in LinearSpec, with output positions.
  std::int64_t sample_rows = 1;
};

/// Returns the patch geometry of the convolution over n images of h x w.
[[nodiscard]] DKFAC_API ops::PatchSpec patch_spec(const Conv2dSpec& spec, std::int64_t n,
                                                  std::int64_t h, std::int64_t w);

/// Elements of x over which a normalisation computes mean and deviation.
enum class NormOver : std::uint8_t {
  batch,    ///< Samples and positions, for each channel: batch normalisation.
  channels  ///< Channels, for each sample and position: layer normalisation.
};

/// Normalisation with scale gamma[channels] and shift beta[channels].
struct DKFAC_API NormSpec {
  std::int64_t channels = 0;
  /// nhwc: x[n,h,w,c] or x[n,c]; nchw: x[n,c,h,w]. NormOver::channels requires nhwc, for
  /// x[n,...,c].
  Layout layout = Layout::nhwc;
  bool scale = true;  ///< False: gamma is fixed, so there is no weight, only beta.
  NormOver over = NormOver::batch;
};

/// Embedding: looks up rows of W[vocabulary,width] by index x[n,...], contiguous i32 in [0,
/// vocabulary). It is a Linear without bias on one-hot inputs, with W transposed. Its A, their
/// second moment, is diagonal: the frequency of each index.
struct DKFAC_API EmbeddingSpec {
  std::int64_t vocabulary = 0, width = 0;
};

/// Parameters without a curvature block, which get the first-order update. `reason` appears in
/// describe().
struct DKFAC_API PlainSpec {
  std::int64_t weight = 0, bias = 0;  ///< Numbers of elements.
  std::string reason = "no curvature block for this layer";
};

using LayerSpec = std::variant<LinearSpec, Conv2dSpec, NormSpec, EmbeddingSpec, PlainSpec>;

enum class LayerId : int {};

[[nodiscard]] DKFAC_API bool has_factors(const LayerSpec& spec);  ///< Linear, Conv2d, Embedding.
/// Number of factor pairs: the groups of a Conv2d, otherwise 1.
[[nodiscard]] DKFAC_API int factor_groups(const LayerSpec& spec);
/// Width of A of one group: in/groups*kh*kw, + 1 for a bias; the vocabulary of an Embedding.
[[nodiscard]] DKFAC_API std::int64_t a_dim(const LayerSpec& spec);
/// Width of G of one group: out/groups; the width of an Embedding.
[[nodiscard]] DKFAC_API std::int64_t g_dim(const LayerSpec& spec);
[[nodiscard]] DKFAC_API std::int64_t weight_numel(const LayerSpec& spec);
/// Shape of W as given at the structs above: [channels] for a normalisation, [weight] for a
/// PlainSpec, [0] without a weight.
[[nodiscard]] DKFAC_API Shape weight_shape(const LayerSpec& spec);
/// Number of rows of W where each makes one output: of Linear and Conv2d. 0 for others, also for an
/// Embedding, whose rows are the outputs.
[[nodiscard]] DKFAC_API std::int64_t output_rows(const LayerSpec& spec);
[[nodiscard]] DKFAC_API std::int64_t bias_numel(const LayerSpec& spec);  ///< 0 without a bias.
/// One-line description, e.g. "conv 16->32 3x3/2 p1 nhwc bias".
[[nodiscard]] DKFAC_API std::string describe(const LayerSpec& spec);
/// Throws InvalidArgument naming `layer` and the field that is out of range.
DKFAC_API void validate(const LayerSpec& spec, std::string_view layer);

}  // namespace dkfac

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "dkfac/core/ops.h"
#include "dkfac/core/types.h"

namespace dkfac::kfac {

using Layout = ops::Layout;

/// y[n,out] = x[n,in] W' + b; W[out,in], b[out].
struct LinearSpec {
  std::int64_t in = 0, out = 0;
  bool bias = true;
};

/// Two-dimensional convolution. `layout` fixes activations and weights alike, and with them the
/// order of A's columns: nhwc has x[n,h,w,in], W[out,kh,kw,in]; nchw has x[n,in,h,w],
/// W[out,in,kh,kw]. A mismatch would permute A silently. One group: a grouped convolution has no
/// Kronecker factors of this form.
struct Conv2dSpec {
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
};

/// What the convolution reads of n images h x w.
[[nodiscard]] ops::PatchSpec patch_spec(const Conv2dSpec& spec, std::int64_t n, std::int64_t h,
                                        std::int64_t w);

/// Scale gamma[channels] and shift beta[channels] of a batch normalisation.
struct BatchNormSpec {
  std::int64_t channels = 0;
  Layout layout = Layout::nhwc;  ///< x[n,h,w,c] or x[n,c] (nhwc); x[n,c,h,w] (nchw).
  bool scale = true;             ///< False: gamma is fixed, so there is no weight, only beta.
};

/// Parameters without a curvature block: they get the first-order update. `reason` says why, for
/// describe().
struct PlainSpec {
  std::int64_t weight = 0, bias = 0;  ///< Numbers of elements.
  std::string reason = "no curvature block for this layer";
};

using LayerSpec = std::variant<LinearSpec, Conv2dSpec, BatchNormSpec, PlainSpec>;

enum class LayerId : int {};

[[nodiscard]] bool has_factors(const LayerSpec& spec);    ///< Linear and Conv2d.
[[nodiscard]] std::int64_t a_dim(const LayerSpec& spec);  ///< Width of A: in*kh*kw, + 1 for a bias.
[[nodiscard]] std::int64_t g_dim(const LayerSpec& spec);  ///< Width of G: out.
[[nodiscard]] std::int64_t weight_numel(const LayerSpec& spec);
[[nodiscard]] std::int64_t bias_numel(const LayerSpec& spec);  ///< 0 without a bias.
[[nodiscard]] std::string describe(const LayerSpec& spec);     ///< "conv 16->32 3x3/2 p1 nhwc bias"
/// Throws InvalidArgument naming `layer` and the field that is out of range.
void validate(const LayerSpec& spec, std::string_view layer);

}  // namespace dkfac::kfac

#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/export.h"
#include "dkfac/core/tensor_view.h"

/// Dense operations on views. Shapes, dtypes and devices are checked before a backend is called; a
/// mismatch throws InvalidArgument. Computing dtypes are f64 and f32; unless stated otherwise, all
/// views of one call share dtype and device and do not overlap. Matrices are row-major with any row
/// stride and a unit column stride; vectors may be strided. Work is ordered on ctx.stream();
/// results that a step needs stay in device memory. The fast host backend may treat denormal
/// numbers as zero in products and decompositions (x86), and leaves the mode of the calling thread
/// alone.
namespace dkfac::ops {

enum class Trans : std::uint8_t { no, yes };
enum class Upper : std::uint8_t { untouched, filled };

// --- elementwise -----------------------------------------------------------------------------

/// dst = src for equal shape and dtype, any strides, each on the host or on the device of ctx.
/// Copies between host and device are asynchronous on ctx.stream() if the host memory is pinned
/// (Tensor::pinned) and both views are rows without gaps. Other host memory has been read or
/// written when the call returns; as dst, and as src of more than 64 KiB, it blocks the host.
DKFAC_API void copy(Context& ctx, ConstTensorView src, TensorView dst);
DKFAC_API void fill(Context& ctx, TensorView x, double value);
/// dst = round(scale * src), any floating dtypes, round to nearest even; f64 rounds once.
DKFAC_API void cast(Context& ctx, ConstTensorView src, TensorView dst, double scale = 1.0);
/// y = alpha*x + beta*y; beta = 0 does not read y.
DKFAC_API void axpby(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView y);
/// dst = scale*src, and nonfinite[0] (f32) += number of NaN and Inf in src: one pass over both.
DKFAC_API void copy_checked(Context& ctx, double scale, ConstTensorView src, TensorView dst,
                            TensorView nonfinite);
/// Emulates a 16-bit operand in a computing dtype: dst = T(scale*src), T = `type`, for src and dst
/// f32 or f64. Values beyond T's largest finite one saturate to it; underflow[0] (f32) += number of
/// non-zero src that became 0. A type of f32 or f64 only multiplies and rounds.
DKFAC_API void round_to(Context& ctx, DType type, double scale, ConstTensorView src, TensorView dst,
                        TensorView underflow);

// --- reductions: results go to device memory ---------------------------------------------------

/// out[0] = sum(x*y), accumulated in f64. out: f64 or f32.
DKFAC_API void dot(Context& ctx, ConstTensorView x, ConstTensorView y, TensorView out);
/// out[0] = sum(x), accumulated in f64. out: f64 or f32.
DKFAC_API void sum(Context& ctx, ConstTensorView x, TensorView out);
/// out[0] = max |x|; NaN counts as infinity. out: f64 or f32.
DKFAC_API void max_abs(Context& ctx, ConstTensorView x, TensorView out);
/// out[c] = alpha * sum over rows of x[n,c] + beta*out.
DKFAC_API void col_sum(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView out);
/// count[0] (f32) += number of NaN and Inf in x.
DKFAC_API void count_nonfinite(Context& ctx, ConstTensorView x, TensorView count);

// --- dense linear algebra ----------------------------------------------------------------------

/// c[m,n] = alpha*op(a)*op(b) + beta*c; beta = 0 does not read c.
DKFAC_API void gemm(Context& ctx, Trans trans_a, Trans trans_b, double alpha, ConstTensorView a,
                    ConstTensorView b, double beta, TensorView c);
/// Lower triangle of c[d,d] = alpha * x'x + beta*c for x[n,d]; the strict upper one is untouched.
DKFAC_API void syrk(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView c);
/// Copies the strict lower triangle of a[d,d] onto the upper one.
DKFAC_API void symmetrize(Context& ctx, TensorView a);
/// a[i,i] += value.
DKFAC_API void add_diagonal(Context& ctx, TensorView a, double value);
/// In: lower triangle of a symmetric a[d,d]. Out: its Cholesky factor L there. info[1] (i32): 0, or
/// the order of the first leading minor that is not positive definite (a is then unspecified). The
/// strict upper triangle is neither read nor written. LAPACK potrf.
DKFAC_API void potrf(Context& ctx, TensorView a, TensorView info);
/// In: Cholesky factor L in the lower triangle. Out: lower triangle of (L L')^-1. info as potrf.
DKFAC_API void potri(Context& ctx, TensorView a, TensorView info);
/// In: lower triangle of a symmetric a[d,d]. Out: eigenvectors in the columns of a, eigenvalues
/// ascending in w[d]. info[1] (i32): 0, or > 0 when the iteration did not converge.
DKFAC_API void eigh(Context& ctx, TensorView a, TensorView w, TensorView info);

// --- packed triangles ----------------------------------------------------------------------------

/// Elements of a packed triangle: d(d+1)/2. Row-major lower: (r, c <= r) is at r(r+1)/2 + c.
[[nodiscard]] constexpr std::int64_t packed_size(std::int64_t d) { return d * (d + 1) / 2; }
/// Lower triangle of a[d,d] -> packed[d(d+1)/2]; nonfinite[0] (f32), when given, += NaNs and Infs.
DKFAC_API void pack_lower(Context& ctx, ConstTensorView a, TensorView packed,
                          TensorView nonfinite = {});
/// packed[d(d+1)/2] -> lower triangle of a[d,d], and the upper one too with Upper::filled.
DKFAC_API void unpack_lower(Context& ctx, ConstTensorView packed, TensorView a, Upper upper);
/// out[0] = trace of the packed matrix of width d, accumulated in f64. out: f64 or f32.
DKFAC_API void packed_trace(Context& ctx, ConstTensorView packed, std::int64_t d, TensorView out);

// --- rows by index -------------------------------------------------------------------------------

/// out[r,w] = row indices[r] of table[v,w]. indices: i32, contiguous, of any shape with r elements;
/// table and out: contiguous, f64 or f32. An index outside [0, v) throws InvalidArgument on the
/// host; on a device, where the host does not see the indices in time, its row becomes NaN.
DKFAC_API void gather_rows(Context& ctx, ConstTensorView table, ConstTensorView indices,
                           TensorView out);
/// Row indices[r] of table[v,w] += rows[r,w], in the order of r: deterministic, without atomics.
/// Arguments as of gather_rows(), but on a device an index out of range sets row 0 to NaN. There
/// the index comparisons grow with the square of r; the other work does not.
DKFAC_API void scatter_add_rows(Context& ctx, ConstTensorView rows, ConstTensorView indices,
                                TensorView table);

// --- convolution patches -------------------------------------------------------------------------
//
// On a CUDA device the x of im2col, patch_gram, patch_sum and gram may also be f16 or bf16. Then c
// and sums are f32, from exact products accumulated in f32, and patches keep the dtype of x. alpha
// and scale multiply sums, never 16-bit values.

enum class Layout : std::uint8_t { nhwc, nchw };

/// Geometry of a kernel that slides over an image of h x w pixels with zero padding.
struct DKFAC_API Window {
  int kernel_h = 1, kernel_w = 1;
  int stride_h = 1, stride_w = 1;
  int pad_h = 0, pad_w = 0;            ///< Rows above and below, columns left and right.
  int extra_h = 0, extra_w = 0;        ///< Additional rows below and columns right.
  int dilation_h = 1, dilation_w = 1;  ///< Pixels from one kernel element to the next.

  [[nodiscard]] static Window square(int kernel, int stride = 1, int pad = 0) {
    return {kernel, kernel, stride, stride, pad, pad};
  }
  /// This window with the padding for which, at stride 1, the output is as large as the image; an
  /// odd row or column is added at the end.
  [[nodiscard]] Window same() const {
    Window w = *this;
    w.pad_h = (span_h() - 1) / 2;
    w.pad_w = (span_w() - 1) / 2;
    w.extra_h = (span_h() - 1) % 2;
    w.extra_w = (span_w() - 1) % 2;
    return w;
  }

  /// Extent of the dilated kernel in pixels.
  [[nodiscard]] int span_h() const { return dilation_h * (kernel_h - 1) + 1; }
  [[nodiscard]] int span_w() const { return dilation_w * (kernel_w - 1) + 1; }
  [[nodiscard]] std::int64_t padded_h(std::int64_t h) const { return h + 2 * pad_h + extra_h; }
  [[nodiscard]] std::int64_t padded_w(std::int64_t w) const { return w + 2 * pad_w + extra_w; }
  [[nodiscard]] bool fits(std::int64_t h, std::int64_t w) const {
    return padded_h(h) >= span_h() && padded_w(w) >= span_w();
  }
  /// Number of positions of the kernel; requires fits().
  [[nodiscard]] std::int64_t out_h(std::int64_t h) const {
    return (padded_h(h) - span_h()) / stride_h + 1;
  }
  [[nodiscard]] std::int64_t out_w(std::int64_t w) const {
    return (padded_w(w) - span_w()) / stride_w + 1;
  }
  [[nodiscard]] std::int64_t taps() const { return std::int64_t{kernel_h} * kernel_w; }
  bool operator==(const Window&) const = default;
};

/// Patches of a convolution over x[n,h,w,c] (nhwc) or x[n,c,h,w] (nchw).
struct DKFAC_API PatchSpec {
  std::int64_t n = 0, h = 0, w = 0, c = 0;
  Window window = {};
  Layout layout = Layout::nhwc;
  /// Channels of x (0: c); the convolution reads c of them, from first_c.
  std::int64_t x_c = 0, first_c = 0;

  [[nodiscard]] std::int64_t padded_h() const { return window.padded_h(h); }
  [[nodiscard]] std::int64_t padded_w() const { return window.padded_w(w); }
  [[nodiscard]] std::int64_t out_h() const { return window.out_h(h); }
  [[nodiscard]] std::int64_t out_w() const { return window.out_w(w); }
  /// Width of a patch. Columns follow the weight's memory order: (kh,kw,c) in nhwc, (c,kh,kw) in
  /// nchw.
  [[nodiscard]] std::int64_t width() const { return window.taps() * c; }
  [[nodiscard]] std::int64_t rows() const { return n * out_h() * out_w(); }
  [[nodiscard]] std::int64_t x_channels() const { return x_c > 0 ? x_c : c; }
  bool operator==(const PatchSpec&) const = default;
};

/// Algorithm of patch_gram. All but `panels` require 3x3 kernels, stride 1, padding 1 and one
/// group.
enum class PatchMethod : std::uint8_t {
  automatic,   ///< Chosen by a measured table on the host, by operation counts on a device.
  panels,      ///< Products of panels of patches.
  offsets,     ///< Products of the image with itself at 13 offsets, corrected at the border.
  correlation  ///< The 13 offsets by oneDNN, as the gradient of 5x5 weights: host, f32, nhwc.
};
/// Whether `method` supports this geometry, dtype and device.
[[nodiscard]] DKFAC_API bool patch_method_applies(const Context& ctx, const PatchSpec& spec,
                                                  DType dtype, PatchMethod method);

/// patches[rows, width] of x (im2col). patches may have a row stride.
DKFAC_API void im2col(Context& ctx, const PatchSpec& spec, ConstTensorView x, TensorView patches);
/// Lower triangle of c = alpha * sum over patches of p p' + beta*c, p of width spec.width(),
/// without materializing all patches at once. c[d,d] has d = width, or d = width + 1: then p ends
/// in a 1 (the bias), whose row is computed as column sums. c[groups,d,d] holds one such matrix for
/// each of `groups` equal ranges of the c channels, d for one range.
DKFAC_API void patch_gram(Context& ctx, const PatchSpec& spec, double alpha, ConstTensorView x,
                          double beta, TensorView c, PatchMethod method = PatchMethod::automatic);
/// sums[n, width] = scale * sum over each sample's patches, computed by sums of shifted windows.
DKFAC_API void patch_sum(Context& ctx, const PatchSpec& spec, double scale, ConstTensorView x,
                         TensorView sums);
/// Lower triangle of c = alpha * x'x + beta*c for x[n,w] and c[w,w]; with c[w+1,w+1], of
/// alpha * [x 1]'[x 1] + beta*c (bias).
DKFAC_API void gram(Context& ctx, double alpha, ConstTensorView x, double beta, TensorView c);

}  // namespace dkfac::ops

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/core/types.h"
#include "dkfac/nn/layers.h"

#include "nn/backends/norm_shape.h"
#include "nn/shared/work_timer.h"

namespace dkfac::nn {

/// Shape of a convolution: x[n,h,w,in], weight[out,kh,kw,in/groups], y[n,oh,ow,out]. n > 0.
struct ConvShape {
  std::int64_t n = 0, h = 0, w = 0, in = 0;
  std::int64_t out = 0, out_h = 0, out_w = 0;
  ops::Window window = {};
  std::int64_t groups = 1;
  bool bias = true;
  DType dtype = DType::f32;  ///< Dtype of x and y. Weights and bias: f64 for f64, f32 for all
                             ///< others.
  [[nodiscard]] std::int64_t group_in() const { return in / groups; }
  [[nodiscard]] std::int64_t group_out() const { return out / groups; }
  /// Number of elements that one output of a group reads.
  [[nodiscard]] std::int64_t patch() const { return window.taps() * group_in(); }
  /// Whether every output reads one pixel, in the order of the input: a matrix product.
  [[nodiscard]] bool is_dense() const {
    const ops::Window& k = window;
    return k.taps() == 1 && h == out_h && w == out_w && k.pad_h + k.pad_w == 0 &&
           k.stride_h * k.stride_w == 1;
  }
  bool operator==(const ConvShape&) const = default;
};

enum class ConvPass : std::uint8_t { forward, weights, data };

/// The three passes of a convolution over contiguous memory of the device of the context. `bias` is
/// an empty view for a convolution without one. With 16-bit activations the weights are rounded to
/// the same format, on a device unless they have it already, and products are summed in f32. The
/// weight gradient is not rounded, except for groups that cuDNN computes in no other way.
class ConvBackend {
 public:
  virtual ~ConvBackend() = default;
  ConvBackend(const ConvBackend&) = delete;
  ConvBackend& operator=(const ConvBackend&) = delete;

  /// Whether the backend supports this shape and is not known to be slow for it.
  [[nodiscard]] virtual bool takes(const ConvShape& shape) const = 0;
  /// Whether the backend supports one pass on the device of the context, for a shape with takes().
  /// The answer never changes, so that each pass keeps one backend.
  [[nodiscard]] virtual bool takes_pass(const Context& /*ctx*/, const ConvShape& /*shape*/,
                                        ConvPass /*pass*/) const {
    return true;
  }
  virtual void forward(Context& ctx, const ConvShape& shape, ConstTensorView x,
                       ConstTensorView weight, ConstTensorView bias, TensorView y) = 0;
  /// Called after forward() of the same shape and x, by any backend. If that was this backend, x is
  /// unchanged and no other backend has run forward() since: the backend may read a copy of x that
  /// its last forward() made.
  virtual void backward_weights(Context& ctx, const ConvShape& shape, ConstTensorView x,
                                ConstTensorView dy, TensorView dweight, TensorView dbias) = 0;
  /// Computes forward() without a bias and the sums over pixels of y and of its squares, each [out]
  /// f32, for a normalisation behind it (moments_from_sums() of backend_normalize.h). y may be
  /// summed before or after it is rounded. Returns false, with y still to be computed, where this
  /// is not supported or has failed outside a capture, for instance for lack of memory. A false
  /// is permanent for a shape, device and thread.
  [[nodiscard]] virtual bool forward_with_sums(Context& /*ctx*/, const ConvShape& /*shape*/,
                                               ConstTensorView /*x*/, ConstTensorView /*weight*/,
                                               TensorView /*y*/, TensorView /*sum*/,
                                               TensorView /*sum_of_squares*/) {
    return false;
  }
  /// Whether forward_with_sums() takes less time than forward() and the moments of y, by this
  /// timer; the first call for a shape measures both, and keeps the answer where measured plans are
  /// (nn/shared/conv_plans.h). Overwrites y and the sums.
  [[nodiscard]] virtual bool sums_are_faster(Context& /*ctx*/, const WorkTimer& /*timer*/,
                                             const ConvShape& /*shape*/, ConstTensorView /*x*/,
                                             ConstTensorView /*weight*/, TensorView /*y*/,
                                             TensorView /*sum*/, TensorView /*sum_of_squares*/) {
    return false;
  }
  /// Called after forward() of the same shape with the same weights; on a device, by any backend.
  virtual void backward_data(Context& ctx, const ConvShape& shape, ConstTensorView dy,
                             ConstTensorView weight, TensorView dx) = 0;
  /// Computes backward_data() for an input that `norm` has made: g is the gradient before its ReLU,
  /// and scale_grad and shift_grad are the sums over pixels of g * (x - mean) * inv_std and of g,
  /// each [in] f32. Where the argument of the ReLU is within rounding of 0, its sign is that of
  /// this computation. g may be summed before or after it is rounded. Returns false as
  /// forward_with_sums().
  [[nodiscard]] virtual bool backward_data_to_norm(Context& /*ctx*/, const ConvShape& /*shape*/,
                                                   ConstTensorView /*dy*/,
                                                   ConstTensorView /*weight*/,
                                                   const ReluNorm& /*norm*/, TensorView /*g*/,
                                                   TensorView /*scale_grad*/,
                                                   TensorView /*shift_grad*/) {
    return false;
  }
  /// As sums_are_faster(), of backward_data_to_norm() beside backward_data() and the sums of g.
  /// Overwrites g and the gradients of scale and shift.
  [[nodiscard]] virtual bool norm_gradient_is_faster(
      Context& /*ctx*/, const WorkTimer& /*timer*/, const ConvShape& /*shape*/,
      ConstTensorView /*dy*/, ConstTensorView /*weight*/, const ReluNorm& /*norm*/,
      TensorView /*g*/, TensorView /*scale_grad*/, TensorView /*shift_grad*/) {
    return false;
  }
  [[nodiscard]] virtual ReorderCount reorders() const { return {}; }
  /// Bytes of tensors on a device that the backend keeps between passes.
  [[nodiscard]] virtual std::size_t held_bytes() const { return 0; }

 protected:
  ConvBackend() = default;
};

namespace cpu {

/// Makes the backend of patches and matrix products, f32 or f64.
[[nodiscard]] std::unique_ptr<ConvBackend> make_reference_conv();
/// Makes the backend of oneDNN: f32, and bf16 where the processor has bf16 products; null in a
/// build without oneDNN.
[[nodiscard]] std::unique_ptr<ConvBackend> make_onednn_conv();
/// Makes a backend for bf16 1x1 kernels over few pixels, where the processor has bf16 products;
/// null without oneDNN.
[[nodiscard]] std::unique_ptr<ConvBackend> make_onednn_products();
/// Makes a backend for bf16 and f16 that converts to f32 for `inner`, which must outlive it.
[[nodiscard]] std::unique_ptr<ConvBackend> make_widened_conv(ConvBackend& inner);

}  // namespace cpu

namespace cuda {

/// Makes the backend of patches and matrix products of cuBLAS, for every shape and dtype; null in a
/// build without CUDA. It processes as many images at a time as fit `scratch_bytes`, but at least
/// one.
[[nodiscard]] std::unique_ptr<ConvBackend> make_product_conv(
    std::int64_t scratch_bytes = std::int64_t{256} << 20);
/// Makes the backend of cuDNN: f32, f16 and bf16; null in a build without it.
[[nodiscard]] std::unique_ptr<ConvBackend> make_cudnn_conv();

}  // namespace cuda

/// dbias[out] = the sum over all pixels of dy[n,oh,ow,out], which may be a 16-bit type.
void sum_pixels(Context& ctx, ConstTensorView dy, TensorView dbias);

/// All convolution backends with their state.
class ConvBackends {
 public:
  ConvBackends();
  /// Returns the fastest backend for the context; on a device each pass of a shape may have another
  /// one. Throws DeviceError where none supports the shape.
  [[nodiscard]] ConvBackend& choose(const Context& ctx, const ConvShape& shape,
                                    ConvPass pass = ConvPass::forward) const;
  [[nodiscard]] ReorderCount reorders() const;   ///< Sum over the backends.
  [[nodiscard]] std::size_t held_bytes() const;  ///< Sum over the backends.

 private:
  [[nodiscard]] ConvBackend& on_device(const Context& ctx, const ConvShape& shape,
                                       ConvPass pass) const;
  std::unique_ptr<ConvBackend> reference_, fast_, products_, widened_reference_, widened_fast_;
  std::unique_ptr<ConvBackend> device_, device_products_;
};

/// Operands of conv_tangent(): an input and a weight with their tangents, and that of the bias. A
/// tangent may be empty, but not all of them.
struct ConvTangent {
  ConstTensorView x = {}, dx = {}, weight = {}, dweight = {}, dbias = {};
};
/// y = the sum of the convolutions of x with dweight and of dx with weight, and of dbias.
void conv_tangent(Context& ctx, const ConvBackends& backends, ConvShape shape,
                  const ConvTangent& of, TensorView y);

}  // namespace dkfac::nn

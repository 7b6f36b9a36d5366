#include <array>
#include <utility>
#include <vector>

#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"

#include "core/shared/cuda/launch.cuh"
#include "nn/backends/backend_normalize.h"
#include "nn/backends/conv_backend.h"
#include "nn/backends/cuda/conv_cudnn_functors.h"
#include "nn/backends/cuda/cudnn/library.h"
#include "nn/backends/workspace.h"

namespace dkfac::nn::cuda {
namespace {

using cudnn::ConvWork;
using cudnn::Library;
using cudnn::Work;

constexpr auto kAlignment = static_cast<std::uintptr_t>(cudnn::Graph::kAlignment);

bool is_16_bit(DType dtype) { return size_of(dtype) == 2; }

bool is_aligned(ConstTensorView view) {
  return reinterpret_cast<std::uintptr_t>(view.raw()) % kAlignment == 0;
}

/// Multiple of 16-bit channels that cuDNN's f32 gradients of the weights require.
constexpr std::int64_t kChannels = 4;
ConvShape with_whole_channels(ConvShape s) {
  if (is_16_bit(s.dtype) && s.groups == 1) s.in = (s.in + kChannels - 1) / kChannels * kChannels;
  return s;
}

/// Whether one product of cuBLAS computes the gradient of the weights in place, from 16 bits to
/// f32. It splits a long sum between blocks, which the plans that cuDNN proposes do not
/// (cudnn/split_sum.h).
bool is_product(const ConvShape& s) { return is_16_bit(s.dtype) && s.groups == 1 && s.is_dense(); }

/// Tensor memory with the alignment that cuDNN requires: the argument itself, or a copy where it is
/// not aligned, as views into the arena of a model may be. finish() copies results to their
/// destination.
class Places {
 public:
  explicit Places(Context& ctx) : ctx_(ctx), scratch_(ctx) {}
  void* in(ConstTensorView view) {
    if (is_aligned(view)) return const_cast<void*>(view.raw());
    const TensorView copy = scratch_.take(view.shape(), view.dtype());
    ops::copy(ctx_, view, copy);
    return copy.raw();
  }
  void* out(TensorView view) {
    if (is_aligned(view)) return view.raw();
    const TensorView copy = scratch_.take(view.shape(), view.dtype());
    results_.emplace_back(copy, view);
    return copy.raw();
  }
  TensorView take(const Shape& shape, DType dtype) { return scratch_.take(shape, dtype); }
  void finish() {
    for (const auto& [copy, view] : results_) ops::copy(ctx_, copy, view);
  }

 private:
  Context& ctx_;
  Scratch scratch_;
  std::vector<std::pair<TensorView, TensorView>> results_;
};

void add_bias(Context& ctx, ConstTensorView bias, TensorView y) {
  visit_floating(y.dtype(), [&]<class T>(Type<T>) {
    T* to = y.data<T>();
    const std::int64_t c = bias.numel();
    const bool aligned = are_aligned(to) && c % static_cast<std::int64_t>(kPack<T>) == 0;
    dkfac::cuda::for_each(ctx.stream(), packs_of<T>(y.numel()),
                          AddRow<T>{bias.data<Computed<T>>(), c, to, y.numel(), aligned});
  });
}

/// How the gradient of the weights is computed. It is f32, over channels padded with zeros where
/// needed. Groups alone may have it rounded to 16 bits; without groups, products of patches are
/// equally fast and round nothing.
struct WeightsWay {
  ConvWork work;
  bool possible = false;
  [[nodiscard]] bool is_rounded() const { return work.work == Work::weights_rounded; }
};

class CudnnConv final : public ConvBackend {
 public:
  [[nodiscard]] bool takes(const ConvShape& s) const override {
    if (s.dtype != DType::f32 && !is_16_bit(s.dtype)) return false;
    // The rows of a Linear are left to cuBLAS.
    const bool is_linear = s.n == 1 && s.w == 1 && s.window.taps() == 1 && s.out_w == 1;
    return !is_linear;
  }

  [[nodiscard]] bool takes_pass(const Context& ctx, const ConvShape& s,
                                ConvPass pass) const override {
    switch (pass) {
      case ConvPass::forward:
        return Library::of(ctx.device()).can(forward_work(ctx, s, Work::forward));
      case ConvPass::data:
        return Library::of(ctx.device()).can(work_of(ctx, s, Work::data));
      default:
        return !is_product(s) && weights_way(ctx, s).possible;
    }
  }

  void forward(Context& ctx, const ConvShape& s, ConstTensorView x, ConstTensorView weight,
               ConstTensorView bias, TensorView y) override {
    const ConvWork work = forward_work(ctx, s, Work::forward);
    Places places(ctx);
    run(ctx, work, forward_image(ctx, places, work, x),
        forward_weights(ctx, places, work, s, weight), places.out(y));
    places.finish();
    if (s.bias) add_bias(ctx, bias, y);
  }

  [[nodiscard]] bool forward_with_sums(Context& ctx, const ConvShape& s, ConstTensorView x,
                                       ConstTensorView weight, TensorView y, TensorView sum,
                                       TensorView sum_of_squares) override {
    // backward_data() uses the weights that forward() has rounded.
    if (s.bias || !takes(s) || !takes_pass(ctx, s, ConvPass::forward)) return false;
    const ConvWork work = forward_work(ctx, s, Work::forward_sums);
    Library& library = Library::of(ctx.device());
    if (!library.can(work)) return false;
    Places places(ctx);
    const std::array<std::pair<std::int64_t, void*>, 5> memory{
        {{cudnn::kX, forward_image(ctx, places, work, x)},
         {cudnn::kW, forward_weights(ctx, places, work, s, weight)},
         {cudnn::kY, places.out(y)},
         {cudnn::kSum, places.out(sum)},
         {cudnn::kSumOfSquares, places.out(sum_of_squares)}}};
    if (!library.try_run(ctx, work, memory)) return false;
    places.finish();
    return true;
  }

  void backward_weights(Context& ctx, const ConvShape& s, ConstTensorView x, ConstTensorView dy,
                        TensorView dweight, TensorView dbias) override {
    if (s.bias) sum_pixels(ctx, dy, dbias);
    const WeightsWay way = weights_way(ctx, s);
    Places places(ctx);
    const std::int64_t channels = way.work.shape.group_in();
    const bool widened = channels != s.group_in();
    TensorView dw = dweight;
    if (widened || way.is_rounded()) {
      dw = places.take(Shape{s.out, s.window.kernel_h, s.window.kernel_w, channels},
                       way.is_rounded() ? s.dtype : DType::f32);
    }
    void* const from = widened ? widened_image(ctx, places, x, channels) : places.in(x);
    run(ctx, way.work, from, places.out(dw), places.in(dy));
    places.finish();
    if (widened) {
      const Shape rows{dweight.numel() / s.in, channels};
      ops::copy(ctx, dw.reshape(rows).slice(1, 0, s.in), dweight.reshape(Shape{rows[0], s.in}));
    } else if (way.is_rounded()) {
      ops::cast(ctx, dw, dweight);
    }
    if (widened || way.is_rounded()) note(dweight.bytes());
  }

  void backward_data(Context& ctx, const ConvShape& s, ConstTensorView dy, ConstTensorView weight,
                     TensorView dx) override {
    Places places(ctx);
    const ConstTensorView w = rounded_before(ctx, s, weight);
    run(ctx, work_of(ctx, s, Work::data), places.out(dx), places.in(w), places.in(dy));
    places.finish();
  }

  [[nodiscard]] bool backward_data_to_norm(Context& ctx, const ConvShape& s, ConstTensorView dy,
                                           ConstTensorView weight, const ReluNorm& norm,
                                           TensorView g, TensorView scale_grad,
                                           TensorView shift_grad) override {
    const ConvWork work = work_of(ctx, s, Work::data_to_norm);
    Library& library = Library::of(ctx.device());
    if (!is_16_bit(s.dtype) || !takes(s) || !library.can(work)) return false;
    Places places(ctx);
    // Coefficients of the gradient of the normalisation's input, which that layer computes with
    // more digits.
    const auto unused = [&] { return places.out(places.take(Shape{s.in}, DType::f32)); };
    const std::array<std::pair<std::int64_t, void*>, 13> memory{
        {{cudnn::kX, places.out(g)},
         {cudnn::kW, places.in(rounded_before(ctx, s, weight))},
         {cudnn::kY, places.in(dy)},
         {cudnn::kNormX, places.in(norm.x)},
         {cudnn::kMean, places.in(norm.mean)},
         {cudnn::kInvStd, places.in(norm.inv_std)},
         {cudnn::kScale, places.in(norm.scale)},
         {cudnn::kShift, places.in(norm.shift)},
         {cudnn::kScaleGrad, places.out(scale_grad)},
         {cudnn::kShiftGrad, places.out(shift_grad)},
         {cudnn::kFactorOfGrad, unused()},
         {cudnn::kFactorOfX, unused()},
         {cudnn::kConstant, unused()}}};
    if (!library.try_run(ctx, work, memory)) return false;
    places.finish();
    return true;
  }

  [[nodiscard]] bool sums_are_faster(Context& ctx, const WorkTimer& timer, const ConvShape& s,
                                     ConstTensorView x, ConstTensorView weight, TensorView y,
                                     TensorView sum, TensorView sum_of_squares) override {
    if (s.bias || !takes(s) || !takes_pass(ctx, s, ConvPass::forward)) return false;
    return Library::of(ctx.device()).is_faster(forward_work(ctx, s, Work::forward_sums), [&] {
      Scratch scratch(ctx);
      const NormShape norm{1, y.numel() / s.out, s.out};
      const Shape channels{1, s.out};
      const TensorView mean = scratch.take(channels, DType::f32),
                       rest = scratch.take(channels, DType::f32),
                       variance = scratch.take(channels, DType::f64);
      return is_less(
          ctx, timer,
          [&] {
            const bool runs = forward_with_sums(ctx, s, x, weight, y, sum, sum_of_squares);
            if (runs)
              kernels::moments_from_sums(ctx, norm, sum, sum_of_squares, mean, rest, variance);
            return runs;
          },
          [&] {
            forward(ctx, s, x, weight, {}, y);
            kernels::batch_moments(ctx, norm, y, mean, rest, variance);
          });
    });
  }

  [[nodiscard]] bool norm_gradient_is_faster(Context& ctx, const WorkTimer& timer,
                                             const ConvShape& s, ConstTensorView dy,
                                             ConstTensorView weight, const ReluNorm& norm,
                                             TensorView g, TensorView scale_grad,
                                             TensorView shift_grad) override {
    if (!is_16_bit(s.dtype) || !takes(s)) return false;
    return Library::of(ctx.device()).is_faster(work_of(ctx, s, Work::data_to_norm), [&] {
      Scratch scratch(ctx);
      const NormShape rows{1, g.numel() / s.in, s.in};
      const Shape channels{1, s.in};
      const auto of_channel = [&](ConstTensorView view) { return view.reshape(channels); };
      const auto take = [&](DType dtype) { return scratch.take(channels, dtype); };
      // Only the time matters here: the sums have the bytes and operations of the layer's.
      const Affine affine{
          {of_channel(norm.mean), of_channel(norm.mean)}, of_channel(norm.inv_std), norm.shift};
      const ChannelGradients made{take(DType::f64),
                                  take(DType::f64),
                                  {},
                                  {},
                                  {take(DType::f32), take(DType::f32), take(DType::f32)}};
      const OutputGrad grad{g, {}, {ActivationKind::relu}};
      return is_less(
          ctx, timer,
          [&] {
            const bool runs =
                backward_data_to_norm(ctx, s, dy, weight, norm, g, scale_grad, shift_grad);
            if (runs)
              kernels::gradients_from_sums(ctx, rows, scale_grad, shift_grad, norm.scale,
                                           of_channel(norm.inv_std), made);
            return runs;
          },
          [&] {
            backward_data(ctx, s, dy, weight, g);
            kernels::train_gradients(ctx, rows, norm.x, affine, grad, {}, norm.scale,
                                     of_channel(norm.inv_std), made);
          });
    });
  }

  [[nodiscard]] ReorderCount reorders() const override { return count_; }
  [[nodiscard]] std::size_t held_bytes() const override {
    return narrow_.bytes() + wide_image_.bytes();
  }

 private:
  /// Whether `fused`, which returns false where it does not run, takes less time than `separate`.
  template <class Fused, class Separate>
  static bool is_less(Context& ctx, const WorkTimer& timer, Fused fused, Separate separate) {
    bool runs = true;
    const double seconds = timer(ctx, [&] { runs = runs && fused(); });
    return runs && seconds < timer(ctx, separate);
  }

  static ConvWork work_of(const Context& ctx, const ConvShape& s, Work work) {
    ConvWork made{.shape = s, .work = work, .tf32 = s.dtype == DType::f32 && ctx.tf32()};
    made.shape.bias = false;  // Not part of the graph: both share one plan.
    return made;
  }

  static WeightsWay weights_way(const Context& ctx, const ConvShape& s) {
    Library& library = Library::of(ctx.device());
    const ConvWork exact = work_of(ctx, with_whole_channels(s), Work::weights);
    if (library.can(exact)) return {exact, true};
    const ConvWork rounded = work_of(ctx, s, Work::weights_rounded);
    if (is_16_bit(s.dtype) && s.groups > 1 && library.can(rounded)) return {rounded, true};
    return {exact, false};
  }

  static void run(Context& ctx, const ConvWork& work, void* x, void* w, void* y) {
    const std::array<std::pair<std::int64_t, void*>, 3> memory{
        {{cudnn::kX, x}, {cudnn::kW, w}, {cudnn::kY, y}}};
    Library::of(ctx.device()).run(ctx, work, memory);
  }

  /// Returns the weights in the dtype of the activations.
  ConstTensorView rounded(Context& ctx, const ConvShape& s, ConstTensorView weight) {
    if (weight.dtype() == s.dtype) return weight;
    const TensorView narrow = view_in(ctx, narrow_, weight.shape(), s.dtype);
    ops::cast(ctx, weight, narrow);
    note(narrow.bytes());
    return narrow;
  }

  /// Returns the rounded weights in a backward pass: those of the forward pass, unless another
  /// backend computed it.
  ConstTensorView rounded_before(Context& ctx, const ConvShape& s, ConstTensorView weight) {
    const bool kept =
        weight.dtype() != s.dtype && narrow_.is_set() && takes_pass(ctx, s, ConvPass::forward);
    return kept ? view_in(ctx, narrow_, weight.shape(), s.dtype) : rounded(ctx, s, weight);
  }

  /// Describes the forward pass. Where the gradient of the weights needs padded channels, so does
  /// the forward pass, if cuDNN supports it: the images are then copied once.
  static ConvWork forward_work(const Context& ctx, const ConvShape& s, Work work) {
    const ConvWork wide = work_of(ctx, with_whole_channels(s), work);
    return Library::of(ctx.device()).can(wide) ? wide : work_of(ctx, s, work);
  }

  void* forward_image(Context& ctx, Places& places, const ConvWork& work, ConstTensorView x) {
    const std::int64_t channels = work.shape.in;
    image_ = {};
    if (channels == x.dim(3)) return places.in(x);
    const Shape shape{x.dim(0), x.dim(1), x.dim(2), channels};
    const TensorView wide = view_in(ctx, wide_image_, shape, x.dtype());
    widen(ctx, x, wide);
    image_ = x;
    return wide.raw();
  }

  /// Returns the padded copy of x that forward_image() has left, or makes a new one.
  void* widened_image(Context& ctx, Places& places, ConstTensorView x, std::int64_t channels) {
    const Shape shape{x.dim(0), x.dim(1), x.dim(2), channels};
    if (image_.raw() == x.raw() && image_.shape() == x.shape())
      return view_in(ctx, wide_image_, shape, x.dtype()).raw();
    const TensorView wide = places.take(shape, x.dtype());
    widen(ctx, x, wide);
    return wide.raw();
  }

  void* forward_weights(Context& ctx, Places& places, const ConvWork& work, const ConvShape& s,
                        ConstTensorView weight) {
    const ConstTensorView narrow = rounded(ctx, s, weight);
    if (work.shape.in == s.in) return places.in(narrow);
    const TensorView wide =
        places.take(Shape{s.out, s.window.kernel_h, s.window.kernel_w, work.shape.in}, s.dtype);
    widen(ctx, narrow, wide);
    return wide.raw();
  }

  /// Copies and appends zeros to the channels, which are the last dimension.
  static void widen(Context& ctx, ConstTensorView from, TensorView to) {
    const std::int64_t channels = to.dim(3);
    dkfac::cuda::for_each(ctx.stream(), to.numel() / WidenChannels::kWidth,
                          WidenChannels{static_cast<const std::uint16_t*>(from.raw()), from.dim(3),
                                        channels, static_cast<std::uint16_t*>(to.raw())});
  }

  void note(std::size_t bytes) {
    ++count_.reorders;
    count_.bytes += static_cast<std::int64_t>(bytes);
  }

  Tensor narrow_;          ///< Weights of the last forward pass in 16 bits.
  Tensor wide_image_;      ///< Its image with zeros appended to the channels,
  ConstTensorView image_;  ///< and the image that it is a copy of; empty where none was made.
  ReorderCount count_;
};

}  // namespace

std::unique_ptr<ConvBackend> make_cudnn_conv() { return std::make_unique<CudnnConv>(); }

}  // namespace dkfac::nn::cuda

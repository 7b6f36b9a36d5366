#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/kfac/preconditioner.h"

#include "support/natural_gradient.h"

/// For tests of rejected arguments, with messages that name the call, the layer, what was given and
/// what is needed.
namespace dkfac::testing {

using kfac::CurvatureOptions;

/// The words of the InvalidArgument that `body` throws.
template <class Body>
std::string refusal(Body&& body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

inline ::testing::AssertionResult says(const std::string& text,
                                       const std::vector<std::string>& words) {
  for (const std::string& word : words)
    if (text.find(word) == std::string::npos)
      return ::testing::AssertionFailure() << "no '" << word << "' in: " << text;
  return ::testing::AssertionSuccess();
}

inline CurvatureOptions options64(int micro_batches = 1) {
  CurvatureOptions options = natural_gradient();
  options.damping = 1e-2;
  options.dtype = DType::f64;
  options.statistics.micro_batches = micro_batches;
  return options;
}

inline constexpr std::int64_t kRoom = 4096;

/// A preconditioner of one layer, and memory enough for anything that it is shown.
class OneLayer {
 public:
  explicit OneLayer(LayerSpec spec, CurvatureOptions options = options64(),
                    std::shared_ptr<comm::Communicator> comm = comm::make_self())
      : preconditioner_(std::move(comm), std::move(options)),
        layer_(preconditioner_.add_layer("fc7", std::move(spec))) {}

  [[nodiscard]] TensorView view(Shape shape) { return view_of(memory_.data(), shape); }
  void input(const Shape& shape, RecordScale scale = {}) { input(view(shape), scale); }
  void input(ConstTensorView x, RecordScale scale = {}) {
    preconditioner_.record_input(layer_, x, Stream::cpu(), scale);
  }
  void output(const Shape& shape, RecordScale scale = {}) { output(view(shape), scale); }
  void output(ConstTensorView dy, RecordScale scale = {}) {
    preconditioner_.record_grad_output(layer_, dy, Stream::cpu(), scale);
  }
  void batch_norm(ConstTensorView x, ConstTensorView mean, ConstTensorView inv_std,
                  ConstTensorView dy, RecordScale scale = {}) {
    preconditioner_.record_normalization(layer_, x, mean, inv_std, dy, Stream::cpu(), scale);
  }
  [[nodiscard]] bool step(TensorView weight, TensorView bias = {}, const StepArgs& args = {}) {
    return preconditioner_
        .step(std::vector<kfac::LayerGrad>{{layer_, weight, bias}}, Stream::cpu(), args)
        .updated;
  }

 private:
  kfac::Preconditioner preconditioner_;
  LayerId layer_;
  std::vector<double> memory_ = std::vector<double>(kRoom, 0.5);
};

inline const LayerSpec kLinear = LinearSpec{.in = 3, .out = 2, .bias = false};
inline const LayerSpec kNhwc = Conv2dSpec{
    .in = 4, .out = 6, .window = {.kernel_h = 3, .kernel_w = 2}, .bias = false, .groups = 2};
inline const LayerSpec kNchw = Conv2dSpec{.in = 4,
                                          .out = 6,
                                          .window = {.kernel_h = 3, .kernel_w = 2},
                                          .bias = false,
                                          .layout = Layout::nchw,
                                          .groups = 2};
inline const LayerSpec kNorm = NormSpec{.channels = 2};
inline const LayerSpec kPlain = PlainSpec{.weight = 6};

}  // namespace dkfac::testing

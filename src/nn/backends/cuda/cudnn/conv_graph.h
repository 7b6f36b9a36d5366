#pragma once

#include <cstdint>
#include <string>

#include "nn/backends/conv_backend.h"
#include "nn/backends/cuda/cudnn/graph.h"

/// Passes of convolutions as graphs of cuDNN.
namespace dkfac::nn::cudnn {

enum class Work : std::uint8_t {
  forward,
  forward_sums,  ///< Forward with the sums over pixels of y and of y^2, for a normalisation behind
                 ///< it.
  data,          ///< Gradient of the input.
  /// Gradient of the input before the ReLU of a BatchNorm in front, with the gradients of the
  /// BatchNorm's scale and shift.
  data_to_norm,
  weights,         ///< Gradient of the weights in f32.
  weights_rounded  ///< Gradient of the weights in the 16-bit format of the activations.
};
[[nodiscard]] const char* name_of(Work work);

/// Description of a graph: a pass and its shape.
struct ConvWork {
  ConvShape shape;
  Work work = Work::forward;
  bool tf32 = false;  ///< Whether f32 operands may be rounded to TF32.
  bool operator==(const ConvWork&) const = default;
  /// One line that is the same for equal work, such as "forward f16 [256,56,56,64] ->
  /// [256,56,56,64] kernel 3x3 pad 1".
  [[nodiscard]] std::string text() const;
};

/// Ids of the tensors. In the backward passes y is its gradient, and so are x and w where they are
/// computed.
enum TensorId : std::int64_t {
  kX = 1,
  kW,
  kY,
  kSum,
  kSumOfSquares,
  kBetween,
  // Input of a BatchNorm in front, whose gradient before the ReLU is kX.
  kNormX,
  kMean,
  kInvStd,
  kScale,
  kShift,
  kScaleGrad,
  kShiftGrad,
  kFactorOfGrad,
  kFactorOfX,
  kConstant,
  kFirstVirtual  ///< First of the virtual tensors.
};

/// Limit of a plan's workspace in bytes, at most `most`. A data_to_norm plan with room for the
/// gradient itself would move it through memory, which the fusion is to avoid.
[[nodiscard]] std::int64_t most_workspace(const ConvWork& work, std::int64_t most);

[[nodiscard]] Graph conv_graph(const ConvWork& work);

}  // namespace dkfac::nn::cudnn

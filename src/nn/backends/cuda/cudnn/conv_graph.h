#pragma once

#include <cstdint>
#include <string>

#include "nn/backends/conv_backend.h"
#include "nn/backends/cuda/cudnn/graph.h"

/// Passes of convolutions as graphs of cuDNN.
namespace dkfac::nn::cudnn {

enum class Work : std::uint8_t {
  forward,
  forward_sums,  ///< With the sums over pixels of y and of y^2, for a normalisation behind.
  data,          ///< Gradient of the input.
  /// The same before the ReLU of a BatchNorm in front, with the gradients of that one's scale and
  /// shift.
  data_to_norm,
  weights,         ///< Gradient of the weights in f32.
  weights_rounded  ///< The same in the 16-bit format of the activations.
};
[[nodiscard]] const char* name_of(Work work);

/// A graph: what is to be computed for which shape.
struct ConvWork {
  ConvShape shape;
  Work work = Work::forward;
  bool tf32 = false;  ///< f32 operands may be rounded.
  bool operator==(const ConvWork&) const = default;
  /// "forward f16 [256,56,56,64] -> [256,56,56,64] kernel 3x3 pad 1": one line, the same for the
  /// same work.
  [[nodiscard]] std::string text() const;
};

/// Ids of the tensors. y stands for its gradient in the backward passes, and so do x and w for
/// what is computed there.
enum Slot : std::int64_t {
  kX = 1,
  kW,
  kY,
  kSum,
  kSumOfSquares,
  kBetween,
  // Of a BatchNorm in front, for which kX is the gradient before its ReLU.
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
  kFirstVirtual  ///< And all behind it.
};

/// Bytes of workspace that a plan may take, at most `most`. One of data_to_norm with room for the
/// gradient itself moves that through memory, where it is to be spared.
[[nodiscard]] std::int64_t most_workspace(const ConvWork& work, std::int64_t most);

[[nodiscard]] Graph conv_graph(const ConvWork& work);

}  // namespace dkfac::nn::cudnn

#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "dkfac/core/ops.h"

#include "nn/backends/cuda/cudnn/descriptor.h"

namespace dkfac::nn::cudnn {

/// n, c, h, w of an activation, out, in/groups, h, w of a weight: in memory channels come last.
using Dims = std::array<std::int64_t, 4>;

/// Where plans are made for: a device by its handle, or the properties of one that need not be
/// there.
struct Target {
  cudnnHandle_t handle = nullptr;
  const Descriptor* properties = nullptr;  ///< With a null handle.
};

/// The properties of a device from the JSON text in which cuDNN tells them.
[[nodiscard]] Descriptor device_properties(const std::string& json);

/// Operations over tensors, which are memory with an id, or virtual: a value between two
/// operations. Products and sums are f32.
class Graph {
 public:
  struct TensorOf {
    std::int64_t id = 0;
    const Descriptor* descriptor = nullptr;
  };
  static constexpr std::int64_t kAlignment = 16;  ///< Bytes, of every tensor's memory.

  [[nodiscard]] TensorOf tensor(std::int64_t id, cudnnDataType_t type, const Dims& dims);
  [[nodiscard]] TensorOf between(std::int64_t id, cudnnDataType_t type, const Dims& dims);
  void forward(TensorOf x, TensorOf w, TensorOf y, const ops::Window& window);
  void backward_data(TensorOf dy, TensorOf w, TensorOf dx, const ops::Window& window);
  void backward_weights(TensorOf dy, TensorOf x, TensorOf dw, const ops::Window& window);
  void identity(TensorOf x, TensorOf y);
  /// Per channel of x, each [1,c,1,1] f32.
  void sums(TensorOf x, TensorOf sum, TensorOf sum_of_squares);
  /// y = x op b, where b has one value for each channel.
  void pointwise(cudnnPointwiseMode_t mode, TensorOf x, TensorOf b, TensorOf y);
  /// dx = dy where x > 0, else 0.
  void relu_backward(TensorOf dy, TensorOf x, TensorOf dx);
  /// Of y = xhat * scale + shift with xhat = (x - mean) * inv_std: the gradients of scale and shift
  /// (sums over dy * xhat and dy), and factors of dy and x and a constant that give the gradient
  /// of x. But for x and dy all are [1,c,1,1] f32.
  struct NormGradients {
    TensorOf x, dy, mean, inv_std, scale;
    TensorOf scale_grad, shift_grad, factor_of_dy, factor_of_x, constant;
  };
  void norm_gradients(const NormGradients& of);

  /// All operations so far as one. The graph must outlive nothing: cuDNN keeps what it needs.
  [[nodiscard]] Descriptor finish(const Target& target) const;

 private:
  Descriptor& keep(cudnnBackendDescriptorType_t type);
  Descriptor& operation(cudnnBackendDescriptorType_t type);
  [[nodiscard]] const Descriptor& convolution(const ops::Window& window);
  [[nodiscard]] const Descriptor& pointwise_of(cudnnPointwiseMode_t mode);
  TensorOf make_tensor(std::int64_t id, cudnnDataType_t type, const Dims& dims, bool is_virtual);
  std::deque<Descriptor> kept_;  ///< Their addresses stay.
  std::vector<const Descriptor*> operations_;
};

}  // namespace dkfac::nn::cudnn

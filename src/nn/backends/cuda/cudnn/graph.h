#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <utility>
#include <vector>

#include "dkfac/core/ops.h"

#include "nn/backends/cuda/cudnn/descriptor.h"

namespace dkfac::nn::cudnn {

/// n, c, h, w of an activation; out, in/groups, h, w of a weight. In memory the channels are last.
using Dims = std::array<std::int64_t, 4>;

/// The device for which plans are made: by its handle, or by the properties of a device that need
/// not be present.
struct Target {
  cudnnHandle_t handle = nullptr;
  const Descriptor* properties = nullptr;  ///< Used with a null handle.
};

/// Parses the properties of a device from cuDNN's JSON text.
[[nodiscard]] Descriptor device_properties(const std::string& json);

/// Operations over tensors. A tensor is memory with an id, or virtual: a value between two
/// operations. Products and sums are f32.
class Graph {
 public:
  struct TensorOf {
    std::int64_t id = 0;
    const Descriptor* descriptor = nullptr;
  };
  static constexpr std::int64_t kAlignment = 16;  ///< Bytes; of every tensor's memory.

  [[nodiscard]] TensorOf tensor(std::int64_t id, cudnnDataType_t type, const Dims& dims,
                                bool is_virtual = false);
  void forward(TensorOf x, TensorOf w, TensorOf y, const ops::Window& window);
  void backward_data(TensorOf dy, TensorOf w, TensorOf dx, const ops::Window& window);
  void backward_weights(TensorOf dy, TensorOf x, TensorOf dw, const ops::Window& window);
  void identity(TensorOf x, TensorOf y);
  /// Adds sums per channel of x, each [1,c,1,1] f32.
  void sums(TensorOf x, TensorOf sum, TensorOf sum_of_squares);
  /// y = x op b, where b has one value per channel.
  void pointwise(cudnnPointwiseMode_t mode, TensorOf x, TensorOf b, TensorOf y);
  /// dx = dy where x > 0, else 0.
  void relu_backward(TensorOf dy, TensorOf x, TensorOf dx);
  /// Tensors of the gradients of y = xhat * scale + shift with xhat = (x - mean) * inv_std. They
  /// are the gradients of scale and shift (sums over dy * xhat and dy), and the factors of dy and x
  /// and the constant of the gradient of x. All but x and dy are [1,c,1,1] f32.
  struct NormGradients {
    TensorOf x, dy, mean, inv_std, scale;
    TensorOf scale_grad, shift_grad, factor_of_dy, factor_of_x, constant;
  };
  void norm_gradients(const NormGradients& of);

  /// Returns all operations so far as one descriptor. cuDNN keeps what it needs, so the graph may
  /// be destroyed.
  [[nodiscard]] Descriptor finish(const Target& target) const;

 private:
  Descriptor& keep(cudnnBackendDescriptorType_t type);
  Descriptor& operation(cudnnBackendDescriptorType_t type);
  [[nodiscard]] const Descriptor& convolution(const ops::Window& window);
  using Operand = std::pair<cudnnBackendAttributeName_t, TensorOf>;
  void add_pointwise(cudnnPointwiseMode_t mode, const char* what,
                     std::initializer_list<Operand> operands);
  std::deque<Descriptor> kept_;  ///< Addresses are stable.
  std::vector<const Descriptor*> operations_;
};

}  // namespace dkfac::nn::cudnn

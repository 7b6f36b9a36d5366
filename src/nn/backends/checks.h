#pragma once

#include <string_view>

#include "dkfac/core/context.h"
#include "dkfac/core/error.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/nn/layer.h"

#include "nn/backends/dtype.h"

/// Argument checks shared by the layers. `op` is the kind of the layer.
namespace dkfac::nn {

/// Checks that the layer is bound to memory on the device of the context.
inline void check_bound(std::string_view op, const Layer& layer, const Context& ctx,
                        ConstTensorView x) {
  DKFAC_CHECK(x.device() == ctx.device(), "[", op, "] '", layer.name(), "': the input is on ",
              x.device(), ", the context on ", ctx.device(), "; copy it there first");
  DKFAC_CHECK(x.is_contiguous(), "[", op, "] '", layer.name(), "': the input ", x.shape(),
              " has gaps between its elements; copy it first");
  for (const Parameter& p : layer.parameters()) {
    DKFAC_CHECK(!p.value.empty(), "[", op, "] '", layer.name(),
                "' has no memory; put it into a Model or call bind_standalone()");
    DKFAC_CHECK(p.value.device() == ctx.device(), "[", op, "] '", layer.name(), "': the ", p.name,
                " is on ", p.value.device(), ", the context on ", ctx.device(),
                "; a model runs on the device that it was made for");
  }
}

/// As check_bound(), with parameters of the dtype that the input is computed in.
inline void check_ready(std::string_view op, const Layer& layer, const Context& ctx,
                        ConstTensorView x) {
  DKFAC_CHECK(x.dtype() != DType::i32, "[", op, "] '", layer.name(), "': the input is ", x.dtype(),
              "; it must be f64, f32, bf16 or f16");
  check_bound(op, layer, ctx, x);
  for (const Parameter& p : layer.parameters()) {
    DKFAC_CHECK(p.value.dtype() == compute_dtype(x.dtype()), "[", op, "] '", layer.name(),
                "': the input is ", x.dtype(), ", the ", p.name, " ", p.value.dtype(),
                "; it must be ", compute_dtype(x.dtype()));
  }
}

/// As the checks above, for layers without kernels for 16-bit activations.
inline void check_computing(std::string_view op, const Layer& layer, ConstTensorView x) {
  DKFAC_CHECK(x.dtype() == compute_dtype(x.dtype()), "[", op, "] '", layer.name(),
              "': the input is ", x.dtype(), "; it must be f64 or f32");
}

/// Checks that a gradient has the shape of the output of the last forward pass in training.
inline void check_grad(std::string_view op, const Layer& layer, bool trained,
                       ConstTensorView grad_output, const Shape& output, DType dtype) {
  DKFAC_CHECK(trained, "[", op, "] '", layer.name(),
              "': backward needs a forward pass in training mode before it");
  DKFAC_CHECK(
      grad_output.shape() == output && grad_output.dtype() == dtype && grad_output.is_contiguous(),
      "[", op, "] '", layer.name(), "': the output gradient is ", grad_output.dtype(), " ",
      grad_output.shape(), "; it must be ", dtype, " ", output, " without gaps");
}

/// Checks for tangent() a direction of the input, which may be empty, and those of the parameters.
inline void check_tangent(std::string_view op, const Layer& layer, bool trained, ConstTensorView dx,
                          const Shape& input, DType dtype) {
  DKFAC_CHECK(trained, "[", op, "] '", layer.name(),
              "': tangent needs a forward pass in training mode before it");
  DKFAC_CHECK(dx.empty() || (dx.shape() == input && dx.dtype() == dtype && dx.is_contiguous()), "[",
              op, "] '", layer.name(), "': the tangent of the input is ", dx.dtype(), " ",
              dx.shape(), "; it must be ", dtype, " ", input, " without gaps");
  for (const Parameter& p : layer.parameters()) {
    const bool fits = p.tangent.shape() == p.shape && p.tangent.dtype() == p.value.dtype();
    DKFAC_CHECK(p.tangent.empty() == layer.parameters().front().tangent.empty() &&
                    (p.tangent.empty() || fits),
                "[", op, "] '", layer.name(), "': the tangent of the ", p.name, " is ",
                p.tangent.dtype(), " ", p.tangent.shape(), "; it must be ", p.value.dtype(), " ",
                p.shape, ", or empty for all parameters of the layer");
  }
}
/// Whether the parameters of a layer have tangents.
[[nodiscard]] inline bool has_tangents(const Layer& layer) {
  return !layer.parameters().empty() && !layer.parameters().front().tangent.empty();
}

}  // namespace dkfac::nn

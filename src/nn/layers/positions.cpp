#include <cmath>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/nn/token_layers.h"

#include "nn/backends/checks.h"

namespace dkfac::nn {
namespace {

Tensor sinusoids(std::int64_t positions, std::int64_t width) {
  Context host;
  Tensor table = Tensor::empty(host, Shape{positions, width}, DType::f64);
  for (std::int64_t t = 0; t < positions; ++t)
    for (std::int64_t c = 0; c < width; ++c) {
      const double exponent = static_cast<double>(c - c % 2) / static_cast<double>(width);
      const double angle = static_cast<double>(t) / std::pow(10000.0, exponent);
      table.data<double>()[t * width + c] = c % 2 == 0 ? std::sin(angle) : std::cos(angle);
    }
  return table;
}

}  // namespace

Shape SinusoidalPositions::output_shape(const Shape& input) const {
  DKFAC_CHECK(input.ndim() == 3, "[positions] '", name_, "' takes [n, t, width] but the input is ",
              input);
  return input;
}

/// Kept: the table.
LayerCost SinusoidalPositions::cost(const Shape& input, DType compute) const {
  return {.kept = static_cast<std::size_t>(input[1] * input[2]) * size_of(compute)};
}

void SinusoidalPositions::compute(Context& ctx, ConstTensorView x, TensorView y) {
  check_computing("positions", *this, x);
  const Shape shape = x.shape(), sequence{shape[1], shape[2]};
  const bool made = table_.is_set() && table_.dtype() == x.dtype() && table_shape_.ndim() == 2 &&
                    table_shape_[0] >= sequence[0] && table_shape_[1] == sequence[1];
  if (!made) {
    Context host;
    const Tensor wide = sinusoids(sequence[0], sequence[1]);
    Tensor table = Tensor::empty(host, sequence, x.dtype());
    ops::cast(host, wide, table);
    ops::copy(ctx, table, ensure(ctx, table_, sequence, x.dtype()));
    table_shape_ = sequence;
  }
  // One table for all samples.
  const ConstTensorView table(table_.view().raw(), x.dtype(), shape, Strides{0, shape[2], 1},
                              ctx.device());
  ops::copy(ctx, x, y);
  ops::axpby(ctx, 1, table, 1, y);
}

void SinusoidalPositions::compute_gradient(Context& ctx, ConstTensorView dy, TensorView dx) {
  ops::copy(ctx, dy, dx);
}

}  // namespace dkfac::nn

#include "app/training/views.h"

#include <cmath>
#include <vector>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"
#include "dkfac/nn/regularize.h"

namespace dkfac::app {

TensorView room_for(Context& ctx, Tensor& memory, const Shape& shape, DType dtype) {
  if (!memory.is_set() || memory.numel() < shape.numel()) memory = Tensor::empty(ctx, shape, dtype);
  return {memory.view().raw(), dtype, shape, ctx.device()};
}

namespace {

/// Upper left corner of a crop.
struct Corner {
  std::int64_t y, x;
};

/// Returns the crops of an image: the centre, and then the corners.
std::vector<Corner> crops_of(const Shape& images, std::int64_t side, bool corners) {
  const std::int64_t down = images[1] - side, right = images[2] - side;
  DKFAC_CHECK(down >= 0 && right >= 0, "[evaluate] crops of ", side, "x", side, " of images ",
              images, "; they must fit");
  // Halves to even, as centre_crop() rounds.
  const auto half = [](std::int64_t x) { return std::llrint(static_cast<double>(x) / 2); };
  const Corner centre{half(down), half(right)};
  if (!corners) return {centre};
  return {centre, {0, 0}, {0, right}, {down, 0}, {down, right}};
}

}  // namespace

ConstTensorView MeanLogits::operator()(Context& ctx, nn::Model& model, ConstTensorView images,
                                       const std::function<void(ConstTensorView)>& plain) {
  const double weight = 1.0 / ((views_.corners ? 5 : 1) * (views_.flips ? 2 : 1));
  TensorView sum;
  const auto add = [&](ConstTensorView view) {
    const ConstTensorView logits = model.forward(ctx, view, nn::Mode::eval);
    if (sum.numel() > 0) return ops::axpby(ctx, weight, logits, 1, sum);
    if (plain) plain(logits);
    sum = room_for(ctx, sum_, logits.shape(), logits.dtype());
    ops::axpby(ctx, weight, logits, 0, sum);
  };
  const auto add_with_flip = [&](ConstTensorView view) {
    add(view);
    if (!views_.flips) return;
    const TensorView flipped = room_for(ctx, flipped_, view.shape(), view.dtype());
    nn::flip_horizontal(ctx, view, flipped);
    add(flipped);
  };
  if (views_.side == 0) {
    add_with_flip(images);
    return sum;
  }
  const std::int64_t side = views_.side;
  const Shape shape{images.dim(0), side, side, images.dim(3)};
  const TensorView crop = room_for(ctx, crop_, shape, images.dtype());
  for (const Corner& at : crops_of(images.shape(), side, views_.corners)) {
    ops::copy(ctx, images.slice(1, at.y, side).slice(2, at.x, side), crop);
    add_with_flip(crop);
  }
  return sum;
}

}  // namespace dkfac::app

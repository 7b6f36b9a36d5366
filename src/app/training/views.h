#pragma once

#include <functional>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"
#include "dkfac/nn/model.h"

#include "app/shared/config.h"

namespace dkfac::app {

/// Returns a view of the first elements of reusable memory of one type, because micro-batches and
/// the last batch of an epoch differ in size.
[[nodiscard]] TensorView room_for(Context& ctx, Tensor& memory, const Shape& shape, DType dtype);

/// Views of each test image: the whole, or its centre, with which the corners and flips may go.
struct TestViews {
  std::int64_t side = 0;  ///< Of the centre and the corners; 0: the whole image.
  bool corners = false, flips = false;
};
/// Returns the views by run.tta.
[[nodiscard]] inline TestViews test_views(const Config& config) {
  const bool crops = takes_crops(config.run.tta);
  return {crops ? config.data.image_size : 0, crops, takes_flips(config.run.tta)};
}
/// Returns the first of these views alone.
[[nodiscard]] inline TestViews plain_view(const Config& config) {
  return {.side = test_views(config).side};
}

/// Logits of images as the mean over their views (Krizhevsky et al. 2012, section 4.1, who average
/// the outputs of the softmax over centre, corners and flips).
class MeanLogits {
 public:
  explicit MeanLogits(const TestViews& views) : views_(views) {}

  /// Returns [n, classes] for images [n,h,w,c], valid until the next call. `plain` is called on the
  /// logits of the first view, the whole or the centre unflipped. Throws InvalidArgument for images
  /// smaller than a crop.
  [[nodiscard]] ConstTensorView operator()(Context& ctx, nn::Model& model, ConstTensorView images,
                                           const std::function<void(ConstTensorView)>& plain = {});

 private:
  TestViews views_;
  Tensor crop_, flipped_, sum_;  ///< Reused, and grown with the largest batch.
};

}  // namespace dkfac::app

#include "core/shared/cuda/launch.cuh"
#include "core/shared/element.h"
#include "data/cuda/image_functors.h"
#include "data/cuda/resident.h"

namespace dkfac::data::cuda {

void make_batch(Context& ctx, const ResidentImages& data, std::int64_t begin, TensorView images,
                TensorView labels) {
  element::visit_floating(images.dtype(), [&]<class T>(element::Type<T>) {
    T* to = images.data<T>();
    const std::int64_t size = images.numel() / images.dim(0);
    const MakeImages<T> make{
        .pixels = static_cast<const std::uint8_t*>(data.pixels),
        .table = data.table.data<T>(),
        .mean = data.mean.empty() ? nullptr : data.mean.data<Wide<T>>(),
        .all_labels = data.labels.data<std::int32_t>(),
        .order = data.order.data<std::int32_t>() + begin,
        .changes = data.changes.empty() ? nullptr : data.changes.data<std::int32_t>(),
        .options = data.augment,
        .augmented = data.augment.any(),
        .seed = data.seed,
        .epoch = data.epoch,
        .height = images.dim(1),
        .width = images.dim(2),
        .channels = images.dim(3),
        .images = to,
        .labels = labels.data<std::int32_t>(),
        .aligned = size % static_cast<std::int64_t>(kPack<T>) == 0 && are_aligned(to)};
    dkfac::cuda::for_each_2d(ctx.stream(), images.dim(0), make.packs(), make);
  });
}

}  // namespace dkfac::data::cuda

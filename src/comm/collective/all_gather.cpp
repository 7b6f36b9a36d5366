#include "comm/collective/all_gather.h"

#include <numeric>
#include <utility>

namespace dkfac::comm {

AllGather::AllGather(Context& ctx, const WorkerGrid& grid, std::string name,
                     std::vector<Slot> slots, DType dtype)
    : ctx_(ctx),
      name_(std::move(name)),
      grid_(grid),
      counts_(static_cast<std::size_t>(grid.columns()), 0) {
  if (!needed()) return;
  for (Slot& slot : slots) {
    slot.owner = grid.column_of(slot.owner);
    numel_.push_back(slot.count);
    counts_[static_cast<std::size_t>(slot.owner)] += slot.count;
  }
  const std::int64_t all = std::accumulate(numel_.begin(), numel_.end(), std::int64_t{1});
  plan_buckets(slots, {}, {.segments = grid.columns(), .bucket_elements = all}, plan_);
  buffer_ = Tensor::zeros(ctx, {plan_.numel}, dtype);
}

TensorView AllGather::block(int index) {
  const auto i = static_cast<std::size_t>(index);
  return buffer_.view().slice(0, plan_.offsets[i], numel_[i]);
}

void AllGather::run() {
  if (buffer_.bytes() == 0) return;
  const auto own = counts_.begin() + grid_.column_of(grid_.world->rank());
  const std::int64_t start = std::accumulate(counts_.begin(), own, std::int64_t{0});
  grid_.row->all_gather_v(buffer_.view().slice(0, start, *own), counts_, buffer_, ctx_.stream(),
                          name_);
}

}  // namespace dkfac::comm

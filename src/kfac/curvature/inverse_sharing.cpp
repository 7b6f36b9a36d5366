#include "kfac/curvature/inverse_sharing.h"

#include <numeric>
#include <type_traits>

#include "dkfac/core/ops.h"

#include "core/shared/index.h"

namespace dkfac::kfac {
InverseSharing::InverseSharing(Context& ctx, const comm::WorkerGrid& grid, DType dtype,
                               std::span<const SharedPart> all)
    : ctx_(ctx), grid_(grid), counts_(index_of(grid.workers), 0), next_(counts_) {
  if (grid_.workers == 1) return;
  buffer_ = Tensor::zeros(ctx, {layout(all)}, dtype);
  std::int64_t numbers = 0;
  for (const SharedPart& part : all) numbers += head_numel(part);
  heads_ = comm::HostDevicePair(ctx, {numbers}, DType::f64);
}

std::int64_t InverseSharing::layout(std::span<const SharedPart> parts) {
  counts_.assign(counts_.size(), 0);
  for (const SharedPart& part : parts)
    counts_[index_of(grid_.row_of(part.owner))] += shared_numel(part);
  std::exclusive_scan(counts_.begin(), counts_.end(), next_.begin(), std::int64_t{0});
  return next_.back() + counts_.back();
}

template <class Body>
void InverseSharing::for_parts(std::span<const SharedPart> parts, bool own, Body&& body) {
  const TensorView all = buffer_.view().slice(0, 0, layout(parts));
  std::int64_t head = 0;
  for (const SharedPart& part : parts) {
    std::int64_t& start = next_[index_of(grid_.row_of(part.owner))];
    const std::int64_t numel = shared_numel(part), numbers = head_numel(part);
    if ((part.owner == grid_.world->rank()) == own)
      body(part, all.slice(0, start, numel), head, numbers);
    start += numel;
    head += numbers;
  }
}

void InverseSharing::run(std::span<const SharedPart> parts) {
  if (grid_.workers == 1 || parts.empty()) return;
  auto* const numbers = heads_.numbers<double>();
  for_parts(parts, true, [&](const SharedPart& part, TensorView, std::int64_t head, std::int64_t) {
    visit_head(part, [&](auto& number) { numbers[head++] = static_cast<double>(number); });
  });
  heads_.push(ctx_);
  for_parts(parts, true,
            [&](const SharedPart& part, TensorView piece, std::int64_t head, std::int64_t count) {
              ops::cast(ctx_, heads_.device().slice(0, head, count), piece.slice(0, 0, count));
              write_body(ctx_, part, piece.slice(0, count, piece.numel() - count));
            });

  const std::int64_t total = layout(parts);
  const TensorView all = buffer_.view().slice(0, 0, total);
  const auto row = index_of(grid_.row_of(grid_.world->rank()));
  grid_.column->all_gather_v(all.slice(0, next_[row], counts_[row]), counts_, all, ctx_.stream(),
                             "inverses");

  for_parts(parts, false,
            [&](const SharedPart&, TensorView piece, std::int64_t head, std::int64_t count) {
              ops::cast(ctx_, piece.slice(0, 0, count), heads_.device().slice(0, head, count));
            });
  heads_.fetch(ctx_);
  ctx_.stream().synchronize();
  for_parts(parts, false,
            [&](const SharedPart& part, TensorView piece, std::int64_t head, std::int64_t count) {
              visit_head(part, [&](auto& number) {
                number = static_cast<std::remove_reference_t<decltype(number)>>(numbers[head++]);
              });
              read_body(ctx_, piece.slice(0, count, piece.numel() - count), part);
            });
}

}  // namespace dkfac::kfac

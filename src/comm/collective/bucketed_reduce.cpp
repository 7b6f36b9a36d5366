#include "comm/collective/bucketed_reduce.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

#include "comm/collective/backend_collective.h"
#include "core/shared/index.h"

namespace dkfac::comm {
namespace {

/// Groups slots that are due into buckets, in slot order.
void make_buckets(std::span<const Slot> slots, const std::vector<bool>& due,
                  std::int64_t bucket_elements, BucketPlan& plan) {
  std::int64_t waiting = bucket_elements;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    plan.bucket_of[i] = -1;
    if (!due.empty() && !due[i]) continue;
    if (waiting >= bucket_elements) {
      plan.buckets.push_back({.first_slot = static_cast<int>(plan.order.size())});
      waiting = 0;
    }
    plan.order.push_back(static_cast<int>(i));
    ++plan.buckets.back().slots;
    plan.buckets.back().time = slots[i].time;
    plan.bucket_of[i] = static_cast<int>(plan.buckets.size()) - 1;
    waiting += slots[i].count;
  }
}

int segment_of(const WorkerGrid& grid, Recipients recipients, int owner) {
  switch (recipients) {
    case Recipients::owners:
      return owner;
    case Recipients::workers:
      return grid.column_of(owner);
    case Recipients::all:
      break;
  }
  return 0;
}

DType wire_type(const BucketedReduceOptions& options) {
  return options.wire.value_or(options.dtype);
}
bool narrower(const BucketedReduceOptions& options) { return wire_type(options) != options.dtype; }

int segments_of(const WorkerGrid& grid, Recipients recipients) {
  return segment_of(grid, recipients, grid.world->size() - 1) + 1;
}

}  // namespace

std::span<const int> BucketPlan::slots_of(int bucket) const {
  const Bucket& b = buckets[index_of(bucket)];
  return std::span(order).subspan(index_of(b.first_slot), index_of(b.slots));
}

std::span<const std::int64_t> BucketPlan::counts_of(int bucket) const {
  return std::span(counts).subspan(index_of(bucket) * index_of(segments), index_of(segments));
}

void plan_buckets(std::span<const Slot> slots, const std::vector<bool>& due,
                  const PlanOptions& options, BucketPlan& plan) {
  DKFAC_CHECK(due.empty() || due.size() == slots.size(), "[bucketed_reduce] ", due.size(),
              " flags for ", slots.size(), " slots; there must be one for each, or none");
  // Upper bound: one bucket per slot and one for trailers.
  plan.buckets.reserve(slots.size() + 1);
  plan.order.reserve(slots.size());
  plan.counts.reserve((slots.size() + 1) * index_of(options.segments));
  plan.trailers.reserve(index_of(options.segments));
  plan.buckets.clear();
  plan.order.clear();
  plan.counts.clear();
  plan.trailers.clear();
  plan.offsets.resize(slots.size());
  plan.bucket_of.resize(slots.size());
  plan.numel = 0;
  plan.segments = options.segments;
  make_buckets(slots, due, std::max<std::int64_t>(options.bucket_elements, 1), plan);
  if (options.trailer > 0 && (plan.buckets.empty() || options.separate_trailer)) {
    const int time = plan.buckets.empty() ? 0 : plan.buckets.back().time;
    plan.buckets.push_back({.first_slot = static_cast<int>(plan.order.size()), .time = time});
  }
  for (int b = 0; b < static_cast<int>(plan.buckets.size()); ++b) {
    Bucket& bucket = plan.buckets[index_of(b)];
    bucket.first = plan.numel;
    for (int segment = 0; segment < options.segments; ++segment) {
      const std::int64_t start = plan.numel;
      for (const int s : plan.slots_of(b)) {
        if (slots[index_of(s)].owner != segment) continue;
        plan.offsets[index_of(s)] = plan.numel;
        plan.numel += slots[index_of(s)].count;
      }
      if (options.trailer > 0 && index_of(b) + 1 == plan.buckets.size()) {
        plan.trailers.push_back(plan.numel);
        plan.numel += options.trailer;
      }
      plan.counts.push_back(plan.numel - start);
    }
    bucket.numel = plan.numel - bucket.first;
  }
}

BucketedReduce::BucketedReduce(Context& ctx, const WorkerGrid& grid, std::string name,
                               std::vector<Slot> slots, const BucketedReduceOptions& options)
    : ctx_(ctx),
      fill_context_(options.fill_context == nullptr ? ctx : *options.fill_context),
      grid_(grid),
      name_(std::move(name)),
      recipients_(options.recipients),
      planning_{.segments = segments_of(grid, options.recipients),
                .bucket_elements =
                    options.bucket_bytes / static_cast<std::int64_t>(size_of(wire_type(options))),
                .trailer = options.trailer,
                .separate_trailer = narrower(options)},
      segment_(segment_of(grid, options.recipients, grid.world->rank())),
      summands_(options.parts_below_sum ? 1 : grid.world->size()),
      slots_(std::move(slots)),
      wire_overflows_(options.wire_overflows),
      join_(ctx.device()) {
  for (Slot& slot : slots_) slot.owner = segment_of(grid, recipients_, slot.owner);
  begin();
  staging_ = Tensor::zeros(ctx, {plan_.numel}, options.dtype);
  if (!narrower(options)) return;
  wire_type_ = options.wire;
  wire_ = Tensor::zeros(ctx, {plan_.numel}, *options.wire);
  largest_ = Tensor::zeros(ctx, {static_cast<std::int64_t>(slots_.size())});
  scales_.resize(slots_.size());
}

void BucketedReduce::begin(const std::vector<bool>& due) {
  plan_buckets(slots_, due, planning_, plan_);
  filled_.assign(slots_.size(), false);
  launched_buckets_ = 0;
  if (wire_type_) ops::fill(ctx_, largest_, 0);
}

void BucketedReduce::set_magnitude(int index, int exponent) {
  if (!wire_type_) return;
  scales_[index_of(index)] = {exponent, wire_scale(*wire_type_, exponent, summands_)};
}

bool BucketedReduce::narrow(int bucket) const {
  if (!wire_type_ || plan_.buckets[index_of(bucket)].slots == 0) return false;
  return *wire_type_ != DType::f16 || std::ranges::all_of(plan_.slots_of(bucket), [this](int s) {
    return scales_[index_of(s)].exponent != kNoExponent;
  });
}

bool BucketedReduce::receives(int index) const {
  return recipients_ == Recipients::all || slots_[index_of(index)].owner == segment_;
}

void BucketedReduce::pack(int bucket) {
  const double limit = wire_limit(*wire_type_, summands_);
  for (const int s : plan_.slots_of(bucket)) {
    const TensorView part = slot(s);
    ops::max_abs(fill_context_, part, largest_.view().slice(0, s, 1));
    if (!narrow(bucket)) continue;
    const double scale = scales_[index_of(s)].scale;
    ops::cast(fill_context_, part, wire_.view().slice(0, plan_.offsets[index_of(s)], part.numel()),
              scale);
    kernels::count_past(fill_context_, scale, limit, largest_.view().slice(0, s, 1),
                        wire_overflows_);
  }
}

void BucketedReduce::finish() {
  if (!wire_type_) return;
  for (int b = 0; b < launched_buckets_; ++b) {
    if (!narrow(b)) continue;
    for (const int s : plan_.slots_of(b)) {
      if (!receives(s)) continue;
      const TensorView sum = slot(s);
      ops::cast(ctx_, wire_.view().slice(0, plan_.offsets[index_of(s)], sum.numel()), sum,
                1 / scales_[index_of(s)].scale);
    }
  }
}

TensorView BucketedReduce::slot(int index) {
  DKFAC_CHECK(due(index), "[bucketed_reduce] slot ", index, " of '", name_,
              "' is not due in this step");
  return staging_.view().slice(0, plan_.offsets[index_of(index)], slots_[index_of(index)].count);
}

bool BucketedReduce::launched(int index) const {
  return due(index) && plan_.bucket_of[index_of(index)] < launched_buckets_;
}

bool BucketedReduce::ready(int bucket) const {
  return std::ranges::all_of(plan_.slots_of(bucket), [this](int s) { return filled(s); });
}

void BucketedReduce::write_trailer(ConstTensorView values) {
  for (const std::int64_t offset : plan_.trailers)
    ops::cast(ctx_, values, staging_.view().slice(0, offset, planning_.trailer));
}

void BucketedReduce::read_trailer(TensorView values) {
  const std::int64_t offset = plan_.trailers[index_of(segment_)];
  ops::cast(ctx_, staging_.view().slice(0, offset, planning_.trailer), values);
}

void BucketedReduce::launch(int bucket, Stream stream) {
  const Bucket& b = plan_.buckets[index_of(bucket)];
  if (wire_type_) pack(bucket);
  join_.leave(stream, ctx_.stream());
  if (&fill_context_ != &ctx_) join_.leave(stream, fill_context_.stream());
  const TensorView all = (narrow(bucket) ? wire_ : staging_).view().slice(0, b.first, b.numel);
  launched_buckets_ = bucket + 1;
  if (recipients_ == Recipients::all) {
    grid_.world->all_reduce(all, ReduceOp::sum, stream, name_);
    return;
  }
  const std::span<const std::int64_t> counts = plan_.counts_of(bucket);
  const auto own = counts.begin() + segment_;
  const TensorView mine = all.slice(0, std::accumulate(counts.begin(), own, std::int64_t{0}), *own);
  if (recipients_ == Recipients::owners) {
    grid_.world->reduce_scatter_v(all, counts, mine, stream, name_);
    return;
  }
  if (grid_.columns() > 1 || grid_.workers == 1)
    grid_.row->reduce_scatter_v(all, counts, mine, stream, name_);
  if (grid_.workers > 1) grid_.column->all_reduce(mine, ReduceOp::sum, stream, name_);
}

}  // namespace dkfac::comm

#include "kfac/exchange.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "dkfac/core/ops.h"

namespace dkfac::kfac {
namespace {

std::size_t index_of(int i) { return static_cast<std::size_t>(i); }

/// Groups slots into buckets, in slot order.
std::vector<Bucket> make_buckets(std::span<const Slot> slots, std::int64_t bucket_elements) {
  std::vector<Bucket> buckets;
  std::int64_t waiting = bucket_elements;
  for (int i = 0; i < static_cast<int>(slots.size()); ++i) {
    if (waiting >= bucket_elements) {
      buckets.emplace_back();
      waiting = 0;
    }
    buckets.back().slots.push_back(i);
    buckets.back().time = slots[index_of(i)].time;
    waiting += slots[index_of(i)].count;
  }
  return buckets;
}

}  // namespace

ExchangePlan plan_exchange(std::span<const Slot> slots, int world_size,
                           std::int64_t bucket_elements, std::int64_t tail) {
  ExchangePlan plan;
  plan.buckets = make_buckets(slots, std::max<std::int64_t>(bucket_elements, 1));
  if (plan.buckets.empty() && tail > 0) plan.buckets.emplace_back();
  plan.offsets.resize(slots.size());
  plan.bucket_of.resize(slots.size());
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    Bucket& bucket = plan.buckets[b];
    bucket.first = plan.numel;
    bucket.counts.assign(index_of(world_size), 0);
    for (int rank = 0; rank < world_size; ++rank) {
      const std::int64_t start = plan.numel;
      for (const int s : bucket.slots) {
        if (slots[index_of(s)].owner != rank) continue;
        plan.offsets[index_of(s)] = plan.numel;
        plan.bucket_of[index_of(s)] = static_cast<int>(b);
        plan.numel += slots[index_of(s)].count;
      }
      if (tail > 0 && b + 1 == plan.buckets.size()) {
        plan.tails.push_back(plan.numel);
        plan.numel += tail;
      }
      bucket.counts[index_of(rank)] = plan.numel - start;
    }
    bucket.numel = plan.numel - bucket.first;
  }
  return plan;
}

Exchange::Exchange(Context& ctx, const comm::Communicator& comm, std::string name,
                   Recipients recipients, std::vector<Slot> slots, DType dtype,
                   std::int64_t bucket_bytes, std::int64_t tail)
    : name_(std::move(name)),
      recipients_(recipients),
      // All ranks share one segment when everybody gets everything.
      rank_(recipients == Recipients::owners ? comm.rank() : 0),
      tail_(tail),
      slots_(std::move(slots)) {
  if (recipients == Recipients::all)
    for (Slot& slot : slots_) slot.owner = 0;
  plan_ = plan_exchange(slots_, recipients == Recipients::owners ? comm.size() : 1,
                        bucket_bytes / static_cast<std::int64_t>(size_of(dtype)), tail);
  staging_ = Tensor::zeros(ctx, {plan_.numel}, dtype);
  filled_.assign(slots_.size(), false);
}

TensorView Exchange::slot(int index) {
  return staging_.view().slice(0, plan_.offsets[index_of(index)], slots_[index_of(index)].count);
}

bool Exchange::launched(int index) const {
  return plan_.bucket_of[index_of(index)] < launched_buckets_;
}

bool Exchange::ready(int bucket) const {
  const auto& slots = plan_.buckets[index_of(bucket)].slots;
  return std::ranges::all_of(slots, [this](int s) { return filled(s); });
}

void Exchange::write_tail(Context& ctx, std::span<const double> values) {
  const ConstTensorView source = view_of(values.data(), {static_cast<std::int64_t>(values.size())});
  for (const std::int64_t offset : plan_.tails)
    ops::cast(ctx, source, staging_.view().slice(0, offset, tail_));
}

void Exchange::read_tail(Context& ctx, std::span<double> values) {
  ops::cast(ctx, staging_.view().slice(0, plan_.tails[index_of(rank_)], tail_),
            view_of(values.data(), {static_cast<std::int64_t>(values.size())}));
}

void Exchange::launch(comm::Communicator& comm, int bucket, Stream stream) {
  const Bucket& b = plan_.buckets[index_of(bucket)];
  const TensorView all = staging_.view().slice(0, b.first, b.numel);
  launched_buckets_ = bucket + 1;
  if (recipients_ == Recipients::all) {
    comm.all_reduce(all, comm::ReduceOp::sum, stream, name_);
    return;
  }
  const auto own = b.counts.begin() + rank_;
  const std::int64_t start = std::accumulate(b.counts.begin(), own, std::int64_t{0});
  comm.reduce_scatter_v(all, b.counts, all.slice(0, start, *own), stream, name_);
}

void Exchange::reset() {
  filled_.assign(slots_.size(), false);
  launched_buckets_ = 0;
}

}  // namespace dkfac::kfac

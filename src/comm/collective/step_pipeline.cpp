#include "comm/collective/step_pipeline.h"

#include <algorithm>

#include "dkfac/core/error.h"

#include "core/shared/activity_timer.h"
#include "core/shared/captured.h"

namespace dkfac::comm {

StepPipeline::StepPipeline(Context& ctx, WorkerGrid grid, bool overlap)
    : ctx_(ctx),
      grid_(std::move(grid)),
      overlap_(overlap && grid_.world->overlaps()),
      stream_(ctx.device()),
      join_(ctx.device()),
      flags_ready_(ctx.device()),
      message_(ctx, {kFlagElements}, DType::f64) {}

void StepPipeline::begin(std::span<BucketedReduce* const> active) {
  if (next_ > 0 && !submitted_) wait_for_dropped();
  order_.clear();
  next_ = 0;
  bytes_ = 0;
  polled_seconds_ = 0;
  submitted_ = false;
  Item flags{nullptr, 0, 0};
  for (BucketedReduce* reduce : active) {
    const int last = reduce->buckets() - 1;
    for (int b = 0; b <= last; ++b) {
      if (b == last && reduce->has_trailer())
        flags = {reduce, b, 0};
      else
        order_.push_back({reduce, b, order_.size()});
    }
  }
  // A stable sort would allocate.
  std::ranges::sort(order_, {}, [](const Item& item) {
    const int time = item.reduce->plan().buckets[static_cast<std::size_t>(item.bucket)].time;
    return std::pair(time, item.place);
  });
  order_.push_back(flags);
}

void StepPipeline::wait_for_dropped() {
  try {
    join_.enter("step", stream(), ctx_.stream());
  } catch (const CommError&) {
    // These collectives have ended, too, and the next one throws the same. A state can still be
    // saved.
  }
}

void StepPipeline::launch(const Item& item) {
  const std::uint64_t before = grid_.bytes();
  item.reduce->launch(item.bucket, stream());
  bytes_ += grid_.bytes() - before;
  ++next_;
}

void StepPipeline::poll() {
  if (!overlap_ || is_captured(ctx_.stream())) return;
  const ActivityTimer timer(polled_seconds_, "exchange");
  while (next_ + 1 < order_.size() && order_[next_].reduce->ready(order_[next_].bucket))
    launch(order_[next_]);
  grid_.progress();
}

void StepPipeline::flush() {
  while (next_ + 1 < order_.size()) launch(order_[next_]);
}

void StepPipeline::submit(FlagMessage message) {
  DKFAC_CHECK(
      !submitted_,
      "[step] the last step has ended with an exception, so that none has begun since; load "
      "a state by visit_state(), or end all ranks and resume from a checkpoint");
  flush();
  // Hashed at the same point on every rank: after all collectives of this step but the last.
  message.hash += grid_.contract_hash();
  encode_flags(message, grid_.world->rank(),
               {message_.numbers<double>(), static_cast<std::size_t>(kFlagElements)});
  message_.push(ctx_);
  add_counts(ctx_, message, message_.device());
  BucketedReduce& carrier = *order_[next_].reduce;
  carrier.write_trailer(message_.device());
  launch(order_[next_]);
  bytes_at_submission_ = grid_.bytes();
  submitted_ = true;
  join_.enter("step", stream(), ctx_.stream());
  for (const Item& item : order_)
    if (item.bucket == 0) item.reduce->finish();
  carrier.read_trailer(message_.device());
  message_.fetch(ctx_);
}

AgreedFlags StepPipeline::wait() {
  flags_ready_.record(ctx_.stream());
  Stream::cpu().wait(flags_ready_);
  const AgreedFlags agreed = decode_flags(
      {message_.numbers<double>(), static_cast<std::size_t>(kFlagElements)}, grid_.world->size());
  if (!agreed.ranks_agree)
    throw CommError(detail::concat(
        "[step] ranks have issued different collectives, are at different steps, as where some of "
        "them alone loaded a state, or pass different learning rates, momenta, dampings, "
        "intervals, weights of statistics or numbers of micro-batches; this is rank ",
        grid_.world->rank(), " of ", grid_.world->size(), " at collective #",
        grid_.world->sequence(),
        ". Run with comm::Check::full to find the first call that differs"));
  return agreed;
}

}  // namespace dkfac::comm

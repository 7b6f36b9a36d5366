#include "kfac/collective/pipeline.h"

#include <algorithm>

#include "dkfac/core/error.h"

namespace dkfac::kfac {

Pipeline::Pipeline(Context& ctx, WorkerGrid grid, bool overlap)
    : ctx_(ctx),
      grid_(std::move(grid)),
      overlap_(overlap),
      stream_(ctx.device()),
      join_(ctx.device()),
      told_(ctx.device()),
      ballot_(ctx, {kBallotElements}, DType::f64) {}

void Pipeline::begin(std::span<Exchange* const> active) {
  order_.clear();
  next_ = 0;
  bytes_ = 0;
  Item vote{nullptr, 0, 0};
  for (Exchange* exchange : active) {
    const int last = exchange->buckets() - 1;
    for (int b = 0; b <= last; ++b) {
      if (b == last && exchange->has_tail())
        vote = {exchange, b, 0};
      else
        order_.push_back({exchange, b, order_.size()});
    }
  }
  // A stable sort would take memory from the heap.
  std::ranges::sort(order_, {}, [](const Item& item) {
    const int time = item.exchange->plan().buckets[static_cast<std::size_t>(item.bucket)].time;
    return std::pair(time, item.place);
  });
  order_.push_back(vote);
}

void Pipeline::launch(const Item& item) {
  const std::uint64_t before = grid_.bytes();
  item.exchange->launch(item.bucket, stream());
  bytes_ += grid_.bytes() - before;
  ++next_;
}

void Pipeline::poll() {
  if (!overlap_) return;
  while (next_ + 1 < order_.size() && order_[next_].exchange->ready(order_[next_].bucket))
    launch(order_[next_]);
  grid_.progress();
}

void Pipeline::flush() {
  while (next_ + 1 < order_.size()) launch(order_[next_]);
}

void Pipeline::submit(Ballot ballot) {
  flush();
  // Taken here on every rank: after all collectives of this step but the one that carries it.
  ballot.hash += grid_.contract_hash();
  encode_ballot(ballot, grid_.world->rank(),
                {ballot_.numbers<double>(), static_cast<std::size_t>(kBallotElements)});
  ballot_.push(ctx_);
  add_counts(ctx_, ballot, ballot_.device());
  Exchange& carrier = *order_[next_].exchange;
  carrier.write_tail(ballot_.device());
  launch(order_[next_]);
  join_.enter("step", stream(), ctx_.stream());
  for (const Item& item : order_)
    if (item.bucket == 0) item.exchange->finish();
  carrier.read_tail(ballot_.device());
  ballot_.fetch(ctx_);
}

Outcome Pipeline::outcome() {
  told_.record(ctx_.stream());
  Stream::cpu().wait(told_);
  const Outcome outcome = count_ballots(
      {ballot_.numbers<double>(), static_cast<std::size_t>(kBallotElements)}, grid_.world->size());
  if (!outcome.ranks_agree)
    throw CommError(detail::concat(
        "[step] ranks have issued different collectives, or pass different learning rates or "
        "dampings; this is rank ",
        grid_.world->rank(), " of ", grid_.world->size(), " at collective #",
        grid_.world->sequence(),
        ". Run with comm::Check::full to find the first call that differs"));
  DKFAC_CHECK(
      !outcome.no_samples || !outcome.result.may_update(), "[step] none of the ",
      grid_.world->size(),
      " ranks has recorded a sample in this step, so that its statistics would be 0; pass a "
      "batch that has some on at least one of them");
  return outcome;
}

}  // namespace dkfac::kfac

#include "kfac/pipeline.h"

#include <algorithm>
#include <array>

#include "dkfac/core/error.h"

namespace dkfac::kfac {

Pipeline::Pipeline(WorkerGrid grid, bool overlap)
    : grid_(std::move(grid)), overlap_(overlap), stream_(Device::cpu()) {}

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
  item.exchange->launch(item.bucket, overlap_ ? stream_.view() : Stream::cpu());
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

Outcome Pipeline::finish(Ballot ballot) {
  flush();
  // Taken here on every rank: after all collectives of this step but the one that carries it.
  ballot.hash += grid_.contract_hash();
  std::array<double, kBallotElements> values{};
  encode_ballot(ballot, grid_.world->rank(), values);
  Exchange& carrier = *order_[next_].exchange;
  carrier.write_tail(values);
  launch(order_[next_]);
  if (overlap_) stream_.view().synchronize();
  for (const Item& item : order_)
    if (item.bucket == 0) item.exchange->finish();
  carrier.read_tail(values);
  const Outcome outcome = count_ballots(values, grid_.world->size());
  if (!outcome.ranks_agree)
    throw CommError(detail::concat(
        "[step] ranks have issued different collectives, or pass different learning rates or "
        "dampings; this is rank ",
        grid_.world->rank(), " of ", grid_.world->size(), " at collective #",
        grid_.world->sequence(),
        ". Run with comm::Check::full to find the first call that differs"));
  return outcome;
}

}  // namespace dkfac::kfac

#include "kfac/pipeline.h"

#include <algorithm>
#include <array>

#include "dkfac/core/error.h"

namespace dkfac::kfac {

Pipeline::Pipeline(std::shared_ptr<comm::Communicator> comm, bool overlap)
    : comm_(std::move(comm)), overlap_(overlap), stream_(Device::cpu()) {}

void Pipeline::begin(std::span<Exchange* const> active) {
  order_.clear();
  next_ = 0;
  bytes_ = 0;
  Item vote{nullptr, 0};
  for (Exchange* exchange : active) {
    exchange->reset();
    const int last = exchange->buckets() - 1;
    for (int b = 0; b <= last; ++b) {
      if (b == last && exchange->has_tail())
        vote = {exchange, b};
      else
        order_.push_back({exchange, b});
    }
  }
  std::ranges::stable_sort(order_, {}, [](const Item& item) {
    return item.exchange->plan().buckets[static_cast<std::size_t>(item.bucket)].time;
  });
  order_.push_back(vote);
}

void Pipeline::launch(const Item& item) {
  const std::uint64_t before = comm_->bytes();
  item.exchange->launch(*comm_, item.bucket, overlap_ ? stream_.view() : Stream::cpu());
  bytes_ += comm_->bytes() - before;
  ++next_;
}

void Pipeline::poll() {
  if (!overlap_) return;
  while (next_ + 1 < order_.size() && order_[next_].exchange->ready(order_[next_].bucket))
    launch(order_[next_]);
  comm_->progress();
}

Outcome Pipeline::finish(Context& ctx, Ballot ballot) {
  while (next_ + 1 < order_.size()) launch(order_[next_]);
  // Taken here on every rank: after all collectives of this step but the one that carries it.
  ballot.hash += comm_->contract_hash();
  std::array<double, kBallotElements> values{};
  encode_ballot(ballot, comm_->rank(), values);
  Exchange& carrier = *order_[next_].exchange;
  carrier.write_tail(ctx, values);
  launch(order_[next_]);
  if (overlap_) stream_.view().synchronize();
  carrier.read_tail(ctx, values);
  const Outcome outcome = count_ballots(values, comm_->size());
  if (!outcome.ranks_agree)
    throw CommError(detail::concat(
        "[step] ranks have issued different collectives, or pass different learning rates or "
        "dampings; this is rank ",
        comm_->rank(), " of ", comm_->size(), " at collective #", comm_->sequence(),
        ". Run with comm::Check::full to find the first call that differs"));
  return outcome;
}

}  // namespace dkfac::kfac

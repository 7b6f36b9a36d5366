#include "comm/collective/part_exchange.h"

#include <map>
#include <utility>

#include "comm/routed_messages.h"

namespace dkfac::comm {
namespace {

using Pair = std::pair<int, int>;

}  // namespace

PartExchange::PartExchange(Context& ctx, std::shared_ptr<Communicator> comm, std::string name,
                           DType dtype, std::span<const Route> all)
    : ctx_(ctx), comm_(std::move(comm)), name_(std::move(name)) {
  const RoutedCounts counts = routed_counts(all, comm_->rank());
  sent_ = Tensor::zeros(ctx, {counts.sent}, dtype);
  received_ = Tensor::zeros(ctx, {counts.received}, dtype);
}

void PartExchange::begin(std::span<const Route> parts) {
  std::map<Pair, std::int64_t> counts;
  places_.clear();
  for (const Route& part : parts) {
    std::int64_t& before = counts[{part.from, part.to}];
    places_.push_back({before, before, part.count});
    before += part.count;
  }
  routes_.clear();
  for (const auto& [pair, count] : counts) routes_.push_back({pair.first, pair.second, count});
  std::map<Pair, RoutedMessage> messages;
  for (const RoutedMessage& m : messages_of(routes_, comm_->rank()))
    messages[{m.route.from, m.route.to}] = m;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const auto [from, to, count] = parts[i];
    const RoutedMessage& m = messages[{from, to}];
    places_[i].sent = from == comm_->rank() ? places_[i].sent + m.sent_at : -1;
    places_[i].received = to == comm_->rank() ? places_[i].received + m.received_at : -1;
  }
}

TensorView PartExchange::sent(int part) {
  const Place& place = places_[static_cast<std::size_t>(part)];
  return sent_.view().slice(0, place.sent, place.count);
}

TensorView PartExchange::received(int part) {
  const Place& place = places_[static_cast<std::size_t>(part)];
  return received_.view().slice(0, place.received, place.count);
}

void PartExchange::run() {
  const RoutedCounts counts = routed_counts(routes_, comm_->rank());
  comm_->exchange(sent_.view().slice(0, 0, counts.sent), routes_,
                  received_.view().slice(0, 0, counts.received), ctx_.stream(), name_);
}

}  // namespace dkfac::comm

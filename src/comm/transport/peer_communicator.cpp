#include "comm/transport/peer_communicator.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "dkfac/core/error.h"

#include "comm/transport/leaked.h"
#include "comm/transport/peer_task.h"

namespace dkfac::comm {
namespace {

/// Wire format of color, key and the least unused group id of a rank.
using Choice = std::array<std::int32_t, 3>;

/// Buffers of the exchange, to which the network may still write after a failure.
struct Choices {
  Choice mine{};
  std::vector<Choice> all;
};

/// Returns the ranks of one color, ordered by key and rank; none for a negative color.
std::vector<int> members_of(const std::vector<Choice>& choices, int color) {
  std::vector<std::tuple<int, int>> sorted;
  for (std::size_t r = 0; r < choices.size(); ++r)
    if (color >= 0 && choices[r][0] == color)
      sorted.emplace_back(choices[r][1], static_cast<int>(r));
  std::sort(sorted.begin(), sorted.end());
  std::vector<int> members;
  for (const auto& [key, rank] : sorted) members.push_back(rank);
  return members;
}

}  // namespace

PeerCommunicator::PeerCommunicator(std::string_view backend, std::shared_ptr<PeerGroup> group,
                                   Options options)
    : HostCommunicator(group->rank(), group->size(), options),
      backend_(backend),
      group_(std::move(group)) {}

PeerCommunicator::~PeerCommunicator() { group_->leave(sequence()); }

std::unique_ptr<HostTask> PeerCommunicator::make_task(HostCall call) {
  return std::make_unique<PeerTask>(group_, options(), std::move(call));
}

std::shared_ptr<Communicator> PeerCommunicator::do_split(int color, int key, CallInfo info) {
  throw_if_failed();
  const auto choices = std::make_shared<Choices>();
  choices->mine = {color, key, group_->next_id()};
  choices->all.resize(static_cast<std::size_t>(size()));
  HostCall call;
  call.kind = HostCall::Kind::split;
  call.info = std::move(info);
  call.dtype = DType::i32;
  call.in = reinterpret_cast<const std::byte*>(choices->mine.data());
  call.out = reinterpret_cast<std::byte*>(choices->all.data());
  constexpr auto kNumbers = static_cast<std::int64_t>(std::tuple_size_v<Choice>);
  for (std::int64_t r = 0; r <= size(); ++r) call.offsets.push_back(kNumbers * r);
  try {
    run(make_task(std::move(call)));
    std::int32_t id = 0;
    for (const Choice& choice : choices->all) id = std::max(id, choice[2]);
    group_->next_id() = id + 1;
    auto part = group_->subgroup(members_of(choices->all, color), id, options());
    if (part == nullptr) return nullptr;
    return std::make_shared<PeerCommunicator>(backend_, std::move(part), options());
  } catch (const std::exception& error) {
    leak_until_exit(choices);
    group_->fail(error.what());
    throw;
  }
}

void PeerCommunicator::do_abort(std::string_view reason) noexcept {
  group_->fail(
      detail::concat("[abort] rank ", group_->job_rank(rank()), " aborted the group: ", reason));
}

std::shared_ptr<Communicator> make_peers(std::string_view backend, std::shared_ptr<PeerGroup> group,
                                         const Options& options) {
  auto communicator = std::make_shared<PeerCommunicator>(backend, std::move(group), options);
  HostCall call;
  call.kind = HostCall::Kind::barrier;
  call.info.op = detail::concat("make_", backend, "(piece_bytes ", options.piece_bytes, ", check ",
                                options.check == Check::full ? "full" : "hash", ")");
  communicator->run(communicator->make_task(std::move(call)));
  return communicator;
}

}  // namespace dkfac::comm

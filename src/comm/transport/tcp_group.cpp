#include "comm/transport/tcp_group.h"

#include <algorithm>
#include <array>
#include <utility>

#include "dkfac/core/error.h"

#include "comm/call_info.h"
#include "comm/transport/open_files.h"
#include "comm/transport/tcp_transfers.h"

namespace dkfac::comm {
namespace {

constexpr int kLastWordsMs = 300;  ///< Time for the reason of a closed connection to arrive.
constexpr int kLinkSockets = 2;    ///< Of a Link.

Deadline started(double seconds) {
  Deadline deadline(seconds);
  deadline.start();
  return deadline;
}

}  // namespace

std::shared_ptr<TcpGroup> TcpGroup::world(const Member& self, const std::string& host,
                                          std::uint16_t port, const Options& options) {
  const std::shared_ptr<TcpGroup> group(new TcpGroup());
  group->make_whole(self.rank, self.size);
  if (self.rank == 0) reserve_files(self.size - 1);  // All ranks meet there.
  if (self.size > 1)
    group->node_ = std::make_shared<Node>(self, host, port, started(options.timeout_s));
  group->connect(0, options);
  return group;
}

std::shared_ptr<TcpGroup> TcpGroup::over(int rank, std::vector<Link> links) {
  const std::shared_ptr<TcpGroup> group(new TcpGroup());
  group->make_whole(rank, static_cast<int>(links.size()));
  group->peers_.resize(links.size());
  group->links_ = std::move(links);
  return group;
}

std::shared_ptr<PeerGroup> TcpGroup::subgroup(std::span<const int> members, int id,
                                              const Options& options) {
  if (members.empty()) return nullptr;
  const std::shared_ptr<TcpGroup> group(new TcpGroup());
  group->make_part(*this, members);
  group->node_ = node_;
  group->connect(id, options);
  return group;
}

void TcpGroup::connect(int id, const Options& options) {
  peers_.resize(members_.size());
  links_.resize(members_.size());
  id_ = static_cast<std::uint32_t>(id);
  timeout_s_ = options.timeout_s;
  if (size_ == 1) return;
  try {
    node_->connect(missing(partners(options.check)), id_, started(timeout_s_), [this] {
      if (parent_ != nullptr) parent_->throw_if_failed();
    });
  } catch (const CommError& error) {
    fail(error.what());  // Who is connected learns why this rank ends.
    throw;
  }
}

std::vector<int> TcpGroup::partners(Check check) {
  std::vector<int> peers;
  if (size_ <= kMostInRankOrder || check == Check::full) {
    for (int peer = 0; peer < size_; ++peer) peers.push_back(peer);
  } else {
    for (const TreeStep& step : tree())
      for (const auto* messages : {&step.sent, &step.received})
        for (const TreeMessage& message : *messages) peers.push_back(message.peer);
  }
  return peers;
}

std::vector<Wanted> TcpGroup::missing(std::vector<int> peers) {
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  std::vector<Wanted> wanted;
  for (const int peer : peers)
    if (peer != rank_ && !data(peer).open())
      wanted.push_back({job_rank(peer), &links_[static_cast<std::size_t>(peer)]});
  if (!wanted.empty()) reserve_files(kLinkSockets * static_cast<int>(wanted.size()));
  return wanted;
}

std::vector<Wanted> TcpGroup::reach(std::vector<Wanted> wanted) {
  return node_->reach(std::move(wanted), id_, 0, started(timeout_s_),
                      [this] { throw_if_failed(); });
}

std::unique_ptr<Transfers> TcpGroup::make_transfers(Channel channel, const CallInfo& info,
                                                    int phase) {
  // One connection keeps the order of calls and phases, so both channels may share it. The check
  // channel must be readable by ranks whose calls differ, so it has no hash.
  const std::uint64_t call = channel == Channel::checks ? 0 : digest_of(info).hash;
  return std::make_unique<TcpTransfers>(*this,
                                        hash_number(call, static_cast<std::uint64_t>(phase)));
}

void TcpGroup::send_notice() noexcept {
  notify_all(Notice::abort, failure_.data(), std::min(failure_.size(), Notice::kMost));
}

void TcpGroup::leave(std::uint64_t last) noexcept {
  // After a failure forward its reason, so that peers do not report this rank as the cause.
  const std::string& reason = failure();
  if (reason.empty())
    notify_all(Notice::farewell, &last, sizeof last);
  else
    notify_all(Notice::abort, reason.data(), std::min(reason.size(), Notice::kMost));
}

/// Sends a notice to all peers without waiting: the control connection has room for it.
void TcpGroup::notify_all(Notice::Kind kind, const void* data, std::size_t bytes) noexcept {
  const Notice::Head head{kind, static_cast<std::uint32_t>(bytes)};
  for (const Link& link : links_)
    if (link.control.open()) (void)send_some(link.control, &head, sizeof head, data, bytes);
}

void TcpGroup::listen(int wait_ms) {
  if (size_ == 1) return;
  entries_.clear();
  for (std::size_t p = 0; p < links_.size(); ++p)
    entries_.push_back({peers_[p].gone ? -1 : links_[p].control.fd(), POLLIN, 0});
  if (poll(entries_.data(), entries_.size(), wait_ms) <= 0) return;
  for (std::size_t p = 0; p < entries_.size(); ++p)
    if (entries_[p].revents != 0) read_notices(static_cast<int>(p));
}

void TcpGroup::read_notices(int index) {
  Peer& peer = peers_[static_cast<std::size_t>(index)];
  std::array<std::byte, 4096> chunk;
  for (;;) {
    const IoResult moved =
        receive_some(links_[static_cast<std::size_t>(index)].control, chunk.data(), chunk.size());
    peer.received.insert(peer.received.end(), chunk.begin(),
                         chunk.begin() + static_cast<std::ptrdiff_t>(moved.bytes));
    peer.gone = moved.lost;
    if (moved.bytes == 0) break;
  }
  apply_notices(index);
  if (peer.gone && !peer.left && !failed())
    fail(detail::concat(
        "[tcp] rank ", job_rank(index),
        " closed its connections without leaving the group, so its process has ended; "
        "look there"));
}

void TcpGroup::apply_notices(int index) {
  Peer& peer = peers_[static_cast<std::size_t>(index)];
  Notice notice;
  for (Notice::Found found = take_notice(peer.received, notice); found != Notice::Found::none;
       found = take_notice(peer.received, notice)) {
    if (found == Notice::Found::strange) {
      peer.gone = true;
      fail(detail::concat("[tcp] rank ", job_rank(index),
                          " sent what no rank of dkfac sends; does it run the same version?"));
      return;
    }
    peer.left = true;
    if (notice.kind == Notice::farewell)
      peer.last = notice.last;
    else
      fail(notice.reason);  // Tells the peers of this rank: they need not be that one's.
  }
}

void TcpGroup::throw_lost(int index) {
  const Peer& peer = peers_[static_cast<std::size_t>(index)];
  const Deadline deadline = started(kLastWordsMs / 1000.0);
  while (!peer.left && !peer.gone && failure_.empty() && !deadline.passed()) listen(10);
  throw_if_failed();
  if (peer.left)
    throw CommError(detail::concat("[tcp] rank ", job_rank(index), " left the group after ",
                                   peer.last, " calls; every rank must issue the same"));
  throw CommError(detail::concat("[tcp] the connection to rank ", job_rank(index),
                                 " broke; is its machine running?"));
}

}  // namespace dkfac::comm

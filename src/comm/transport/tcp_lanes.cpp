#include "comm/transport/tcp_lanes.h"

#include <algorithm>

#include "dkfac/core/error.h"

#include "comm/transport/tcp_group.h"

namespace dkfac::comm {
namespace {

constexpr std::int64_t kMostAtOnce = std::int64_t{1} << 20;  ///< Keeps advance() short.

/// Bytes that the allowed pieces hold.
std::int64_t allowed_bytes(const Lane& lane) {
  return lane.allowed >= lane.pieces() ? lane.bytes : lane.allowed * lane.piece;
}

}  // namespace

bool TcpLanes::advance() {
  if (complete()) return true;
  progress_.resize(lanes_.size());
  entries_.assign(lanes_.size(), pollfd{-1, 0, 0});
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const Lane& lane = lanes_[i];
    const bool may_move = lane.allowed > 0 && (progress_[i].head_bytes < sizeof(Head) ||
                                               progress_[i].bytes < allowed_bytes(lane));
    if (lane.complete() || !may_move) continue;
    const bool sends = lane.way == Lane::Way::send;
    entries_[i] = {group_.data(lane.peer).fd(), static_cast<short>(sends ? POLLOUT : POLLIN), 0};
  }
  if (poll(entries_.data(), entries_.size(), 0) <= 0) return false;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (entries_[i].revents == 0) continue;
    if (lanes_[i].way == Lane::Way::send)
      push(lanes_[i], progress_[i]);
    else
      pull(lanes_[i], progress_[i]);
    count_pieces(lanes_[i], progress_[i]);
  }
  return complete();
}

void TcpLanes::push(Lane& lane, Progress& progress) {
  progress.head = {call_, lane.bytes};
  const auto* head = reinterpret_cast<const std::byte*>(&progress.head);
  const std::int64_t most = std::min(allowed_bytes(lane) - progress.bytes, kMostAtOnce);
  const std::size_t head_left = sizeof(Head) - progress.head_bytes;
  const Moved moved = send_some(group_.data(lane.peer), head + progress.head_bytes, head_left,
                                lane.memory + progress.bytes, static_cast<std::size_t>(most));
  if (moved.lost) group_.throw_lost(lane.peer);
  const std::size_t of_head = std::min(moved.bytes, head_left);
  progress.head_bytes += of_head;
  progress.bytes += static_cast<std::int64_t>(moved.bytes - of_head);
}

void TcpLanes::pull(Lane& lane, Progress& progress) {
  if (progress.head_bytes < sizeof(Head)) {
    auto* head = reinterpret_cast<std::byte*>(&progress.head);
    const Moved moved = receive_some(group_.data(lane.peer), head + progress.head_bytes,
                                     sizeof(Head) - progress.head_bytes);
    if (moved.lost) group_.throw_lost(lane.peer);
    progress.head_bytes += moved.bytes;
    if (progress.head_bytes < sizeof(Head)) return;
    check(lane, progress.head);
  }
  const std::int64_t end = std::min(allowed_bytes(lane), progress.bytes + kMostAtOnce);
  while (progress.bytes < end) {
    const std::int64_t piece = progress.bytes / lane.piece, inside = progress.bytes % lane.piece;
    // Whole memory is contiguous over pieces; of a ring, one piece at a time is.
    const std::int64_t room =
        lane.kind == Lane::Memory::whole ? end - progress.bytes : lane.bytes_of(piece) - inside;
    const Moved moved = receive_some(group_.data(lane.peer), lane.memory_of(piece) + inside,
                                     static_cast<std::size_t>(room));
    if (moved.lost) group_.throw_lost(lane.peer);
    if (moved.bytes == 0) return;
    progress.bytes += static_cast<std::int64_t>(moved.bytes);
  }
}

void TcpLanes::check(const Lane& lane, const Head& head) {
  if (head.bytes != lane.bytes)
    throw CommError(detail::concat("[tcp] rank ", lane.peer, " sent a message of ", head.bytes,
                                   " bytes where ", lane.bytes,
                                   " were expected: the ranks' collectives differ; Check::full "
                                   "names them"));
  if (head.call != call_)
    throw CommError(detail::concat("[tcp] rank ", lane.peer,
                                   " is at another collective, with other arguments or another "
                                   "name; Check::full names it"));
}

void TcpLanes::count_pieces(Lane& lane, const Progress& progress) {
  if (progress.head_bytes < sizeof(Head)) return;
  lane.done = progress.bytes == lane.bytes ? lane.pieces() : progress.bytes / lane.piece;
}

}  // namespace dkfac::comm

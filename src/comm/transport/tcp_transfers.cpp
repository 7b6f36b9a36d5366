#include "comm/transport/tcp_transfers.h"

#include <algorithm>

#include "dkfac/core/error.h"

#include "comm/transport/tcp_group.h"
#include "core/shared/crc32c.h"

namespace dkfac::comm {
namespace {

constexpr std::int64_t kMostAtOnce = std::int64_t{1} << 20;  ///< Bounds the time of advance().

/// Bytes of the allowed pieces.
std::int64_t allowed_bytes(const Transfer& transfer) {
  return transfer.allowed >= transfer.pieces() ? transfer.bytes : transfer.allowed * transfer.piece;
}

std::uint32_t sum_of(const void* bytes, std::int64_t count, std::uint32_t before) {
  return crc32c({static_cast<const std::byte*>(bytes), static_cast<std::size_t>(count)}, before);
}

}  // namespace

bool TcpTransfers::advance() {
  if (complete()) return true;
  connect();
  progress_.resize(transfers_.size());
  entries_.assign(transfers_.size(), pollfd{-1, 0, 0});
  for (std::size_t i = 0; i < transfers_.size(); ++i) {
    const Transfer& transfer = transfers_[i];
    const bool may_move = transfer.allowed > 0 && (progress_[i].head_bytes < sizeof(Head) ||
                                                   progress_[i].bytes < allowed_bytes(transfer) ||
                                                   progress_[i].bytes == transfer.bytes);
    if (transfer.complete() || !may_move) continue;
    const bool sends = transfer.direction == Transfer::Direction::send;
    entries_[i] = {group_.data(transfer.peer).fd(), static_cast<short>(sends ? POLLOUT : POLLIN),
                   0};
  }
  if (poll(entries_.data(), entries_.size(), 0) <= 0) return false;
  for (std::size_t i = 0; i < transfers_.size(); ++i) {
    if (entries_[i].revents == 0) continue;
    if (transfers_[i].direction == Transfer::Direction::send)
      push(transfers_[i], progress_[i]);
    else
      pull(transfers_[i], progress_[i]);
    count_pieces(transfers_[i], progress_[i]);
  }
  return complete();
}

void TcpTransfers::connect() {
  if (!asked_) {
    std::vector<int> peers;
    for (const Transfer& transfer : transfers_)
      if (!transfer.complete() && !group_.data(transfer.peer).open())
        peers.push_back(transfer.peer);
    if (!peers.empty()) wanted_ = group_.missing(std::move(peers));
    asked_ = true;
  }
  if (!wanted_.empty()) wanted_ = group_.reach(std::move(wanted_));
}

void TcpTransfers::push(Transfer& transfer, Progress& progress) {
  progress.head = {call_, transfer.bytes};
  const auto* head = reinterpret_cast<const std::byte*>(&progress.head);
  const std::int64_t most = std::min(allowed_bytes(transfer) - progress.bytes, kMostAtOnce);
  const std::int64_t end = progress.bytes + most;
  if (progress.head_bytes == 0) progress.sum = sum_of(head, sizeof(Head), 0);
  if (progress.summed < end) {
    progress.sum = sum_of(transfer.memory + progress.summed, end - progress.summed, progress.sum);
    progress.summed = end;
  }
  const std::size_t head_left = sizeof(Head) - progress.head_bytes,
                    tail_left =
                        end == transfer.bytes ? sizeof progress.sum - progress.tail_bytes : 0;
  const auto* tail = reinterpret_cast<const std::byte*>(&progress.sum);
  const IoResult moved =
      send_some(group_.data(transfer.peer), head + progress.head_bytes, head_left,
                transfer.memory + progress.bytes, static_cast<std::size_t>(most),
                tail + progress.tail_bytes, tail_left);
  if (moved.lost) group_.throw_lost(transfer.peer);
  const std::size_t of_head = std::min(moved.bytes, head_left),
                    of_data = std::min(moved.bytes - of_head, static_cast<std::size_t>(most));
  progress.head_bytes += of_head;
  progress.bytes += static_cast<std::int64_t>(of_data);
  progress.tail_bytes += moved.bytes - of_head - of_data;
}

void TcpTransfers::pull(Transfer& transfer, Progress& progress) {
  if (progress.head_bytes < sizeof(Head)) {
    auto* head = reinterpret_cast<std::byte*>(&progress.head);
    const IoResult moved = receive_some(group_.data(transfer.peer), head + progress.head_bytes,
                                        sizeof(Head) - progress.head_bytes);
    if (moved.lost) group_.throw_lost(transfer.peer);
    progress.head_bytes += moved.bytes;
    if (progress.head_bytes < sizeof(Head)) return;
    check(transfer, progress.head);
    progress.sum = sum_of(head, sizeof(Head), 0);
  }
  pull_data(transfer, progress);
  if (progress.bytes == transfer.bytes) pull_tail(transfer, progress);
}

void TcpTransfers::pull_data(Transfer& transfer, Progress& progress) {
  const std::int64_t end = std::min(allowed_bytes(transfer), progress.bytes + kMostAtOnce);
  while (progress.bytes < end) {
    const std::int64_t piece = progress.bytes / transfer.piece,
                       inside = progress.bytes % transfer.piece;
    // `whole` memory is contiguous over pieces; in a ring only single pieces are.
    const std::int64_t room = transfer.kind == Transfer::Memory::whole
                                  ? end - progress.bytes
                                  : transfer.bytes_of(piece) - inside;
    std::byte* memory = transfer.memory_of(piece) + inside;
    const IoResult moved =
        receive_some(group_.data(transfer.peer), memory, static_cast<std::size_t>(room));
    if (moved.lost) group_.throw_lost(transfer.peer);
    if (moved.bytes == 0) return;
    progress.sum = sum_of(memory, static_cast<std::int64_t>(moved.bytes), progress.sum);
    progress.bytes += static_cast<std::int64_t>(moved.bytes);
  }
}

void TcpTransfers::pull_tail(const Transfer& transfer, Progress& progress) {
  auto* tail = reinterpret_cast<std::byte*>(&progress.tail);
  const IoResult moved = receive_some(group_.data(transfer.peer), tail + progress.tail_bytes,
                                      sizeof progress.tail - progress.tail_bytes);
  if (moved.lost) group_.throw_lost(transfer.peer);
  progress.tail_bytes += moved.bytes;
  if (progress.tail_bytes == sizeof progress.tail && progress.tail != progress.sum)
    throw CommError(detail::concat("[tcp] what rank ", group_.job_rank(transfer.peer),
                                   " sent has changed on its way (CRC-32C) and is not used; check "
                                   "the network and the memory of both machines"));
}

void TcpTransfers::check(const Transfer& transfer, const Head& head) {
  const int rank = group_.job_rank(transfer.peer);
  if (head.bytes != transfer.bytes)
    throw CommError(detail::concat("[tcp] rank ", rank, " sent a message of ", head.bytes,
                                   " bytes where ", transfer.bytes,
                                   " were expected: the ranks' collectives differ, or bytes were "
                                   "lost on the way; Check::full names the collectives"));
  if (head.call != call_)
    throw CommError(detail::concat("[tcp] rank ", rank,
                                   " is at another collective, with other arguments or another "
                                   "name, or bytes were lost on the way; Check::full names the "
                                   "collective"));
}

void TcpTransfers::count_pieces(Transfer& transfer, const Progress& progress) {
  if (progress.head_bytes < sizeof(Head)) return;
  // The last piece is complete with the checksum.
  transfer.done = progress.complete(transfer)
                      ? transfer.pieces()
                      : std::min(progress.bytes / transfer.piece, transfer.pieces() - 1);
}

}  // namespace dkfac::comm

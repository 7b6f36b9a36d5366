#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "comm/transport/host_communicator.h"
#include "comm/transport/transfers.h"

/// Transfers of the phases of a collective.
namespace dkfac::comm {

[[nodiscard]] inline std::int64_t byte_count(const HostCall& call, std::int64_t elements) {
  return elements * static_cast<std::int64_t>(call.element());
}

[[nodiscard]] inline std::int64_t piece_of(std::int64_t piece_bytes) {
  // A network may count in 32-bit integers.
  return std::min<std::int64_t>(whole_elements(piece_bytes), std::int64_t{1} << 30);
}

[[nodiscard]] inline Transfer send_transfer(int peer, const std::byte* memory, std::int64_t bytes,
                                            std::int64_t piece) {
  Transfer transfer;
  transfer.direction = Transfer::Direction::send;
  transfer.peer = peer;
  transfer.memory = const_cast<std::byte*>(memory);  // NOLINT: never written through when sending
  transfer.bytes = bytes;
  transfer.piece = piece;
  transfer.allowed = std::numeric_limits<std::int64_t>::max();
  return transfer;
}

[[nodiscard]] inline Transfer receive_transfer(int peer, std::byte* memory, std::int64_t bytes,
                                               std::int64_t piece) {
  Transfer transfer = send_transfer(peer, memory, bytes, piece);
  transfer.direction = Transfer::Direction::receive;
  return transfer;
}

}  // namespace dkfac::comm

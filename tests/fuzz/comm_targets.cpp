#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "comm/launch/launch_slurm.h"
#include "comm/transport/handshake.h"
#include "comm/transport/notice.h"
#include "comm/transport/tcp_group.h"
#include "comm/transport/tcp_transfers.h"
#include "fuzz/attempt.h"
#include "fuzz/connection.h"

namespace dkfac::fuzz {
namespace {

constexpr const char* kSecret = "0123456789abcdef";

/// CRC-32C bit by bit, as RFC 3720 defines it.
std::uint32_t checksum(Bytes bytes) {
  std::uint32_t sum = ~0U;
  for (const std::uint8_t byte : bytes) {
    sum ^= byte;
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1U) ^ ((sum & 1U) != 0 ? 0x82F63B78U : 0U);
  }
  return ~sum;
}

}  // namespace

void handshake(Bytes bytes) {
  for (const char* secret : {"", kSecret}) {
    if (*secret != '\0' && !comm::has_crypto()) continue;
    const comm::Member self{1, 4, secret};
    comm::Answer answer;
    Bytes left = bytes;
    while (!left.empty() && !comm::room(answer).empty()) {
      const std::size_t count = std::min(left.size(), comm::room(answer).size());
      std::memcpy(comm::room(answer).data(), left.data(), count);
      left = left.subspan(count);
      (void)comm::take(answer, count, self);
    }
    // No bytes that are made without the secret are a proof.
    if (*secret != '\0' && answer.state == comm::Answer::State::accepted) __builtin_trap();
  }
}

void replies(Bytes bytes) {
  if (!comm::has_crypto()) return;
  const Connection connection(bytes);
  comm::Deadline deadline(1);
  deadline.start();
  attempt([&] {
    comm::introduce(connection.near(), {}, {1, 4, kSecret}, deadline, "rank 0", [] {});
    __builtin_trap();  // The other end has proved a secret that it does not have.
  });
}

void frames(Bytes bytes) {
  // A message of 48 bytes of which two pieces are in memory at once, as in a reduction.
  constexpr std::size_t kHead = 16, kData = 48, kPiece = 20, kSum = 4;
  constexpr std::uint64_t kCall = 7;
  Connection data(bytes), control({});
  std::vector<comm::Link> links(2);
  links[1] = {data.take_near(), control.take_near()};
  const auto group = comm::TcpGroup::over(0, std::move(links));
  comm::TcpTransfers transfers(*group, kCall);
  std::array<std::byte, comm::kPiecesInFlight * kPiece> ring{};
  std::vector<std::uint8_t> received;
  (void)transfers.add({.direction = comm::Transfer::Direction::receive,
                       .kind = comm::Transfer::Memory::ring,
                       .peer = 1,
                       .memory = ring.data(),
                       .bytes = kData,
                       .piece = kPiece,
                       .allowed = comm::kPiecesInFlight});
  attempt([&] {
    std::int64_t taken = 0;
    for (bool complete = false; !complete;) {
      complete = transfers.advance();
      comm::Transfer& transfer = transfers[0];
      for (; taken < transfer.done; ++taken) {
        const auto* piece = reinterpret_cast<const std::uint8_t*>(transfer.memory_of(taken));
        received.insert(received.end(), piece, piece + transfer.bytes_of(taken));
        ++transfer.allowed;
      }
    }
    std::vector<std::uint8_t> sent(kHead);
    std::memcpy(sent.data(), &kCall, sizeof kCall);
    std::memcpy(sent.data() + sizeof kCall, &kData, sizeof kData);
    sent.insert(sent.end(), received.begin(), received.end());
    const std::uint32_t sum = checksum(sent);
    sent.resize(sent.size() + kSum);
    std::memcpy(sent.data() + kHead + kData, &sum, kSum);
    if (bytes.size() < sent.size() || !std::equal(sent.begin(), sent.end(), bytes.begin()))
      __builtin_trap();  // It has taken a message that no rank has sent.
  });
}

void node_list(Bytes bytes) {
  const std::string host = comm::first_host(text_of(bytes));
  if (host.size() > bytes.size()) __builtin_trap();
}

void notices(Bytes bytes) {
  const std::span<const std::byte> sent = std::as_bytes(bytes);
  std::vector<std::byte> received(sent.begin(), sent.end());
  comm::Notice notice;
  while (comm::take_notice(received, notice) == comm::Notice::Found::one) {
    if (notice.reason.size() > comm::Notice::kMost) __builtin_trap();
  }
}

}  // namespace dkfac::fuzz

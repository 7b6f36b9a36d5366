#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dkfac/core/export.h"

namespace dkfac::comm {

/// Pieces of a transfer in flight at once: two, so that the next one is ready while one is
/// completed.
inline constexpr std::int64_t kPiecesInFlight = 2;

/// Transfer of bytes to or from one peer, split into pieces that start and complete in order.
struct Transfer {
  enum class Direction : std::uint8_t { send, receive };
  enum class Memory : std::uint8_t {
    whole,  ///< `memory` holds all the bytes.
    ring    ///< `memory` holds kPiecesInFlight pieces; piece k is at k modulo that.
  };
  Direction direction = Direction::send;
  Memory kind = Memory::whole;
  bool announced = false;  ///< Sends a message even without bytes; equal on both sides.
  int peer = 0;
  std::byte* memory = nullptr;  ///< Only read when sending.
  std::int64_t bytes = 0;
  std::int64_t piece = 0;    ///< Bytes of every piece but the last; the same on both sides.
  std::int64_t allowed = 0;  ///< Number of pieces that may start; raised by the owner.
  std::int64_t started = 0, done = 0;

  [[nodiscard]] std::int64_t pieces() const {
    return bytes == 0 && announced ? 1 : (bytes + piece - 1) / piece;
  }
  [[nodiscard]] std::int64_t bytes_of(std::int64_t k) const {
    return k + 1 < pieces() ? piece : bytes - k * piece;
  }
  [[nodiscard]] std::byte* memory_of(std::int64_t k) const {
    return memory + (kind == Memory::ring ? k % kPiecesInFlight : k) * piece;
  }
  [[nodiscard]] bool complete() const { return done == pieces(); }
};

/// Transfers of one phase of a collective over a network, at most one in each direction between two
/// ranks.
class Transfers {
 public:
  virtual ~Transfers() = default;
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  /// Adds a transfer and returns its index. All are added before the first advance().
  std::size_t add(const Transfer& transfer) {
    transfers_.push_back(transfer);
    return transfers_.size() - 1;
  }
  [[nodiscard]] Transfer& operator[](std::size_t i) { return transfers_[i]; }
  [[nodiscard]] std::size_t size() const { return transfers_.size(); }

  /// Starts allowed pieces and collects completed ones; true when every transfer is complete. Never
  /// blocks. Throws CommError if the network fails or a message is unexpected.
  virtual bool advance() = 0;
  [[nodiscard]] DKFAC_API bool complete() const;  ///< Exported for libdkfac_mpi.so.
  /// Returns peers that have sent nothing yet or, if there are none, peers of incomplete transfers.
  [[nodiscard]] std::vector<int> missing() const;

 protected:
  Transfers() = default;
  std::vector<Transfer> transfers_;
};

}  // namespace dkfac::comm

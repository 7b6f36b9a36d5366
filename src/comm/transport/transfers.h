#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dkfac::comm {

/// Pieces of a transfer that may be under way at once: two, so that the next one is ready while one
/// is being finished.
inline constexpr std::int64_t kPiecesInFlight = 2;

/// A run of bytes to or from one peer, cut into pieces that start and complete in order.
struct Transfer {
  enum class Direction : std::uint8_t { send, receive };
  enum class Memory : std::uint8_t {
    whole,  ///< `memory` holds all the bytes.
    ring    ///< `memory` holds kPiecesInFlight pieces; piece k lies at k modulo that.
  };
  Direction direction = Direction::send;
  Memory kind = Memory::whole;
  bool announced = false;  ///< A message is sent even if there are no bytes. As the other side has.
  int peer = 0;
  std::byte* memory = nullptr;  ///< Only read when sending.
  std::int64_t bytes = 0;
  std::int64_t piece = 0;    ///< Bytes of every piece but the last; the same on both sides.
  std::int64_t allowed = 0;  ///< Only this many pieces may start; the owner raises it.
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

/// The transfers of one phase of a collective, over some network. At most one transfer in each
/// direction between two ranks.
class Transfers {
 public:
  virtual ~Transfers() = default;
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  /// Index of the transfer. All transfers are added before the first advance().
  std::size_t add(const Transfer& transfer) {
    transfers_.push_back(transfer);
    return transfers_.size() - 1;
  }
  [[nodiscard]] Transfer& operator[](std::size_t i) { return transfers_[i]; }
  [[nodiscard]] std::size_t size() const { return transfers_.size(); }

  /// Starts what may start and collects what is done; true when every transfer is complete. Never
  /// blocks. Throws CommError when the network does, or when a message is not what was expected.
  virtual bool advance() = 0;
  /// Memory of the transfers may still be read or written if they are destroyed now.
  [[nodiscard]] virtual bool busy() const = 0;

  [[nodiscard]] bool complete() const;
  /// Peers from which nothing came yet, or if there are none, peers of incomplete transfers.
  [[nodiscard]] std::vector<int> missing() const;

 protected:
  Transfers() = default;
  std::vector<Transfer> transfers_;
};

}  // namespace dkfac::comm

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <mpi.h>

namespace dkfac::comm {

/// Pieces of a lane that may be under way at once: two, so that the next one is ready while one is
/// being finished.
inline constexpr std::int64_t kPiecesInFlight = 2;

/// A run of bytes to or from one peer, cut into pieces that start and complete in order.
struct MpiLane {
  enum class Way : std::uint8_t { send, receive };
  enum class Memory : std::uint8_t {
    whole,  ///< `memory` holds all the bytes.
    ring    ///< `memory` holds kPiecesInFlight pieces; piece k lies at k modulo that.
  };
  Way way = Way::send;
  Memory kind = Memory::whole;
  int peer = 0;
  std::byte* memory = nullptr;  ///< Only read when sending.
  std::int64_t bytes = 0;
  std::int64_t piece = 0;    ///< Bytes of every piece but the last; the same on both sides.
  std::int64_t allowed = 0;  ///< Only this many pieces may start; the owner raises it.
  std::int64_t started = 0, done = 0;
  std::array<bool, kPiecesInFlight> arrived{};  ///< By slot: complete, ahead of `done`.

  [[nodiscard]] std::int64_t pieces() const { return (bytes + piece - 1) / piece; }
  [[nodiscard]] std::int64_t bytes_of(std::int64_t k) const {
    return k + 1 < pieces() ? piece : bytes - k * piece;
  }
  [[nodiscard]] std::byte* memory_of(std::int64_t k) const {
    return memory + (kind == Memory::ring ? k % kPiecesInFlight : k) * piece;
  }
  [[nodiscard]] bool complete() const { return done == pieces(); }
};

/// Lanes that share a communicator and a tag, driven by MPI_Testsome. MPI keeps messages of equal
/// tag between two ranks in order, so pieces need no numbers.
class MpiLanes {
 public:
  MpiLanes(MPI_Comm comm, int tag) : comm_(comm), tag_(tag) {}
  /// Requests that are under way are cancelled or given up; their memory must then outlive MPI.
  ~MpiLanes();
  MpiLanes(const MpiLanes&) = delete;
  MpiLanes& operator=(const MpiLanes&) = delete;

  /// Index of the lane. All lanes are added before the first advance().
  std::size_t add(const MpiLane& lane);
  [[nodiscard]] MpiLane& operator[](std::size_t i) { return lanes_[i]; }
  [[nodiscard]] std::size_t size() const { return lanes_.size(); }

  /// Starts what may start and collects what is done; true when every lane is complete. Never
  /// blocks. Throws CommError when MPI does, or when a message has another size than its piece.
  bool advance();
  [[nodiscard]] bool complete() const;
  [[nodiscard]] bool busy() const;  ///< Requests are under way.
  /// Peers from which nothing came yet, or if there are none, peers of incomplete lanes.
  [[nodiscard]] std::vector<int> missing() const;

 private:
  void start();
  bool collect();
  void finish(std::size_t request, const MPI_Status& status);

  MPI_Comm comm_;
  int tag_;
  std::vector<MpiLane> lanes_;
  std::vector<MPI_Request> requests_;  ///< Lane by lane, kPiecesInFlight slots each.
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace dkfac::comm

#pragma once

#include <cstdint>
#include <poll.h>
#include <vector>

#include "comm/transport/tcp_mesh.h"
#include "comm/transport/transfers.h"

namespace dkfac::comm {

class TcpGroup;

/// Transfers over the TCP connections of a group. A transfer is sent as one message: a header, the
/// data and the checksum of both, since those of TCP and of links miss some errors. Pieces only
/// determine when bytes may be sent and where they are stored.
class TcpTransfers final : public Transfers {
 public:
  /// `call`: hash of the call and phase, the same on ranks that agree.
  TcpTransfers(TcpGroup& group, std::uint64_t call) : group_(group), call_(call) {}
  bool advance() override;

 private:
  struct Head {
    std::uint64_t call = 0;
    std::int64_t bytes = 0;
  };
  struct Progress {
    Head head;
    std::size_t head_bytes = 0;  ///< Transferred bytes of the header.
    std::int64_t bytes = 0;      ///< Transferred bytes of the data.
    std::size_t tail_bytes = 0;  ///< Transferred bytes of the checksum.
    std::int64_t summed = 0;     ///< Bytes of the data that are in `sum`.
    std::uint32_t sum = 0;
    std::uint32_t tail = 0;  ///< The received checksum.
    [[nodiscard]] bool complete(const Transfer& transfer) const {
      return bytes == transfer.bytes && tail_bytes == sizeof tail;
    }
  };

  /// Goes on connecting to peers that this rank has exchanged nothing with yet.
  void connect();
  void push(Transfer& transfer, Progress& progress);
  void pull(Transfer& transfer, Progress& progress);
  void pull_data(Transfer& transfer, Progress& progress);
  void pull_tail(const Transfer& transfer, Progress& progress);
  void check(const Transfer& transfer, const Head& head);
  static void count_pieces(Transfer& transfer, const Progress& progress);

  TcpGroup& group_;
  std::uint64_t call_;
  std::vector<Progress> progress_;  ///< By transfer.
  std::vector<pollfd> entries_;     ///< By transfer; fd -1 if no bytes may be transferred.
  bool asked_ = false;
  std::vector<Wanted> wanted_;  ///< Missing links.
};

}  // namespace dkfac::comm

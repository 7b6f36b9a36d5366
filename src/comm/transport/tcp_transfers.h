#pragma once

#include <array>
#include <cstdint>
#include <poll.h>
#include <vector>

#include "comm/transport/transfers.h"

namespace dkfac::comm {

class TcpGroup;

/// Transfers over the connections of a group. The bytes of a transfer travel as one message with a
/// head; pieces only say when they may be sent and where they are kept.
class TcpTransfers final : public Transfers {
 public:
  /// `call`: what the call and phase hash to, the same on ranks that agree.
  TcpTransfers(TcpGroup& group, std::uint64_t call) : group_(group), call_(call) {}
  bool advance() override;
  [[nodiscard]] bool busy() const override { return false; }  // the system has its own copy

 private:
  struct Head {
    std::uint64_t call = 0;
    std::int64_t bytes = 0;
  };
  struct Progress {
    Head head;
    std::size_t head_bytes = 0;  ///< Of the head that have moved.
    std::int64_t bytes = 0;      ///< Of the data that have moved.
  };

  void push(Transfer& transfer, Progress& progress);
  void pull(Transfer& transfer, Progress& progress);
  void check(const Transfer& transfer, const Head& head);
  static void count_pieces(Transfer& transfer, const Progress& progress);

  TcpGroup& group_;
  std::uint64_t call_;
  std::vector<Progress> progress_;  ///< By transfer.
  std::vector<pollfd> entries_;     ///< By transfer; fd -1 where nothing may move.
};

}  // namespace dkfac::comm

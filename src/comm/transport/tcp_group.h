#pragma once

#include <cstdint>
#include <memory>
#include <poll.h>
#include <span>
#include <string>
#include <vector>

#include "comm/transport/notice.h"
#include "comm/transport/peer_group.h"
#include "comm/transport/tcp_mesh.h"

namespace dkfac::comm {

/// Peers over TCP, with two connections to each: one for collectives and one for notices, which
/// must not be delayed by unread data. Beyond kMostInRankOrder ranks only the partners along the
/// tree are connected at once, unless Check::full compares all with all; others when a transfer
/// wants them. A notice of failure passes from each rank to all that it is connected to.
class TcpGroup final : public PeerGroup {
 public:
  /// Makes the group of all ranks of the job. Throws CommError if they do not connect in time.
  static std::shared_ptr<TcpGroup> world(const Member& self, const std::string& host,
                                         std::uint16_t port, const Options& options);

  /// Makes the group of `rank` over connections that exist; that to itself is closed.
  static std::shared_ptr<TcpGroup> over(int rank, std::vector<Link> links);

  [[nodiscard]] std::unique_ptr<Transfers> make_transfers(Channel channel, const CallInfo& info,
                                                          int phase) override;
  [[nodiscard]] std::shared_ptr<PeerGroup> subgroup(std::span<const int> members, int id,
                                                    const Options& options) override;
  void leave(std::uint64_t last) noexcept override;
  [[nodiscard]] std::string warning() const override {
    return node_ == nullptr ? std::string() : node_->warning();
  }

  /// The connection for collectives; closed while the link is missing.
  [[nodiscard]] const Socket& data(int peer) const {
    return links_[static_cast<std::size_t>(peer)].data;
  }
  /// The missing links to these peers. Throws Error where too few open files are allowed.
  [[nodiscard]] std::vector<Wanted> missing(std::vector<int> peers);
  /// Goes on making them without waiting for a peer; returns those that are still missing.
  [[nodiscard]] std::vector<Wanted> reach(std::vector<Wanted> wanted);
  /// Throws CommError that states why the connection to `peer` has ended.
  [[noreturn]] void throw_lost(int peer);

 private:
  /// State of a peer from its notice connection.
  struct Peer {
    std::vector<std::byte> received;
    bool left = false;  ///< It has announced its end, after `last` calls.
    bool gone = false;  ///< The connection has ended.
    std::uint64_t last = 0;
  };

  TcpGroup() = default;
  void connect(int id, const Options& options);
  /// Peers with which this rank exchanges messages in most collectives.
  [[nodiscard]] std::vector<int> partners(Check check);
  void look_for_notice() override { listen(0); }
  void send_notice() noexcept override;
  void listen(int wait_ms);
  void read_notices(int peer);
  void apply_notices(int peer);
  void notify_all(Notice::Kind kind, const void* data, std::size_t bytes) noexcept;

  std::shared_ptr<Node> node_;  ///< Null for a group of one.
  std::uint32_t id_ = 0;
  double timeout_s_ = 0;
  std::vector<Link> links_;
  std::vector<Peer> peers_;
  std::vector<pollfd> entries_;  ///< Used by listen(), kept between calls.
};

}  // namespace dkfac::comm

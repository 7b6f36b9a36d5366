#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "comm/transport/handshake.h"
#include "comm/transport/tcp_socket.h"

/// Rendezvous of processes over TCP, and the mesh of connections between them.
namespace dkfac::comm {

/// Listening socket with the connections whose handshake is pending. Connections with an invalid
/// handshake, another secret or none where `self` has one are closed: that a stranger is refused
/// does not end the job. If more than `most` are pending or the process runs out of file
/// descriptors, the oldest pending one is closed.
class Listener {
 public:
  explicit Listener(std::uint16_t port, std::size_t most = usual_most(1), Member self = {})
      : socket_(listen_at(port)), most_(most), self_(std::move(self)) {}
  /// A quarter of the file limit, up to 128, or as many as the ranks of the job where these are
  /// more: each may wait for an answer.
  [[nodiscard]] static std::size_t usual_most(int ranks);
  struct Connection {
    Socket socket;
    Address address{};
    Handshake handshake;
  };
  /// Returns the connections with a complete handshake, after waiting for at most `ms`
  /// milliseconds.
  [[nodiscard]] std::vector<Connection> receive(int ms);
  [[nodiscard]] std::uint16_t port() const { return port_of(socket_); }
  /// "; 2 connections were refused, the last ..."; empty where none was for its secret.
  [[nodiscard]] std::string refused() const;

 private:
  struct PendingConnection {
    Socket socket;
    Address address{};
    Answer answer = {};
  };
  /// Returns true when the handshake is accepted; closes the socket if it cannot be.
  bool read_handshake(PendingConnection& pending);
  void read_handshakes(std::vector<Connection>& connections);

  Socket socket_;
  std::size_t most_;
  Member self_;
  std::vector<PendingConnection> pending_;  ///< In the order of arrival.
  int refused_ = 0;
  std::string last_refused_;
};

/// Listening addresses of all ranks.
struct AddressBook {
  std::uint64_t job = 0;
  bool several_machines = false;  ///< Known to rank 0 alone.
  std::vector<Endpoint> ranks;
};
/// Exchanges the addresses of all ranks: the others connect to rank 0 at host:port, which collects
/// the addresses and sends them to all. `own_port`: port at which this rank listens for the mesh.
/// Throws CommError.
[[nodiscard]] AddressBook rendezvous(const Member& self, const std::string& host,
                                     std::uint16_t port, std::uint16_t own_port,
                                     const Deadline& deadline);

/// Two connections to one peer: data of collectives, and control messages that must not be delayed
/// by it.
struct Link {
  Socket data, control;
};

/// Another world rank, and where the link to it goes.
struct Wanted {
  int rank = 0;
  Link* link = nullptr;
};

/// Node of the TCP mesh for this process: its listener, connections that it is making, and accepted
/// ones that this rank has not wanted yet. The higher of two ranks connects to the lower; a link is
/// made when both want it.
class Node {
 public:
  Node(Member self, const std::string& host, std::uint16_t port, const Deadline& deadline);

  /// Goes on making links of a group and returns those that are still missing. Waits for at most
  /// `ms` milliseconds, and for the system of a rank to which it connects, until the deadline;
  /// check() is called meanwhile and may throw. Throws CommError.
  [[nodiscard]] std::vector<Wanted> reach(std::vector<Wanted> wanted, std::uint32_t group, int ms,
                                          const Deadline& deadline,
                                          const std::function<void()>& check);
  /// Makes the links of a group. Throws CommError at the deadline, naming the missing ranks.
  void connect(std::vector<Wanted> wanted, std::uint32_t group, const Deadline& deadline,
               const std::function<void()>& check);
  /// Of rank 0 where ranks are on several machines and have no secret; else empty.
  [[nodiscard]] std::string warning() const;

 private:
  using Key =
      std::tuple<std::uint32_t, std::uint32_t, Handshake::Purpose>;  ///< Group, rank, purpose.
  /// A connection from this rank whose introduction is pending.
  struct Call {
    std::string peer;  ///< As messages name it.
    Socket socket;
    Introduction introduction;
  };
  [[nodiscard]] Call call(const Key& key, const Deadline& deadline,
                          const std::function<void()>& check);
  [[nodiscard]] bool advance(Call& call) const;
  void accept_pending(int ms);

  Member self_;
  Listener listener_;
  AddressBook book_;
  std::map<Key, Call> calls_;
  std::map<Key, Socket> waiting_;
};

}  // namespace dkfac::comm

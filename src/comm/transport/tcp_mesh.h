#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "comm/transport/tcp_socket.h"

/// Rendezvous of processes over TCP, and the mesh of connections between them.
namespace dkfac::comm {

/// Handshake, the first bytes on every connection: the connecting rank and its purpose.
struct Handshake {
  static constexpr std::uint64_t kMagic = 0x31434b41464b4444ULL;
  enum class Purpose : std::uint32_t { join, data, control };
  std::uint64_t magic = kMagic;
  std::uint64_t job = 0;    ///< Chosen by rank 0, so that jobs cannot mix; 0 when joining.
  std::uint32_t group = 0;  ///< Id of the group that the connection is for.
  std::uint32_t rank = 0;   ///< World rank of the connecting process.
  std::uint32_t size = 0;   ///< World size.
  std::uint32_t port = 0;   ///< Listening port of the connecting process.
  Purpose purpose = Purpose::join;
  std::uint32_t reserved = 0;
};

/// Listening socket with the connections whose handshake is pending. Connections with an invalid
/// handshake are closed. If more than `most` are pending or the process runs out of file
/// descriptors, the oldest pending one is closed.
class Listener {
 public:
  explicit Listener(std::uint16_t port, std::size_t most = usual_most())
      : socket_(listen_at(port)), most_(most) {}
  [[nodiscard]] static std::size_t usual_most();  ///< A quarter of the file limit, up to 128.
  struct Connection {
    Socket socket;
    std::uint32_t address = 0;
    Handshake handshake;
  };
  /// Returns the connections with a complete handshake, after waiting for at most `ms`
  /// milliseconds.
  [[nodiscard]] std::vector<Connection> receive(int ms);
  [[nodiscard]] std::uint16_t port() const { return port_of(socket_); }

 private:
  struct PendingConnection {
    Connection connection;
    std::size_t received = 0;  ///< Received bytes of the handshake.
  };
  /// Returns true when the handshake is complete; closes the socket if it cannot be completed.
  static bool read_handshake(PendingConnection& pending);
  void read_handshakes(std::vector<Connection>& connections);

  Socket socket_;
  std::size_t most_;
  std::vector<PendingConnection> pending_;  ///< In the order of arrival.
};

/// Listening addresses of all ranks.
struct AddressBook {
  std::uint64_t job = 0;
  std::vector<Endpoint> ranks;
};
/// Exchanges the addresses of all ranks: the others connect to rank 0 at host:port, which collects
/// the addresses and sends them to all. `own_port`: port at which this rank listens for the mesh.
/// Throws CommError.
[[nodiscard]] AddressBook rendezvous(int rank, int size, const std::string& host,
                                     std::uint16_t port, std::uint16_t own_port,
                                     const Deadline& deadline);

/// Two connections to one peer: data of collectives, and control messages that must not be delayed
/// by it.
struct Link {
  Socket data, control;
};

/// Node of the TCP mesh for this process: its listener, and accepted connections for groups that
/// this rank has not made yet.
class Node {
 public:
  Node(int rank, int size, const std::string& host, std::uint16_t port, const Deadline& deadline);

  /// Connects the members (world ranks including this one) of a new group pairwise; the link of
  /// this rank to itself stays closed. check() is called periodically and may throw. Throws
  /// CommError at the deadline, naming the missing ranks.
  [[nodiscard]] std::vector<Link> connect(const std::vector<int>& members, std::uint32_t group,
                                          const Deadline& deadline,
                                          const std::function<void()>& check);

 private:
  using Key =
      std::tuple<std::uint32_t, std::uint32_t, Handshake::Purpose>;  ///< Group, rank, purpose.
  void call(int rank, std::uint32_t group, Handshake::Purpose purpose, const Deadline& deadline,
            const std::function<void()>& check, Socket& socket);
  void accept_pending(int ms);

  int rank_;
  Listener listener_;
  AddressBook book_;
  std::map<Key, Socket> waiting_;
};

}  // namespace dkfac::comm

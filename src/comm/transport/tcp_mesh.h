#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "comm/transport/tcp_socket.h"

/// How processes find each other, and the connections between them.
namespace dkfac::comm {

/// The first bytes on every connection: who calls, and what for.
struct Handshake {
  static constexpr std::uint64_t kMagic = 0x31434b41464b4444ULL;
  enum class Purpose : std::uint32_t { join, data, control };
  std::uint64_t magic = kMagic;
  std::uint64_t job = 0;    ///< Chosen by rank 0, so that jobs cannot mix; 0 when joining.
  std::uint32_t group = 0;  ///< Id of the group that the connection is for.
  std::uint32_t rank = 0;   ///< Of the caller in the world.
  std::uint32_t size = 0;   ///< Of the world.
  std::uint32_t port = 0;   ///< Where the caller listens.
  Purpose purpose = Purpose::join;
  std::uint32_t reserved = 0;
};

/// A listening socket and the connections that have not said yet who they are. What does not speak
/// our language is dropped, and of those that say nothing the one that came first whenever there
/// are more than `most`, or no files left to open.
class Listener {
 public:
  explicit Listener(std::uint16_t port, std::size_t most = usual_most())
      : socket_(listen_at(port)), most_(most) {}
  [[nodiscard]] static std::size_t usual_most();  ///< A quarter of the open files, up to 128.
  struct Connection {
    Socket socket;
    std::uint32_t address = 0;
    Handshake handshake;
  };
  /// Those who have introduced themselves by now, after waiting for at most `ms` milliseconds.
  [[nodiscard]] std::vector<Connection> receive(int ms);
  [[nodiscard]] std::uint16_t port() const { return port_of(socket_); }

 private:
  struct PendingConnection {
    Connection connection;
    std::size_t received = 0;  ///< Bytes of the handshake.
  };
  /// True when the handshake is complete; closes the socket of one who will not complete it.
  static bool read_handshake(PendingConnection& pending);
  void read_handshakes(std::vector<Connection>& connections);

  Socket socket_;
  std::size_t most_;
  std::vector<PendingConnection> pending_;  ///< In the order in which they came.
};

/// Where every rank listens.
struct AddressBook {
  std::uint64_t job = 0;
  std::vector<Endpoint> ranks;
};
/// Rank 0 waits at `port` for the others, who find it at host:port, and tells all where all are.
/// `own_port`: where this rank will listen for the mesh. Throws CommError.
[[nodiscard]] AddressBook rendezvous(int rank, int size, const std::string& host,
                                     std::uint16_t port, std::uint16_t own_port,
                                     const Deadline& deadline);

/// Two connections to one peer: collectives, and what must not wait behind them.
struct Link {
  Socket data, control;
};

/// This process among all of the job: its listener, and connections for groups that are not made
/// yet.
class Node {
 public:
  Node(int rank, int size, const std::string& host, std::uint16_t port, const Deadline& deadline);

  /// Connects the members (ranks of the world, this one among them) of a new group pairwise; the
  /// link of this rank itself stays closed. check() is called now and then and may throw. Throws
  /// CommError at the deadline, naming who is missing.
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

#pragma once

#include <arpa/inet.h>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/tcp.h"
#include "dkfac/core/threads.h"

namespace dkfac::comm::testing {

/// Returns a port without a listener, below those that systems give to outgoing connections, one of
/// which could otherwise be given the port before the test listens at it.
inline std::uint16_t free_port() {
  static std::atomic<unsigned> next = 0;
  for (int tries = 0; tries < 1000; ++tries) {
    const unsigned at = 127U * static_cast<unsigned>(getpid()) + next++;
    const auto port = static_cast<std::uint16_t>(10000 + at % 20000);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    const bool is_free = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    close(fd);
    if (is_free) return port;
  }
  return 0;
}

/// Runs body(rank, port) on one thread for each rank; an escaping exception is a test failure.
inline void on_threads(int size, const std::function<void(int, std::uint16_t)>& body) {
  const std::uint16_t port = free_port();
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&body, r, port] {
      try {
        set_threads(1);
        body(r, port);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << r << ": " << error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
}

/// Runs body(comm) on one thread for each rank, each with its own sockets. No body starts before
/// all ranks are connected: an early failure would make a slow rank's make_tcp() fail instead.
inline void run_tcp(int size, const Options& options,
                    const std::function<void(std::shared_ptr<Communicator>)>& body) {
  std::barrier connected(size);
  on_threads(size, [&](int rank, std::uint16_t port) {
    std::shared_ptr<Communicator> comm;
    try {
      comm = make_tcp(rank, size, "127.0.0.1", port, options);
    } catch (...) {
      connected.arrive_and_drop();
      throw;
    }
    connected.arrive_and_wait();
    body(std::move(comm));
  });
}

}  // namespace dkfac::comm::testing

#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <thread>
#include <vector>

namespace dkfac::testing {

/// While alive, each registered thread receives a signal every millisecond. The handler is like
/// those of most programs and runs on the interrupted stack. It counts signals, and those that
/// found the stack pointer outside of the thread's stack. One object at a time.
class SignalStorm {
 public:
  SignalStorm() {
    taken() = off_stack() = 0;
    struct sigaction action {};
    action.sa_handler = handle;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGALRM, &action, &before_);
    sender_ = std::thread([this] {
      while (!over_) {
        {
          const std::lock_guard lock(mutex_);
          for (const pthread_t target : targets_) pthread_kill(target, SIGALRM);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  ~SignalStorm() {
    over_ = true;
    sender_.join();
    // To ignore a signal discards what a thread has not taken yet, which would end the process.
    std::signal(SIGALRM, SIG_IGN);
    sigaction(SIGALRM, &before_, nullptr);
  }
  SignalStorm(const SignalStorm&) = delete;
  SignalStorm& operator=(const SignalStorm&) = delete;

  /// The calling thread lives longer than the storm.
  void meet_this_thread() {
    pthread_attr_t attributes;
    void* begin = nullptr;
    std::size_t size = 0;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &begin, &size);
    pthread_attr_destroy(&attributes);
    stack() = {static_cast<std::byte*>(begin), static_cast<std::byte*>(begin) + size};
    const std::lock_guard lock(mutex_);
    targets_.push_back(pthread_self());
  }

  static std::atomic<std::int64_t>& taken() {
    static std::atomic<std::int64_t> count;
    return count;
  }
  static std::atomic<std::int64_t>& off_stack() {
    static std::atomic<std::int64_t> count;
    return count;
  }

 private:
  struct Stack {
    std::byte *begin = nullptr, *end = nullptr;
  };
  static Stack& stack() {
    static thread_local Stack mine;
    return mine;
  }
  static void handle(int) {
    std::byte here{};
    ++taken();
    if (&here < stack().begin || &here >= stack().end) ++off_stack();
  }

  std::atomic<bool> over_{false};
  std::mutex mutex_;
  std::vector<pthread_t> targets_;
  struct sigaction before_ {};
  std::thread sender_;
};

}  // namespace dkfac::testing

#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "emulated/device.h"
#include "graph.h"

/// A stream: work that has not run yet, in order.
struct CUstream_st {
  struct Item {
    emulated::Ticket ticket;
    std::function<bool()> ready;  ///< Null: always ready.
    std::function<void()> work;
  };
  std::deque<Item> items;
  emulated::Ticket submitted = 0, done = 0;
  emulated::Ticket running = 0;  ///< 0: none.
  bool asked = false;            ///< Whether the readiness of the next item is being queried.
  std::shared_ptr<emulated::Capture> capture;  ///< Set while it is being recorded.
  std::vector<std::size_t> last;               ///< Its nodes that the next one follows.
};

/// An event: a point of a stream.
struct CUevent_st {
  CUstream_st* stream = nullptr;
  emulated::Ticket ticket = 0;
  double seconds = 0;                          ///< Time when it ran.
  std::shared_ptr<emulated::Capture> capture;  ///< Recording, for a point of a recording.
  std::vector<std::size_t> last;
};

namespace emulated {

/// Blocks of one range of addresses; memory between blocks stays unwritten, or an error is
/// reported.
class Memory {
 public:
  Memory();
  [[nodiscard]] std::byte* allocate(std::size_t bytes);  ///< Returns a block filled with NaN; null
                                                         ///< when full.
  /// Throws std::runtime_error when the block is unknown or the memory around it was written.
  void release(std::byte* block);
  void open();  ///< Makes the memory accessible until as many close() calls have followed.
  void close();
  /// Until as many calls of reuse_freed(), freed memory is not reused and stays full of NaN, since
  /// a graph may still contain its address.
  void keep_freed() { ++keepers_; }
  void reuse_freed();
  void check_freed() const;  ///< Throws std::runtime_error when such memory was written.
  [[nodiscard]] bool contains(const void* data) const;
  [[nodiscard]] std::int64_t live_bytes() const { return live_; }
  [[nodiscard]] std::int64_t peak_bytes() const { return peak_; }
  void reset_peak() { peak_ = live_; }
  void limit(std::int64_t bytes) { limit_ = bytes; }

 private:
  void protect(bool accessible);
  void keep_free(std::byte* start, std::size_t room);
  std::byte* base_ = nullptr;
  std::size_t used_ = 0;  ///< Highest end of a block so far.
  int opened_ = 0;
  std::int64_t live_ = 0, peak_ = 0, limit_ = 0;
  std::map<std::byte*, std::size_t> blocks_;          ///< Requested size.
  std::map<std::size_t, std::set<std::byte*>> free_;  ///< By size with guards.
  int keepers_ = 0;
  std::map<std::byte*, std::size_t> kept_;  ///< Size with guards.
};

/// A recursive mutex that is released entirely while its holder waits.
class DeviceMutex {
 public:
  void lock() {
    if (owner_.load() != std::this_thread::get_id()) {
      inner_.lock();
      owner_.store(std::this_thread::get_id());
    }
    ++depth_;
  }
  void unlock() {
    if (--depth_ > 0) return;
    owner_.store({});
    inner_.unlock();
  }
  /// Waits until the state has changed, or for a moment.
  void wait() {
    const int depth = std::exchange(depth_, 0);
    owner_.store({});
    std::unique_lock lock(inner_, std::adopt_lock);
    changed_.wait_for(lock, std::chrono::milliseconds(50));
    lock.release();
    owner_.store(std::this_thread::get_id());
    depth_ = depth;
  }
  void notify_all() { changed_.notify_all(); }

 private:
  std::mutex inner_;
  std::condition_variable changed_;
  std::atomic<std::thread::id> owner_{};
  int depth_ = 0;
};

struct State {
  DeviceMutex mutex;
  Memory memory;
  std::map<const std::byte*, std::size_t> pinned;
  std::set<CUstream_st*> streams;
  std::set<int> contexts;  ///< Devices that have one.
  /// Kept, so that no new stream has the address of a destroyed one that others have yet to wait
  /// for.
  std::vector<std::unique_ptr<CUstream_st>> destroyed_streams;
  std::vector<std::unique_ptr<CUevent_st>> destroyed_events;  ///< Work may have yet to record them.
  Counters counters;
  bool eager = false;
  bool no_pools = false;  ///< Whether devices report no memory pools.
  int products_to_failure = 0;
  int trims_to_memory = 0;  ///< Remaining trims (starve_libraries()).
};

[[nodiscard]] State& state();

}  // namespace emulated

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

/// Work that has not run yet, in order.
struct CUstream_st {
  struct Item {
    emulated::Ticket ticket;
    std::function<bool()> ready;  ///< Null: at once.
    std::function<void()> work;
  };
  std::deque<Item> items;
  emulated::Ticket submitted = 0, done = 0;
  emulated::Ticket running = 0;  ///< 0: nothing.
  bool asked = false;            ///< Whether the next item is ready is being found out.
  std::shared_ptr<emulated::Capture> capture;  ///< Set while it is being recorded.
  std::vector<std::size_t> last;               ///< Nodes of it that the next one follows.
};

/// A point of a stream.
struct CUevent_st {
  CUstream_st* stream = nullptr;
  emulated::Ticket ticket = 0;
  double seconds = 0;                          ///< When it ran.
  std::shared_ptr<emulated::Capture> capture;  ///< A point of a recording instead.
  std::vector<std::size_t> last;
};

namespace emulated {

/// Blocks of one range of addresses; everything between blocks stays untouched or is an error.
class Memory {
 public:
  Memory();
  [[nodiscard]] std::byte* allocate(std::size_t bytes);  ///< Null when full. Filled with NaN.
  /// Throws std::runtime_error when what surrounds the block has been written, or it is unknown.
  void release(std::byte* block);
  void open();  ///< Accessible until as many close() have followed.
  void close();
  /// From here to as many reuse_freed(): what is freed is not reused, and stays full of
  /// NaN, since a graph may still hold its address.
  void keep_freed() { ++keepers_; }
  void reuse_freed();
  void check_freed() const;  ///< Throws std::runtime_error when what is kept so has been written.
  [[nodiscard]] bool contains(const void* data) const;
  [[nodiscard]] std::int64_t live_bytes() const { return live_; }
  [[nodiscard]] std::int64_t peak_bytes() const { return peak_; }
  void reset_peak() { peak_ = live_; }
  void limit(std::int64_t bytes) { limit_ = bytes; }

 private:
  void protect(bool accessible);
  void keep_free(std::byte* start, std::size_t room);
  std::byte* base_ = nullptr;
  std::size_t used_ = 0;  ///< Highest end so far.
  int opened_ = 0;
  std::int64_t live_ = 0, peak_ = 0, limit_ = 0;
  std::map<std::byte*, std::size_t> blocks_;          ///< Size asked for.
  std::map<std::size_t, std::set<std::byte*>> free_;  ///< By room.
  int keepers_ = 0;
  std::map<std::byte*, std::size_t> kept_;  ///< Room.
};

/// Recursive, and let go of entirely while its holder waits.
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
  /// Until something has changed, or for a moment.
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
  /// Kept, so that no new one has the address of an old one that others have yet to wait for.
  std::vector<std::unique_ptr<CUstream_st>> destroyed_streams;
  std::vector<std::unique_ptr<CUevent_st>> destroyed_events;  ///< Work may have yet to record them.
  Counters counters;
  bool eager = false;
  bool no_pools = false;  ///< Devices say that they have no memory pools.
  int products_to_failure = 0;
  int trims_to_memory = 0;  ///< Of libraries (starve_libraries()).
};

[[nodiscard]] State& state();

}  // namespace emulated

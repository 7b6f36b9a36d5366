#include "emulated/device.h"

#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "state.h"

namespace emulated {

State& state() {
  // Never destroyed: tensors of static lifetime are freed late.
  static State* const one = [] {
    auto* made = new State;
    const char* mode = std::getenv("DKFAC_EMULATED");
    made->eager = mode != nullptr && std::string_view(mode) == "eager";
    return made;
  }();
  return *one;
}

Ticket submit(CUstream_st* stream, std::function<void()> work) {
  State& s = state();
  const std::scoped_lock lock(s.mutex);
  if (stream == nullptr || !s.streams.contains(stream))
    throw std::runtime_error("emulated device: work for a stream that does not exist");
  stream->items.push_back({++stream->submitted, std::move(work)});
  const Ticket ticket = stream->submitted;
  s.changed.notify_all();
  if (s.eager) run(stream, ticket);
  return ticket;
}

Ticket launch(CUstream_st* stream, std::function<void()> work) {
  {
    const std::scoped_lock lock(state().mutex);
    ++state().counters.kernels;
  }
  return submit(stream, std::move(work));
}

Ticket last(CUstream_st* stream) {
  const std::scoped_lock lock(state().mutex);
  return stream->submitted;
}

void run(CUstream_st* stream, Ticket ticket) {
  State& s = state();
  const std::scoped_lock lock(s.mutex);
  if (!s.streams.contains(stream)) return;  // Destroying one drains it first.
  while (stream->done < ticket) {
    if (stream->running != 0) {
      // Another thread is inside this stream's work (block_until), or the work waits for itself.
      const Ticket inside = stream->running;
      block_until([&] { return stream->running != inside; });
      continue;
    }
    auto item = std::move(stream->items.front());
    stream->items.pop_front();
    stream->running = item.ticket;
    s.memory.open();
    try {
      item.work();
    } catch (...) {
      s.memory.close();
      stream->running = 0;
      stream->done = item.ticket;
      s.changed.notify_all();
      throw;
    }
    s.memory.close();
    stream->running = 0;
    stream->done = item.ticket;
    s.changed.notify_all();
  }
}

void block_until(const std::function<bool()>& ready) {
  State& s = state();
  std::unique_lock lock(s.mutex);
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!ready()) {
    if (s.changed.wait_for(lock, std::chrono::milliseconds(50)) == std::cv_status::timeout &&
        std::chrono::steady_clock::now() > limit)
      throw std::runtime_error("emulated device: work waits for something that never happens");
  }
}

void notify() {
  const std::scoped_lock lock(state().mutex);
  state().changed.notify_all();
}

void with_memory(const std::function<void()>& body) {
  State& s = state();
  const std::scoped_lock lock(s.mutex);
  s.memory.open();
  try {
    body();
  } catch (...) {
    s.memory.close();
    throw;
  }
  s.memory.close();
}

bool is_device_memory(const void* data) {
  const std::scoped_lock lock(state().mutex);
  return state().memory.contains(data);
}

bool is_pinned_memory(const void* data) {
  State& s = state();
  const std::scoped_lock lock(s.mutex);
  const auto* at = static_cast<const std::byte*>(data);
  auto after = s.pinned.upper_bound(at);
  if (after == s.pinned.begin()) return false;
  --after;
  return at < after->first + after->second;
}

Counters counters() {
  const std::scoped_lock lock(state().mutex);
  Counters out = state().counters;
  out.live_bytes = state().memory.live_bytes();
  return out;
}

}  // namespace emulated

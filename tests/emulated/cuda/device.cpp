#include "emulated/device.h"

#include <chrono>
#include <cstdlib>
#include <cxxabi.h>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "emulated/library_faults.h"
#include "emulated/work_log.h"
#include "handles.h"
#include "state.h"

namespace emulated {

State& state() {
  // Leaked: tensors of static lifetime are freed late.
  static State* const one = [] {
    auto* made = new State;
    const char* mode = std::getenv("DKFAC_EMULATED");
    made->eager = mode != nullptr && std::string_view(mode) == "eager";
    return made;
  }();
  return *one;
}

Ticket submit(CUstream_st* stream, std::function<void()> work) {
  return submit_when(stream, nullptr, std::move(work));
}

Ticket submit_when(CUstream_st* stream, std::function<bool()> ready, std::function<void()> work) {
  State& s = state();
  const std::scoped_lock lock(s.mutex);
  if (stream == nullptr || !s.streams.contains(stream))
    throw std::runtime_error("emulated device: work for a stream that does not exist");
  if (stream->capture != nullptr) {
    record(stream, std::move(ready), std::move(work));
    return 0;
  }
  stream->items.push_back({++stream->submitted, std::move(ready), std::move(work)});
  const Ticket ticket = stream->submitted;
  s.mutex.notify_all();
  if (s.eager) (void)advance(stream, ticket);
  return ticket;
}

namespace {

std::string readable(const char* type) {
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(type, nullptr, nullptr, nullptr), std::free);
  return text == nullptr ? type : text.get();
}

}  // namespace

Ticket launch(CUstream_st* stream, std::function<void()> work) {
  {
    const std::scoped_lock lock(state().mutex);
    ++state().counters.kernels;
  }
  // Libraries log their calls themselves.
  if (std::string name = logs_work() ? readable(work.target_type().name()) : "emulated::";
      !name.starts_with("emulated::"))
    log_work({.name = std::move(name)});
  return submit(stream, std::move(work));
}

Ticket last(CUstream_st* stream) {
  const std::scoped_lock lock(state().mutex);
  return stream->submitted;
}

namespace {

/// Opens device memory with the first work and closes it at the end: protecting pages takes longer
/// than most work.
class Opening {
 public:
  Opening() = default;
  ~Opening() { close(); }
  Opening(const Opening&) = delete;
  Opening& operator=(const Opening&) = delete;
  void open() {
    if (!std::exchange(open_, true)) state().memory.open();
  }
  void close() {
    if (std::exchange(open_, false)) state().memory.close();
  }

 private:
  bool open_ = false;
};

void run_next(CUstream_st* stream, Opening& memory) {
  State& s = state();
  auto item = std::move(stream->items.front());
  stream->items.pop_front();
  stream->running = item.ticket;
  const auto finish = [&] {
    stream->running = 0;
    stream->done = item.ticket;
    s.mutex.notify_all();
  };
  if (item.work) {
    memory.open();
    try {
      item.work();
    } catch (...) {
      finish();
      throw;
    }
  }
  finish();
}

bool next_is_ready(CUstream_st* stream) {
  const auto& ready = stream->items.front().ready;
  if (!ready) return true;
  // A nested query: work that depends on itself, over streams.
  if (std::exchange(stream->asked, true)) return false;
  struct Asking {
    CUstream_st* stream;
    ~Asking() { stream->asked = false; }
  } const asking{stream};
  return ready();
}

}  // namespace

bool advance(CUstream_st* stream, Ticket ticket) {
  State& s = state();
  const std::scoped_lock lock(s.mutex);
  if (!s.streams.contains(stream)) return true;
  Opening memory;
  while (stream->done < ticket) {
    if (stream->running != 0 || !next_is_ready(stream)) return false;
    // The query may have run it.
    if (stream->done < ticket && stream->running == 0) run_next(stream, memory);
  }
  return true;
}

void run(CUstream_st* stream, Ticket ticket) {
  State& s = state();
  const std::scoped_lock lock(s.mutex);
  if (!s.streams.contains(stream)) return;  // Destroying one drains it first.
  Opening memory;
  while (stream->done < ticket) {
    if (stream->running != 0) {
      // Another thread is inside this stream's work (block_until), or the work depends on itself.
      const Ticket inside = stream->running;
      memory.close();
      block_until([&] { return stream->running != inside; });
      continue;
    }
    const Ticket next = stream->items.front().ticket;
    if (!next_is_ready(stream)) {
      memory.close();
      block_until(
          [&] { return stream->done >= next || stream->running != 0 || next_is_ready(stream); });
      continue;
    }
    if (stream->done < next && stream->running == 0) run_next(stream, memory);
  }
}

void wait_for_handle(CUstream_st* stream) {
  State& s = state();
  const std::scoped_lock lock(s.mutex);
  if (s.streams.contains(stream) && stream->capture == nullptr) run(stream, stream->submitted);
}

void block_until(const std::function<bool()>& ready) {
  State& s = state();
  const std::scoped_lock lock(s.mutex);
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!ready()) {
    s.mutex.wait();
    if (std::chrono::steady_clock::now() > limit)
      throw std::runtime_error("emulated device: work waits for something that never happens");
  }
}

void notify() {
  const std::scoped_lock lock(state().mutex);
  state().mutex.notify_all();
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

void limit_memory(std::int64_t bytes) {
  const std::scoped_lock lock(state().mutex);
  state().memory.limit(bytes);
}

void fail_product(int calls) {
  const std::scoped_lock lock(state().mutex);
  state().products_to_failure = calls;
}

void starve_libraries(int trims) {
  const std::scoped_lock lock(state().mutex);
  state().trims_to_memory = trims;
}

void hide_memory_pools(bool hidden) {
  const std::scoped_lock lock(state().mutex);
  state().no_pools = hidden;
}

bool libraries_starve() {
  const std::scoped_lock lock(state().mutex);
  return state().trims_to_memory > 0;
}

bool product_fails(bool aligned) {
  const std::scoped_lock lock(state().mutex);
  ++state().counters.products;
  state().counters.unaligned_products += aligned ? 0 : 1;
  return state().products_to_failure > 0 && --state().products_to_failure == 0;
}

Counters counters() {
  const std::scoped_lock lock(state().mutex);
  Counters out = state().counters;
  out.live_bytes = state().memory.live_bytes();
  return out;
}

}  // namespace emulated

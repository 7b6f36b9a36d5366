#pragma once

#include <cstdint>
#include <memory>

#include "dkfac/core/device.h"
#include "dkfac/core/export.h"

struct CUstream_st;  // cudaStream_t without the CUDA headers
struct CUevent_st;

namespace dkfac {

class Event;
class HostQueue;

/// Of the work of a CUDA stream on a busy device; hosts know no priorities. `low` is what streams
/// made elsewhere usually have.
enum class Priority : std::uint8_t { normal, low };

/// Non-owning handle of an execution queue: a value, cheap to copy. There is no default stream.
///
/// Three kinds. `cpu()` runs work inline, so it is complete when the call returns. A host queue
/// (OwnedStream on the CPU) holds communication that progress() and waits advance. A CUDA stream.
class DKFAC_API Stream {
 public:
  static Stream cpu() { return {Device::cpu(), nullptr, nullptr}; }
  static Stream host(HostQueue& queue) { return {Device::cpu(), &queue, nullptr}; }
  static Stream cuda(CUstream_st* stream, int device_index = 0) {
    return {Device::cuda(device_index), nullptr, stream};
  }
  [[nodiscard]] Device device() const { return device_; }
  [[nodiscard]] HostQueue* queue() const { return queue_; }      ///< Null unless a host queue.
  [[nodiscard]] CUstream_st* native() const { return native_; }  ///< Null unless CUDA.

  /// Blocks the host until all work submitted so far is done. Throws what that work threw, and on a
  /// CUDA stream what a watch of the thread throws (core/shared/wait_watch.h); so does wait().
  void synchronize() const;
  /// Later work on this stream follows `event`. A host stream blocks until the event has happened
  /// or the work behind it fails or passes its time limit; a CUDA stream never blocks the host.
  void wait(const Event& event) const;
  /// Advances a host queue without blocking; true when nothing is left. No-op elsewhere.
  bool progress() const;

 private:
  Stream(Device device, HostQueue* queue, CUstream_st* native)
      : device_(device), queue_(queue), native_(native) {}
  Device device_;
  HostQueue* queue_;
  CUstream_st* native_;
};

/// A point in the work of a stream; may be recorded again. One that was never recorded has
/// happened. Keeps the host queue that it was recorded on alive.
class DKFAC_API Event {
 public:
  explicit Event(Device device = Device::cpu());
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;

  void record(Stream stream);
  [[nodiscard]] bool done() const;  ///< Never blocks and advances nothing.

 private:
  friend class Stream;
  Device device_;
  std::shared_ptr<HostQueue> queue_;
  std::uint64_t ticket_ = 0;
  CUevent_st* native_ = nullptr;
};

/// Owns a host queue or a non-blocking CUDA stream. Destroying it drops unfinished host work.
class DKFAC_API OwnedStream {
 public:
  explicit OwnedStream(Device device, Priority priority = Priority::normal);
  ~OwnedStream();
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;
  OwnedStream(OwnedStream&& other) noexcept;
  OwnedStream& operator=(OwnedStream&& other) noexcept;
  [[nodiscard]] Stream view() const;
  operator Stream() const { return view(); }  // NOLINT(google-explicit-constructor)

 private:
  Device device_;
  std::shared_ptr<HostQueue> queue_;
  CUstream_st* native_ = nullptr;
};

}  // namespace dkfac

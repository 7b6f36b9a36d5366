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

/// Priority of a CUDA stream on a busy device; ignored on the host. Streams created elsewhere
/// usually have `low`.
enum class Priority : std::uint8_t { normal, low };

/// Non-owning handle of an execution queue; a value, cheap to copy. There is no default stream.
///
/// There are three kinds: the inline host stream cpu(), whose work is complete when the call
/// returns; a host queue (OwnedStream on the CPU), which holds communication that progress() and
/// waits advance; and a CUDA stream.
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

  /// Blocks the host until all work submitted so far is done. Rethrows exceptions of that work. On
  /// a CUDA stream it also throws CommError when a communicator of the thread detects a lost peer.
  void synchronize() const;
  /// Orders later work on this stream after `event`. A host stream blocks until the event is
  /// complete, or the work before it fails or exceeds its time limit. A CUDA stream never blocks
  /// the host. Throws as synchronize() does.
  void wait(const Event& event) const;
  /// Advances a host queue without blocking; true when nothing is left. No-op on other streams.
  bool progress() const;

 private:
  Stream(Device device, HostQueue* queue, CUstream_st* native)
      : device_(device), queue_(queue), native_(native) {}
  Device device_;
  HostQueue* queue_;
  CUstream_st* native_;
};

/// Deleter of the native form of an Event.
struct DKFAC_API DestroyEvent {
  Device device;
  void operator()(CUevent_st* event) const noexcept;
};

/// Marker of a point in the work of a stream; may be recorded again. An event that was never
/// recorded is complete. Keeps the host queue on which it was recorded alive.
class DKFAC_API Event {
 public:
  explicit Event(Device device = Device::cpu());

  void record(Stream stream);
  [[nodiscard]] bool done() const;  ///< Never blocks and advances nothing.

 private:
  friend class Stream;
  Device device_;
  std::shared_ptr<HostQueue> queue_;
  std::uint64_t ticket_ = 0;
  std::unique_ptr<CUevent_st, DestroyEvent> native_;
};

/// Owner of a host queue or a non-blocking CUDA stream. Its destructor drops unfinished host work.
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

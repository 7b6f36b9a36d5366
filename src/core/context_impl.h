#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/stream.h"
#include "dkfac/core/tensor.h"

namespace dkfac {

/// Use of a CUDA stream of somebody else.
class BorrowedStream {
 public:
  explicit BorrowedStream(Stream stream);
  ~BorrowedStream();
  BorrowedStream(const BorrowedStream&) = delete;
  BorrowedStream& operator=(const BorrowedStream&) = delete;
  [[nodiscard]] Stream view() const { return stream_; }

 private:
  Stream stream_;
};

struct DKFAC_LOCAL Context::Impl {
  Device device;
  const std::uint64_t id = next_id();  ///< No other context of the process has or had it.
  ContextOptions options;
  // One of the two on CUDA; host operations run inline.
  std::optional<OwnedStream> owned_stream;
  std::optional<BorrowedStream> borrowed_stream;
  std::shared_ptr<void> cuda;     ///< Library handles (cuda/handles.cu); after the stream they use.
  std::size_t library_bytes = 0;  ///< Of the workspace among them.

  // Scratch: a stack over `blocks`; (block, offset) is its top.
  std::vector<Tensor> blocks;
  std::size_t block = 0;
  std::size_t offset = 0;
  int scopes = 0;
  std::int64_t growths = 0;

  /// Contexts of the parts of an operation that runs on several threads (cpu/workers.h).
  std::vector<std::unique_ptr<Context>> workers;
  /// Primitives that oneDNN made for the shapes of earlier calls (cpu/self_correlation.h).
  std::shared_ptr<void> self_correlations;

 private:
  static std::uint64_t next_id() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
  }
};

}  // namespace dkfac

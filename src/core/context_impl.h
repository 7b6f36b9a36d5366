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

/// Registration of a CUDA stream that the caller owns.
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
  const std::uint64_t id = next_id();  ///< Unique in the process, never reused.
  ContextOptions options;
  // Exactly one of the two on CUDA; host operations run inline.
  std::optional<OwnedStream> owned_stream;
  std::optional<BorrowedStream> borrowed_stream;
  std::shared_ptr<void> cuda;     ///< Library handles (cuda/handles.cu); after the stream they use.
  std::size_t library_bytes = 0;  ///< Size of their workspace.

  // Scratch: a stack over `blocks` with top (block, offset).
  std::vector<Tensor> blocks;
  std::size_t block = 0;
  std::size_t offset = 0;
  int scopes = 0;
  std::int64_t growths = 0;

  /// Contexts of the worker threads of an operation (cpu/workers.h).
  std::vector<std::unique_ptr<Context>> workers;
  /// oneDNN primitives cached by the shapes of earlier calls (cpu/self_correlation.h).
  std::shared_ptr<void> self_correlations;

 private:
  static std::uint64_t next_id() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
  }
};

}  // namespace dkfac

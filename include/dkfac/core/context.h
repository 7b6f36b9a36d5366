#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dkfac/core/device.h"
#include "dkfac/core/export.h"
#include "dkfac/core/stream.h"
#include "dkfac/core/tensor_view.h"

namespace dkfac {

/// Which implementation of the host operations runs. `fast` uses oneDNN and OpenBLAS where the
/// build has them and falls back to `reference`, plain C++ without any library, elsewhere.
enum class Backend : std::uint8_t { fast, reference };

struct DKFAC_API ContextOptions {
  Backend backend = Backend::fast;
  /// OpenMP threads of the calling thread's parallel regions; 0 leaves them as they are.
  int threads = 0;
  /// Devices only: products of f32 matrices (gemm) and f32 convolutions by cuDNN take their
  /// operands rounded to TF32, 10 bits after the leading one, and are several times faster. Sums
  /// stay f32; everything else is exact f32 either way.
  bool tf32 = false;
  /// Devices only: of the stream that the context makes, and of those that operations make beside
  /// it. A stream of somebody else has its own.
  Priority priority = Priority::normal;
  /// A CUDA stream of somebody else, of the context's device, to be used instead of an own one. It
  /// must outlive the context. Not null: cudaStreamLegacy names the default stream. Not
  /// cudaStreamPerThread, which names another stream in another thread.
  std::optional<Stream> stream = std::nullopt;
};

/// Where and how work runs: device, stream, backend, threads, and scratch memory that grows and is
/// kept. First argument of every operation. Not thread-safe: one per thread and device.
class DKFAC_API Context {
 public:
  explicit Context(Device device = Device::cpu(), ContextOptions options = {});
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  Context(Context&&) noexcept;
  Context& operator=(Context&&) noexcept;

  [[nodiscard]] Device device() const;
  [[nodiscard]] Stream stream() const;
  [[nodiscard]] Backend backend() const;
  [[nodiscard]] int threads() const;
  [[nodiscard]] bool tf32() const;
  [[nodiscard]] Priority priority() const;  ///< As asked for, whosever the stream is.

  /// Bytes of scratch held, and how often it had to grow (constant in a steady step).
  [[nodiscard]] std::size_t scratch_bytes() const;
  [[nodiscard]] std::int64_t scratch_growths() const;
  /// Devices only: bytes of the workspace that cuBLAS has been given, from the first operation on
  /// that uses it. What the libraries take for themselves is not known.
  [[nodiscard]] std::size_t library_bytes() const;

  struct Impl;
  [[nodiscard]] Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// Temporary memory of one operation: take() from a stack of blocks that the context keeps; all of
/// it is given back when the scope ends. Scopes nest.
class DKFAC_API Scratch {
 public:
  explicit Scratch(Context& ctx);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  [[nodiscard]] TensorView take(Shape shape, DType dtype = DType::f32);  ///< Uninitialised.

 private:
  Context& ctx_;
  std::size_t block_;
  std::size_t offset_;
};

struct DKFAC_API CudaDevice {
  std::string name, capability;  ///< "9.0"
  std::int64_t bytes = 0;        ///< Of memory.
  int multiprocessors = 0;
};

/// Versions as "13.0" or "13.1.0"; empty where there is nothing. `driver` is the newest runtime
/// that the driver knows.
struct DKFAC_API CudaInfo {
  std::string runtime, driver, cublas, cusolver;
  std::vector<CudaDevice> devices;
};

/// What this build and machine compute with: libraries, versions, BLAS kernel, instruction set,
/// devices, and a warning when OPENBLAS_CORETYPE holds OpenBLAS below what the processor can do.
struct DKFAC_API BackendInfo {
  bool blas = false, onednn = false;
  bool cuda = false;  ///< There is a device.
  std::string blas_config, blas_core, onednn_version, onednn_isa;
  CudaInfo cuda_info;
  std::string warning;  ///< Empty when there is nothing to warn of.
};
[[nodiscard]] DKFAC_API BackendInfo backend_info();

}  // namespace dkfac

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

/// Implementation of the host operations. `fast` uses oneDNN and OpenBLAS where the build has them
/// and falls back to `reference`, plain C++ without any library.
enum class Backend : std::uint8_t { fast, reference };

struct DKFAC_API ContextOptions {
  Backend backend = Backend::fast;
  /// OpenMP threads of the calling thread's parallel regions; 0 leaves the number unchanged.
  int threads = 0;
  /// Devices only: f32 matrix products (gemm) and f32 cuDNN convolutions round their operands to
  /// TF32 (10 mantissa bits) and are several times faster. Sums stay f32, and all other operations
  /// are exact f32 either way.
  bool tf32 = false;
  /// Devices only: work that is equal in many steps is launched as a CUDA graph, with the same
  /// bits. K-FAC's preconditioning is (StepReport::preconditioning).
  bool graphs = true;
  /// Devices only: priority of the stream that the context creates and of the side streams of
  /// operations. A stream given as `stream` keeps its own.
  Priority priority = Priority::normal;
  /// Existing CUDA stream of the context's device to use instead of creating one. It must outlive
  /// the context and must not be null (cudaStreamLegacy names the default stream) nor
  /// cudaStreamPerThread, which names a different stream in every thread.
  std::optional<Stream> stream = std::nullopt;
};

/// Execution context: device, stream, backend, threads, and scratch memory that grows and is kept.
/// First argument of every operation. Not thread-safe: use one per thread and device.
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
  [[nodiscard]] bool graphs() const;
  [[nodiscard]] Priority priority() const;  ///< ContextOptions::priority, also with a given stream.

  /// Bytes of scratch memory held.
  [[nodiscard]] std::size_t scratch_bytes() const;
  /// Number of times that scratch memory grew; constant once steps are steady.
  [[nodiscard]] std::int64_t scratch_growths() const;
  /// Devices only: bytes of the cuBLAS workspace, allocated by the first operation that needs it.
  /// Memory that the libraries allocate internally is not counted.
  [[nodiscard]] std::size_t library_bytes() const;

  struct Impl;
  [[nodiscard]] Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// Scope of temporary memory for one operation. take() allocates from a stack of blocks that the
/// context keeps; the end of the scope releases all of it. Scopes nest.
class DKFAC_API Scratch {
 public:
  explicit Scratch(Context& ctx);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  [[nodiscard]] TensorView take(Shape shape, DType dtype = DType::f32);  ///< Uninitialised.
  /// As take(), with the rows of Tensor::empty_aligned().
  [[nodiscard]] TensorView take_aligned(Shape shape, DType dtype = DType::f32);

 private:
  Context& ctx_;
  std::size_t block_;
  std::size_t offset_;
};

struct DKFAC_API CudaDevice {
  std::string name, capability;  ///< Capability as "9.0".
  std::int64_t bytes = 0;        ///< Size of device memory.
  int multiprocessors = 0;
};

/// Versions of the CUDA libraries, as "13.0" or "13.1.0"; empty where absent. `driver` is the
/// newest runtime version that the driver supports.
struct DKFAC_API CudaInfo {
  std::string runtime, driver, cublas, cusolver;
  std::vector<CudaDevice> devices;
};

/// Libraries, versions, BLAS kernel, instruction set and devices of this build and machine.
struct DKFAC_API BackendInfo {
  bool blas = false, onednn = false;
  bool cuda = false;  ///< A CUDA device is present.
  std::string blas_config, blas_core, onednn_version, onednn_isa;
  CudaInfo cuda_info;
  /// Says where OpenBLAS has chosen kernels of older processors, and what to do; else empty.
  std::string warning;
};
[[nodiscard]] DKFAC_API BackendInfo backend_info();

}  // namespace dkfac

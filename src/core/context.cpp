#include "dkfac/core/context.h"

#include <algorithm>

#include "dkfac/core/error.h"
#include "dkfac/core/threads.h"

#include "core/allocation.h"
#include "core/context_impl.h"
#include "core/cuda/runtime.h"
#include "core/shared/aligned_rows.h"

namespace dkfac {
namespace {

constexpr std::size_t kSmallestBlock = std::size_t{1} << 20;

std::size_t total_bytes(const std::vector<Tensor>& blocks) {
  std::size_t bytes = 0;
  for (const Tensor& block : blocks) bytes += block.bytes();
  return bytes;
}

void add_block(Context& ctx, std::size_t bytes) {
  Context::Impl& impl = ctx.impl();
  const std::size_t size = detail::align_up(std::max(bytes, kSmallestBlock));
  impl.blocks.push_back(
      Tensor::empty(ctx, Shape{static_cast<std::int64_t>(size / sizeof(float))}, DType::f32));
  ++impl.growths;
}

}  // namespace

BorrowedStream::BorrowedStream(Stream stream) : stream_(stream) {
  cuda::use_stream(stream_.device(), stream_.native());
}

BorrowedStream::~BorrowedStream() { cuda::leave_stream(stream_.device(), stream_.native()); }

Context::Context(Device device, ContextOptions options) : impl_(std::make_unique<Impl>()) {
  impl_->device = device;
  impl_->options = options;
  DKFAC_CHECK(options.threads >= 0, "[context] threads is ", options.threads,
              "; it must be > 0, or 0 to leave the number of threads as it is");
  if (options.stream) {
    DKFAC_CHECK(
        options.stream->native() != nullptr,
        "[context] the stream must be a CUDA stream that is not null; cudaStreamLegacy names "
        "the default one");
    DKFAC_CHECK(options.stream->device() == device, "[context] the stream is of ",
                options.stream->device(), ", the context of ", device);
    impl_->borrowed_stream.emplace(*options.stream);
  } else if (device.is_cuda()) {
    impl_->owned_stream.emplace(device, options.priority);
  }
  if (options.threads > 0) set_threads(options.threads);
}

Context::~Context() = default;
Context::Context(Context&&) noexcept = default;
Context& Context::operator=(Context&&) noexcept = default;

Device Context::device() const { return impl_->device; }
Stream Context::stream() const {
  if (impl_->borrowed_stream) return impl_->borrowed_stream->view();
  return impl_->owned_stream ? impl_->owned_stream->view() : Stream::cpu();
}
Backend Context::backend() const { return impl_->options.backend; }
int Context::threads() const { return dkfac::threads(); }
bool Context::tf32() const { return impl_->options.tf32; }
bool Context::graphs() const { return impl_->options.graphs; }
Priority Context::priority() const { return impl_->options.priority; }
std::size_t Context::library_bytes() const { return impl_->library_bytes; }
std::size_t Context::scratch_bytes() const {
  std::size_t bytes = total_bytes(impl_->blocks);
  for (const auto& worker : impl_->workers) bytes += worker->scratch_bytes();
  return bytes;
}

std::int64_t Context::scratch_growths() const {
  std::int64_t growths = impl_->growths;
  for (const auto& worker : impl_->workers) growths += worker->scratch_growths();
  return growths;
}

Scratch::Scratch(Context& ctx) : ctx_(ctx) {
  Context::Impl& impl = ctx.impl();
  if (impl.scopes == 0 && impl.blocks.size() > 1) {
    // Merge into one block of the total size: no space is skipped, and it no longer grows.
    const std::size_t bytes = total_bytes(impl.blocks);
    impl.blocks.clear();
    add_block(ctx, bytes);
  }
  ++impl.scopes;
  block_ = impl.block;
  offset_ = impl.offset;
}

Scratch::~Scratch() {
  Context::Impl& impl = ctx_.impl();
  impl.block = block_;
  impl.offset = offset_;
  --impl.scopes;
}

TensorView Scratch::take(Shape shape, DType dtype) {
  Context::Impl& impl = ctx_.impl();
  const std::size_t bytes =
      detail::align_up(detail::checked_bytes("scratch", shape, dtype),
                       impl.device.is_cuda() ? detail::kDeviceAlignment : detail::kAlignment);
  while (impl.block < impl.blocks.size() && impl.blocks[impl.block].bytes() - impl.offset < bytes) {
    ++impl.block;
    impl.offset = 0;
  }
  if (impl.block == impl.blocks.size()) add_block(ctx_, bytes);
  std::byte* top = static_cast<std::byte*>(impl.blocks[impl.block].view().raw()) + impl.offset;
  impl.offset += bytes;
  return TensorView(top, dtype, shape, impl.device);
}

TensorView Scratch::take_aligned(Shape shape, DType dtype) {
  const TensorView all = take(with_aligned_rows(shape, dtype, ctx_.device()), dtype);
  return shape.ndim() == 0 ? all : all.slice(shape.ndim() - 1, 0, shape[shape.ndim() - 1]);
}

}  // namespace dkfac

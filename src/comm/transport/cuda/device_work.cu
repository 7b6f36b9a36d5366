#include <algorithm>
#include <array>
#include <utility>

#include <cuda_runtime_api.h>

#include "dkfac/core/error.h"

#include "comm/transport/cuda/device_work.h"
#include "comm/transport/cuda/segment_functors.h"
#include "core/shared/cuda/device_guard.h"
#include "core/shared/cuda/handles.h"
#include "core/shared/cuda/launch.cuh"

namespace dkfac::comm::cuda {
namespace {

using dkfac::cuda::check_runtime;
using dkfac::cuda::DeviceGuard;

void check_count(std::size_t count, const char* what) {
  DKFAC_CHECK(count <= kMaxRanks, "[comm] ", count, " ", what, " on one device; at most ",
              kMaxRanks, " fit into a kernel's arguments");
}

template <class T, class Op = dkfac::cuda::Sum<SumOf<T>>>
void reduce_as(const Stream& stream, std::span<const std::byte* const> inputs, std::int64_t count,
               std::span<std::byte* const> outputs) {
  ReduceInOrder<T, Op> kernel{};
  set_inputs(kernel, inputs);
  kernel.outputs_count = static_cast<int>(outputs.size());
  for (std::size_t k = 0; k < outputs.size(); ++k)
    kernel.outputs[k] = reinterpret_cast<T*>(outputs[k]);
  dkfac::cuda::for_each(stream, count, kernel);
}

template <class Word>
void gather_as(const Stream& stream, std::span<const std::byte* const> segments,
               std::span<const std::int64_t> offsets, std::byte* out) {
  GatherSegments<Word> kernel{};
  std::int64_t longest = 0;
  for (std::size_t r = 0; r < segments.size(); ++r) {
    kernel.segments[r] = reinterpret_cast<const Word*>(segments[r]);
    longest = std::max(longest, offsets[r + 1] - offsets[r]);
  }
  std::copy(offsets.begin(), offsets.end(), kernel.offsets);
  kernel.out = reinterpret_cast<Word*>(out);
  dkfac::cuda::for_each_2d(stream, static_cast<std::int64_t>(segments.size()), longest, kernel);
}

}  // namespace

bool is_built() noexcept { return true; }

void copy(const Stream& stream, const void* from, void* to, std::size_t bytes) {
  if (bytes == 0) return;
  const DeviceGuard guard(stream.device());
  check_runtime(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.native()),
                "cudaMemcpyAsync");
}

void reduce(const Stream& stream, ReduceOp op, DType dtype,
            std::span<const std::byte* const> inputs, std::int64_t count,
            std::span<std::byte* const> outputs) {
  check_count(std::max(inputs.size(), outputs.size()), "buffers");
  const DeviceGuard guard(stream.device());
  switch (dtype) {
    case DType::f64:
      return op == ReduceOp::max
                 ? reduce_as<double, dkfac::cuda::Max<double>>(stream, inputs, count, outputs)
                 : reduce_as<double>(stream, inputs, count, outputs);
    case DType::f32:
      return op == ReduceOp::max
                 ? reduce_as<float, dkfac::cuda::Max<float>>(stream, inputs, count, outputs)
                 : reduce_as<float>(stream, inputs, count, outputs);
    case DType::bf16:
      return reduce_as<bf16>(stream, inputs, count, outputs);
    case DType::f16:
      return reduce_as<f16>(stream, inputs, count, outputs);
    case DType::i32:
      return reduce_as<std::int32_t>(stream, inputs, count, outputs);
  }
}

void gather(const Stream& stream, std::span<const std::byte* const> segments,
            std::span<const std::int64_t> offsets, std::size_t element, std::byte* out) {
  check_count(segments.size(), "segments");
  const DeviceGuard guard(stream.device());
  if (element == 8) return gather_as<std::uint64_t>(stream, segments, offsets, out);
  if (element == 4) return gather_as<std::uint32_t>(stream, segments, offsets, out);
  gather_as<std::uint16_t>(stream, segments, offsets, out);
}

std::string bus_id(Device device) {
  std::array<char, 32> text{};
  check_runtime(cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), device.index),
                "cudaDeviceGetPCIBusId");
  return text.data();
}

std::string uuid(Device device) {
  cudaDeviceProp properties{};
  check_runtime(cudaGetDeviceProperties(&properties, device.index), "cudaGetDeviceProperties");
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const char byte : properties.uuid.bytes) {
    const auto value = static_cast<unsigned char>(byte);
    text += kDigits[value / 16];
    text += kDigits[value % 16];
  }
  return text.find_first_not_of('0') == std::string::npos ? std::string() : text;
}

PinnedMemory::~PinnedMemory() {
  if (data_ == nullptr) return;
  const DeviceGuard guard(device_);
  (void)cudaFreeHost(data_);
}

std::byte* PinnedMemory::at_least(Device device, std::size_t bytes) {
  if (bytes <= bytes_) return data_;
  device_ = device;
  const DeviceGuard guard(device_);
  if (data_ != nullptr) check_runtime(cudaFreeHost(std::exchange(data_, nullptr)), "cudaFreeHost");
  bytes_ = 0;
  void* data = nullptr;
  check_runtime(cudaHostAlloc(&data, bytes, cudaHostAllocPortable), "cudaHostAlloc");
  data_ = static_cast<std::byte*>(data);
  bytes_ = bytes;
  return data_;
}

}  // namespace dkfac::comm::cuda

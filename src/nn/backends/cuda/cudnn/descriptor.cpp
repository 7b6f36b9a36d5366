#include "nn/backends/cuda/cudnn/descriptor.h"

#include <algorithm>
#include <array>
#include <utility>

namespace dkfac::nn::cudnn {

bool Failure::is_refusal() const {
  const auto category = CUDNN_STATUS_CATEGORY(static_cast<int>(status));
  // An engine whose kernels do not compile counts as not supported.
  return category == CUDNN_STATUS_NOT_SUPPORTED || category == CUDNN_STATUS_BAD_PARAM ||
         status == CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED;
}

bool Failure::wants_memory() const {
  return status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
}

void check(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 1024> why{};
  cudnnGetLastErrorString(why.data(), why.size());
  std::string text = detail::concat("[", call, "] failed with ", cudnnGetErrorString(status));
  if (why[0] != 0) text += detail::concat(": ", why.data());
  throw Failure(status, text);
}

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) {
  check(cudnnBackendCreateDescriptor(type, &raw_), "cudnnBackendCreateDescriptor");
}

Descriptor::~Descriptor() {
  if (raw_ != nullptr) (void)cudnnBackendDestroyDescriptor(raw_);
}

Descriptor::Descriptor(Descriptor&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(raw_, other.raw_);
  return *this;
}

Descriptor& Descriptor::link(cudnnBackendAttributeName_t name,
                             std::span<const Descriptor* const> others) {
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const Descriptor* other : others) raw.push_back(other->raw_);
  return set_raw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, raw.size(), raw.data());
}

Descriptor& Descriptor::finalize(const char* what) {
  check(cudnnBackendFinalize(raw_), what);
  return *this;
}

std::string Descriptor::text(cudnnBackendAttributeName_t name) const {
  std::int64_t count = 0;
  if (cudnnBackendGetAttribute(raw_, name, CUDNN_TYPE_CHAR, 0, &count, nullptr) !=
      CUDNN_STATUS_SUCCESS)
    return {};
  std::string text(static_cast<std::size_t>(count), '\0');
  text.resize(get_raw(name, CUDNN_TYPE_CHAR, text.size(), text.data()));
  return text;
}

std::int64_t Descriptor::number(cudnnBackendAttributeName_t name) const {
  std::int64_t value = 0, count = 0;
  check(cudnnBackendGetAttribute(raw_, name, CUDNN_TYPE_INT64, 1, &count, &value),
        "cudnnBackendGetAttribute");
  return value;
}

std::vector<Descriptor> Descriptor::linked(cudnnBackendAttributeName_t name,
                                           cudnnBackendDescriptorType_t type,
                                           std::size_t most) const {
  auto count = static_cast<std::int64_t>(most);
  if (most == 0) {
    check(cudnnBackendGetAttribute(raw_, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr),
          "cudnnBackendGetAttribute");
  }
  std::vector<Descriptor> made;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < count; ++i) raw.push_back(made.emplace_back(type).raw());
  if (count > 0) {
    check(cudnnBackendGetAttribute(raw_, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count,
                                   raw.data()),
          "cudnnBackendGetAttribute");
  }
  made.resize(static_cast<std::size_t>(count));
  return made;
}

Descriptor& Descriptor::set_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                std::size_t count, const void* values) {
  check(cudnnBackendSetAttribute(raw_, name, type, static_cast<std::int64_t>(count), values),
        "cudnnBackendSetAttribute");
  return *this;
}

std::size_t Descriptor::get_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                std::size_t most, void* values) const {
  std::int64_t count = 0;
  check(cudnnBackendGetAttribute(raw_, name, type, static_cast<std::int64_t>(most), &count, values),
        "cudnnBackendGetAttribute");
  return std::min(most, static_cast<std::size_t>(count));
}

}  // namespace dkfac::nn::cudnn

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "dkfac/c/dkfac.h"

#include "app/checkpoint/manifest.h"
#include "app/checkpoint/mean_image.h"
#include "app/checkpoint/resume.h"
#include "app/checkpoint/run_record.h"
#include "app/checkpoint/safetensors.h"
#include "app/shared/config.h"
#include "fuzz/attempt.h"

namespace dkfac::fuzz {

namespace {

/// The bytes as a struct of a caller, whose size is the first field: of an older or a newer header,
/// so that its memory ends there.
class Struct {
 public:
  explicit Struct(Bytes bytes)
      : size_(std::max(bytes.size(), sizeof(std::size_t))), memory_(new std::byte[size_]{}) {
    const std::span<const std::byte> sent = std::as_bytes(bytes);
    std::copy(sent.begin(), sent.end(), memory_.get());
    std::memcpy(memory_.get(), &size_, sizeof size_);
  }
  template <class T>
  [[nodiscard]] T* as() {
    return reinterpret_cast<T*>(memory_.get());
  }
  /// Of a pointer, which has to be one to memory of the caller.
  void clear(std::size_t offset) {
    for (std::size_t i = offset; i < std::min(offset + sizeof(void*), size_); ++i)
      memory_[i] = std::byte{0};
  }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  std::size_t size_;
  std::unique_ptr<std::byte[]> memory_;
};

/// A preconditioner of one rank, with these options; null where they are refused.
dkfac_preconditioner* make_preconditioner(const dkfac_curvature_options* options) {
  dkfac_comm* comm = nullptr;
  (void)dkfac_comm_self(nullptr, &comm);
  dkfac_preconditioner* made = nullptr;
  (void)dkfac_preconditioner_create(comm, options, nullptr, &made);
  dkfac_comm_destroy(comm);
  return made;
}

}  // namespace

void c_structs(Bytes bytes) {
  Struct given(bytes);
  dkfac_comm* comm = nullptr;
  (void)dkfac_comm_self(given.as<dkfac_comm_options>(), &comm);
  dkfac_comm_destroy(comm);
  dkfac_curvature_options_init(given.as<dkfac_curvature_options>(), given.size());
}

void c_options(Bytes bytes) {
  Struct given(bytes);
  given.clear(offsetof(dkfac_curvature_options, failure_folder));
  dkfac_preconditioner_destroy(make_preconditioner(given.as<dkfac_curvature_options>()));
}

void c_layers(Bytes bytes) {
  Struct given(bytes);
  given.clear(offsetof(dkfac_layer_spec, reason));
  dkfac_preconditioner* object = make_preconditioner(nullptr);
  std::int32_t layer = 0, wants = 0;
  if (dkfac_preconditioner_add_layer(object, "layer", given.as<dkfac_layer_spec>(), &layer) ==
      DKFAC_OK)
    (void)dkfac_preconditioner_wants_input(object, layer, &wants);
  dkfac_preconditioner_destroy(object);
}

void safetensors(Bytes bytes) {
  attempt([&] {
    const std::span<const std::byte> sent = std::as_bytes(bytes);
    const app::safetensors::File file({sent.begin(), sent.end()}, "fuzz");
    for (const auto& [name, entry] : file.entries()) (void)app::safetensors::describe(entry);
  });
}

void manifest(Bytes bytes) {
  attempt([&] { (void)app::parse_manifest(text_of(bytes), "fuzz"); });
}

void state(Bytes bytes) {
  attempt([&] { (void)app::parse_record(text_of(bytes), "fuzz"); });
}

void result(Bytes bytes) {
  attempt([&] { (void)app::parse_result(text_of(bytes), "fuzz"); });
}

void metrics(Bytes bytes) {
  app::RunRecord record;
  record.epoch = 2;
  record.result.steps = 8;
  std::istringstream lines{std::string(text_of(bytes))};
  attempt([&] {
    if (app::metrics_until(lines, record).size() > bytes.size()) __builtin_trap();
  });
}

void mean_image(Bytes bytes) {
  const MemoryFile file(bytes);
  attempt([&] { (void)app::read_mean_image(file.path()); });
}

void toml(Bytes bytes) {
  attempt([&] { (void)app::parse_config(text_of(bytes), {}, "fuzz"); });
}

void set_option(Bytes bytes) {
  const std::vector<std::string> set = {std::string(text_of(bytes))};
  attempt([&] { (void)app::parse_config("", set, "fuzz"); });
}

}  // namespace dkfac::fuzz

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "dkfac/c/dkfac.h"

#include "app/checkpoint/manifest.h"
#include "app/checkpoint/run_record.h"
#include "app/checkpoint/safetensors.h"
#include "app/shared/config.h"
#include "fuzz/attempt.h"

namespace dkfac::fuzz {

void c_structs(Bytes bytes) {
  // A struct of an older or a newer header has the size that its caller says; its memory ends
  // there.
  const std::size_t size = std::max(bytes.size(), sizeof(std::size_t));
  const std::span<const std::byte> sent = std::as_bytes(bytes);
  const std::unique_ptr<std::byte[]> memory(new std::byte[size]{});
  std::copy(sent.begin(), sent.end(), memory.get());
  std::memcpy(memory.get(), &size, sizeof size);
  dkfac_comm* comm = nullptr;
  (void)dkfac_comm_self(reinterpret_cast<const dkfac_comm_options*>(memory.get()), &comm);
  dkfac_comm_destroy(comm);
  dkfac_curvature_options_init(reinterpret_cast<dkfac_curvature_options*>(memory.get()), size);
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

void toml(Bytes bytes) {
  attempt([&] { (void)app::parse_config(text_of(bytes), {}, "fuzz"); });
}

void set_option(Bytes bytes) {
  const std::vector<std::string> set = {std::string(text_of(bytes))};
  attempt([&] { (void)app::parse_config("", set, "fuzz"); });
}

}  // namespace dkfac::fuzz

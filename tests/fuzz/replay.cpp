// Runs every target over its stored corpus, and over each file without its last byte and with one
// byte changed, where nothing may crash. Usage: test_fuzz_replay CORPUS
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz/targets.h"

// Of AddressSanitizer and others; null in an ordinary build.
extern "C" __attribute__((weak)) int __sanitizer_install_malloc_and_free_hooks(
    void (*allocated)(const volatile void*, std::size_t), void (*freed)(const volatile void*));

namespace dkfac::fuzz {
namespace {

/// What a file of this size explains: a picture of 2^20 pixels, and a gzip stream of 1 to 1032.
constexpr std::size_t kMostForAnyFile = std::size_t{32} << 20, kMostForAByte = 1040;

std::size_t largest = 0;
void note(const volatile void*, std::size_t size) { largest = std::max(largest, size); }
void ignore(const volatile void*) {}

std::vector<std::uint8_t> content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool run(const Target& target, const std::filesystem::path& path) {
  std::vector<std::uint8_t> bytes = content_of(path);
  largest = 0;
  target.run(bytes);
  if (!bytes.empty()) {
    target.run(Bytes(bytes).first(bytes.size() - 1));
    bytes[bytes.size() / 2] ^= 0x81U;
    target.run(bytes);
  }
  if (largest <= kMostForAnyFile + kMostForAByte * bytes.size()) return true;
  std::fprintf(stderr, "%s: %s of %zu bytes made it allocate %zu\n", target.name, path.c_str(),
               bytes.size(), largest);
  return false;
}

bool run_all(const Target& target, const std::filesystem::path& corpus) {
  int files = 0;
  bool fine = true;
  for (const auto& entry : std::filesystem::directory_iterator(corpus / target.name)) {
    std::fprintf(stderr, "%s: %s\n", target.name, entry.path().filename().c_str());
    fine = run(target, entry.path()) && fine;
    ++files;
  }
  if (files == 0) std::fprintf(stderr, "%s: its corpus is empty\n", target.name);
  return fine && files > 0;
}

}  // namespace
}  // namespace dkfac::fuzz

int main(int count, char** arguments) {
  using namespace dkfac::fuzz;
  if (count != 2) return 64;
  if (__sanitizer_install_malloc_and_free_hooks != nullptr)
    (void)__sanitizer_install_malloc_and_free_hooks(note, ignore);
  bool fine = true;
  try {
    for (const Target& target : kTargets) fine = run_all(target, arguments[1]) && fine;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "an exception that no reader documents: %s\n", error.what());
    return 1;
  }
  return fine ? 0 : 1;
}

#include "nn/backends/cuda/cudnn/compiled_plans.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>
#include <unistd.h>
#include <utility>

#include "dkfac/core/error.h"

namespace dkfac::nn::cudnn {
namespace {

struct Shared {
  std::mutex mutex;
  std::map<std::string, std::string> texts;
  std::map<std::string, std::mutex> turns;
};
Shared& shared() {
  static Shared all;
  return all;
}

/// FNV-1a hash for the name of a file; the file contains the whole key.
std::uint64_t hash_of(const std::string& key) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const char c : key) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  return hash;
}

}  // namespace

CompiledPlans::CompiledPlans(std::string about, std::string folder)
    : about_(std::move(about)), folder_(std::move(folder)) {}

std::string CompiledPlans::key(const std::string& choice) const { return about_ + " | " + choice; }

std::string CompiledPlans::path_of(const std::string& key) const {
  std::ostringstream name;
  name << folder_ << "/" << std::hex << hash_of(key) << ".plan";
  return std::move(name).str();
}

std::unique_lock<std::mutex> CompiledPlans::turn(const std::string& choice) const {
  std::unique_lock lock(shared().mutex);
  std::mutex& own = shared().turns[key(choice)];  // Its address is stable.
  lock.unlock();
  return std::unique_lock(own);
}

std::optional<std::string> CompiledPlans::find(const std::string& choice) const {
  const std::string wanted = key(choice);
  if (!folder_.empty()) {
    std::ifstream in(path_of(wanted), std::ios::binary);
    std::string line;
    if (std::getline(in, line) && line == wanted)
      return std::string(std::istreambuf_iterator<char>(in), {});
  }
  const std::lock_guard lock(shared().mutex);
  const auto found = shared().texts.find(wanted);
  return found == shared().texts.end() ? std::nullopt : std::optional(found->second);
}

void CompiledPlans::add(const std::string& choice, const std::string& text) const {
  const std::string own = key(choice);
  {
    const std::lock_guard lock(shared().mutex);
    shared().texts[own] = text;
  }
  if (folder_.empty()) return;
  std::error_code ignored;
  std::filesystem::create_directories(folder_, ignored);
  const std::string path = path_of(own);
  const std::string beside = detail::concat(
      path, ".", ::getpid(), ".", std::hash<std::thread::id>{}(std::this_thread::get_id()));
  std::ofstream out(beside, std::ios::binary | std::ios::trunc);
  out << own << '\n' << text;
  out.close();
  if (out) {
    std::filesystem::rename(beside, path, ignored);
  } else {
    std::filesystem::remove(beside, ignored);
  }
}

}  // namespace dkfac::nn::cudnn

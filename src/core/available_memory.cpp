#include "core/shared/available_memory.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <sstream>
#include <sys/resource.h>
#include <unistd.h>

#include "dkfac/core/device_info.h"

#include "core/cuda/runtime.h"

namespace dkfac {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

std::string text_in(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

double number_in(const std::string& path) {
  double bytes = kNoLimit;
  std::ifstream in(path);
  return in >> bytes ? bytes : kNoLimit;  // cgroup v2 writes "max" for no limit.
}

/// Sum of the numbers behind these words of a file of "word number" lines.
double numbers_of(const std::string& path, std::initializer_list<const char*> words) {
  double sum = 0, number = 0;
  std::ifstream in(path);
  for (std::string line, word; std::getline(in, line);)
    if (std::istringstream(line) >> word >> number && std::ranges::find(words, word) != words.end())
      sum += number;
  return sum;
}

/// Bytes that a control group may still use. Its page cache is reclaimed where memory is needed.
double room_of(const std::string& folder, bool second) {
  const double limit = number_in(folder + (second ? "/memory.max" : "/memory.limit_in_bytes"));
  if (limit == kNoLimit) return kNoLimit;
  return std::max(0.0,
                  limit - numbers_of(folder + "/memory.stat", {second ? "anon" : "total_rss"}));
}

/// The least room of the control groups of this process. In a container the folder of its own may
/// be the root.
double group_room(const std::string& top) {
  double least = kNoLimit;
  std::ifstream in(top + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    if (!names.empty() && names != "memory") continue;
    const std::string root = top + "/sys/fs/cgroup" + (names.empty() ? "" : "/memory");
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      least = std::min(least, room_of(root + path, names.empty()));
      if (path.find('/') == std::string::npos) break;
    }
  }
  return least;
}

double address_room() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kNoLimit;
  const double used = number_in("/proc/self/statm") * static_cast<double>(sysconf(_SC_PAGESIZE));
  return std::max(0.0, static_cast<double>(limit.rlim_cur) - (used < kNoLimit ? used : 0));
}

}  // namespace

std::optional<double> available_memory(const std::string& root) {
  const double free = 1024 * numbers_of(root + "/proc/meminfo", {"MemAvailable:", "SwapFree:"});
  const double least = std::min({free > 0 ? free : kNoLimit, group_room(root), address_room()});
  return least < kNoLimit ? std::optional(least) : std::nullopt;
}

std::optional<double> available_memory(Device device) {
  if (!device.is_cuda()) return available_memory();
  const std::optional<double> free = cuda::free_memory(device);
  const MemoryUse pool = device_memory(device);
  return free ? std::optional(*free + static_cast<double>(pool.reserved - pool.used)) : free;
}

std::uint64_t memory_group() {
  std::array<char, 64> space{};
  const auto length = readlink("/proc/self/ns/cgroup", space.data(), space.size());
  const std::string name =
      text_in("/proc/sys/kernel/random/boot_id") + text_in("/proc/self/cgroup") +
      std::string(space.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
  return std::hash<std::string>{}(name) >> 11;
}

std::string bytes_text(double bytes) {
  constexpr std::array kUnits = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.4g %s", bytes, kUnits[unit]);
  return text.data();
}

}  // namespace dkfac

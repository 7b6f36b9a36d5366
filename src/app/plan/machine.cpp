#include "app/plan/machine.h"

#include <algorithm>
#include <cctype>

#include <fmt/ranges.h>

#include "dkfac/core/error.h"

namespace dkfac::app::planning {

namespace {

constexpr double kTera = 1e12, kGiga = 1e9, kMicro = 1e-6;

/// Peaks of a data sheet, dense: TFLOP/s of 16-bit, f32 and TF32 products, TB/s and GB of memory;
/// GB/s in one direction to the GPUs of the node, and to other nodes.
struct DataSheet {
  const char* name;
  double peak16, peak32, peak_tf32, tb_per_s, gb, inner, outer;
  int per_node;
  bool bf16 = true;
};
constexpr DataSheet kSheets[] = {
    {"v100", 125, 15.7, 15.7, 0.9, 16, 150, 6.25, 4, false},  // Two 100 Gbit/s cards for four GPUs.
    {"a100", 312, 19.5, 156, 2.039, 80, 300, 25, 8},
    {"h100", 989.4, 66.9, 494.7, 3.35, 80, 450, 50, 8},
    {"h200", 989.4, 66.9, 494.7, 4.8, 141, 450, 50, 8},
};
/// Shares of the peaks that large products and copies sustain.
constexpr double kShare16 = 0.8, kShare32 = 0.5, kShareTf32 = 0.4, kShareCopy = 0.9;
constexpr Link kWithin{0, 1 * kMicro}, kBetween{0, 5 * kMicro};

Processor processor_of(const DataSheet& sheet) {
  Processor p{.name = sheet.name};
  p.products16 = kShare16 * kTera * sheet.peak16;
  p.products32 = kShare32 * kTera * sheet.peak32;
  p.products_tf32 =
      sheet.peak_tf32 > sheet.peak32 ? kShareTf32 * kTera * sheet.peak_tf32 : p.products32;
  p.copy = kShareCopy * kTera * sheet.tb_per_s;
  p.memory = kGiga * sheet.gb;
  p.inner = {kGiga * sheet.inner, kWithin.latency};
  p.outer = {kGiga * sheet.outer, kBetween.latency};
  p.per_node = sheet.per_node;
  p.bf16 = sheet.bf16;
  return p;
}

}  // namespace

Processor processor_of(std::string_view name) {
  const auto same = [](unsigned char a, unsigned char b) { return std::tolower(a) == b; };
  for (const DataSheet& sheet : kSheets)
    if (std::ranges::equal(name, std::string_view(sheet.name), same)) return processor_of(sheet);
  throw InvalidArgument(fmt::format("[plan] '{}' is no device that is known; use one of {}", name,
                                    fmt::join(processor_names(), ", ")));
}

std::vector<std::string> processor_names() {
  std::vector<std::string> names;
  for (const DataSheet& sheet : kSheets) names.emplace_back(sheet.name);
  return names;
}

}  // namespace dkfac::app::planning

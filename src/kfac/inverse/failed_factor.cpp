#include "kfac/inverse/failed_factor.h"

#include <cmath>
#include <exception>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "dkfac/core/ops.h"

#include "core/shared/read_back.h"

namespace dkfac::kfac {
namespace {

/// The .npy header: magic, version, length, and a dictionary padded with spaces so that the data
/// starts at a multiple of 64 bytes.
std::string npy_header(ConstTensorView x) {
  std::ostringstream dict;
  dict << "{'descr': '<f" << size_of(x.dtype()) << "', 'fortran_order': False, 'shape': (";
  for (int i = 0; i < x.ndim(); ++i) dict << x.dim(i) << ",";
  dict << "), }";
  std::string text = dict.str();
  constexpr std::size_t kPrefix = 10, kAlignment = 64;
  text.append((2 * kAlignment - 1 - (kPrefix + text.size()) % kAlignment) % kAlignment, ' ');
  text += '\n';
  std::string header{"\x93NUMPY\x01\x00", 8};
  header += static_cast<char>(text.size() % 256);
  header += static_cast<char>(text.size() / 256);
  return header + text;
}

std::string file_name_of(Context& ctx, std::string_view layer_name, std::string_view kind,
                         const Factor& factor) {
  std::ostringstream name;
  bool replaced = false;
  std::uint32_t hash = 2166136261U;  // FNV-1a of the whole name
  for (const char c : layer_name) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                       c == '.' || c == '-' || c == '_';
    name << (plain ? c : '_');
    replaced = replaced || !plain;
    hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  }
  // Other names may be mapped to the same characters.
  if (replaced) name << "-" << std::hex << hash << std::dec;
  name << "." << kind;
  if (const int group = factor.failed_group; group >= 0) {
    if (factor.groups > 1) name << (factor.has_blocks() ? ".block-" : ".group-") << group;
    name << ".damping-"
         << std::abs(read_back<double>(ctx, factor.requested_damping.view().slice(0, group, 1))[0]);
  }
  name << ".npy";
  return name.str();
}

/// Copies the average to `host`, as full matrices or rows.
Tensor dense_average(Context& ctx, Context& host, const Factor& factor) {
  Tensor average = Tensor::empty(host, factor.average.shape(), factor.average.dtype());
  ops::copy(ctx, factor.average, average);
  ctx.stream().synchronize();
  if (factor.has_rows())
    return Tensor::copy_of(host, average.view().reshape({factor.rows, factor.dim}));
  Tensor dense = Tensor::zeros(host, {factor.groups, factor.dim, factor.dim}, average.dtype());
  const std::int64_t size = ops::packed_size(factor.dim);
  for (int group = 0; group < factor.groups; ++group)
    ops::unpack_lower(host, average.view().slice(0, group * size, size),
                      dense.view().slice(0, group, 1).reshape({factor.dim, factor.dim}),
                      ops::Upper::filled);
  return dense;
}

}  // namespace

const char* what_failed(FailedAt failed) {
  switch (failed) {
    case FailedAt::inversion:
      return "could not be inverted";
    case FailedAt::statistic:
      return "had a statistic whose sum was not finite";
    case FailedAt::scales:
      return "had EKFAC scales whose sum was not finite";
  }
  return "has failed";
}

std::string remedy(const CurvatureOptions& options, FailedAt failed) {
  std::string text = failed == FailedAt::inversion ? "raise the damping"
                                                   : "lower the learning rate or the loss scale";
  if (options.dtype != DType::f64) text += ", or set CurvatureOptions::dtype to f64";
  return text;
}

bool write_npy(const std::string& path, ConstTensorView x) noexcept {
  try {
    std::ofstream file(path, std::ios::binary);
    const std::string header = npy_header(x);
    file.write(header.data(), static_cast<std::streamsize>(header.size()));
    file.write(static_cast<const char*>(x.raw()), static_cast<std::streamsize>(x.bytes()));
    file.close();
    return file.good();
  } catch (const std::exception&) {
    return false;
  }
}

std::string save_failed_factor(Context& ctx, const CurvatureOptions& options,
                               std::string_view layer_name, std::string_view kind,
                               const Factor& factor) noexcept {
  if (options.inverse.failure_folder.empty()) return {};
  try {
    std::filesystem::create_directories(options.inverse.failure_folder);
    Context host;
    const Tensor dense = dense_average(ctx, host, factor);
    const ConstTensorView all = dense;
    const std::string path = (std::filesystem::path(options.inverse.failure_folder) /
                              file_name_of(ctx, layer_name, kind, factor))
                                 .string();
    const bool single = !factor.has_rows() && factor.groups == 1;
    return write_npy(path, single ? all.reshape({factor.dim, factor.dim}) : all) ? path
                                                                                 : std::string();
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace dkfac::kfac

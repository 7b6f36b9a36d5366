#include <algorithm>
#include <array>
#include <filesystem>

#include "dkfac/data/dataset.h"
#include "dkfac/data/image.h"

#include "data/gzip.h"
#include "data/photo_format.h"
#include "data/photo_index.h"
#include "data/shard.h"
#include "fuzz/attempt.h"

namespace dkfac::fuzz {
namespace {

constexpr std::int64_t kMostPixels = 1 << 20;

data::DecodeOptions few_pixels() {
  data::DecodeOptions options;
  options.max_pixels = kMostPixels;
  return options;
}

}  // namespace

void idx(Bytes bytes) {
  if (bytes.size() < 2) return;
  const std::size_t at = std::min<std::size_t>(bytes[0] + 256U * bytes[1], bytes.size() - 2);
  const MemoryFile images(bytes.subspan(2, at)), labels(bytes.subspan(2 + at));
  attempt([&] { (void)data::read_idx(images.path(), labels.path(), 10, "fuzz"); });
}

void cifar(Bytes bytes) {
  const MemoryFile file(bytes);
  const std::array<std::filesystem::path, 1> files = {file.path()};
  attempt([&] { (void)data::read_cifar10(files, "fuzz"); });
}

void gzip(Bytes bytes) {
  const MemoryFile file(bytes);
  attempt([&] {
    data::ByteReader reader(file.path());
    std::array<std::uint8_t, 4096> out{};
    while (reader.read(out) == out.size()) {
    }
  });
}

void jpeg(Bytes bytes) {
  attempt([&] {
    data::Image image;
    data::decode_jpeg(bytes, few_pixels(), image);
  });
}

void png(Bytes bytes) {
  attempt([&] {
    data::Image image;
    data::decode_png(bytes, few_pixels(), image);
  });
}

void webp(Bytes bytes) {
  attempt([&] {
    data::Image image;
    data::decode_webp(bytes, few_pixels(), image);
  });
}

void photo_index(Bytes bytes) {
  const MemoryFile file(bytes);
  attempt([&] { (void)data::read_photo_index(file.path()); });
}

void shard(Bytes bytes) {
  attempt([&] { (void)data::parse_shard(bytes); });
}

}  // namespace dkfac::fuzz

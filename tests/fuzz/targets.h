#pragma once

#include <cstdint>
#include <span>

/// Readers and parsers of what others wrote, for bytes of any kind: each either takes them or
/// throws an Error of the library. docs/project/proof.md, "Strange bytes".
namespace dkfac::fuzz {

using Bytes = std::span<const std::uint8_t>;

// Of the data layer.
void idx(Bytes bytes);  ///< Two bytes: where the file of labels begins.
void cifar(Bytes bytes);
void gzip(Bytes bytes);
void jpeg(Bytes bytes);
void png(Bytes bytes);
void photo_index(Bytes bytes);
void shard(Bytes bytes);
// Of the network.
void handshake(Bytes bytes);
void notices(Bytes bytes);
// Of the C interface.
void c_structs(Bytes bytes);
// Of the program.
void safetensors(Bytes bytes);
void manifest(Bytes bytes);
void state(Bytes bytes);
void result(Bytes bytes);
void toml(Bytes bytes);
void set_option(Bytes bytes);

struct Target {
  const char* name;
  void (*run)(Bytes);
};
inline constexpr Target kTargets[] = {
    {"idx", idx},
    {"cifar", cifar},
    {"gzip", gzip},
    {"jpeg", jpeg},
    {"png", png},
    {"photo_index", photo_index},
    {"shard", shard},
    {"handshake", handshake},
    {"notices", notices},
    {"c_structs", c_structs},
    {"safetensors", safetensors},
    {"manifest", manifest},
    {"state", state},
    {"result", result},
    {"toml", toml},
    {"set_option", set_option},
};

}  // namespace dkfac::fuzz

#include "app/place.h"

#include <algorithm>
#include <array>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "dkfac/comm/launch.h"
#include "dkfac/comm/on_device.h"
#include "dkfac/core/context.h"
#include "dkfac/core/error.h"

#include "app/agreement.h"

namespace dkfac::app {

namespace {

constexpr const char* kOrCpu = "or use run.device = \"cpu\"";

int visible_devices() { return static_cast<int>(available_devices().size()) - 1; }

/// Throws for a device that cannot be had here.
void require(const DeviceChoice& choice, const std::string& text) {
  const int visible = visible_devices();
  DKFAC_CHECK(visible > 0 || !backend_info().cuda_info.runtime.empty(), "[device] run.device = \"",
              text, "\", and this program was built without CUDA; build with -DDKFAC_CUDA=ON, ",
              kOrCpu);
  DKFAC_CHECK(visible > 0, "[device] run.device = \"", text,
              "\", and there is no GPU; look at nvidia-smi and CUDA_VISIBLE_DEVICES, ", kOrCpu);
  DKFAC_CHECK(
      !choice.index || *choice.index<visible, "[device] run.device = \"", text,
                                     "\", and the GPUs that are visible are cuda:0", visible> 1
          ? fmt::format(" to cuda:{}", visible - 1)
          : "",
      "; name one of them, or look at CUDA_VISIBLE_DEVICES");
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

/// A GPU that processes take turns on makes each of them slower than one alone. `names`: of the
/// hosts of all ranks.
void require_own(const std::vector<std::string>& names) {
  const auto here = std::ranges::count(names, host_name());
  DKFAC_CHECK(here <= visible_devices(), "[device] ", here, " ranks on '", host_name(), "', and ",
              visible_devices(),
              " GPUs that they see; start as many ranks as GPUs, or name the GPU they are to "
              "share, as in run.device = \"cuda:0\"");
}

}  // namespace

Place find_place(const Config& config, std::shared_ptr<comm::Communicator> host,
                 Position& position) {
  const DeviceChoice choice = device_choice(config);
  position.phase = "device";
  if (choice.kind == Device::Kind::cpu) return {Device::cpu(), std::move(host)};
  together(*host, position, [&] { require(choice, config.run.device); });
  Device device = Device::cuda(choice.index.value_or(0));
  if (!choice.index) {
    device = comm::device_of_rank(*host);
    if (comm::detect_launch().size > 1) {
      const auto names = comm::all_gather_strings(*host, host_name());
      together(*host, position, [&] { require_own(names); });
    }
  }
  return {device, comm::on_device(std::move(host), device)};
}

}  // namespace dkfac::app

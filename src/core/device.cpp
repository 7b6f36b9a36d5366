#include "dkfac/core/device.h"

#include "core/cuda/runtime.h"

namespace dkfac {

std::ostream& operator<<(std::ostream& out, Device device) {
  if (device.is_cuda()) return out << "cuda:" << device.index;
  return out << "cpu";
}

std::vector<Device> available_devices() {
  std::vector<Device> devices{Device::cpu()};
  for (int i = 0; i < cuda::device_count(); ++i) devices.push_back(Device::cuda(i));
  return devices;
}

}  // namespace dkfac

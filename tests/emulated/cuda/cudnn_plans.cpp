#include <chrono>
#include <mutex>
#include <unistd.h>

#include "cudnn_descriptor.h"
#include "emulated/cudnn_faults.h"
#include "state.h"

// Compiled plans, and their text form.
namespace emulated::dnn {
namespace {

using Lock = std::scoped_lock<DeviceMutex>;

int compiled = 0, under_way = 0, wanted_together = 0;

/// Plans by their text, which names the process: text of another process is unknown here.
std::map<std::string, Descriptor>& texts() {
  static auto* const all = new std::map<std::string, Descriptor>;
  return *all;
}

}  // namespace

std::string written(const Descriptor& plan) {
  const Lock lock(state().mutex);
  const std::string text =
      "emulated plan " + std::to_string(::getpid()) + "." + std::to_string(texts().size());
  texts()[text] = plan;
  return text;
}

void read(const std::string& text, Descriptor& plan) {
  const Lock lock(state().mutex);
  const auto found = texts().find(text);
  require(found != texts().end(), CUDNN_STATUS_BAD_PARAM, "no plan is written like that");
  const Value handle = plan.values.at(CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
  plan = found->second;
  plan.values[CUDNN_ATTR_EXECUTION_PLAN_HANDLE] = handle;
}

int compilations() {
  const Lock lock(state().mutex);
  return compiled;
}

void compile_slowly(int together) {
  const Lock lock(state().mutex);
  wanted_together = together;
  under_way = 0;
}

void compile() {
  const Lock lock(state().mutex);
  ++compiled;
  if (wanted_together == 0) return;
  ++under_way;
  state().mutex.notify_all();
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  while (under_way < wanted_together && std::chrono::steady_clock::now() < end)
    state().mutex.wait();
}

}  // namespace emulated::dnn

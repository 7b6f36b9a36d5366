#include <algorithm>
#include <mutex>
#include <set>

#include "cudnn_descriptor.h"
#include "emulated/cudnn_faults.h"
#include "emulated/library_faults.h"
#include "emulated/work_log.h"
#include "graph.h"
#include "handles.h"
#include "state.h"

// The entry points of cuDNN that the library calls.
namespace {

using emulated::state;
using emulated::dnn::Descriptor;
using emulated::dnn::Field;
using emulated::dnn::Link;
using emulated::dnn::Refusal;
using emulated::dnn::require;
using emulated::dnn::Value;
using Lock = std::scoped_lock<emulated::DeviceMutex>;

/// The caller's handle of a descriptor; its content is shared with descriptors that include it.
struct Entry {
  std::shared_ptr<Descriptor> content;
};

std::set<Entry*>& entries() {
  static auto* const all = new std::set<Entry*>;
  return *all;
}
std::set<cudnnContext*>& handles() {
  static auto* const all = new std::set<cudnnContext*>;
  return *all;
}
thread_local std::string last_error;

/// Runs the body of an entry point.
template <class Body>
cudnnStatus_t answer(Body&& body) {
  const Lock lock(state().mutex);
  try {
    body();
    return CUDNN_STATUS_SUCCESS;
  } catch (const Refusal& refusal) {
    last_error = refusal.why;
    return refusal.status;
  }
}

Entry& entry_of(cudnnBackendDescriptor_t descriptor) {
  auto* const entry = static_cast<Entry*>(descriptor);
  require(entry != nullptr, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the descriptor is null");
  require(entries().contains(entry), CUDNN_STATUS_BAD_PARAM, "the descriptor does not exist");
  return *entry;
}

Link finalized(cudnnBackendDescriptor_t descriptor) {
  const Entry& entry = entry_of(descriptor);
  require(entry.content->finalized, CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED,
          "a descriptor is not finalised");
  return entry.content;
}

void check_handle(cudnnHandle_t handle) {
  require(handle != nullptr && handles().contains(handle), CUDNN_STATUS_BAD_PARAM,
          "the handle does not exist");
}

const Field& field_of(const Descriptor& descriptor, int name, cudnnBackendAttributeType_t type) {
  for (const Field& field : emulated::dnn::fields_of(descriptor.type)) {
    if (field.name != name) continue;
    require(field.type == type, CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
            "attribute " + std::to_string(name) + " has another type");
    return field;
  }
  throw Refusal{CUDNN_STATUS_NOT_SUPPORTED,
                "a descriptor of kind " + std::to_string(descriptor.type) + " has no attribute " +
                    std::to_string(name) + " here"};
}

Value links_to(const Field& field, std::int64_t count, const void* elements) {
  Value value{field.type, count, {}, {}};
  const auto* raw = static_cast<const cudnnBackendDescriptor_t*>(elements);
  for (std::int64_t i = 0; i < count; ++i) {
    const Link link = finalized(raw[i]);
    require(std::find(field.linked.begin(), field.linked.end(), link->type) != field.linked.end(),
            CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "a descriptor of the wrong kind");
    value.links.push_back(link);
  }
  return value;
}

void set(Descriptor& descriptor, int name, cudnnBackendAttributeType_t type, std::int64_t count,
         const void* elements) {
  require(!descriptor.finalized, CUDNN_STATUS_NOT_INITIALIZED, "the descriptor is finalised");
  const Field& field = field_of(descriptor, name, type);
  require(field.use != Field::Use::told, CUDNN_STATUS_BAD_PARAM, "the attribute cannot be set");
  require(count >= std::max<std::int64_t>(1, field.least) && count <= field.most,
          CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND,
          "attribute " + std::to_string(name) + " does not take " + std::to_string(count) +
              " elements");
  require(elements != nullptr, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the elements are null");
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    descriptor.values[name] = links_to(field, count, elements);
    return;
  }
  Value value{type, count, {}, {}};
  const auto* bytes = static_cast<const std::byte*>(elements);
  value.bytes.assign(bytes, bytes + static_cast<std::size_t>(count) * emulated::dnn::size_of(type));
  descriptor.values[name] = std::move(value);
  if (type == CUDNN_TYPE_HANDLE) check_handle(descriptor.one<cudnnHandle_t>(name));
}

void get(const Descriptor& descriptor, int name, cudnnBackendAttributeType_t type,
         std::int64_t most, std::int64_t* count, void* elements) {
  require(descriptor.finalized, CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED,
          "the descriptor is not finalised");
  (void)field_of(descriptor, name, type);
  require(most >= 0 && (most == 0 || elements != nullptr), CUDNN_STATUS_BAD_PARAM,
          "there is no room for the elements");
  const auto found = descriptor.values.find(name);
  require(found != descriptor.values.end() || name != CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
          CUDNN_STATUS_NOT_SUPPORTED, "the engine does not tell its notes");
  const std::int64_t there = found == descriptor.values.end() ? 0 : found->second.count;
  const std::int64_t copied = std::min(most, there);
  if (count != nullptr) *count = most == 0 ? there : copied;
  if (copied == 0) return;
  if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    std::memcpy(elements, found->second.bytes.data(),
                static_cast<std::size_t>(copied) * emulated::dnn::size_of(type));
    return;
  }
  // The caller's descriptors have the right kind; the attribute's become copies of them.
  const auto* raw = static_cast<const cudnnBackendDescriptor_t*>(elements);
  for (std::int64_t i = 0; i < copied; ++i) {
    Entry& entry = entry_of(raw[i]);
    const Link& link = found->second.links[static_cast<std::size_t>(i)];
    require(entry.content->type == link->type, CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
            "a descriptor of the wrong kind to write to");
    require(!entry.content->finalized, CUDNN_STATUS_NOT_INITIALIZED,
            "a descriptor to write to is finalised");
    entry.content = std::make_shared<Descriptor>(*link);
  }
}

/// Names the graph by its convolution.
emulated::LoggedWork logged(const emulated::dnn::Graph& graph) {
  using emulated::dnn::Kind;
  emulated::LoggedWork work;
  for (const emulated::dnn::Operation& o : graph.operations) {
    if (o.kind != Kind::forward && o.kind != Kind::data && o.kind != Kind::weights) continue;
    const auto tensor = [&](std::int64_t id) { return graph.tensors.at(id); };
    const auto y = tensor(o.kind == Kind::forward ? o.to[0] : o.from[0]);
    const auto w = tensor(o.kind == Kind::weights ? o.to[0] : o.from[1]);
    work.name = o.kind == Kind::forward ? "cudnn forward"
                : o.kind == Kind::data  ? "cudnn data"
                                        : "cudnn weights";
    work.flop += 2.0 * static_cast<double>(y.numel()) * static_cast<double>(w.numel() / w.dims[0]);
  }
  for (const auto& [id, tensor] : graph.tensors) {
    if (tensor.is_virtual) continue;
    work.bytes += static_cast<double>(tensor.numel()) * (tensor.type == CUDNN_DATA_FLOAT ? 4 : 2);
  }
  return work;
}

/// Converts the pointers of a variant pack to the form that the plan uses.
emulated::dnn::Execution execution_of(const Descriptor& plan, const Descriptor& pack) {
  const auto ids = pack.all<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  emulated::dnn::Execution work{plan.graph,
                                plan.engine,
                                {},
                                pack.one<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE),
                                plan.workspace};
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto tensor = plan.graph->tensors.find(ids[i]);
    require(tensor != plan.graph->tensors.end() && !tensor->second.is_virtual,
            CUDNN_STATUS_BAD_PARAM, "there is no tensor " + std::to_string(ids[i]));
    require(emulated::is_device_memory(pointers[i]), CUDNN_STATUS_BAD_PARAM,
            "tensor " + std::to_string(ids[i]) + " is not in device memory");
    require(reinterpret_cast<std::uintptr_t>(pointers[i]) %
                    static_cast<std::uintptr_t>(tensor->second.alignment) ==
                0,
            CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER,
            "tensor " + std::to_string(ids[i]) + " is not aligned as declared");
    for (const auto& [id, other] : work.memory)
      require(other != pointers[i], CUDNN_STATUS_BAD_PARAM, "two tensors in one place");
    work.memory[ids[i]] = pointers[i];
  }
  for (const auto& [id, tensor] : plan.graph->tensors)
    require(tensor.is_virtual || work.memory.contains(id), CUDNN_STATUS_BAD_PARAM,
            "tensor " + std::to_string(id) + " has no memory");
  require(
      plan.workspace == 0 || (emulated::is_device_memory(work.workspace) &&
                              emulated::is_device_memory(static_cast<std::byte*>(work.workspace) +
                                                         plan.workspace - 1)),
      CUDNN_STATUS_BAD_PARAM, "the workspace is missing or too small");
  require(reinterpret_cast<std::uintptr_t>(work.workspace) % 256 == 0, CUDNN_STATUS_BAD_PARAM,
          "the workspace is not aligned like an allocation");
  return work;
}

int plans_to_failure = 0, failures_to_come = 0;

}  // namespace

void emulated::dnn::fail_plan(int calls) {
  const Lock lock(state().mutex);
  plans_to_failure = calls;
}
void emulated::dnn::fail_executions(int calls) {
  const Lock lock(state().mutex);
  failures_to_come = calls;
}
bool emulated::dnn::plan_fails() {
  const Lock lock(state().mutex);
  return plans_to_failure > 0 && --plans_to_failure == 0;
}
bool emulated::dnn::execution_fails() {
  const Lock lock(state().mutex);
  return failures_to_come > 0 && failures_to_come-- > 0;
}

extern "C" {

std::size_t cudnnGetVersion() { return CUDNN_VERSION; }
std::size_t cudnnGetCudartVersion() { return CUDART_VERSION; }
cudnnStatus_t cudnnGetProperty(libraryPropertyType type, int* value) {
  if (value == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  *value = type == MAJOR_VERSION   ? CUDNN_MAJOR
           : type == MINOR_VERSION ? CUDNN_MINOR
                                   : CUDNN_PATCHLEVEL;
  return CUDNN_STATUS_SUCCESS;
}
const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (CUDNN_STATUS_CATEGORY(static_cast<int>(status))) {
    case 0:
      return "CUDNN_STATUS_SUCCESS";
    case 2000:
      return "CUDNN_STATUS_BAD_PARAM";
    case 3000:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    case 5000:
      return "CUDNN_STATUS_EXECUTION_FAILED";
    default:
      return "CUDNN_STATUS_INTERNAL_ERROR";
  }
}
void cudnnGetLastErrorString(char* message, std::size_t most) {
  if (message == nullptr || most == 0) return;
  const std::size_t length = std::min(most - 1, last_error.size());
  std::copy_n(last_error.data(), length, message);
  message[length] = 0;
  last_error.clear();
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  return answer([&] {
    require(handle != nullptr, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the handle is null");
    require(emulated::refuse_while_recording() == cudaSuccess, CUDNN_STATUS_INTERNAL_ERROR,
            "a handle cannot be made while a stream is captured");
    require(!emulated::libraries_starve(), CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED,
            "there is no memory of the device for the handle");
    *handle = new cudnnContext;
    handles().insert(*handle);
  });
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  return answer([&] {
    check_handle(handle);
    require(emulated::refuse_while_anything_is_recorded() == cudaSuccess,
            CUDNN_STATUS_INTERNAL_ERROR, "the device is waited for while a stream is captured");
    emulated::wait_for_handle(handle->stream);
    handles().erase(handle);
    delete handle;
  });
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  return answer([&] {
    check_handle(handle);
    require(handle->stream == stream || emulated::refuse_while_recording() == cudaSuccess,
            CUDNN_STATUS_INTERNAL_ERROR,
            "streams are ordered by events while one of them is captured");
    handle->stream = stream;
  });
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  return answer([&] {
    check_handle(handle);
    *stream = handle->stream;
  });
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  return answer([&] {
    require(descriptor != nullptr, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the descriptor is null");
    require(!emulated::dnn::fields_of(type).empty(), CUDNN_STATUS_NOT_SUPPORTED,
            "descriptors of kind " + std::to_string(type) + " are not emulated");
    auto* made = new Entry{std::make_shared<Descriptor>()};
    made->content->type = type;
    entries().insert(made);
    *descriptor = made;
  });
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  return answer([&] {
    Entry& entry = entry_of(descriptor);
    entries().erase(&entry);
    delete &entry;
  });
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t count,
                                       const void* elements) {
  return answer([&] { set(*entry_of(descriptor).content, name, type, count, elements); });
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t most,
                                       std::int64_t* count, void* elements) {
  return answer([&] {
    const std::shared_ptr<Descriptor> content = entry_of(descriptor).content;
    get(*content, name, type, most, count, elements);
  });
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  return answer([&] {
    Descriptor& content = *entry_of(descriptor).content;
    require(!content.finalized, CUDNN_STATUS_BAD_PARAM, "the descriptor is finalised");
    for (const Field& field : emulated::dnn::fields_of(content.type))
      require(field.use != Field::Use::required || content.has(field.name), CUDNN_STATUS_BAD_PARAM,
              "attribute " + std::to_string(field.name) + " is not set");
    emulated::dnn::finalize(content);
    content.finalized = true;
  });
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  return answer([&] {
    check_handle(handle);
    require(!emulated::dnn::execution_fails(), CUDNN_STATUS_EXECUTION_FAILED, "it did not run");
    require(!emulated::libraries_starve(), CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED,
            "there is no memory of the device to load code into");
    const Link what = finalized(plan), where = finalized(pack);
    require(what->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR &&
                where->type == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
            CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "not a plan and a variant pack");
    if (emulated::logs_work()) emulated::log_work(logged(*what->graph));
    emulated::launch(handle->stream, execution_of(*what, *where));
  });
}

}  // extern "C"

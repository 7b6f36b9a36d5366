#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <cudnn.h>
#include <map>
#include <memory>
#include <string>
#include <vector>

struct CUstream_st;

struct cudnnContext {
  CUstream_st* stream = nullptr;
};

/// The backend ("graph") interface of cuDNN 9: convolutions of channels-last tensors, their
/// gradients, sums over pixels, and a few pointwise operations. Attributes that the documentation
/// requires are required, and no others are accepted.
namespace emulated::dnn {

/// The status of a failed call; never leaves this library.
struct Refusal {
  cudnnStatus_t status;
  std::string why;
};
/// Throws Refusal unless `holds`.
void require(bool holds, cudnnStatus_t status, const std::string& why);

struct Graph;
struct Engine;
struct Descriptor;
/// A finalised descriptor, which does not change any more.
using Link = std::shared_ptr<const Descriptor>;

struct Value {
  cudnnBackendAttributeType_t type{};
  std::int64_t count = 0;
  std::vector<std::byte> bytes;  ///< Values,
  std::vector<Link> links;       ///< or descriptors.
};

struct Descriptor {
  cudnnBackendDescriptorType_t type{};
  bool finalized = false;
  std::map<int, Value> values;         ///< By attribute.
  std::shared_ptr<const Graph> graph;  ///< For an operation graph, and for descriptors made from
                                       ///< one.
  const Engine* engine = nullptr;      ///< For an engine, and for descriptors made from one.
  std::int64_t workspace = 0;          ///< For an execution plan.

  [[nodiscard]] bool has(int name) const { return values.contains(name); }
  template <class T>
  [[nodiscard]] std::vector<T> all(int name) const {
    const Value& value = values.at(name);
    std::vector<T> out(static_cast<std::size_t>(value.count));
    std::memcpy(out.data(), value.bytes.data(), value.bytes.size());
    return out;
  }
  template <class T>
  [[nodiscard]] T one(int name) const {
    T out;
    std::memcpy(&out, values.at(name).bytes.data(), sizeof(T));
    return out;
  }
  [[nodiscard]] const Descriptor& link(int name) const { return *values.at(name).links.front(); }
  /// An attribute that is read and never set by the caller.
  template <class T>
  void tell(int name, cudnnBackendAttributeType_t of, const std::vector<T>& told) {
    Value& value = values[name];
    value = {of, static_cast<std::int64_t>(told.size()), {}, {}};
    value.bytes.resize(told.size() * sizeof(T));
    if (!told.empty()) std::memcpy(value.bytes.data(), told.data(), value.bytes.size());
  }
  void tell_links(int name, std::vector<Link> links) {
    values[name] = {CUDNN_TYPE_BACKEND_DESCRIPTOR,
                    static_cast<std::int64_t>(links.size()),
                    {},
                    std::move(links)};
  }
};

/// An attribute of a kind of descriptor.
struct Field {
  int name;
  cudnnBackendAttributeType_t type;
  std::int64_t least, most;  ///< Numbers of elements.
  enum class Use { required, optional, told } use = Use::required;
  std::vector<cudnnBackendDescriptorType_t> linked;  ///< Allowed kinds of descriptors.
};
/// Returns all attributes; none for a kind that is not emulated.
[[nodiscard]] const std::vector<Field>& fields_of(cudnnBackendDescriptorType_t type);
/// Bytes of an element.
[[nodiscard]] std::size_t size_of(cudnnBackendAttributeType_t type);

/// Checks the attributes, and computes what depends on them.
void finalize(Descriptor& descriptor);

using Dims = std::array<std::int64_t, 4>;

struct Tensor {
  std::int64_t id = 0;
  cudnnDataType_t type{};
  Dims dims{};
  std::int64_t alignment = 0;
  bool is_virtual = false;
  bool operator==(const Tensor&) const = default;
  [[nodiscard]] std::int64_t numel() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
};

struct Geometry {
  std::array<std::int64_t, 2> before{}, after{}, stride{}, dilation{};
};

enum class Kind {
  forward,
  data,
  weights,
  identity,
  relu,
  add,
  subtract,
  multiply,
  relu_backward,
  sums,
  norm_gradients
};

/// Tensors by id: forward x, w -> y; data dy, w -> dx; weights dy, x -> dw; identity and relu x ->
/// y; add, subtract and multiply x, b -> y; relu_backward dy, x -> dx; sums x -> sum, sum of
/// squares; norm_gradients x, dy, mean, inverse deviation, scale -> gradients of scale and shift,
/// factors of dy and x, constant.
struct Operation {
  Kind kind{};
  Geometry geometry;
  std::vector<std::int64_t> from, to;
};

struct Graph {
  std::vector<Operation> operations;  ///< In an order in which they can be computed.
  std::map<std::int64_t, Tensor> tensors;
};

/// Throws Refusal where the operation is inconsistent.
void check_operation(const Descriptor& operation);
[[nodiscard]] std::shared_ptr<const Graph> graph_of(const std::vector<Link>& operations);

/// An engine that computes graphs, with properties that a caller may query.
struct Engine {
  std::int64_t index;
  std::vector<cudnnBackendNumericalNote_t> numbers;
  std::vector<cudnnBackendBehaviorNote_t> behavior;
  std::vector<cudnnBackendKnobType_t> knobs;  ///< Knobs, each 0 to 3.
  std::int64_t workspace = 0;                 ///< Bytes, for every graph.
  bool plans = true;                          ///< False: a plan of it cannot be finalised.
  bool tells = true;                          ///< False: `numbers` cannot be read.
  /// Whether its one knob splits the sum of a gradient of weights into 1 to 128 slices, whose
  /// partial sums are in the workspace.
  bool splits = false;
  [[nodiscard]] bool has(cudnnBackendNumericalNote_t note) const;
};
/// Returns engines in the order of the heuristic; none where nothing computes the graph.
[[nodiscard]] std::vector<const Engine*> engines_for(const Graph& graph,
                                                     cudnnBackendHeurMode_t mode);

/// Returns an execution plan as text, which only this process can read.
[[nodiscard]] std::string written(const Descriptor& plan);
/// Restores `plan` from its text. Throws Refusal for unknown text.
void read(const std::string& text, Descriptor& plan);

/// Work on a stream.
struct Execution {
  std::shared_ptr<const Graph> graph;
  const Engine* engine;
  std::map<std::int64_t, void*> memory;  ///< Memory of the tensors that are not virtual.
  void* workspace;
  std::int64_t workspace_bytes;
  void operator()() const;
};

}  // namespace emulated::dnn

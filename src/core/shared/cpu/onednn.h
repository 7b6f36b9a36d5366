#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <oneapi/dnnl/dnnl.hpp>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"

/// oneDNN primitives that are created once and executed on changing memory.
namespace dkfac::onednn {

[[nodiscard]] inline std::int64_t floats_in(std::size_t bytes) {
  return static_cast<std::int64_t>((bytes + sizeof(float) - 1) / sizeof(float));
}

[[nodiscard]] inline dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

/// Whether oneDNN would compute a convolution by products of whole matrices.
template <class PrimitiveDesc>
[[nodiscard]] bool multiplies_matrices(const PrimitiveDesc& desc) {
  return std::string_view(desc.impl_info_str()).find("gemm:") != std::string_view::npos;
}

/// A cache of plans for the `most` most recent shapes.
template <class Plan, std::size_t most>
class Plans {
 public:
  /// Returns the plan for which fits() holds, or puts make() in place of the oldest.
  template <class Fits, class Make>
  Plan& find_or_make(const Fits& fits, const Make& make) {
    const auto found =
        std::find_if(plans_.begin(), plans_.end(), [&](const auto& p) { return fits(*p); });
    if (found != plans_.end()) return **found;
    std::unique_ptr<Plan> made = make();
    if (plans_.size() == most) plans_.erase(plans_.begin());
    return *plans_.emplace_back(std::move(made));
  }

 private:
  std::vector<std::unique_ptr<Plan>> plans_;
};

/// A primitive with its arguments, whose memory is set before each execution.
class Bound {
 public:
  using Desc = dnnl::memory::desc;

  template <class Primitive>
  static Bound make(const typename Primitive::primitive_desc& desc, const dnnl::engine& engine,
                    std::initializer_list<std::pair<int, Desc>> arguments) {
    Bound bound;
    bound.primitive_ = Primitive(desc);
    bound.scratch_floats_ = floats_in(desc.scratchpad_desc().get_size());
    for (const auto& [id, memory_desc] : arguments) bound.add(id, memory_desc, engine);
    bound.add(DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc(), engine);
    return bound;
  }

  void set(int argument, ConstTensorView view) {
    const auto found = std::find_if(arguments_.begin(), arguments_.end(),
                                    [&](const auto& a) { return a.arg == argument; });
    dnnl::memory& place = memories_[static_cast<std::size_t>(found - arguments_.begin())];
    void* const data = const_cast<void*>(view.raw());
    // Setting a pointer clears the padding of blocked formats, even if the pointer is the same.
    if (place.get_data_handle() != data) place.set_data_handle(data);
  }

  void run(Context& ctx, dnnl::stream& stream) {
    Scratch scratch(ctx);
    if (scratch_floats_ > 0) set(DNNL_ARG_SCRATCHPAD, scratch.take(Shape{scratch_floats_}));
    // The C function uses the list directly; the C++ one would copy it to the heap.
    dnnl::error::wrap_c_api(
        dnnl_primitive_execute(primitive_.get(), stream.get(), static_cast<int>(arguments_.size()),
                               arguments_.data()),
        "could not execute a primitive");
    stream.wait();
  }

 private:
  /// Does nothing for an empty description, that of a missing bias.
  void add(int id, const Desc& desc, const dnnl::engine& engine) {
    if (desc.get_size() == 0) return;
    memories_.push_back(dnnl::memory(desc, engine, DNNL_MEMORY_NONE));
    arguments_.push_back({id, memories_.back().get()});
  }

  dnnl::primitive primitive_;
  std::vector<dnnl::memory> memories_;
  std::vector<dnnl_exec_arg_t> arguments_;  ///< In the order of memories_.
  std::int64_t scratch_floats_ = 0;
};

}  // namespace dkfac::onednn

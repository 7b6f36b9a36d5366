#include <memory>
#include <utility>

#include "dkfac/c/dkfac.h"

#include "c/calls.h"

namespace dkfac::c {
namespace {

constexpr int kFactors = 10;

const Tensor& tensor_of(const kfac::LayerFactors& f, dkfac_factor which) {
  switch (which) {
    case DKFAC_A_AVERAGE:
      return f.a.average;
    case DKFAC_A_INVERSE:
      return f.a.inverse;
    case DKFAC_A_VECTORS:
      return f.a.vectors;
    case DKFAC_A_VALUES:
      return f.a.values;
    case DKFAC_G_AVERAGE:
      return f.g.average;
    case DKFAC_G_INVERSE:
      return f.g.inverse;
    case DKFAC_G_VECTORS:
      return f.g.vectors;
    case DKFAC_G_VALUES:
      return f.g.values;
    case DKFAC_NORM_AVERAGE:
      return f.norm;
    case DKFAC_EKFAC_SCALES:
      break;
  }
  return f.scales;
}

/// Describes contiguous memory; shape must outlive the result.
dkfac_tensor describe_view(ConstTensorView view, const std::vector<std::int64_t>& shape) {
  dkfac_tensor tensor{};
  tensor.data = const_cast<void*>(view.raw());  // C callers get it as the visitor does.
  tensor.shape = shape.data();
  tensor.ndim = view.ndim();
  tensor.dtype = static_cast<std::int32_t>(view.dtype());
  return tensor;
}

std::vector<std::int64_t> extents(const Shape& shape) {
  std::vector<std::int64_t> dims;
  for (int i = 0; i < shape.ndim(); ++i) dims.push_back(shape[i]);
  return dims;
}

}  // namespace

dkfac_factors* own_factors(kfac::LayerFactors factors) {
  auto owned = std::make_unique<dkfac_factors>(dkfac_factors{std::move(factors), {}});
  for (int i = 0; i < kFactors; ++i) {
    const Tensor& tensor = tensor_of(owned->factors, static_cast<dkfac_factor>(i));
    owned->shapes.push_back(tensor.is_set() ? extents(tensor.view().shape())
                                            : std::vector<std::int64_t>{});
  }
  return owned.release();
}

void check_report(const dkfac_step_report* out, const char* name) {
  if (out != nullptr) check_size(*out, name, "dkfac_step_report", false);
}

void write_report(dkfac_step_report* out, const kfac::StepReport& report) {
  if (out != nullptr) write_fields(out, out->struct_size, step_report(report));
}

CallbackVisitor::CallbackVisitor(const dkfac_state_visitor* visitor, const char* name)
    : visitor_(known_fields(&required(visitor, name, "visitor"), dkfac_state_visitor{}, name,
                            "dkfac_state_visitor", false)) {
  DKFAC_CHECK(visitor_.tensor != nullptr && visitor_.integer != nullptr && visitor_.real != nullptr,
              "[", name, "] a callback of the visitor is null");
}

template <class Callback, class Value>
void CallbackVisitor::call(Callback callback, const std::string& name, StateKind kind,
                           Value* value) {
  if (!failure_.empty()) return;
  const int status = callback(visitor_.user, name.c_str(), static_cast<std::int32_t>(kind), value);
  if (status == 0) return;
  std::string reason = take_callback_error();
  if (reason.empty()) reason = detail::concat("status ", status);
  failure_ = detail::concat("[visit_state] the callback failed at '", name, "': ", reason);
}

void CallbackVisitor::finish() const {
  if (!failure_.empty()) throw CallbackError(failure_);
}

void CallbackVisitor::tensor(const std::string& name, StateKind kind, TensorView view) {
  const std::vector<std::int64_t> shape = extents(view.shape());
  const dkfac_tensor value = describe_view(view, shape);
  call(visitor_.tensor, name, kind, &value);
}
void CallbackVisitor::integer(const std::string& name, StateKind kind, std::int64_t& value) {
  call(visitor_.integer, name, kind, &value);
}
void CallbackVisitor::real(const std::string& name, StateKind kind, double& value) {
  call(visitor_.real, name, kind, &value);
}

}  // namespace dkfac::c

using namespace dkfac;

int dkfac_factors_get(const dkfac_factors* factors, int32_t which, dkfac_tensor* out) {
  constexpr const char* kName = "dkfac_factors_get";
  return c::guarded([&] {
    const dkfac_factors& owned = c::required(factors, kName, "factors");
    dkfac_tensor& target = c::required(out, kName, "out");
    const auto factor = c::enum_of<dkfac_factor>(which, c::kFactors, kName, "which");
    const Tensor& tensor = c::tensor_of(owned.factors, factor);
    target = tensor.is_set()
                 ? c::describe_view(tensor.view(), owned.shapes[static_cast<std::size_t>(which)])
                 : dkfac_tensor{};
  });
}

int32_t dkfac_factors_owner(const dkfac_factors* factors) {
  return factors == nullptr ? -1 : factors->factors.owner;
}
void dkfac_factors_destroy(dkfac_factors* factors) { delete factors; }

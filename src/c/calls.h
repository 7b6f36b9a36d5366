#pragma once

#include "c/convert.h"
#include "c/handles.h"

/// Calls that preconditioner and optimizers share. `name` is that of the C function.
namespace dkfac::c {

inline LayerId layer_id(std::int32_t layer) { return LayerId{layer}; }

/// Runs call(object) with the object of a handle.
template <class Handle, class Call>
int on_object(const char* name, Handle* handle, const Call& call) {
  return guarded([&] { call(required(handle, name, "the object").object); });
}

template <class Handle>
int wants_input(const char* name, const Handle* handle, std::int32_t layer, std::int32_t* wants) {
  return on_object(name, handle, [&](const auto& object) {
    required(wants, name, "wants") =
        layer < 0 ? object.wants_statistics() : object.wants_input(layer_id(layer));
  });
}

template <class Handle>
int wants_grad_output(const char* name, const Handle* handle, std::int32_t layer,
                      std::int32_t* wants) {
  return on_object(name, handle, [&](const auto& object) {
    required(wants, name, "wants") =
        layer < 0 ? object.wants_statistics() : object.wants_grad_output(layer_id(layer));
  });
}

/// Returns the view of a tensor that has to be given.
inline ConstTensorView given_view(const dkfac_tensor* tensor, const char* name, const char* what) {
  return view_of(&required(tensor, name, what), name, what);
}

template <class Handle>
int record_input(const char* name, Handle* handle, std::int32_t layer, const dkfac_tensor* input,
                 const dkfac_record_scale* scale) {
  return on_object(name, handle, [&](auto& object) {
    const ConstTensorView view = given_view(input, name, "input");
    object.record_input(layer_id(layer), view, stream_of(*input, name), record_scale(scale));
  });
}

template <class Handle>
int record_grad_output(const char* name, Handle* handle, std::int32_t layer,
                       const dkfac_tensor* grad_output, const dkfac_record_scale* scale) {
  return on_object(name, handle, [&](auto& object) {
    const ConstTensorView view = given_view(grad_output, name, "grad_output");
    object.record_grad_output(layer_id(layer), view, stream_of(*grad_output, name),
                              record_scale(scale));
  });
}

template <class Handle>
int record_normalization(const char* name, Handle* handle, std::int32_t layer,
                         const dkfac_tensor* x, const dkfac_tensor* mean,
                         const dkfac_tensor* inv_std, const dkfac_tensor* grad_output,
                         const dkfac_record_scale* scale) {
  return on_object(name, handle, [&](auto& object) {
    const ConstTensorView input = given_view(x, name, "x");
    object.record_normalization(layer_id(layer), input, given_view(mean, name, "mean"),
                                given_view(inv_std, name, "inv_std"),
                                given_view(grad_output, name, "grad_output"), stream_of(*x, name),
                                record_scale(scale));
  });
}

template <class Handle>
int record_sample_gradients(const char* name, Handle* handle, std::int32_t layer,
                            const dkfac_tensor* gradients, const dkfac_record_scale* scale) {
  return on_object(name, handle, [&](auto& object) {
    const ConstTensorView view = given_view(gradients, name, "gradients");
    object.record_sample_gradients(layer_id(layer), view, stream_of(*gradients, name),
                                   record_scale(scale));
  });
}

template <class Handle>
int set_curvature(const char* name, Handle* handle, const dkfac_curvature_settings* settings) {
  return on_object(name, handle,
                   [&](auto& object) { object.set_curvature(curvature_settings(settings, name)); });
}

/// Keeps what text(object) returns with the handle, and writes where it is to *out.
template <class Handle, class Text>
int keep_text(const char* name, const Handle* handle, const char** out, const Text& text) {
  return on_object(name, handle, [&](const auto& object) {
    const char*& target = required(out, name, "text");
    handle->text = text(object);
    target = handle->text.c_str();
  });
}

template <class Handle>
int describe(const char* name, const Handle* handle, const char** text) {
  return keep_text(name, handle, text, [](const auto& object) { return object.describe(); });
}

/// Writes the report where the caller wants one.
void write_report(dkfac_step_report* out, const kfac::StepReport& report);
/// Throws InvalidArgument for a report whose struct_size is not set, or is of a newer header,
/// before the step runs.
void check_report(const dkfac_step_report* out, const char* name);
/// Returns a new handle of what read_factors() returned.
[[nodiscard]] dkfac_factors* own_factors(kfac::LayerFactors factors);

template <class Handle>
int read_factors(const char* name, Handle* handle, std::int32_t layer, dkfac_factors** out) {
  return on_object(name, handle, [&](auto& object) {
    dkfac_factors*& target = required(out, name, "out");
    target = own_factors(object.read_factors(layer_id(layer)));
  });
}

/// StateVisitor that calls the callbacks of a program in C. One that fails does not throw, which
/// would leave an object in the middle of a visit: the others are not called, and finish() throws.
class CallbackVisitor final : public StateVisitor {
 public:
  CallbackVisitor(const dkfac_state_visitor* visitor, const char* name);
  void tensor(const std::string& name, StateKind kind, TensorView view) override;
  void integer(const std::string& name, StateKind kind, std::int64_t& value) override;
  void real(const std::string& name, StateKind kind, double& value) override;
  void finish() const;  ///< Throws CallbackError where a callback has failed.

 private:
  /// Calls `callback` unless one has failed.
  template <class Callback, class Value>
  void call(Callback callback, const std::string& name, StateKind kind, Value* value);

  dkfac_state_visitor visitor_;
  std::string failure_;
};

template <class Handle>
int visit_state(const char* name, Handle* handle, const dkfac_state_visitor* visitor) {
  return on_object(name, handle, [&](auto& object) {
    CallbackVisitor callbacks(visitor, name);
    object.visit_state(callbacks);
    callbacks.finish();
  });
}

}  // namespace dkfac::c

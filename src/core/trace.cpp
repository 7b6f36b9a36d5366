#include "core/shared/trace.h"

#include <utility>

namespace dkfac {

namespace {

thread_local TraceSink* current_sink = nullptr;

}  // namespace

TraceSink* trace_sink() noexcept { return current_sink; }

TraceScope::TraceScope(TraceSink* sink) noexcept : former_(std::exchange(current_sink, sink)) {}

TraceScope::~TraceScope() { current_sink = former_; }

}  // namespace dkfac

#pragma once

/// Failures of the emulated cuDNN on request.
namespace emulated::dnn {

/// The plan that many calls from now is not made for want of memory, the next one being 1; once. 0:
/// none.
void fail_plan(int calls);
/// The next `calls` executions fail.
void fail_executions(int calls);
/// Of the above: whether this call fails.
[[nodiscard]] bool plan_fails();
[[nodiscard]] bool execution_fails();

}  // namespace emulated::dnn

#pragma once

/// Failures of the emulated cuDNN on request, and what it has done.
namespace emulated::dnn {

/// The plan that many calls from now is not made for want of memory, the next one being 1; once. 0:
/// none.
void fail_plan(int calls);
/// The next `calls` executions fail.
void fail_executions(int calls);
/// Of the above: whether this call fails.
[[nodiscard]] bool plan_fails();
[[nodiscard]] bool execution_fails();

/// Plans that have been compiled at run time, since the start of the program.
[[nodiscard]] int compilations();
/// From now on each of them takes half a second, or until as many are under way. 0: no time.
void compile_slowly(int together);
/// Of the above: one of them.
void compile();

}  // namespace emulated::dnn

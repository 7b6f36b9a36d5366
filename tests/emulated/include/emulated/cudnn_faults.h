#pragma once

/// Failures of the emulated cuDNN on request, and counts of its work.
namespace emulated::dnn {

/// Makes the `calls`-th plan from now fail for lack of memory, the next one being 1; once. 0: none.
void fail_plan(int calls);
/// Makes the next `calls` executions fail.
void fail_executions(int calls);
/// Returns whether this call fails because of fail_plan().
[[nodiscard]] bool plan_fails();
[[nodiscard]] bool execution_fails();

/// Returns the number of plans compiled at run time since the start of the program.
[[nodiscard]] int compilations();
/// Makes each compilation take half a second, or until `together` of them are in progress. 0: no
/// time.
void compile_slowly(int together);
/// Performs one compilation of compile_slowly().
void compile();

}  // namespace emulated::dnn

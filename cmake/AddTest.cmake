# dkfac_test(NAME SOURCES ... LINK libs... [LABELS ...] [RANKS n...] [TIMEOUT s])
#
# Adds the executable test_NAME and the ctest NAME. With RANKS it runs under mpiexec once per number
# in the list (as NAME.mpiN, label mpi) instead of alone. Tests may include src/ too.
set(DKFAC_GTEST_SOURCE "" CACHE PATH "Source folder of GoogleTest, where none is installed")
if(DKFAC_GTEST_SOURCE)
  set(INSTALL_GTEST OFF)
  set(CMAKE_COMPILE_WARNING_AS_ERROR OFF)  # Its warnings are not ours.
  add_subdirectory(${DKFAC_GTEST_SOURCE} googletest EXCLUDE_FROM_ALL)
  unset(CMAKE_COMPILE_WARNING_AS_ERROR)
else()
  find_package(GTest REQUIRED)
endif()

include(TestEnvironment)

# Most of the time of a test is spent on its compilation. Linked last, because the last option counts.
set(DKFAC_TEST_OPTIONS -O0 -g0 CACHE STRING "Compile options of tests in optimised builds, a list")
add_library(dkfac_test_flags INTERFACE)
if(DKFAC_SANITIZE)  # Optimising instrumented code takes longer than running it.
  target_compile_options(dkfac_test_flags INTERFACE -O0)
  if(DKFAC_SANITIZE MATCHES "undefined")  # Only the tested code is instrumented.
    target_compile_options(dkfac_test_flags INTERFACE -fno-sanitize=undefined)
  endif()
elseif(CMAKE_BUILD_TYPE MATCHES "^Rel")
  target_compile_options(dkfac_test_flags INTERFACE ${DKFAC_TEST_OPTIONS})
endif()

# A compiler cache does not support precompiled headers.
set(test_pch ON)
if(CMAKE_CXX_COMPILER_LAUNCHER)
  set(test_pch OFF)
endif()
option(DKFAC_TEST_PCH "Tests share a precompiled header" ${test_pch})
if(DKFAC_TEST_PCH)
  set(CMAKE_PCH_WARN_INVALID OFF)  # Headers are compiled again where options differ.
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/test_headers.cpp "")
  add_library(dkfac_test_headers OBJECT ${CMAKE_CURRENT_BINARY_DIR}/test_headers.cpp)
  target_link_libraries(dkfac_test_headers
    PRIVATE GTest::gtest dkfac_private_flags dkfac_test_flags)
  target_compile_features(dkfac_test_headers PRIVATE cxx_std_20)
  set_target_properties(dkfac_test_headers PROPERTIES CXX_EXTENSIONS OFF)
  target_precompile_headers(dkfac_test_headers PRIVATE
    <gtest/gtest.h> <algorithm> <cmath> <filesystem> <functional> <map> <memory> <string> <vector>)
endif()

# How tests are compiled. They may include src/ too.
function(dkfac_test_target target)
  target_link_libraries(${target} PRIVATE dkfac_test_support)
  target_link_libraries(${target} PRIVATE dkfac_test_flags)
  if(DKFAC_TEST_PCH)
    target_precompile_headers(${target} REUSE_FROM dkfac_test_headers)
  endif()
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/src)
endfunction()

# dkfac_test_objects(TARGET SOURCES ... LINK libs...): tests that several programs have, compiled once. A
# program names $<TARGET_OBJECTS:TARGET> among its sources.
function(dkfac_test_objects target)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_library(${target} OBJECT EXCLUDE_FROM_ALL ${ARG_SOURCES})
  target_link_libraries(${target} PRIVATE ${ARG_LINK} dkfac_private_flags)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  dkfac_unite(${target})
  dkfac_test_target(${target})
endfunction()

function(dkfac_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LINK;LABELS;RANKS" ${ARGN})
  if(DKFAC_TEST_LABELS)
    set(wanted ${ARG_LABELS})
    list(REMOVE_ITEM wanted ${DKFAC_TEST_LABELS})
    if("${wanted}" STREQUAL "${ARG_LABELS}")
      return()
    endif()
  endif()
  string(REPLACE "." "_" target "test_${name}")
  dkfac_program(${target} SOURCES ${ARG_SOURCES} LINK ${ARG_LINK})
  dkfac_test_target(${target})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 240)
  endif()
  if(ARG_RANKS)
    if(NOT DKFAC_HAVE_MPI)
      return()
    endif()
    foreach(ranks ${ARG_RANKS})
      add_test(NAME ${name}.mpi${ranks}
               COMMAND ${MPIEXEC_EXECUTABLE} --oversubscribe --bind-to none
                       ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:${target}>)
      set_tests_properties(${name}.mpi${ranks} PROPERTIES
        LABELS "${ARG_LABELS};mpi" TIMEOUT ${ARG_TIMEOUT} PROCESSORS 2
        ENVIRONMENT "${DKFAC_TEST_ENVIRONMENT};${DKFAC_MPI_TEST_ENVIRONMENT}")
    endforeach()
  else()
    add_test(NAME ${name} COMMAND ${target})
    set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
      ENVIRONMENT "${DKFAC_TEST_ENVIRONMENT}")
  endif()
endfunction()

option(DKFAC_GPU_TEST_LOCK "Tests of a device run one at a time" ON)
option(DKFAC_BUILD_GPU_TESTS "Build the tests of a device" ON)
# dkfac_gpu_test(NAME SOURCES ... LINK libs... [LABELS ...] [TIMEOUT s])
#
# Like dkfac_test, for a test of a CUDA device (tests/support/on_device.h): label gpu, skipped without
# a device. Adds nothing in a build without CUDA, or without DKFAC_BUILD_GPU_TESTS.
function(dkfac_gpu_test name)
  if(NOT DKFAC_HAVE_CUDA OR NOT DKFAC_BUILD_GPU_TESTS)
    return()
  endif()
  cmake_parse_arguments(GPU "" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  set(options)
  if(GPU_TIMEOUT)
    list(APPEND options TIMEOUT ${GPU_TIMEOUT})
  endif()
  dkfac_test(${name} SOURCES ${GPU_SOURCES} LINK ${GPU_LINK} dkfac_gpu_test_main
             LABELS ${GPU_LABELS} gpu ${options})
  if(NOT TEST ${name})
    return()
  endif()
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
  if(DKFAC_GPU_TEST_LOCK AND NOT DKFAC_CUDA_EMULATED)
    set_tests_properties(${name} PROPERTIES RESOURCE_LOCK gpu)
  endif()
endfunction()

# dkfac_longest_first(): the tests of this folder that may take longest start first, so that no core
# waits for one of them at the end. CTest has measured times only of tests that it has run before.
function(dkfac_longest_first)
  get_property(tests DIRECTORY PROPERTY TESTS)
  foreach(test ${tests})
    get_test_property(${test} TIMEOUT limit)
    if(limit)
      set_tests_properties(${test} PROPERTIES COST ${limit})
    endif()
  endforeach()
endfunction()

# dkfac_test(NAME SOURCES ... LINK libs... [LABELS ...] [RANKS n...] [TIMEOUT s] [INTERNALS])
#
# Makes the executable test_NAME and the ctest NAME. With RANKS it is run under mpiexec once per
# number in the list (as NAME.mpiN, label mpi), and not alone. INTERNALS lets it include src/.
set(DKFAC_GTEST_SOURCE "" CACHE PATH "Source folder of GoogleTest, where none is installed")
if(DKFAC_GTEST_SOURCE)
  set(INSTALL_GTEST OFF)
  set(CMAKE_COMPILE_WARNING_AS_ERROR OFF)  # Its warnings are not ours.
  add_subdirectory(${DKFAC_GTEST_SOURCE} googletest EXCLUDE_FROM_ALL)
  unset(CMAKE_COMPILE_WARNING_AS_ERROR)
else()
  find_package(GTest REQUIRED)
endif()

# Threads that wait do not spin: tests share their cores.
set(DKFAC_TEST_ENVIRONMENT
    "OMP_WAIT_POLICY=passive"
    "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_rmaps_base_oversubscribe=1"
    "OMPI_MCA_btl_base_warn_component_unused=0;TSAN_OPTIONS=halt_on_error=1 suppressions=${PROJECT_SOURCE_DIR}/tests/support/tsan.supp"
    "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/support/lsan.supp")
# What Open MPI leaks lies in plug-ins that are unloaded at exit, where no suppression matches; our
# own leaks show in the tests without it.
set(DKFAC_MPI_TEST_ENVIRONMENT "OMP_NUM_THREADS=1;ASAN_OPTIONS=detect_leaks=0")

function(dkfac_test name)
  cmake_parse_arguments(ARG "INTERNALS" "TIMEOUT" "SOURCES;LINK;LABELS;RANKS" ${ARGN})
  if(DKFAC_TEST_LABELS)
    set(wanted ${ARG_LABELS})
    list(REMOVE_ITEM wanted ${DKFAC_TEST_LABELS})
    if("${wanted}" STREQUAL "${ARG_LABELS}")
      return()
    endif()
  endif()
  string(REPLACE "." "_" target "test_${name}")
  dkfac_program(${target} SOURCES ${ARG_SOURCES} LINK ${ARG_LINK})
  target_link_libraries(${target} PRIVATE dkfac_test_support)
  if(DKFAC_SANITIZE)  # To optimise what sanitizers add takes longer than to run it.
    target_compile_options(${target} PRIVATE -O0)
  endif()
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  if(ARG_INTERNALS)
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  endif()
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

# dkfac_gpu_test(NAME SOURCES ... LINK libs... [LABELS ...] [TIMEOUT s] [INTERNALS])
#
# As dkfac_test, for a test of a CUDA device (tests/support/on_device.h): label gpu, one at a time,
# skipped without a device. Nothing in a build without CUDA.
function(dkfac_gpu_test name)
  if(NOT DKFAC_HAVE_CUDA)
    return()
  endif()
  cmake_parse_arguments(GPU "INTERNALS" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  set(options)
  if(GPU_INTERNALS)
    list(APPEND options INTERNALS)
  endif()
  if(GPU_TIMEOUT)
    list(APPEND options TIMEOUT ${GPU_TIMEOUT})
  endif()
  dkfac_test(${name} SOURCES ${GPU_SOURCES} LINK ${GPU_LINK} dkfac_gpu_test_main
             LABELS ${GPU_LABELS} gpu ${options})
  if(NOT TEST ${name})
    return()
  endif()
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
  if(NOT DKFAC_CUDA_EMULATED)
    set_tests_properties(${name} PROPERTIES RESOURCE_LOCK gpu)
  endif()
endfunction()

# dkfac_test(NAME SOURCES ... LINK libs... [LABELS ...] [RANKS n...] [TIMEOUT s] [INTERNALS])
#
# Makes the executable test_NAME and the ctest NAME. With RANKS it is run under mpiexec once per
# number in the list (as NAME.mpiN, label mpi), and not alone. INTERNALS lets it include src/.
find_package(GTest REQUIRED)

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
  string(REPLACE "." "_" target "test_${name}")
  dkfac_program(${target} SOURCES ${ARG_SOURCES} LINK ${ARG_LINK})
  target_link_libraries(${target} PRIVATE dkfac_test_support)
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

# Threads that wait do not spin: tests share their cores.
set(DKFAC_TEST_ENVIRONMENT
    "OMP_WAIT_POLICY=passive"
    "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_rmaps_base_oversubscribe=1"
    "OMPI_MCA_btl_base_warn_component_unused=0;TSAN_OPTIONS=halt_on_error=1 suppressions=${PROJECT_SOURCE_DIR}/tests/support/tsan.supp"
    "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/support/lsan.supp")
# Leaks of Open MPI are in plug-ins that are unloaded at exit, where no suppression matches; leaks of
# dkfac are detected by the tests without MPI.
set(DKFAC_MPI_TEST_ENVIRONMENT "OMP_NUM_THREADS=1;ASAN_OPTIONS=detect_leaks=0")

# Sweeps, which a Python starts that has pytest and Optuna: Debian's, as tools/setup.sh installs them.
set(DKFAC_PYTHON /usr/bin/python3 CACHE FILEPATH "Python with pytest and Optuna, for the tests of sweeps")
foreach(suite sweep sweep_again)
  add_test(NAME app.${suite}
           COMMAND ${DKFAC_PYTHON} -m pytest -q -p no:cacheprovider ${CMAKE_CURRENT_SOURCE_DIR}/${suite}_test.py)
  set_tests_properties(app.${suite} PROPERTIES LABELS app TIMEOUT 300 PROCESSORS 2
    ENVIRONMENT "${DKFAC_TEST_ENVIRONMENT};DKFAC=$<TARGET_FILE:dkfac>;PYTHONPATH=${PROJECT_SOURCE_DIR}/python;PYTHONDONTWRITEBYTECODE=1")
endforeach()

# Stops at an epoch, and the evaluation beside a training, from outside.
foreach(suite Until Watch)
  string(TOLOWER ${suite} name)
  add_test(NAME app.${name}
           COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/watch_test.py ${suite})
  set_tests_properties(app.${name} PROPERTIES LABELS app TIMEOUT 300 PROCESSORS 2
    ENVIRONMENT "${DKFAC_TEST_ENVIRONMENT};DKFAC=$<TARGET_FILE:dkfac>;DKFAC_REPOSITORY=${PROJECT_SOURCE_DIR}")
endforeach()

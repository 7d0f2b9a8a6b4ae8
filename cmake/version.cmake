# GPUPOOL_VERSION, from where the Python packages have it: the wheel's build says it, otherwise
# setuptools-scm reads it from git's tags or from an sdist. Asked when the build is configured.
if(DEFINED SKBUILD_PROJECT_VERSION_FULL)
  set(GPUPOOL_VERSION ${SKBUILD_PROJECT_VERSION_FULL})
else()
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -m setuptools_scm
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
    OUTPUT_VARIABLE GPUPOOL_VERSION OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
    RESULT_VARIABLE failed)
  if(failed) # a Python without it
    file(STRINGS ${CMAKE_SOURCE_DIR}/pyproject.toml GPUPOOL_VERSION REGEX "^fallback_version")
    string(REGEX REPLACE "^[^\"]*\"([^\"]*)\".*" "\\1" GPUPOOL_VERSION "${GPUPOOL_VERSION}")
  endif()
endif()
message(STATUS "gpupool ${GPUPOOL_VERSION}")

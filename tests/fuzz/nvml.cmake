if(TARGET gpc_nvml_answer)
  add_executable(fuzz_nvml_answer ${CMAKE_CURRENT_LIST_DIR}/fuzz_nvml_answer.c)
  target_compile_options(fuzz_nvml_answer PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE})
  target_link_options(fuzz_nvml_answer PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE})
  target_link_libraries(fuzz_nvml_answer PRIVATE gpc_nvml_answer)
endif()
# The whole library, against front ends that lie.
if(TARGET gpupool_nvml_objects)
  add_executable(fuzz_nvml ${CMAKE_CURRENT_LIST_DIR}/fuzz_nvml.c
    ${CMAKE_BINARY_DIR}/client_lib/nvml/fuzz_nvml_calls.c)
  foreach(part draw nvml_calls steps)
    target_sources(fuzz_nvml PRIVATE ${CMAKE_CURRENT_LIST_DIR}/${part}.c)
  endforeach()
  target_include_directories(fuzz_nvml PRIVATE ${CMAKE_CURRENT_LIST_DIR})
  target_compile_options(fuzz_nvml PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE})
  target_link_options(fuzz_nvml PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE}
    -Wl,--wrap=gp_transport_find,--wrap=clock_gettime,--wrap=gpc_log)
  target_link_libraries(fuzz_nvml PRIVATE gpupool_nvml_objects)
endif()

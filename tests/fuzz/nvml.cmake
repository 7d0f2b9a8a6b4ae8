if(TARGET gpc_nvml_answer)
  gp_fuzz_target(nvml_answer gpc_nvml_answer)
endif()
# The whole library, against front ends that lie.
if(TARGET gpupool_nvml_objects)
  gp_fuzz_target(nvml gpupool_nvml_objects fuzz_parts)
  target_sources(fuzz_nvml PRIVATE ${CMAKE_CURRENT_LIST_DIR}/nvml_calls.c
    ${CMAKE_BINARY_DIR}/client_lib/nvml/fuzz_nvml_calls.c)
  target_link_options(fuzz_nvml PRIVATE
    -Wl,--wrap=gp_transport_find,--wrap=clock_gettime,--wrap=gpc_log)
endif()

gp_fuzz_target(client gpupool_cuda_objects gpc_headers gp_wire gp_transport Threads::Threads
  ${CMAKE_DL_LIBS})
target_include_directories(fuzz_client PRIVATE ${CMAKE_SOURCE_DIR}/tests/c)

add_executable(fuzz_client ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_client.c)
target_include_directories(fuzz_client PRIVATE ${CMAKE_SOURCE_DIR}/tests/c)
target_compile_options(fuzz_client PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE}
  -Wno-deprecated-declarations)
target_link_options(fuzz_client PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE})
target_link_libraries(fuzz_client PRIVATE gpupool_cuda_objects gpc_headers gp_options gp_wire
  gp_transport Threads::Threads ${CMAKE_DL_LIBS})

add_executable(fuzz_compile_file ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_compile_file.c
  ${CMAKE_SOURCE_DIR}/client_lib/private_tables/private_compile_files.c)
target_include_directories(fuzz_compile_file PRIVATE ${CMAKE_SOURCE_DIR}/proto/wire)
target_include_directories(fuzz_compile_file SYSTEM PRIVATE ${GPUPOOL_CUDA_INCLUDE})
target_compile_definitions(fuzz_compile_file PRIVATE GPUPOOL_PRIVATE_TABLES=1)
target_compile_options(fuzz_compile_file PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE})
target_link_options(fuzz_compile_file PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE})
target_link_libraries(fuzz_compile_file PRIVATE gpc_headers gp_options)

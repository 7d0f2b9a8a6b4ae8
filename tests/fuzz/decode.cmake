add_executable(fuzz_decode ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_decode.c)
target_compile_options(fuzz_decode PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE})
target_link_options(fuzz_decode PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE})
target_link_libraries(fuzz_decode PRIVATE gp_wire gp_options)

# What a pitched copy touches, under libFuzzer.
add_executable(fuzz_span ${CMAKE_CURRENT_LIST_DIR}/fuzz_span.c)
target_compile_options(fuzz_span PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE})
target_link_options(fuzz_span PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE})
target_link_libraries(fuzz_span PRIVATE gp_wire gp_options)

add_executable(fuzz_image ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_image.c
  ${CMAKE_SOURCE_DIR}/proto/wire/fatbin.c)
target_include_directories(fuzz_image PRIVATE ${CMAKE_SOURCE_DIR}/proto/wire)
target_compile_options(fuzz_image PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE})
target_link_options(fuzz_image PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE})
target_link_libraries(fuzz_image PRIVATE gp_options)

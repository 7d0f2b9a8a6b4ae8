# What another worker sends, under libFuzzer.
add_executable(fuzz_peer ${CMAKE_CURRENT_LIST_DIR}/fuzz_peer.c
  ${CMAKE_CURRENT_LIST_DIR}/../../server/worker/peer/peer_wire.c)
target_compile_options(fuzz_peer PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE})
target_link_options(fuzz_peer PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE})
target_link_libraries(fuzz_peer PRIVATE gpw_headers gp_options)
target_include_directories(fuzz_peer PRIVATE ${CMAKE_CURRENT_LIST_DIR}/../../proto)

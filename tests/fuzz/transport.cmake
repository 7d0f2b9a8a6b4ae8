# The transports' parsers of what a peer wrote, under libFuzzer.
foreach(name zmq_batch shm_ring)
  add_executable(fuzz_${name} ${CMAKE_CURRENT_LIST_DIR}/fuzz_${name}.c)
  target_compile_options(fuzz_${name} PRIVATE -fsanitize=fuzzer,address,undefined)
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer,address,undefined)
  target_link_libraries(fuzz_${name} PRIVATE gp_options)
  target_include_directories(fuzz_${name} PRIVATE ${CMAKE_CURRENT_LIST_DIR}/../../proto)
  # Compiled in rather than linked, so that the fuzzer sees their branches.
  target_sources(fuzz_${name} PRIVATE
    ${CMAKE_CURRENT_LIST_DIR}/../../proto/transport/support.c
    ${CMAKE_CURRENT_LIST_DIR}/../../proto/transport/ring.c
    ${CMAKE_CURRENT_LIST_DIR}/../../proto/transport/zmq_batch.c)
endforeach()

add_executable(fuzz_zmq_address ${CMAKE_CURRENT_LIST_DIR}/fuzz_zmq_address.c)
target_compile_options(fuzz_zmq_address PRIVATE -fsanitize=fuzzer,address,undefined)
target_link_options(fuzz_zmq_address PRIVATE -fsanitize=fuzzer,address,undefined)
target_link_libraries(fuzz_zmq_address PRIVATE gp_options ${GPUPOOL_ZMQ_LIBRARY} Threads::Threads)
target_include_directories(fuzz_zmq_address PRIVATE ${CMAKE_CURRENT_LIST_DIR}/../../proto)
target_sources(fuzz_zmq_address PRIVATE
  ${CMAKE_CURRENT_LIST_DIR}/../../proto/transport/error.c
  ${CMAKE_CURRENT_LIST_DIR}/../../proto/transport/support.c
  ${CMAKE_CURRENT_LIST_DIR}/../../proto/transport/zmq_curve.c
  ${CMAKE_CURRENT_LIST_DIR}/../../proto/transport/zmq_link.c)

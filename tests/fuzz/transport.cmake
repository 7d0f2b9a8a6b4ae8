# The transports' parsers of what a peer wrote, under libFuzzer.
foreach(name zmq_batch shm_ring)
  add_executable(fuzz_${name} ${CMAKE_CURRENT_LIST_DIR}/fuzz_${name}.c)
  target_compile_options(fuzz_${name} PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE})
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE})
  target_link_libraries(fuzz_${name} PRIVATE gp_options)
  target_include_directories(fuzz_${name} PRIVATE ${CMAKE_CURRENT_LIST_DIR}/../../proto)
  # Compiled in rather than linked, so that the fuzzer sees their branches.
  target_sources(fuzz_${name} PRIVATE
    ${CMAKE_CURRENT_LIST_DIR}/../../proto/transport/support.c
    ${CMAKE_CURRENT_LIST_DIR}/../../proto/transport/ring.c
    ${CMAKE_CURRENT_LIST_DIR}/../../proto/transport/batch.c)
endforeach()

add_executable(fuzz_zmq_address ${CMAKE_CURRENT_LIST_DIR}/fuzz_zmq_address.c)
target_compile_options(fuzz_zmq_address PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE})
target_link_options(fuzz_zmq_address PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE})
target_link_libraries(fuzz_zmq_address PRIVATE gp_options ${GPUPOOL_ZMQ_LIBRARY} Threads::Threads)
target_include_directories(fuzz_zmq_address PRIVATE ${CMAKE_CURRENT_LIST_DIR}/../../proto)
target_sources(fuzz_zmq_address PRIVATE
  ${CMAKE_CURRENT_LIST_DIR}/../../proto/transport/error.c
  ${CMAKE_CURRENT_LIST_DIR}/../../proto/transport/dial.c
  ${CMAKE_CURRENT_LIST_DIR}/../../proto/transport/door.c
  ${CMAKE_CURRENT_LIST_DIR}/../../proto/transport/place.c
  ${CMAKE_CURRENT_LIST_DIR}/../../proto/transport/silence.c
  ${CMAKE_CURRENT_LIST_DIR}/../../proto/transport/support.c
  ${CMAKE_CURRENT_LIST_DIR}/../../proto/transport/zmq_curve.c
  ${CMAKE_CURRENT_LIST_DIR}/../../proto/transport/zmq_link.c)

# What is sent to a worker beside the rings: datagrams with descriptors.
add_executable(fuzz_shm_socket ${CMAKE_CURRENT_LIST_DIR}/fuzz_shm_socket.c)
target_compile_options(fuzz_shm_socket PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE})
target_link_options(fuzz_shm_socket PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE})
target_link_libraries(fuzz_shm_socket PRIVATE gp_options Threads::Threads)
target_include_directories(fuzz_shm_socket PRIVATE ${CMAKE_CURRENT_LIST_DIR}/../../proto)
foreach(part error ring shm shm_ask shm_connect shm_listen shm_share support)
  target_sources(fuzz_shm_socket PRIVATE ${CMAKE_CURRENT_LIST_DIR}/../../proto/transport/${part}.c)
endforeach()

# Our own TCP: what a stream brings, and what is said at the door.
foreach(name tcp_frames tcp_greet)
  add_executable(fuzz_${name} ${CMAKE_CURRENT_LIST_DIR}/fuzz_${name}.c)
  target_compile_options(fuzz_${name} PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE})
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE})
  target_link_libraries(fuzz_${name} PRIVATE gp_options Threads::Threads)
  target_include_directories(fuzz_${name} PRIVATE ${CMAKE_CURRENT_LIST_DIR}/../../proto)
  foreach(part batch support tcp_frames)
    target_sources(fuzz_${name} PRIVATE ${CMAKE_CURRENT_LIST_DIR}/../../proto/transport/${part}.c)
  endforeach()
endforeach()
find_package(OpenSSL 3.0 REQUIRED COMPONENTS SSL Crypto)
target_link_libraries(fuzz_tcp_greet PRIVATE OpenSSL::SSL OpenSSL::Crypto)
foreach(part dial door error place silence tcp tcp_connect tcp_keeper tcp_listen tcp_socket tcp_tls)
  target_sources(fuzz_tcp_greet PRIVATE ${CMAKE_CURRENT_LIST_DIR}/../../proto/transport/${part}.c)
endforeach()

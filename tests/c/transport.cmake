# The transports: one conformance suite over all of them, and unit tests of the
# parts that read what a peer wrote.
add_library(gp_transport_suite STATIC
  ${CMAKE_CURRENT_LIST_DIR}/transport_suite.c
  ${CMAKE_CURRENT_LIST_DIR}/transport_suite_connect.c
  ${CMAKE_CURRENT_LIST_DIR}/transport_suite_ends.c
  ${CMAKE_CURRENT_LIST_DIR}/transport_suite_order.c
  ${CMAKE_CURRENT_LIST_DIR}/transport_suite_peer.c
  ${CMAKE_CURRENT_LIST_DIR}/transport_suite_share.c
  ${CMAKE_CURRENT_LIST_DIR}/transport_suite_size.c
  ${CMAKE_CURRENT_LIST_DIR}/transport_raw.c
  ${CMAKE_CURRENT_LIST_DIR}/shm_server.c)
target_include_directories(gp_transport_suite PUBLIC ${CMAKE_CURRENT_LIST_DIR})
target_link_libraries(gp_transport_suite PUBLIC gp_transport ${GPUPOOL_CMOCKA_LIBRARY})

foreach(name inproc shm zmq_tcp zmq_ipc zmq_curve tcp_plain tcp_tls)
  add_executable(test_transport_${name} ${CMAKE_CURRENT_LIST_DIR}/test_transport_${name}.c)
  target_link_libraries(test_transport_${name} PRIVATE gp_transport_suite)
  add_test(NAME transport_${name} COMMAND test_transport_${name})
  set_tests_properties(transport_${name} PROPERTIES
    TIMEOUT 300 ENVIRONMENT GPUPOOL_PLUGIN_DIR=$<TARGET_FILE_DIR:gpupool_zmq>)
  add_dependencies(test_transport_${name} gpupool_zmq gpupool_tcp)
endforeach()

foreach(name dial place ring shm_socket support)
  add_executable(test_transport_${name} ${CMAKE_CURRENT_LIST_DIR}/test_transport_${name}.c)
  target_link_libraries(test_transport_${name} PRIVATE gp_transport_suite)
  add_test(NAME transport_${name} COMMAND test_transport_${name})
endforeach()

# Their server is a ROUTER, as the real one: the only tests that link libzmq.
foreach(name ask curve curve_worker)
  add_executable(test_transport_${name} ${CMAKE_CURRENT_LIST_DIR}/test_transport_${name}.c)
  target_link_libraries(test_transport_${name} PRIVATE gp_transport_suite ${GPUPOOL_ZMQ_LIBRARY})
  add_dependencies(test_transport_${name} gpupool_zmq)
  add_test(NAME transport_${name} COMMAND test_transport_${name})
  set_tests_properties(transport_${name} PROPERTIES
    TIMEOUT 300 ENVIRONMENT GPUPOOL_PLUGIN_DIR=$<TARGET_FILE_DIR:gpupool_zmq>)
endforeach()

add_executable(test_transport_door ${CMAKE_CURRENT_LIST_DIR}/test_transport_door.c
  ${CMAKE_CURRENT_LIST_DIR}/accept_lacks.c)
target_link_libraries(test_transport_door PRIVATE gp_transport_suite)
set_target_properties(test_transport_door PROPERTIES ENABLE_EXPORTS ON) # accept4, for plug-ins
add_dependencies(test_transport_door gpupool_zmq gpupool_tcp gpupool_ucx)
foreach(scheme tcp plain tls ucx)
  add_test(NAME transport_door_${scheme} COMMAND test_transport_door ${scheme}://)
  set_tests_properties(transport_door_${scheme} PROPERTIES TIMEOUT 300 COST 30 SKIP_RETURN_CODE 77
    ENVIRONMENT GPUPOOL_PLUGIN_DIR=$<TARGET_FILE_DIR:gpupool_zmq>)
endforeach()

# What only our own TCP has: frames in a stream, replays, descriptors that are taken away.
add_executable(test_transport_tcp ${CMAKE_CURRENT_LIST_DIR}/test_transport_tcp.c
  ${CMAKE_CURRENT_LIST_DIR}/../../proto/transport/tcp_frames.c
  ${CMAKE_CURRENT_LIST_DIR}/../../proto/transport/tcp_stripe.c)
target_link_libraries(test_transport_tcp PRIVATE gp_transport_suite)
add_dependencies(test_transport_tcp gpupool_tcp)
add_test(NAME transport_tcp COMMAND test_transport_tcp)
# One connection: test_transport_tcp_lanes.c has more.
set_tests_properties(transport_tcp PROPERTIES
  TIMEOUT 300 ENVIRONMENT "GPUPOOL_PLUGIN_DIR=$<TARGET_FILE_DIR:gpupool_tcp>;GPUPOOL_LANES=1")
add_executable(test_transport_tcp_handed ${CMAKE_CURRENT_LIST_DIR}/test_transport_tcp_handed.c)
target_link_libraries(test_transport_tcp_handed PRIVATE gp_transport_suite)
add_dependencies(test_transport_tcp_handed gpupool_tcp)
add_test(NAME transport_tcp_handed COMMAND test_transport_tcp_handed)
set_tests_properties(transport_tcp_handed PROPERTIES
  TIMEOUT 300 ENVIRONMENT GPUPOOL_PLUGIN_DIR=$<TARGET_FILE_DIR:gpupool_tcp>)

foreach(name keep land lanes lane_peers lent)
  add_executable(test_transport_tcp_${name} ${CMAKE_CURRENT_LIST_DIR}/test_transport_tcp_${name}.c
    ${CMAKE_CURRENT_LIST_DIR}/../../proto/transport/tcp_frames.c
    ${CMAKE_CURRENT_LIST_DIR}/../../proto/transport/tcp_stripe.c)
  target_link_libraries(test_transport_tcp_${name} PRIVATE gp_transport_suite)
  add_dependencies(test_transport_tcp_${name} gpupool_tcp)
  add_test(NAME transport_tcp_${name} COMMAND test_transport_tcp_${name})
  set_tests_properties(transport_tcp_${name} PROPERTIES
    TIMEOUT 300 ENVIRONMENT GPUPOOL_PLUGIN_DIR=$<TARGET_FILE_DIR:gpupool_tcp>)
endforeach()

# Records of TLS without a socket, and against OpenSSL's own.
find_package(OpenSSL 3.0 REQUIRED COMPONENTS SSL Crypto)
foreach(name seal stock)
  add_executable(test_transport_tcp_${name} ${CMAKE_CURRENT_LIST_DIR}/test_transport_tcp_${name}.c)
  target_link_libraries(test_transport_tcp_${name} PRIVATE gpupool_tcp_parts gp_transport_suite
    OpenSSL::SSL OpenSSL::Crypto)
  add_test(NAME transport_tcp_${name} COMMAND test_transport_tcp_${name})
  set_tests_properties(transport_tcp_${name} PROPERTIES TIMEOUT 300)
endforeach()

# Round trips and bulk beside bare sockets: bench/run.py's section "sockets".
add_executable(bench_sockets EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/bench/sockets.c)
target_link_libraries(bench_sockets PRIVATE gp_transport)
add_dependencies(bench_sockets gpupool_zmq gpupool_tcp)

# UCX is opened where it is (.ci/test.py says where); what needs it is skipped where it is not.
# The channel lies open before the test of its own, which breaks the rules by it. Now and then LeakSanitizer
# dies of the variables of threads that UCX's libraries have, so it does not look there.
add_executable(test_ucx_wire ${CMAKE_CURRENT_LIST_DIR}/test_ucx_wire.c)
target_link_libraries(test_ucx_wire PRIVATE gpupool_ucx_parts gp_transport_suite)
add_test(NAME ucx_wire COMMAND test_ucx_wire)
foreach(name ucx ucx_own)
  add_executable(test_transport_${name} ${CMAKE_CURRENT_LIST_DIR}/test_transport_${name}.c)
  target_link_libraries(test_transport_${name} PRIVATE gpupool_ucx_parts gp_transport_suite)
  add_test(NAME transport_${name} COMMAND test_transport_${name})
  set_tests_properties(transport_${name} PROPERTIES
    TIMEOUT 300 SKIP_RETURN_CODE 77 ENVIRONMENT LSAN_OPTIONS=use_tls=0)
endforeach()
# Again over UCX's shared memory, which carries nothing in production.
add_test(NAME transport_ucx_shm COMMAND test_transport_ucx)
set_tests_properties(transport_ucx_shm PROPERTIES
  TIMEOUT 300 SKIP_RETURN_CODE 77 ENVIRONMENT "GPUPOOL_UCX_TLS=posix,self;LSAN_OPTIONS=use_tls=0")

# What is declared of UCX's interface against its own headers, where there are some.
execute_process(
  COMMAND ${Python3_EXECUTABLE} -c "import libucx, os; print(os.path.dirname(libucx.__file__))"
  OUTPUT_VARIABLE GPUPOOL_UCX_PACKAGE OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(EXISTS "${GPUPOOL_UCX_PACKAGE}/include/ucp/api/ucp.h")
  add_executable(test_ucx_api ${CMAKE_CURRENT_LIST_DIR}/test_ucx_api.c)
  target_include_directories(test_ucx_api SYSTEM PRIVATE ${GPUPOOL_UCX_PACKAGE}/include)
  target_link_libraries(test_ucx_api PRIVATE gp_transport)
  add_test(NAME ucx_api COMMAND test_ucx_api)
endif()

# gp_transport: the contract, inproc and shm; needs libc only.
# gpupool_zmq: the plug-in for tcp:// and ipc://, the only thing that links
# libzmq. gpupool_tcp: that for tls:// and plain://, the only thing that links OpenSSL.
# Each exports one symbol, so that it meets nothing of the application's.
add_library(gp_transport STATIC
  ${CMAKE_CURRENT_LIST_DIR}/error.c
  ${CMAKE_CURRENT_LIST_DIR}/support.c
  ${CMAKE_CURRENT_LIST_DIR}/transport.c
  ${CMAKE_CURRENT_LIST_DIR}/batch.c
  ${CMAKE_CURRENT_LIST_DIR}/dial.c
  ${CMAKE_CURRENT_LIST_DIR}/door.c
  ${CMAKE_CURRENT_LIST_DIR}/inproc.c
  ${CMAKE_CURRENT_LIST_DIR}/place.c
  ${CMAKE_CURRENT_LIST_DIR}/ring.c
  ${CMAKE_CURRENT_LIST_DIR}/shm.c
  ${CMAKE_CURRENT_LIST_DIR}/shm_ask.c
  ${CMAKE_CURRENT_LIST_DIR}/shm_connect.c
  ${CMAKE_CURRENT_LIST_DIR}/shm_listen.c
  ${CMAKE_CURRENT_LIST_DIR}/shm_share.c
  ${CMAKE_CURRENT_LIST_DIR}/silence.c)
target_include_directories(gp_transport PUBLIC ${CMAKE_CURRENT_LIST_DIR}/..)
target_link_libraries(gp_transport PUBLIC gp_options Threads::Threads ${CMAKE_DL_LIBS})

find_path(GPUPOOL_ZMQ_INCLUDE zmq.h)
find_library(GPUPOOL_ZMQ_LIBRARY zmq)
if(NOT GPUPOOL_ZMQ_INCLUDE OR NOT GPUPOOL_ZMQ_LIBRARY)
  message(FATAL_ERROR "libzmq is not found; install libzmq3-dev")
endif()

add_library(gpupool_zmq MODULE
  ${CMAKE_CURRENT_LIST_DIR}/zmq.c
  ${CMAKE_CURRENT_LIST_DIR}/zmq_connect.c
  ${CMAKE_CURRENT_LIST_DIR}/zmq_curve.c
  ${CMAKE_CURRENT_LIST_DIR}/zmq_greet.c
  ${CMAKE_CURRENT_LIST_DIR}/zmq_keeper.c
  ${CMAKE_CURRENT_LIST_DIR}/zmq_link.c
  ${CMAKE_CURRENT_LIST_DIR}/zmq_listen.c
  ${CMAKE_CURRENT_LIST_DIR}/zmq_ask.c)
target_include_directories(gpupool_zmq SYSTEM PRIVATE ${GPUPOOL_ZMQ_INCLUDE})
target_link_libraries(gpupool_zmq PRIVATE gp_transport ${GPUPOOL_ZMQ_LIBRARY})
target_link_options(gpupool_zmq PRIVATE
  -Wl,--exclude-libs,ALL -Wl,--version-script=${CMAKE_CURRENT_LIST_DIR}/zmq.map)
set_target_properties(gpupool_zmq PROPERTIES
  LINK_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/zmq.map)

find_package(OpenSSL 3.0 REQUIRED COMPONENTS SSL Crypto)
add_library(gpupool_tcp MODULE
  ${CMAKE_CURRENT_LIST_DIR}/tcp.c
  ${CMAKE_CURRENT_LIST_DIR}/tcp_connect.c
  ${CMAKE_CURRENT_LIST_DIR}/tcp_frames.c
  ${CMAKE_CURRENT_LIST_DIR}/tcp_keeper.c
  ${CMAKE_CURRENT_LIST_DIR}/tcp_listen.c
  ${CMAKE_CURRENT_LIST_DIR}/tcp_socket.c
  ${CMAKE_CURRENT_LIST_DIR}/tcp_tls.c)
target_link_libraries(gpupool_tcp PRIVATE gp_transport OpenSSL::SSL OpenSSL::Crypto)
target_link_options(gpupool_tcp PRIVATE
  -Wl,--exclude-libs,ALL -Wl,--version-script=${CMAKE_CURRENT_LIST_DIR}/tcp.map)
set_target_properties(gpupool_tcp PROPERTIES
  LINK_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/tcp.map)

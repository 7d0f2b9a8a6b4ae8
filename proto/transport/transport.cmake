# gp_transport: the contract, inproc and shm; needs libc only.
# gpupool_zmq: the plug-in for tcp:// and ipc://, the only thing that links
# libzmq. gpupool_tcp: that for tls:// and plain://, the only thing that links OpenSSL.
# gpupool_ucx: that for ucx://, which opens UCX when it is asked for and so links nothing.
# Each exports one symbol, so that it meets nothing of the application's.
add_library(gp_transport STATIC
  ${CMAKE_CURRENT_LIST_DIR}/error.c
  ${CMAKE_CURRENT_LIST_DIR}/support.c
  ${CMAKE_CURRENT_LIST_DIR}/transport.c
  ${CMAKE_CURRENT_LIST_DIR}/batch.c
  ${CMAKE_CURRENT_LIST_DIR}/dial.c
  ${CMAKE_CURRENT_LIST_DIR}/door.c
  ${CMAKE_CURRENT_LIST_DIR}/door_entry.c
  ${CMAKE_CURRENT_LIST_DIR}/door_knock.c
  ${CMAKE_CURRENT_LIST_DIR}/inproc.c
  ${CMAKE_CURRENT_LIST_DIR}/place.c
  ${CMAKE_CURRENT_LIST_DIR}/ring.c
  ${CMAKE_CURRENT_LIST_DIR}/shm.c
  ${CMAKE_CURRENT_LIST_DIR}/shm_ask.c
  ${CMAKE_CURRENT_LIST_DIR}/shm_connect.c
  ${CMAKE_CURRENT_LIST_DIR}/shm_listen.c
  ${CMAKE_CURRENT_LIST_DIR}/shm_share.c
  ${CMAKE_CURRENT_LIST_DIR}/silence.c
  ${CMAKE_CURRENT_LIST_DIR}/standard_fds.c)
target_include_directories(gp_transport PUBLIC ${CMAKE_CURRENT_LIST_DIR}/..)
target_link_libraries(gp_transport PUBLIC gp_options Threads::Threads ${CMAKE_DL_LIBS})

# A plug-in, of a file of its own name and its parts: it exports what NAME.map has.
function(gp_add_plugin name)
  set(sources ${name}.c)
  foreach(part ${ARGN})
    list(APPEND sources ${name}_${part}.c)
  endforeach()
  list(TRANSFORM sources PREPEND ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/)
  set(map ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/${name}.map)
  add_library(gpupool_${name}_parts OBJECT ${sources}) # the fuzzers link them, too
  target_link_libraries(gpupool_${name}_parts PRIVATE gp_transport)
  add_library(gpupool_${name} MODULE $<TARGET_OBJECTS:gpupool_${name}_parts>)
  target_link_libraries(gpupool_${name} PRIVATE gp_transport)
  target_link_options(gpupool_${name} PRIVATE -Wl,--version-script=${map})
  set_target_properties(gpupool_${name} PROPERTIES LINK_DEPENDS ${map})
endfunction()

find_path(GPUPOOL_ZMQ_INCLUDE zmq.h)
find_library(GPUPOOL_ZMQ_LIBRARY zmq)
if(NOT GPUPOOL_ZMQ_INCLUDE OR NOT GPUPOOL_ZMQ_LIBRARY)
  message(FATAL_ERROR "libzmq is not found; install libzmq3-dev")
endif()
gp_add_plugin(zmq connect curve greet keeper link listen ask room)
target_include_directories(gpupool_zmq_parts SYSTEM PRIVATE ${GPUPOOL_ZMQ_INCLUDE})
target_link_libraries(gpupool_zmq PRIVATE ${GPUPOOL_ZMQ_LIBRARY})

gp_add_plugin(ucx connect engine environment greet keeper library listen note sleep wire)

# A client without OpenSSL takes ZeroMQ.
if(GPUPOOL_CLIENT_ONLY)
  find_package(OpenSSL 3.0 COMPONENTS SSL Crypto)
  if(NOT OPENSSL_FOUND)
    message(STATUS "no OpenSSL 3: the plug-in for tls:// and plain:// is not built")
    return()
  endif()
else()
  find_package(OpenSSL 3.0 REQUIRED COMPONENTS SSL Crypto)
endif()
gp_add_plugin(tcp connect frames guest keeper lane_keep lane_land lane_open lane_read
  lane_send lanes listen receive seal socket stripe tls)
target_link_libraries(gpupool_tcp_parts PRIVATE OpenSSL::SSL OpenSSL::Crypto)
target_link_libraries(gpupool_tcp PRIVATE OpenSSL::SSL OpenSSL::Crypto)

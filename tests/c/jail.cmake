# Parts of gpupool-jail by themselves.
add_executable(test_peer_filter ${CMAKE_CURRENT_LIST_DIR}/test_peer_filter.c
  ${PROJECT_SOURCE_DIR}/server/jail/peer_filter.c)
target_include_directories(test_peer_filter PRIVATE ${PROJECT_SOURCE_DIR}/server/jail)
target_link_libraries(test_peer_filter PRIVATE gp_options ${GPUPOOL_CMOCKA_LIBRARY})
add_test(NAME test_peer_filter COMMAND test_peer_filter)

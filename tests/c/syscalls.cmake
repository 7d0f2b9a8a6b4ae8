# The filters of a worker's system calls, and the counts of what a program calls.
add_executable(test_filter ${CMAKE_CURRENT_LIST_DIR}/test_filter.c)
target_link_libraries(test_filter PRIVATE gp_syscalls gp_options Threads::Threads
  ${GPUPOOL_CMOCKA_LIBRARY})
add_test(NAME test_filter COMMAND test_filter)
set_tests_properties(test_filter PROPERTIES SKIP_RETURN_CODE 77)

add_executable(test_loopback ${CMAKE_CURRENT_LIST_DIR}/test_loopback.c)
target_link_libraries(test_loopback PRIVATE gp_syscalls gp_options Threads::Threads
  ${GPUPOOL_CMOCKA_LIBRARY})
add_test(NAME test_loopback COMMAND test_loopback)

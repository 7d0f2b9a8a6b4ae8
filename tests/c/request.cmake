# What a program asks for, read from its environment; the vectors are Python's, too.
set(GP_REQUEST_VECTORS ${CMAKE_SOURCE_DIR}/tests/python/request_vectors.toml)
set(GP_REQUEST_TABLE ${CMAKE_CURRENT_BINARY_DIR}/request/request_vectors.h)
file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/request)
add_custom_command(OUTPUT ${GP_REQUEST_TABLE}
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/request_table.py
          ${GP_REQUEST_VECTORS} ${GP_REQUEST_TABLE}
  DEPENDS ${CMAKE_CURRENT_LIST_DIR}/request_table.py ${GP_REQUEST_VECTORS})
add_executable(test_request ${CMAKE_CURRENT_LIST_DIR}/test_request.c ${GP_REQUEST_TABLE}
  ${CMAKE_SOURCE_DIR}/client_lib/session/request.c)
target_include_directories(test_request PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/request)
target_link_libraries(test_request PRIVATE gpc_headers gp_options cmocka)
add_test(NAME test_request COMMAND test_request)

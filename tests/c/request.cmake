# What a program asks for, taken from its environment.
add_executable(test_request ${CMAKE_CURRENT_LIST_DIR}/test_request.c)
target_link_libraries(test_request PRIVATE gpc_parts gp_options cmocka)
target_include_directories(test_request PRIVATE ${GP_GEN})
add_dependencies(test_request gp_generate)
add_test(NAME test_request COMMAND test_request)

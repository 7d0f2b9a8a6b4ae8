# The board: whose turn it is, by a clock of the test's own; members that die.
add_executable(test_board_shares ${CMAKE_CURRENT_LIST_DIR}/test_board_shares.c
  ${CMAKE_SOURCE_DIR}/server/arbiter/board.c ${CMAKE_SOURCE_DIR}/server/arbiter/entitle.c
  ${CMAKE_SOURCE_DIR}/server/arbiter/turn.c)
target_include_directories(test_board_shares PRIVATE ${CMAKE_SOURCE_DIR}/server/arbiter)
target_link_libraries(test_board_shares PRIVATE gp_options Threads::Threads
  ${GPUPOOL_CMOCKA_LIBRARY})
add_test(NAME board_shares COMMAND test_board_shares)
set_tests_properties(board_shares PROPERTIES TIMEOUT 300)

add_executable(test_board ${CMAKE_CURRENT_LIST_DIR}/test_board.c)
target_link_libraries(test_board PRIVATE gp_options gp_board Threads::Threads
  ${GPUPOOL_CMOCKA_LIBRARY})
add_test(NAME board COMMAND test_board)
set_tests_properties(board PROPERTIES TIMEOUT 60)

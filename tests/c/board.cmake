# The board by a clock of the test's own: whose turn it is, and the copy engines' account.
foreach(name board_shares board_copy)
  add_executable(test_${name} ${CMAKE_CURRENT_LIST_DIR}/test_${name}.c
    ${CMAKE_SOURCE_DIR}/server/arbiter/board.c ${CMAKE_SOURCE_DIR}/server/arbiter/copy.c
    ${CMAKE_SOURCE_DIR}/server/arbiter/entitle.c ${CMAKE_SOURCE_DIR}/server/arbiter/turn.c)
  target_include_directories(test_${name} PRIVATE ${CMAKE_SOURCE_DIR}/server/arbiter)
  target_link_libraries(test_${name} PRIVATE gp_options Threads::Threads
    ${GPUPOOL_CMOCKA_LIBRARY})
  add_test(NAME ${name} COMMAND test_${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 300)
endforeach()

# Members that die.
add_executable(test_board ${CMAKE_CURRENT_LIST_DIR}/test_board.c)
target_link_libraries(test_board PRIVATE gp_options gp_board Threads::Threads
  ${GPUPOOL_CMOCKA_LIBRARY})
add_test(NAME board COMMAND test_board)
set_tests_properties(board PROPERTIES TIMEOUT 60)

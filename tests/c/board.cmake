# The board by a clock of the test's own: whose turn it is, and the copy engines' account.
foreach(name board_shares board_copy)
  add_executable(test_${name} ${CMAKE_CURRENT_LIST_DIR}/test_${name}.c
    ${CMAKE_SOURCE_DIR}/server/arbiter/board.c ${CMAKE_SOURCE_DIR}/server/arbiter/check.c
    ${CMAKE_SOURCE_DIR}/server/arbiter/copy.c ${CMAKE_SOURCE_DIR}/server/arbiter/entitle.c
    ${CMAKE_SOURCE_DIR}/server/arbiter/guard.c ${CMAKE_SOURCE_DIR}/server/arbiter/lock.c
    ${CMAKE_SOURCE_DIR}/server/arbiter/turn.c)
  target_include_directories(test_${name} PRIVATE ${CMAKE_SOURCE_DIR}/server/arbiter)
  target_link_libraries(test_${name} PRIVATE gp_options Threads::Threads
    ${GPUPOOL_CMOCKA_LIBRARY})
  add_test(NAME ${name} COMMAND test_${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 300)
endforeach()

# Bytes that another process has written there; it need not wait long for a lock.
add_executable(test_board_damage ${CMAKE_CURRENT_LIST_DIR}/test_board_damage.c
  ${CMAKE_CURRENT_LIST_DIR}/board_calls.c
  ${CMAKE_SOURCE_DIR}/server/arbiter/board.c ${CMAKE_SOURCE_DIR}/server/arbiter/check.c
  ${CMAKE_SOURCE_DIR}/server/arbiter/clock.c ${CMAKE_SOURCE_DIR}/server/arbiter/copy.c
  ${CMAKE_SOURCE_DIR}/server/arbiter/describe.c ${CMAKE_SOURCE_DIR}/server/arbiter/entitle.c
  ${CMAKE_SOURCE_DIR}/server/arbiter/guard.c ${CMAKE_SOURCE_DIR}/server/arbiter/lock.c
  ${CMAKE_SOURCE_DIR}/server/arbiter/turn.c)
target_compile_definitions(test_board_damage PRIVATE LOOKS=2)
target_compile_options(test_board_damage PRIVATE -fwrapv)
target_include_directories(test_board_damage PRIVATE
  ${CMAKE_SOURCE_DIR}/proto/wire ${CMAKE_SOURCE_DIR}/server/arbiter)
target_link_libraries(test_board_damage PRIVATE gp_options Threads::Threads
  ${GPUPOOL_CMOCKA_LIBRARY})
add_test(NAME board_damage COMMAND test_board_damage)
set_tests_properties(board_damage PROPERTIES TIMEOUT 120)

# Members that die.
add_executable(test_board ${CMAKE_CURRENT_LIST_DIR}/test_board.c)
target_link_libraries(test_board PRIVATE gp_options gp_board Threads::Threads
  ${GPUPOOL_CMOCKA_LIBRARY})
add_test(NAME board COMMAND test_board)
set_tests_properties(board PROPERTIES TIMEOUT 60)

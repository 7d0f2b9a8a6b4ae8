# The board by a clock of the test's own: whose turn it is, and the copy engines' account.
# No sum of theirs may wrap, so their board is one that would show it.
set(board board charge check copy describe entitle gang memory step turn)
list(TRANSFORM board REPLACE "(.+)" "${CMAKE_SOURCE_DIR}/server/arbiter/\\1.c")
add_library(gp_board_unwrapped STATIC ${board})
target_include_directories(gp_board_unwrapped PUBLIC ${CMAKE_SOURCE_DIR}/server/arbiter)
# Each look is at all places, and there are millions of looks.
target_compile_definitions(gp_board_unwrapped PUBLIC GP_BOARD_TENANTS=32 GP_BOARD_MEMBERS=32)
target_link_libraries(gp_board_unwrapped PUBLIC gp_options Threads::Threads)
foreach(name board_shares board_charge board_copy board_gang board_turns board_steps)
  add_executable(test_${name} ${CMAKE_CURRENT_LIST_DIR}/test_${name}.c)
  target_link_libraries(test_${name} PRIVATE gp_board_unwrapped ${GPUPOOL_CMOCKA_LIBRARY})
  add_test(NAME ${name} COMMAND test_${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 300 COST 10) # COST: the long ones first
endforeach()

# Limits and names; an arbiter in a process of its own, and workers that ask it, die, are stopped
# and lie.
foreach(name board arbiter arbiter_memory hostile_pages)
  add_executable(test_${name} ${CMAKE_CURRENT_LIST_DIR}/test_${name}.c
    ${CMAKE_CURRENT_LIST_DIR}/arbiter_process.c)
  target_compile_options(test_${name} PRIVATE -fwrapv)
  target_link_libraries(test_${name} PRIVATE gp_options gp_board Threads::Threads
    ${GPUPOOL_CMOCKA_LIBRARY})
  add_test(NAME ${name} COMMAND test_${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 300 COST 10)
endforeach()
target_sources(test_arbiter PRIVATE ${CMAKE_CURRENT_LIST_DIR}/accept_lacks.c)

# What an arbiter tells ranks of each other, in this process.
add_executable(test_collectives ${CMAKE_CURRENT_LIST_DIR}/test_collectives.c)
target_link_libraries(test_collectives PRIVATE gp_options gp_board Threads::Threads
  ${GPUPOOL_CMOCKA_LIBRARY})
add_test(NAME collectives COMMAND test_collectives)
set_tests_properties(collectives PROPERTIES TIMEOUT 300)

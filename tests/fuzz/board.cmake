# The board, on which every worker of a GPU may write.
add_executable(fuzz_board ${CMAKE_CURRENT_LIST_DIR}/fuzz_board.c
  ${CMAKE_CURRENT_LIST_DIR}/../c/board_calls.c)
foreach(part board check clock copy describe entitle guard lock turn)
  target_sources(fuzz_board PRIVATE ${CMAKE_SOURCE_DIR}/server/arbiter/${part}.c)
endforeach()
target_include_directories(fuzz_board PRIVATE
  ${CMAKE_SOURCE_DIR}/proto/wire ${CMAKE_SOURCE_DIR}/server/arbiter
  ${CMAKE_CURRENT_LIST_DIR}/../c)
target_compile_definitions(fuzz_board PRIVATE LOOKS=0)
target_compile_options(fuzz_board PRIVATE -fwrapv -fsanitize=fuzzer,address,undefined)
target_link_options(fuzz_board PRIVATE -fsanitize=fuzzer,address,undefined)
target_link_libraries(fuzz_board PRIVATE gp_options Threads::Threads)

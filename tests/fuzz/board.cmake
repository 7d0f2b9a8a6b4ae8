# The page of a worker, in which it may write what it likes, as the arbiter reads it.
add_executable(fuzz_board ${CMAKE_CURRENT_LIST_DIR}/fuzz_board.c)
foreach(part arbiter board check clock command copy describe entitle memory page publish request turn
    watch_page)
  target_sources(fuzz_board PRIVATE ${CMAKE_SOURCE_DIR}/server/arbiter/${part}.c)
endforeach()
target_include_directories(fuzz_board PRIVATE
  ${CMAKE_SOURCE_DIR}/proto/wire ${CMAKE_SOURCE_DIR}/server/arbiter)
target_compile_options(fuzz_board PRIVATE -fwrapv -fsanitize=fuzzer,${GPUPOOL_SANITIZE})
target_link_options(fuzz_board PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE})
target_link_libraries(fuzz_board PRIVATE gp_options Threads::Threads)

# The page of a worker, in which it may write what it likes, as the arbiter reads it.
gp_fuzz_target(board gp_board Threads::Threads)
target_include_directories(fuzz_board PRIVATE ${CMAKE_SOURCE_DIR}/proto/wire)
target_compile_options(fuzz_board PRIVATE -fwrapv)

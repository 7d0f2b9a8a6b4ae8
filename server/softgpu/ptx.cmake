# The PTX engine: parser (ptx_*.c) and executor (exec_*.c), without the driver.
add_library(sg_ptx STATIC
  exec_atomic.c exec_barrier.c exec_builtin.c exec_carry.c exec_control.c
  exec_fault.c exec_float.c exec_frame.c exec_heap.c exec_image.c exec_lanes.c
  exec_launch.c exec_matrix.c exec_matrix_move.c exec_mbarrier.c exec_memory.c exec_print.c exec_pure_approx.c
  exec_pure_bits.c exec_pure_convert.c exec_pure_half.c exec_pure_ieee.c
  exec_pure_integer.c exec_pure_move.c exec_pure_select.c exec_pure_set.c
  exec_select.c exec_special.c exec_step.c exec_surface.c exec_texture.c exec_warp.c ptx_arena.c ptx_async.c ptx_call.c
  ptx_declare.c ptx_decode.c ptx_function.c ptx_lex.c ptx_matrix.c ptx_module.c
  ptx_opcode.c ptx_operand.c ptx_parse.c ptx_symbol.c ptx_texture.c)
target_include_directories(sg_ptx PUBLIC ${CMAKE_CURRENT_LIST_DIR})
target_include_directories(sg_ptx SYSTEM PUBLIC ${GPUPOOL_CUDA_INCLUDE})
# IEEE to the letter: nothing contracted, rounding modes respected.
target_compile_options(sg_ptx PRIVATE -O2 -ffp-contract=off -frounding-math)
target_link_libraries(sg_ptx PUBLIC gp_options Threads::Threads m)

# The PTX engine: parser (ptx_*.c) and executor (exec_*.c), without the driver.
# What goes from lane to lane is compiled for each level of processors (exec_level.h).
set(SG_LEVELLED exec_pure_approx.c exec_pure_bits.c exec_pure_compare.c exec_pure_convert.c
  exec_pure_half.c exec_pure_ieee.c exec_pure_integer.c exec_pure_move.c exec_pure_select.c
  exec_pure_set.c exec_whole_access.c exec_whole_atomic.c exec_whole_group.c
  exec_whole_lanes.c exec_whole_pure.c)
add_library(sg_ptx STATIC ${SG_LEVELLED}
  exec_atomic.c exec_barrier.c exec_bulk.c exec_block.c exec_builtin.c exec_carry.c exec_children.c exec_control.c exec_crew.c
  exec_fault.c exec_float.c exec_frame.c exec_heap.c exec_image.c exec_lanes.c
  exec_launch.c exec_level.c exec_matrix.c exec_matrix_move.c exec_mbarrier.c exec_memory.c exec_order.c exec_print.c exec_rounds.c
  exec_select.c exec_sparse.c exec_special.c exec_step.c exec_surface.c exec_tensor.c exec_texture.c exec_updates.c exec_warp.c exec_warpgroup.c ptx_arena.c ptx_async.c ptx_bulk.c ptx_call.c
  ptx_declare.c ptx_decode.c ptx_function.c ptx_lex.c ptx_matrix.c ptx_module.c
  ptx_opcode.c ptx_operand.c ptx_parse.c ptx_symbol.c ptx_texture.c ptx_warpgroup.c)
target_include_directories(sg_ptx PUBLIC ${CMAKE_CURRENT_LIST_DIR}
  PRIVATE ${CMAKE_SOURCE_DIR}/proto/wire)
target_include_directories(sg_ptx SYSTEM PUBLIC ${GPUPOOL_CUDA_INCLUDE})
# IEEE to the letter: nothing contracted. Nobody reads the flags of floating-point exceptions or
# errno, and nobody changes the rounding mode but exec_pure_ieee.c, around volatile operands: with
# -frounding-math, roots and sums of products would be made lane by lane.
set(SG_COMPUTE -ffp-contract=off -fno-math-errno -fno-trapping-math)
# With checks at every access loops become no vectors, and take long to compile.
if(NOT GPUPOOL_SANITIZE)
  list(PREPEND SG_COMPUTE -O3)
endif()
# Not every loop that may be made of vector instructions can be, which clang warns of.
if(CMAKE_C_COMPILER_ID MATCHES Clang)
  list(APPEND SG_COMPUTE -Wno-pass-failed)
endif()
target_compile_options(sg_ptx PRIVATE ${SG_COMPUTE})
target_link_libraries(sg_ptx PUBLIC gp_options Threads::Threads m)

# Sanitizers see the same lines at the first level.
set(SG_AVX2 -mavx2 -mfma -mbmi -mbmi2 -mpopcnt)
set(SG_AVX512 ${SG_AVX2} -mavx512f -mavx512bw -mavx512cd -mavx512dq -mavx512vl
  -mprefer-vector-width=512)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$" AND NOT GPUPOOL_SANITIZE)
  foreach(level 3 4)
    add_library(sg_ptx_v${level} OBJECT ${SG_LEVELLED})
    target_include_directories(sg_ptx_v${level} PRIVATE ${CMAKE_CURRENT_LIST_DIR})
    target_include_directories(sg_ptx_v${level} SYSTEM PRIVATE ${GPUPOOL_CUDA_INCLUDE})
    target_compile_definitions(sg_ptx_v${level} PRIVATE SG_LEVEL=${level})
    target_link_libraries(sg_ptx_v${level} PRIVATE gp_options)
    target_sources(sg_ptx PRIVATE $<TARGET_OBJECTS:sg_ptx_v${level}>)
  endforeach()
  target_compile_options(sg_ptx_v3 PRIVATE ${SG_COMPUTE} ${SG_AVX2})
  target_compile_options(sg_ptx_v4 PRIVATE ${SG_COMPUTE} ${SG_AVX512})
  target_compile_definitions(sg_ptx PRIVATE SG_LEVELS)
endif()

# make bench-soft
if(GPUPOOL_TESTS)
  add_executable(bench_soft EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/bench/soft.c)
  target_link_libraries(bench_soft PRIVATE sg_ptx gp_options)
endif()

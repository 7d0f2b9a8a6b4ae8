# The PTX engine: parser (ptx_*.c) and executor (exec_*.c), without the driver.
file(GLOB SG_PTX_SOURCES CONFIGURE_DEPENDS
  ${CMAKE_CURRENT_LIST_DIR}/ptx_*.c ${CMAKE_CURRENT_LIST_DIR}/exec_*.c)
add_library(sg_ptx STATIC ${SG_PTX_SOURCES})
target_include_directories(sg_ptx PUBLIC ${CMAKE_CURRENT_LIST_DIR})
target_include_directories(sg_ptx SYSTEM PUBLIC ${GPUPOOL_CUDA_INCLUDE})
# IEEE to the letter: nothing contracted, rounding modes respected.
target_compile_options(sg_ptx PRIVATE -O2 -ffp-contract=off -frounding-math)
target_link_libraries(sg_ptx PUBLIC gp_options Threads::Threads m)

# The pure arithmetic of the soft GPU's executor, on its own.
if(GPUPOOL_SOFTGPU)
  file(GLOB SG_ARITHMETIC CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/server/softgpu/exec_pure_*.c)
  foreach(name arith arith_convert arith_float)
    add_executable(test_${name} ${CMAKE_CURRENT_LIST_DIR}/test_${name}.c
      ${SG_ARITHMETIC} ${CMAKE_SOURCE_DIR}/server/softgpu/exec_float.c)
    target_include_directories(test_${name} PRIVATE ${CMAKE_SOURCE_DIR}/server/softgpu)
    target_include_directories(test_${name} SYSTEM PRIVATE ${GPUPOOL_CUDA_INCLUDE})
    target_compile_options(test_${name} PRIVATE -ffp-contract=off)
    target_link_libraries(test_${name} PRIVATE gp_options PkgConfig::CMOCKA m)
    add_test(NAME ${name} COMMAND test_${name})
    set_tests_properties(${name} PROPERTIES TIMEOUT 120)
  endforeach()
endif()

# The executor of the soft GPU on modules that the test builds by hand.
if(GPUPOOL_SOFTGPU)
  file(GLOB SG_EXECUTOR CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/server/softgpu/exec_*.c)
  foreach(name exec exec_lanes exec_calls exec_faults)
    add_executable(test_${name} ${CMAKE_CURRENT_LIST_DIR}/test_${name}.c
      ${CMAKE_CURRENT_LIST_DIR}/exec_build.c ${SG_EXECUTOR})
    target_include_directories(test_${name} PRIVATE ${CMAKE_SOURCE_DIR}/server/softgpu)
    target_include_directories(test_${name} SYSTEM PRIVATE ${GPUPOOL_CUDA_INCLUDE})
    target_compile_options(test_${name} PRIVATE -ffp-contract=off)
    target_link_libraries(test_${name} PRIVATE gp_options PkgConfig::CMOCKA Threads::Threads m)
    add_test(NAME ${name} COMMAND test_${name})
    set_tests_properties(${name} PROPERTIES TIMEOUT 120)
  endforeach()
endif()

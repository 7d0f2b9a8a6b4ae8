# The client's private tables and the images it is handed: no session, no GPU.
set(GP_TABLES_CLIENT ${CMAKE_SOURCE_DIR}/client_lib/private_tables)
set(GP_TABLES_WIRE ${CMAKE_SOURCE_DIR}/proto/wire)
set(GP_TABLES_PRIVATE
  ${GP_TABLES_CLIENT}/private_tables.c ${GP_TABLES_CLIENT}/private_stubs.c
  ${GP_TABLES_CLIENT}/private_storage.c ${GP_TABLES_CLIENT}/private_digest.c
  ${GP_TABLES_CLIENT}/private_md2.c ${GP_TABLES_CLIENT}/private_compile.c
  ${GP_TABLES_CLIENT}/private_compile_files.c ${GP_TABLES_CLIENT}/private_compile_memory.c)

function(gp_tables_test name)
  add_executable(${name} ${CMAKE_SOURCE_DIR}/tests/c/${name}.c ${ARGN})
  target_include_directories(${name} PRIVATE ${GP_TABLES_WIRE})
  target_include_directories(${name} SYSTEM PRIVATE ${GPUPOOL_CUDA_INCLUDE})
  target_compile_definitions(${name} PRIVATE GPUPOOL_PRIVATE_TABLES=1
                                             __CUDA_API_VERSION_INTERNAL)
  target_link_libraries(${name} PRIVATE gpc_headers gp_options cmocka Threads::Threads)
  add_test(NAME ${name} COMMAND ${name})
endfunction()

gp_tables_test(test_digest ${GP_TABLES_PRIVATE})
gp_tables_test(test_storage ${GP_TABLES_PRIVATE})
gp_tables_test(test_private_tables ${GP_TABLES_PRIVATE})
gp_tables_test(test_compile_cache ${GP_TABLES_PRIVATE})
gp_tables_test(test_compile_files ${GP_TABLES_PRIVATE})
gp_tables_test(test_image ${CMAKE_SOURCE_DIR}/client_lib/images/image.c ${GP_TABLES_WIRE}/fatbin.c)

# The same functions as they are when the tables are left out.
add_executable(test_private_none ${CMAKE_SOURCE_DIR}/tests/c/test_private_none.c
  ${GP_TABLES_PRIVATE})
target_include_directories(test_private_none PRIVATE ${GP_TABLES_WIRE})
target_include_directories(test_private_none SYSTEM PRIVATE ${GPUPOOL_CUDA_INCLUDE})
target_compile_definitions(test_private_none PRIVATE GPUPOOL_PRIVATE_TABLES=0)
target_link_libraries(test_private_none PRIVATE gpc_headers gp_options cmocka Threads::Threads)
add_test(NAME test_private_none COMMAND test_private_none)

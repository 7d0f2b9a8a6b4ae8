# The client's private tables and the images it is handed: no session, no GPU.
set(GP_TABLES_CLIENT ${CMAKE_SOURCE_DIR}/client_lib/private_tables)
set(GP_TABLES_WIRE ${CMAKE_SOURCE_DIR}/proto/wire)
set(GP_TABLES_PRIVATE
  ${GP_TABLES_CLIENT}/private_tables.c ${GP_TABLES_CLIENT}/private_stubs.c
  ${GP_TABLES_CLIENT}/private_storage.c ${GP_TABLES_CLIENT}/private_digest.c
  ${GP_TABLES_CLIENT}/private_md2.c ${GP_TABLES_CLIENT}/private_compile.c
  ${GP_TABLES_CLIENT}/private_compile_files.c ${GP_TABLES_CLIENT}/private_compile_memory.c)

if(GPUPOOL_PRIVATE_TABLES)
  foreach(name digest storage private_tables compile_cache compile_files image)
    add_executable(test_${name} ${CMAKE_CURRENT_LIST_DIR}/test_${name}.c)
    target_include_directories(test_${name} PRIVATE ${GP_TABLES_WIRE})
    target_compile_definitions(test_${name} PRIVATE GPUPOOL_PRIVATE_TABLES=1)
    target_link_libraries(test_${name} PRIVATE gpc_parts gp_options gp_wire gp_transport cmocka
      Threads::Threads)
    add_test(NAME test_${name} COMMAND test_${name})
  endforeach()
endif()

# The same functions as they are when the tables are left out.
add_executable(test_private_none ${CMAKE_SOURCE_DIR}/tests/c/test_private_none.c
  ${GP_TABLES_PRIVATE})
target_include_directories(test_private_none PRIVATE ${GP_TABLES_WIRE})
target_include_directories(test_private_none SYSTEM PRIVATE ${GPUPOOL_CUDA_INCLUDE})
target_compile_definitions(test_private_none PRIVATE GPUPOOL_PRIVATE_TABLES=0)
target_link_libraries(test_private_none PRIVATE gpc_headers gp_options cmocka Threads::Threads)
add_test(NAME test_private_none COMMAND test_private_none)

# The parts of a program are folders; a header is included by its name alone.
#
# gp_folders(HEADERS SOURCES FOLDER...): SOURCES becomes the C files of these folders, HEADERS
# an interface library with their include paths, which tests of single files link as well.
function(gp_folders headers sources)
  add_library(${headers} INTERFACE)
  set(found)
  foreach(folder ${ARGN})
    file(GLOB files CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.c)
    list(APPEND found ${files})
    target_include_directories(${headers} INTERFACE ${CMAKE_CURRENT_SOURCE_DIR}/${folder})
  endforeach()
  set(${sources} ${found} PARENT_SCOPE)
endfunction()

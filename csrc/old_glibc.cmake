# Links a core for glibc 2.17 and later by a gcc that has a newer one. libstdc++ becomes part of the core. Functions
# that got newer versions since are linked from stubs, where they have their first one: every glibc still has it.
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  set(first GLIBC_2.17)
else()
  set(first GLIBC_2.2.5)
endif()
file(WRITE ${CMAKE_BINARY_DIR}/first.map "${first} { *; };\n")
# libstdc++ reads there whether it may do without atomic instructions; glibc has it since 2.32.
file(WRITE ${CMAKE_BINARY_DIR}/threads.cpp
  "extern \"C\" {\n__attribute__((visibility(\"hidden\"))) char __libc_single_threaded = 0;\n}\n")

# A library of that name with these functions, to link with.
function(add_stub library)
  list(TRANSFORM ARGN REPLACE "(.+)" "extern \"C\" void \\1() {}\n" OUTPUT_VARIABLE functions)
  file(WRITE ${CMAKE_BINARY_DIR}/${library}.cpp ${functions})
  add_library(${library} SHARED ${CMAKE_BINARY_DIR}/${library}.cpp)
  set_target_properties(${library} PROPERTIES PREFIX "" SUFFIX "")
  target_compile_options(${library} PRIVATE -fno-builtin)
  target_link_options(${library} PRIVATE -nostdlib LINKER:--version-script=${CMAKE_BINARY_DIR}/first.map)
endfunction()

add_stub(libm.so.6 cos log log1p pow) # in place of the system's: with all that the core calls
add_stub(libpthread.so.0 pthread_create pthread_join)

function(link_with_old_glibc core)
  target_sources(${core} PRIVATE ${CMAKE_BINARY_DIR}/threads.cpp)
  target_link_libraries(${core} PRIVATE libm.so.6 libpthread.so.0)
  target_link_options(${core} PRIVATE -static-libstdc++
    LINKER:--exclude-libs,ALL,--gc-sections,--no-as-needed,-z,defs)
endfunction()

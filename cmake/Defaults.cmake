# Settings shared by all targets.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# 'install' puts the libraries into the package of this checkout.
if(CMAKE_INSTALL_PREFIX_INITIALIZED_TO_DEFAULT)
  set(CMAKE_INSTALL_PREFIX ${PROJECT_SOURCE_DIR} CACHE PATH
      "Folder which holds the package tensoropt_torch" FORCE)
endif()

# ccache must be told that precompiled headers may be shared between builds.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${CCACHE_PROGRAM})
endif()

add_library(tensoropt_warnings INTERFACE)
target_compile_options(tensoropt_warnings INTERFACE
  -Wall -Wextra
  # GCC warns wrongly about moved std::variant values that are never read.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>
  $<$<BOOL:${TENSOROPT_WERROR}>:-Werror>
  # Messages name files relative to the project, wherever it was built.
  -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)

# Headers which most files of a target include, read once. -fpch-preprocess lets
# ccache see through them. CMAKE_DISABLE_PRECOMPILE_HEADERS=ON shows whether
# every file includes what it needs.
function(tensoropt_precompile target)
  target_precompile_headers(${target} PRIVATE ${ARGN})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -fpch-preprocess)
  endif()
endfunction()

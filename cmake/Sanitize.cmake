# TENSOROPT_SANITIZE=address|thread instruments every target of the build.

if(TENSOROPT_SANITIZE STREQUAL "")
  return()
elseif(TENSOROPT_SANITIZE STREQUAL "address")
  set(sanitizers address,undefined)
elseif(TENSOROPT_SANITIZE STREQUAL "thread")
  set(sanitizers thread)
else()
  message(FATAL_ERROR "TENSOROPT_SANITIZE is '${TENSOROPT_SANITIZE}'; "
                      "allowed: 'address', 'thread' or empty")
endif()

add_compile_options(-fsanitize=${sanitizers} -fno-sanitize-recover=all
                    -fno-omit-frame-pointer -g)
add_link_options(-fsanitize=${sanitizers})

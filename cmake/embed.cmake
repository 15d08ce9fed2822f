# Turns a file into a C++ source that holds its bytes.
#
#   gradual_embed(TARGET FILE SYMBOL)
#
# adds to TARGET the definitions of
#
#   namespace gradual::embedded {
#   extern const unsigned char SYMBOL[];
#   extern const unsigned long SYMBOL_size;  // bytes, without the terminating zero that follows them
#   }
#
# The bytes end with a zero that is not counted, so that a text can be read as a C string. A file that does not exist
# is skipped. Run as a script (cmake -DINPUT= -DOUTPUT= -DSYMBOL= -P embed.cmake) it writes the source.

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  file(READ "${INPUT}" hex HEX)
  string(LENGTH "${hex}" digits)
  math(EXPR size "${digits} / 2")
  string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")  # 16 bytes per line
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
  get_filename_component(name "${INPUT}" NAME)
  file(WRITE "${OUTPUT}" "// Generated from ${name}.\n"
    "namespace gradual::embedded {\n"
    "extern const unsigned char ${SYMBOL}[];\n"
    "extern const unsigned long ${SYMBOL}_size;\n"
    "const unsigned long ${SYMBOL}_size = ${size};\n"
    "const unsigned char ${SYMBOL}[] = {\n${hex}0};\n"
    "}  // namespace gradual::embedded\n")
  return()
endif()

set(GRADUAL_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_FILE})

function(gradual_embed target file symbol)
  cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE input)
  if(NOT EXISTS ${input})
    return()
  endif()
  set(output ${PROJECT_BINARY_DIR}/embedded/${symbol}.cpp)
  add_custom_command(OUTPUT ${output} DEPENDS ${input} ${GRADUAL_EMBED_SCRIPT} VERBATIM
    COMMAND ${CMAKE_COMMAND} -DINPUT=${input} -DOUTPUT=${output} -DSYMBOL=${symbol} -P ${GRADUAL_EMBED_SCRIPT}
    COMMENT "Embedding ${file}")
  target_sources(${target} PRIVATE ${output})
  set_source_files_properties(${output} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
endfunction()

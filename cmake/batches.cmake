# Small sources that are compiled together. Headers and common templates are most of the work of a small file, so a batch
# of five takes little longer than one of them alone. A batch is a generated source that includes its files.
#
# The files of a batch share their anonymous namespaces: if a name in one becomes ambiguous, take the file out of its
# line; it is then compiled alone. A source that no line names is compiled alone too. -DGRADUAL_BATCHES=OFF compiles every
# file alone, as clang-tidy reads them.

# FOLDER: NAME..., without .cpp. At most six files and about 900 lines, so that an edit of one costs little more. The
# files that tests/CMakeLists.txt compiles into the programs for debuggers stay alone.
set(gradual_batch_lines
  "core/support: cpu_isa generator message_text philox printable thread_pool"
  "core/formats: accumulator convert_kernels dtype format format_table synonyms"
  "core/formats: rounding rounding_table"
  "core/tensor: device device_mirror literal memory modes print"
  "core/tensor: random shape storage tensor"
  "core/ops: composites conv_by_gemm cost derived_ops einsum fusions"
  "core/ops: infer op tensor_cores tensor_methods"
  "core/observe: observer profile tracer"
  "core/quantize: amax_history bits_per_number block_scales quantized_tensor quantizer_names what_if"
  "core/kernels: contraction_operand copies loops reduce_plan scalar_operand"
  "core/files: atomic_file input_file"
  "core/files: checkpoint_file npy state_dict"
  "core/onednn: conv matmul reorder"
  "autograd: activation_checkpoint anomaly function gradcheck"
  "autograd: rule rules_elementwise rules_normalization"
  "autograd: rules_shape slice_sum tape"
  "nn: attention conv init norm recurrent"
  "nn: sequential summary"
  "optim: amsgrad clip moment_faults optimizer_by_ops"
  "optim: optimizer_device optimizer_state_dict quantized_moments schedule"
  "amp: before_step cast_stats convert_model exchange operand_bits"
  "amp: policy precision_observer quantized_results"
  "amp: quantization quantized_run rewrite"
  "amp: quantized_formats quantized_recipes"
  "data: cifar10 csv data_loader dataset digits gzip"
  "data: idx text"
  "dist: communicator histories lockstep loss_divisor shard_sum shard_weights"
  "inspect: block_xray format_choice intervention mirror"
  "inspect: csv_text cures diagnosis diff shadow_tables"
  "inspect: findings_steps gradient_sites sum_tree"
  "inspect: ledger numbers update_meter"
  "pt2: arguments executor host_functions ops_activations ops_table python_line"
  "pt2: ops_arithmetic plan read_graph value"
  "pt2: ops_creation program translate"
  "pt2: ops_images translate_layers translated"
  "pt2: ops_index translate_modules weights"
  "lab: built_in_tasks conclusions decision folder folder_lock loss"
  "lab: intervention judge_step metric"
  "lab: models objective outcome paired products sample_scores"
  "lab: result_check search_tables sequential share statistics step_errors"
  "lab: student_t study table tasks training"
  "lab/main: command_line diff exchange explain judge probe"
  "lab/main: program progress ranks report study_command temporary_folder"
  "lab/main: search terminal translate xray"
)

# gradual_compile_in_batches(TARGET): replaces sources of the target by the batches that hold them. The files of a batch
# have the same options.
function(gradual_compile_in_batches target)
  if(NOT GRADUAL_BATCHES)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  file(REAL_PATH ${PROJECT_SOURCE_DIR} real_source)
  # A place that is the same, seen from the build tree, in a user's project: then the text is too, for a compiler cache.
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/batches)
  file(REAL_PATH ${CMAKE_BINARY_DIR}/batches folder_of_batches)
  file(RELATIVE_PATH to_source ${folder_of_batches} ${real_source})
  string(REGEX REPLACE "/$" "" to_source "${to_source}")
  foreach(line IN LISTS gradual_batch_lines)
    string(REGEX MATCH "^([^:]+): (.+)$" line "${line}")
    set(folder ${CMAKE_MATCH_1})
    string(REPLACE " " ";" names "${CMAKE_MATCH_2}")
    set(members "")
    set(text "")
    foreach(name IN LISTS names)
      set(source ${PROJECT_SOURCE_DIR}/${folder}/${name}.cpp)
      if(NOT EXISTS ${source})
        message(WARNING "gradual: cmake/batches.cmake names ${folder}/${name}.cpp, which is not there")
      elseif(source IN_LIST sources)
        list(APPEND members ${source})
        string(APPEND text "#include \"${to_source}/${folder}/${name}.cpp\"\n")
      endif()
    endforeach()
    list(LENGTH members count)
    if(count LESS 2)
      continue()
    endif()
    list(GET names 0 first)
    list(GET names -1 last)
    string(MAKE_C_IDENTIFIER ${folder}_${first}_to_${last} batch)
    set(batch ${CMAKE_BINARY_DIR}/batches/${batch}.cpp)
    file(CONFIGURE OUTPUT ${batch} CONTENT "${text}" @ONLY)
    list(GET members 0 source)
    get_source_file_property(options ${source} COMPILE_OPTIONS)
    foreach(source IN LISTS members)
      get_source_file_property(options_of_source ${source} COMPILE_OPTIONS)
      if(NOT options_of_source STREQUAL options)
        message(FATAL_ERROR "gradual: ${source} has other options than the rest of its batch (cmake/batches.cmake)")
      endif()
    endforeach()
    if(options)
      set_source_files_properties(${batch} PROPERTIES COMPILE_OPTIONS "${options}")
    endif()
    # an editor still finds them in the target
    set_source_files_properties(${members} PROPERTIES HEADER_FILE_ONLY ON)
    target_sources(${target} PRIVATE ${batch})
  endforeach()
endfunction()

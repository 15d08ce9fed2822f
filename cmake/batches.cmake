# Small sources that are compiled together. Headers and common templates are most of the work of a small file, so most
# batches take as long as the largest of their files did alone. A batch is a generated source that includes its files.
#
# The files of a batch share their anonymous namespaces: if a name in one becomes ambiguous, take the file out of its
# line; it is then compiled alone. A source that no line names is compiled alone too. -DGRADUAL_BATCHES=OFF compiles
# every file alone, as clang-tidy reads them.

# FOLDER: NAME..., without .cpp. At most nine files and about 1500 lines, so that an edit of one costs a few seconds.
# Files that parse JSON, which takes seconds, are together or alone. All files of a line are hot, or all are cold
# (CMakeLists.txt). The files that tests/CMakeLists.txt compiles into the programs for debuggers stay alone, and those
# with definitions of their own.
set(gradual_batch_lines
  "core/support: cpu_isa generator message_text philox printable thread_pool"
  "core/formats: accumulator convert_kernels dtype format format_table synonyms"
  "core/formats: bit_fields exponent_histogram rounding rounding_table"
  "core/tensor: device device_mirror literal memory modes print"
  "core/tensor: random shape storage tensor"
  "core/ops: composites conv_by_gemm cost derived_ops einsum fusions"
  "core/ops: infer op tensor_cores tensor_methods"
  "core/observe: observer profile tracer"
  "core/quantize: amax_history bits_per_number block_scales quantized_tensor quantizer_names what_if"
  "core/quantize: amax_scale coded_scale delayed_scale double_scale eden_scale given_scale learned_scale power_scale"
  "core/quantize: block_scaled_matmul gradient_estimator range_scale scale_kinds scaling stored_scale"
  "core/kernels: contraction_operand copies loops reduce_plan scalar_operand"
  "core/files: atomic_file input_file"
  "core/files: checkpoint_file npy state_dict"
  "core/onednn: conv matmul reorder"
  "core/cpu: attention conv movement"
  "autograd: activation_checkpoint anomaly function gradcheck"
  "autograd: rule rules_elementwise rules_normalization"
  "autograd: rules_shape slice_sum tape"
  "nn: attention conv init norm recurrent"
  "nn: auxiliary_loss feedforward key_value_cache mixture_of_experts unit_scaling"
  "nn: sequential summary"
  "optim: amsgrad clip error_feedback moment_faults optimizer_by_ops soap"
  "optim: optimizer_device optimizer_state_dict quantized_moments schedule"
  "amp: before_step cast_stats convert_model exchange operand_bits"
  "amp: attention attention_kernel attention_steps"
  "amp: learned_scales oscillation_reset outlier_channels phase_condition product_transform"
  "amp: policy precision_observer quantized_results"
  "amp: quantization quantized_run rewrite"
  "amp: quantization_checks quantization_state site_name"
  "amp: quantized_formats recipe_json"
  "data: cifar10 csv data_loader dataset digits gzip"
  "data: idx text"
  "dist: communicator histories lockstep loss_divisor shard_sum shard_weights"
  "inspect: csv_text cures shadow_tables"
  "inspect: activation_monitor bad_tensor f32_ops names routes step_watch"
  "inspect: diagnosis diff format_choice intervention"
  "inspect: explain gradient_check layer_names op_row"
  "inspect: findings_steps gradient_sites mirror probe sum_tree"
  "inspect: numbers update_meter"
  "pt2: arguments executor ops_activations ops_arithmetic ops_creation ops_layers"
  "pt2: ops_images ops_index ops_losses ops_products ops_table"
  "pt2: ops_recurrent ops_reductions ops_views ops_windows python_line read_graph value"
  "pt2: plan program translate translate_function"
  "pt2: translate_calls translate_layers translate_modules translated weights"
  "lab: judge judge_attention judge_backward judge_choices judge_compare judge_estimates judge_forward judge_inputs"
  "lab: judge_losses judge_ops judge_orders judge_scores judge_statistics judge_step judge_sums judge_ties"
  "lab: result result_check"
  "lab: run run_replay"
  "lab: explain sweep sweep_tables"
  "lab: built_in_tasks conclusions cure_trials factorial folder folder_lock generate gpt intervention"
  "lab: decision lab launch layer_kinds live log_probabilities loss models random_order"
  "lab: error_rows html_page judge_norms minimal_set monitors quantizer_bounds"
  "lab: ordered_kernels ordered_op recipe_choices tolerance_rows tolerance_updates"
  "lab: metric narrow norm_bounds objective odd_samples outcome sequential"
  "lab: paired pairs products recorded_ops sample_scores search_tables"
  "lab: search split_sum statistics step_errors student_t studied_step"
  "lab: step_replay study study_report table target_checks tasks tolerance_tables"
  "lab: tables tolerance tolerance_layers training"
  "lab: tolerance_bounds twin verdict"
  "lab/main: command_line diff exchange explain judge policy probe program"
  "lab/main: progress ranks report search step study_command temporary_folder terminal"
  "lab/main: sweep tolerance translate twin xray"
  "tests/amp: convert_model_test delayed_scaling_test fused_policy_test observed_step_test operand_bits_test policy_test"
  "tests/amp: precision_observer_test quantized_formats_test quantized_results_test rewrite_test"
  "tests/amp: recipe_json_test recipe_test"
  "tests/amp: attention_delayed_test attention_test attention_transform_test fp8_attention_test"
  "tests/amp: autocast_test schedule_test site_name_test whole_step_test"
  "tests/amp: call_record_test f8_attrs_test outlier_channels_test"
  "tests/amp: oscillation_reset_test unbiased_recipes_test"
  "tests/amp: quantized_training_test quantizer_gradient_test"
  "tests/lab: conclusions_test edited_results_test folder_test lab_test statistics_test"
  "tests/lab: objective_test paired_test resume_test sample_scores_test study_test"
  "tests/lab: outcome_test search_test tasks_test"
  "tests/lab: cure_trials_test error_rows_test explain_attention_test factorial_test generate_test launch_test"
  "tests/lab: layer_kinds_test live_test minimal_set_test mixture_test narrow_test"
  "tests/lab: ordered_sum_test orders_test pairs_test random_order_test"
  "tests/lab: phases_test program_checks_test split_test"
  "tests/lab: studied_step_test sweep_test"
  "tests/lab: quantizer_bounds_test verdict_test"
  "tests/lab: tolerance_test twin_test"
  "tests/cuda: attention_test device_test grad_scaler_test linear_test matmul_test"
  "tests/cuda: conv_test graph_test optimizer_test reduce_test"
  "tests/cuda: movement_test quantized_step_test quantizer_test"
  "tests/cuda: rows_test training_test"
  "tests/core/formats: accumulated_conv_test accumulator_test convert_test"
  "tests/core/formats: convert_array_test dtype_test stochastic_rounding_test"
  "tests/core/formats: exhaustive_test format_table_test format_test stochastic_test"
  "tests/core/formats: rounding_test vectors_test"
  "tests/op_table: autocast_test bad_inputs_test coverage_test determinism_test dtype_rules_test observer_test"
  "tests/op_table: gradient_test pytorch_test results_test shadow_test values_test"
  "tests/op_table: op_table table_attention table_binary table_contraction table_convolution"
  "tests/op_table: table_in_place table_indexing table_loss table_movement table_normalization"
  "tests/op_table: table_pooling table_reduction table_softmax table_unary"
  "tests/misuse: amp autograd data file format lab"
  "tests/misuse: layer_op misuse_test nn optim"
  "bench/precision: answers diagnosis_score instance score_table"
  "bench/precision: flaws kinds losses"
  "tests/nn: attention_test empty_batch_test init_test layers_test models_test"
  "tests/nn: module_test pytorch_layers_test summary_test"
  "tests/nn: derived_functions_test unit_scaling_test"
  "tests/core/ops: attention_test cost_test cpu_backend_test derived_ops_test options_test source_test"
  "tests/core/ops: fusion_test tensor_cores_test"
  "tests/docs: autocast_page_test display_texts_test formats_page_test links_test"
  "tests/docs: formulas_page_test training_step_page_test why_page_test"
  "tests/docs: exercises_test special_values_page_test"
  "tests/core/cpu: attention_test cross_entropy_test elementwise_test subnormal_test"
  "tests/core/cpu: conv_test rounded_gemm_test"
  "tests/core/cpu: movement_test reduce_test"
  "tests/core/cpu: gemm_test ordered_gemm_test"
  "tests/autograd: activation_checkpoint_test anomaly_test chain_test edges_test gradient_dtype_test"
  "tests/autograd: engine_test function_test gradient_sums_test norm_range_test tape_test"
  "tests/autograd: reuse_test version_test"
  "tests/inspect: block_xray_test cures_test format_choice_test gradient_sites_test numbers_test"
  "tests/inspect: ledger_test shadow_test"
  "tests/inspect: probe_test weighed_test"
  "tests/inspect: activation_monitor_test explain_test first_cure_test gradient_check_test"
  "tests/inspect: monitor_findings_test planted_test routes_test update_meter_test"
  "tests/optim: amsgrad_test clip_test formulas_test loss_scale_test moments_test"
  "tests/optim: low_precision_test one_pass_test own_optimizer_test"
  "tests/optim: error_feedback_test grad_scaler_test resume_test update_event_test"
  "tests/data: cifar10_test csv_test data_loader_test digits_test idx_test text_test"
  "tests/core/quantize: amax_history_test block_scales_test quantizer_names_test scales_test zero_point_test"
  "tests/core/quantize: block_scaled_matmul_test double_scale_test gradient_estimator_test"
  "tests/core/quantize: eden_scale_test row_quantizer_test what_if_test"
  "tests/pt2: import_test lab_output_test"
  "tests/pt2: judge_test translate_test"
  "tests/pt2: judge_bounds_test module_test"
  "tests/emulator: attention_test conv_test cublaslt_double_test launches_test threads_test"
  "tests/dist: batch_norm_test compare_test loss_divisor_test overlap_test shard_sum_test"
  "tests/dist: thread_ranks tolerance_test"
  "tests/core/support: cpu_isa_test philox_test pool_test printable_test threads_test user_names_test"
  "tests/core/files: atomic_file_test checkpoint_file_test npy_test state_dict_test"
  "tests/core/tensor: literal_test memory_test print_test tensor_test"
)

# gradual_compile_in_batches(TARGET): replaces sources of the target by the batches that hold them. The files of a batch
# have the same options.
function(gradual_compile_in_batches target)
  if(NOT GRADUAL_BATCHES)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
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
        string(APPEND text "#include \"${folder}/${name}.cpp\"\n")
      endif()
    endforeach()
    list(LENGTH members count)
    if(count LESS 2)
      continue()
    endif()
    list(GET names 0 first)
    list(GET names -1 last)
    string(MAKE_C_IDENTIFIER ${folder}_${first}_to_${last} batch)
    set(batch ${PROJECT_BINARY_DIR}/batches/${target}/${batch}.cpp)
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
      set_source_files_properties(${batch} PROPERTIES COMPILE_OPTIONS "${options}" SKIP_PRECOMPILE_HEADERS ON)
    endif()
    # so that a file has the name in a batch that it has alone
    set_source_files_properties(${batch} PROPERTIES INCLUDE_DIRECTORIES ${PROJECT_SOURCE_DIR})
    # an editor still finds them in the target
    set_source_files_properties(${members} PROPERTIES HEADER_FILE_ONLY ON)
    target_sources(${target} PRIVATE ${batch})
  endforeach()
endfunction()

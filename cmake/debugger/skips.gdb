# gdb's `step` passes over these: the standard library and other libraries, and the parts of Gradual that only carry or
# check values. It then goes from a layer through the op, dispatch and autograd to the kernel. `info skip` lists them,
# `skip disable` turns them off.
skip -gfi /usr/include/c++/*/*
skip -gfi /usr/include/c++/*/*/*
skip -rfu ^(std|__gnu_cxx|fmt|Eigen)::
skip -gfi core/support/*.h
skip -gfi core/formats/*.h
skip -gfi core/tensor/*.h
skip -gfi core/ops/*.h
skip -gfi autograd/*.h
skip -rfu ^gradual::(Ref<.*>|Scoped<.*>|Shape|Tensor|TensorImpl|ModuleScope|Node|nn::ModuleCall|SavedTensor)::
skip -rfu ^gradual::(chain|context|columns|rules|ensure_registered|make_node|capability|reads_mixed|set_history|empty)[(]
skip -rfu ^gradual::.anonymous.namespace.::(needs_promotion|plain_floats|common_device|allocate|disposable)[(]

# Sourced by the scripts of this folder: mpirun as root, with more ranks than cores. For Open MPI 4 and 5 (PRTE); MPICH
# needs none of it.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none
export OMP_NUM_THREADS=1

# What MPI cannot start is no failure of the library: 77 tells ctest that the test was skipped.
check_mpi() {
  local said
  said=$(timeout -k 5 60 "$1" -n 2 true 2>&1 </dev/null) && return
  printf 'skipped: %s starts no processes here:\n%s\n' "$1" "$said"
  exit 77
}

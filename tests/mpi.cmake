# Tests under mpirun. More ranks than cores are normal here, hence the settings for sharing them.
# Open MPI keeps memory until the process ends, so leaks are looked for in the other tests.
set(mpi_environment ASAN_OPTIONS=detect_leaks=0
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
  OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
  PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe)

# add_mpi_test(name ranks command...): the command on so many ranks. ctest -j counts every rank as a processor.
function(add_mpi_test name ranks)
  add_test(NAME ${name} COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT 60 PROCESSORS ${ranks} ENVIRONMENT "${mpi_environment}")
endfunction()

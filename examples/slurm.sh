#!/bin/bash
# Shares out the runs of a comparison over 8 processes of 2 nodes:
#   sbatch slurm.sh --recipes all --seeds 20
# The folder --out must be one that all nodes share. To train each run over all processes, add --parallel data.
# After a failure or at the time limit, submit the same command with --resume: finished runs are kept, and others go on
# from their last epoch.
#SBATCH --job-name=gradual-lab
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@120

set -euo pipefail
# The library of PMI must be the one that MPI was built with: srun --mpi=list names those that there are.
exec srun --mpi="${MPI:-pmix}" \
  gradual-lab --threads "${SLURM_CPUS_PER_TASK:-1}" --out "${OUT:-gradual-lab-slurm}" "$@"

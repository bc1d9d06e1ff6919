#!/bin/sh
# Trains on four machines and compares steps without and with Tersor: sbatch examples/slurm.sh
#SBATCH --job-name=tersor
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --time=00:10:00
set -eu

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# One launcher per machine starts RANKS_PER_NODE ranks (default: 1). On CPUs, use 1. On GPUs, use the number of GPUs per
# machine.
# --rate 0 measures the network of the cluster instead of an emulated link.
srun torchrun --nnodes="$SLURM_NNODES" --nproc-per-node="${RANKS_PER_NODE:-1}" \
  --rdzv-backend=c10d --rdzv-endpoint="$first:${PORT:-29500}" --rdzv-id="$SLURM_JOB_ID" \
  examples/ddp.py --rate 0 "$@"

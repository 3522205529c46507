#!/bin/bash
# sparing on SLURM: one torchrun per node. Submit with: sbatch examples/slurm.sh enwik8_sha_rnn /shared/runs/sha
#SBATCH --job-name=sparing
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@120

set -u
recipe=$1 out=$2
shift 2

# A port on the first node, the same for every start of this job.
port=$((20000 + SLURM_JOB_ID % 20000))
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export OMP_NUM_THREADS=1
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

# The job id names the launch: a requeued job finds its run in $out and continues it.
srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "${SLURM_GPUS_ON_NODE:-8}" --max-restarts 20 \
  --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$first:$port" \
  -m sparing train "$recipe" --out "$out" --timeout 300 "$@" &
step=$!

# SLURM signals this script two minutes before the end; the processes save, and the job is requeued.
ending=
trap 'ending=yes; scancel --signal=TERM "$SLURM_JOB_ID.0"' TERM
wait "$step"
status=$?
if [ -n "$ending" ]; then
  wait "$step"
  scontrol requeue "$SLURM_JOB_ID"
  exit 0
fi
exit "$status"

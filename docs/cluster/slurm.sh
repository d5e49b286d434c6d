#!/bin/bash
# sbatch docs/cluster/slurm.sh: two machines with eight GPUs each, one process per GPU.
#SBATCH --job-name=detlite
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
# Two minutes before the time limit, all processes finish the step and save a checkpoint.
#SBATCH --signal=TERM@120

MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
WORLD_SIZE=$SLURM_NTASKS
OMP_NUM_THREADS=1
export MASTER_ADDR MASTER_PORT WORLD_SIZE OMP_NUM_THREADS

# With an empty OUTPUT_DIR, --resume starts a new run, so the first job can use it too.
srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec detlite "$@"' detlite \
  train --config coco/mask_rcnn_R_50_FPN_1x.yaml --resume \
  OUTPUT_DIR output/coco SOLVER.IMS_PER_BATCH 32 SOLVER.BASE_LR 0.04 \
  TEST.IMS_PER_BATCH 16
status=$?
if [ "$status" -eq 75 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"

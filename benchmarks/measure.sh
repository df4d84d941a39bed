#!/bin/sh
# The figures behind the README's pictures: on a machine with a CUDA device and a quiet CPU, with mamba_ops importable.
# Usage: benchmarks/measure.sh FOLDER [NOTE]   writes bench-cuda.json, bench-cuda-models.json and bench-cpu.json there
set -eu
folder=$1 note=${2:-}
bench="${PYTHON:-python3} -m mamba_ops bench --quiet --seconds 0.2 --note"
lengths="1x256x256 1x256x512 1x256x1024 1x256x2048 1x256x4096 1x256x8192 1x256x16384"
models="8x2048x2048 1x1536x8192 1x5120x2048 64x384x256"

# shellcheck disable=SC2086  lists of words
{
  $bench "$note" --device cuda --sizes $lengths --time-limit 1 --out "$folder/bench-cuda"
  $bench "$note" --device cuda --sizes $models --dtype float32 bfloat16 --peers mamba_ssm study_naive study_warp \
    study_shared --out "$folder/bench-cuda-models"
  OMP_NUM_THREADS=1 $bench "$note" --device cpu --threads 1 --sizes $lengths --time-limit 0.7 --out "$folder/bench-cpu"
}

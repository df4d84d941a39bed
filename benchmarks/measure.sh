#!/bin/sh
# The figures behind the README's pictures: on a machine with a CUDA device and a quiet CPU, with mamba_ops importable.
# Usage: benchmarks/measure.sh FOLDER NOTE [PART...]
# Each PART, of cuda-models, cuda and cpu (all unless given), writes FOLDER/bench-PART.json in less than a minute.
set -eu
folder=$1 note=$2
shift 2
[ $# -gt 0 ] || set -- cuda-models cuda cpu

bench() { "${PYTHON:-python3}" -m mamba_ops bench --quiet --seconds 0.2 --note "$note" --out "$folder/bench-$part" "$@"; }
lengths="1x256x256 1x256x512 1x256x1024 1x256x2048 1x256x4096 1x256x8192 1x256x16384"
models="8x2048x2048 1x1536x8192 1x5120x2048 64x384x256"

for part; do
  # shellcheck disable=SC2086  lists of words
  case $part in
    cuda-models)
      bench --device cuda --sizes $models --dtype float32 bfloat16 --peers mamba_ssm study_naive study_warp study_shared
      ;;
    cuda) bench --device cuda --sizes $lengths --time-limit 0.5 ;;
    cpu) OMP_NUM_THREADS=1 bench --device cpu --threads 1 --sizes $lengths --time-limit 0.7 ;;
    *)
      echo "there is no part $part: use cuda-models, cuda or cpu" >&2
      exit 2
      ;;
  esac
done

#!/bin/sh
# The pictures of the README, from what measure.sh wrote. Usage: benchmarks/draw.sh FOLDER IMAGES
set -eu
folder=$1 images=$2
plot() { "${PYTHON:-python3}" -m mamba_ops plot "$@" --formats svg; }

plot "$folder/bench-cuda.json" --pictures time --out "$images/cuda"
plot "$folder/bench-cpu.json" --pictures time --out "$images/cpu"
plot "$folder/bench-cuda.json" "$folder/bench-cpu.json" --pictures speedup --directions forward \
  --sizes 1x256x1024 1x256x2048 --out "$images/loop"
plot "$folder/bench-cuda-models.json" --pictures speedup share --directions forward backward --out "$images/models"

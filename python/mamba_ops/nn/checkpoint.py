"""Read Mamba checkpoints from a local folder, without further packages."""

import json
from pathlib import Path
from typing import Dict, Union

import torch
from torch import Tensor

from .config import MambaConfig

_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_SAFETENSORS_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def read_config(folder: Union[str, Path]) -> MambaConfig:
    """The sizes in the folder's config.json."""
    return MambaConfig.from_dict(json.loads((Path(folder) / "config.json").read_text(encoding="utf-8")))


def read_weights(folder: Union[str, Path]) -> Dict[str, Tensor]:
    """The folder's weights under the names of `MambaLM`: one file, or shards with an index."""
    folder = Path(folder)
    for name in _WEIGHTS:
        index = folder / f"{name}.index.json"
        if index.is_file():
            shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        elif (folder / name).is_file():
            shards = [name]
        else:
            continue
        weights: Dict[str, Tensor] = {}
        for shard in shards:
            weights.update(_read_file(folder / shard))
        return {_canonical(key): tensor for key, tensor in weights.items()}
    raise FileNotFoundError(f"MambaLM: expected {' or '.join(_WEIGHTS)} (or its .index.json) in {folder}")


def read_safetensors(path: Union[str, Path]) -> Dict[str, Tensor]:
    """Read a safetensors file: an 8-byte little-endian size, a JSON header of that size, then the tensors' bytes."""
    with open(path, "rb") as file:
        header_size = int.from_bytes(file.read(8), "little")
        size = Path(path).stat().st_size
        if header_size > size - 8:
            raise ValueError(f"MambaLM: {path} is not a safetensors file, or is cut short")
        header = json.loads(file.read(header_size))
    mapped = torch.from_file(str(path), size=size, dtype=torch.uint8)[8 + header_size :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in _SAFETENSORS_DTYPES:
            raise ValueError(f"MambaLM: {path} holds {name} as {entry['dtype']}, which is not supported")
        begin, end = entry["data_offsets"]
        if end > mapped.numel():
            raise ValueError(f"MambaLM: {path} is cut short: {name} lies beyond its end")
        # A copy, so that it is aligned and outlives the file.
        data = mapped[begin:end].clone()
        tensors[name] = data.view(_SAFETENSORS_DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def _read_file(path: Path) -> Dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def _canonical(key: str) -> str:
    """The original code says embedding where Hugging Face says embeddings; a model without a head drops the prefix."""
    if not key.startswith(("backbone.", "lm_head.")):
        key = f"backbone.{key}"
    return key.replace("backbone.embedding.", "backbone.embeddings.")

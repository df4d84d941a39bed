"""Export a Mamba language model ahead of time: two packages that C++ runs without Python, see run_exported.cpp.

    python export_lm.py --out exported                     # a small model with random weights
    python export_lm.py --out exported --model FOLDER      # a checkpoint, as MambaLM.from_pretrained reads it

prefill.pt2 takes token ids (batch, length), any batch and length, and returns the logits after the last token and the
caches, two tensors a layer. step.pt2 takes one token a row and the caches, which it advances in place, and returns the
logits. reference.pt holds what Python computes, for comparison.
"""

import argparse
from pathlib import Path
from typing import List

import torch
from mamba_ops.nn import LayerCache, MambaConfig, MambaLM
from torch import Tensor

PROMPT, STEPS = "Mamba is a state space model", 16


class Prefill(torch.nn.Module):
    def __init__(self, model: MambaLM) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor):
        logits, caches = self.model.prefill(ids)
        return (logits, *(tensor for cache in caches for tensor in cache))


class Step(torch.nn.Module):
    def __init__(self, model: MambaLM) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: Tensor, caches: List[Tensor]) -> Tensor:
        return self.model.step(token, [LayerCache(*pair) for pair in zip(caches[::2], caches[1::2])])


def package(module: torch.nn.Module, args, dynamic_shapes, path: Path) -> None:
    with torch.no_grad():
        program = torch.export.export(module, args, dynamic_shapes=dynamic_shapes)
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    print(f"wrote {path}")


@torch.no_grad()
def reference(model: MambaLM):
    ids = torch.tensor([list(PROMPT.encode())])
    logits, caches = model.prefill(ids)
    every = [logits]
    for _ in range(STEPS):
        every.append(model.step(every[-1].argmax(-1), caches))
    return ids, torch.stack(every, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the packages")
    parser.add_argument("--model", type=Path, help="folder of a checkpoint")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(0)
    model = (
        MambaLM.from_pretrained(options.model)
        if options.model
        else MambaLM(MambaConfig(vocab_size=256, d_model=32, n_layer=2))
    ).eval()
    batch, length = torch.export.Dim("batch", max=1024), torch.export.Dim("length", min=2, max=65536)
    ids = torch.zeros(2, 8, dtype=torch.long)
    package(Prefill(model), (ids,), ({0: batch, 1: length},), options.out / "prefill.pt2")
    caches = [tensor for cache in model.new_cache(2) for tensor in cache]
    shapes = ({0: batch}, [{0: batch}] * len(caches))
    package(Step(model), (ids[:, 0].contiguous(), caches), shapes, options.out / "step.pt2")

    ids, logits = reference(model)
    torch.save({"ids": ids, "logits": logits}, options.out / "reference.pt")


if __name__ == "__main__":
    main()

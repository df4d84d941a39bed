"""Export a Mamba language model ahead of time: two packages that C++ runs without Python, see run_exported.cpp.

    python export_lm.py --out exported                     # a small model with random weights
    python export_lm.py --out exported --model FOLDER      # a checkpoint, as MambaLM.from_pretrained reads it
    python export_lm.py --out exported --device cuda       # packages for the GPU

prefill.pt2 reads token ids (batch, length), padded on the right, with the lengths of their rows (batch,), after what
the cache has seen: conv and ssm, a slot for each row, zeros at first. It returns the logits after the last token of
each row, and the new cache. step.pt2 takes one token a row, the rows' slots (negative: padding) and a cache of any
number of slots, which it advances in place, and returns the logits. reference.pt holds what Python computes, for
comparison, and model.pt is the same model as TorchScript, for generate and serve. The packages run on the device that
they were made for, the other files on any.
"""

import argparse
from pathlib import Path

import torch
from mamba_ops.nn import MambaCache, MambaConfig, MambaLM
from torch import Tensor

PROMPT, STEPS = "Mamba is a state space model", 16


class Prefill(torch.nn.Module):
    def __init__(self, model: MambaLM) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, lengths: Tensor, conv: Tensor, ssm: Tensor):
        logits, cache = self.model.prefill(ids, MambaCache(conv, ssm), lengths)
        return logits, cache.conv, cache.ssm


class Step(torch.nn.Module):
    def __init__(self, model: MambaLM) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: Tensor, slots: Tensor, conv: Tensor, ssm: Tensor) -> Tensor:
        return self.model.step(token, MambaCache(conv, ssm), slots)


def package(module: torch.nn.Module, args, dynamic_shapes, path: Path) -> None:
    with torch.no_grad():
        program = torch.export.export(module, args, dynamic_shapes=dynamic_shapes)
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    print(f"wrote {path}")


@torch.no_grad()
def reference(model: MambaLM):
    """The prompt, the logits after it and after each step of greedy decoding, and the cache in the end."""
    ids = torch.tensor([list(PROMPT.encode())], device=model.lm_head.weight.device)
    logits, cache = model.prefill(ids)
    every = [logits]
    for _ in range(STEPS):
        every.append(model.step(every[-1].argmax(-1), cache))
    tensors = {"ids": ids, "logits": torch.stack(every, 1), "conv": cache.conv, "ssm": cache.ssm}
    return {name: x.cpu() for name, x in tensors.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the packages")
    parser.add_argument("--model", type=Path, help="folder of a checkpoint")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="what the packages run on")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(0)
    model = (
        MambaLM.from_pretrained(options.model)
        if options.model
        else MambaLM(MambaConfig(vocab_size=256, d_model=32, n_layer=2))
    ).eval()
    torch.jit.script(model).save(options.out / "model.pt")
    model.to(options.device)
    batch, slots = torch.export.Dim("batch", max=1024), torch.export.Dim("slots", max=1 << 20)
    length = torch.export.Dim("length", min=2, max=65536)
    ids, rows = torch.zeros(2, 8, dtype=torch.long, device=options.device), torch.tensor([1, 0], device=options.device)
    cache = model.new_cache(2)
    shapes = ({0: batch, 1: length}, {0: batch}, {0: batch}, {0: batch})
    package(Prefill(model), (ids, rows + 7, *cache), shapes, options.out / "prefill.pt2")
    shapes = ({0: batch}, {0: batch}, {0: slots}, {0: slots})
    package(Step(model), (ids[:, 0].contiguous(), rows, *model.new_cache(3)), shapes, options.out / "step.pt2")

    torch.save(reference(model), options.out / "reference.pt")


if __name__ == "__main__":
    main()

"""Made scan_v1.pt, once: a TorchScript module that every later version must load. Kept to show what it holds."""

from pathlib import Path
from typing import List, Tuple

import mamba_ops  # noqa: F401  registers the operators
import torch
from torch import Tensor


class ScanV1(torch.nn.Module):
    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def normal(*shape):
            return torch.randn(shape, generator=generator)

        self.A = torch.nn.Parameter(-torch.rand(4, 3, generator=generator))
        self.D = torch.nn.Parameter(normal(4))
        self.delta_bias = torch.nn.Parameter(normal(4))
        self.args: List[Tensor] = [
            normal(2, 4, 9),
            normal(2, 4, 9),
            normal(2, 3, 9),
            normal(2, 2, 3, 9),
            normal(2, 4, 9),
        ]
        self.args.append(normal(2, 4, 3))
        self.expected: Tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))

    def forward(
        self, u: Tensor, delta: Tensor, B: Tensor, C: Tensor, z: Tensor, initial_state: Tensor
    ) -> Tuple[Tensor, Tensor]:
        return torch.ops.mamba.selective_scan_with_state(
            u, delta, self.A, B, C, self.D, z, self.delta_bias, True, initial_state, None, False
        )

    @torch.jit.export
    def step(self, state: Tensor, x: Tensor, dt: Tensor, B: Tensor, C: Tensor) -> Tensor:
        return torch.ops.mamba.selective_state_update(state, x, dt, self.A, B, C, self.D, None, self.delta_bias, True)

    @torch.jit.export
    def example(self) -> Tuple[List[Tensor], Tuple[Tensor, Tensor]]:
        return self.args, self.expected


if __name__ == "__main__":
    module = ScanV1()
    with torch.no_grad():
        module.expected = module(*module.args)
    torch.jit.script(module).save(Path(__file__).with_name("scan_v1.pt"))

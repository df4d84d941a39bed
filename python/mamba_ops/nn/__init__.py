"""Mamba layers and language model for training, `torch.jit.script` and decoding.

The architecture is that of Gu & Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces" (arXiv
2312.00752). Parameters are named as in Hugging Face's MambaForCausalLM, whose checkpoints `MambaLM.from_pretrained`
reads. Every module can be scripted, saved, and run in C++ with only libmamba_ops.so loaded.
"""

from .block import MambaBlock, RMSNorm
from .cache import MambaCache, read_slots, write_slots
from .config import MambaConfig
from .generation import Decoder, generate, sample
from .model import MambaBackbone, MambaLayer, MambaLM

__all__ = [
    "Decoder",
    "MambaBackbone",
    "MambaBlock",
    "MambaCache",
    "MambaConfig",
    "MambaLM",
    "MambaLayer",
    "RMSNorm",
    "generate",
    "read_slots",
    "sample",
    "write_slots",
]

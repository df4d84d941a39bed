"""Mamba layers and language model for training, `torch.jit.script` and decoding.

The architecture is that of Gu & Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces" (arXiv
2312.00752). Parameters are named as in Hugging Face's MambaForCausalLM, whose checkpoints `MambaLM.from_pretrained`
reads. Every module can be scripted, saved, and run in C++ with only libmamba_ops.so loaded.
"""

from .block import LayerCache, MambaBlock, RMSNorm
from .config import MambaConfig
from .model import MambaBackbone, MambaLayer, MambaLM

__all__ = ["LayerCache", "MambaBackbone", "MambaBlock", "MambaConfig", "MambaLM", "MambaLayer", "RMSNorm"]

"""Small language models for the tests of mamba_ops.nn."""

import io

import torch
from mamba_ops.nn import MambaConfig, MambaLM

CONFIGS = {
    "default": MambaConfig(vocab_size=31, d_model=16, n_layer=2, d_state=4),
    "all_options": MambaConfig(
        vocab_size=31,
        d_model=12,
        n_layer=3,
        d_state=5,
        d_conv=3,
        d_inner=20,
        dt_rank=3,
        bias=True,
        conv_bias=False,
        residual_in_fp32=False,
        tie_embeddings=False,
    ),
    "width_one": MambaConfig(vocab_size=31, d_model=16, n_layer=1, d_conv=1),
}


def make_model(name, dtype=torch.float64, device="cpu"):
    """A model whose parameters are all away from their special initial values."""
    model = MambaLM(CONFIGS[name])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.to(device, dtype).eval()


def roundtrip(scripted):
    buffer = io.BytesIO()
    torch.jit.save(scripted, buffer)
    buffer.seek(0)
    return torch.jit.load(buffer)

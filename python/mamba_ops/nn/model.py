"""The Mamba language model, with the decoding methods that TorchScript exports."""

import math
from pathlib import Path
from typing import List, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from . import checkpoint
from .block import LayerCache, MambaBlock, RMSNorm, _at_least_float32
from .config import MambaConfig


class MambaLayer(nn.Module):
    """A block behind its norm, added to the residual stream."""

    def __init__(self, config: MambaConfig) -> None:
        super().__init__()
        self.norm = RMSNorm(config.d_model, config.norm_eps)
        self.mixer = MambaBlock(
            config.d_model,
            config.d_state,
            config.d_conv,
            config.d_inner,
            config.dt_rank,
            config.bias,
            config.conv_bias,
            config.dt_min,
            config.dt_max,
            config.dt_floor,
            config.dt_scale,
        )

    def prefill(self, residual: Tensor, cache: Optional[LayerCache]) -> Tuple[Tensor, LayerCache]:
        y, cache = self.mixer.prefill(self.norm(residual), cache)
        return residual + y, cache

    def step(self, residual: Tensor, cache: LayerCache) -> Tensor:
        return residual + self.mixer.step(self.norm(residual), cache)


class MambaBackbone(nn.Module):
    """Embeddings, layers and the last norm: token ids (batch, length) to hidden states (batch, length, d_model)."""

    def __init__(self, config: MambaConfig) -> None:
        super().__init__()
        self.residual_in_fp32 = config.residual_in_fp32
        self.embeddings = nn.Embedding(config.vocab_size, config.d_model)
        self.layers = nn.ModuleList([MambaLayer(config) for _ in range(config.n_layer)])
        self.norm_f = RMSNorm(config.d_model, config.norm_eps)

    def forward(self, ids: Tensor) -> Tensor:
        return self.prefill(ids, None)[0]

    def prefill(self, ids: Tensor, cache: Optional[List[LayerCache]] = None) -> Tuple[Tensor, List[LayerCache]]:
        """Run ids (batch, length) after what `cache` has seen; return the hidden states and the new cache."""
        hidden = self._embed(ids)
        caches: List[LayerCache] = []
        for i, layer in enumerate(self.layers):
            hidden, layer_cache = layer.prefill(hidden, None if cache is None else cache[i])
            caches.append(layer_cache)
        return self.norm_f(hidden), caches

    def step(self, token: Tensor, cache: List[LayerCache]) -> Tensor:
        """Run one token for each row, (batch,), to (batch, d_model), and advance `cache` in place."""
        hidden = self._embed(token)
        for i, layer in enumerate(self.layers):
            hidden = layer.step(hidden, cache[i])
        return self.norm_f(hidden)

    def _embed(self, ids: Tensor) -> Tensor:
        hidden = self.embeddings(ids)
        return _at_least_float32(hidden) if self.residual_in_fp32 else hidden


class MambaLM(nn.Module):
    """A Mamba language model: token ids (batch, length) to logits (batch, length, vocab_size).

    After `torch.jit.script`, `forward`, `prefill`, `step` and `new_cache` are there in Python and in C++.
    """

    def __init__(self, config: MambaConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = MambaBackbone(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self._init_weights()
        self._tie()

    @classmethod
    def from_pretrained(
        cls,
        path: Union[str, Path],
        dtype: Optional[torch.dtype] = None,
        device: Union[None, str, torch.device] = None,
    ) -> "MambaLM":
        """Load a checkpoint from a local folder: config.json and weights, as safetensors or a torch state dict.

        The folder is one of Hugging Face's MambaForCausalLM or of the original mamba_ssm. With `dtype` the weights are
        cast, except what the operator reads in float32: A_log, D and the bias of dt_proj.

        Raises FileNotFoundError if a file is missing, ValueError for another architecture or weights that do not fit.
        """
        config = checkpoint.read_config(path)
        weights = checkpoint.read_weights(path)
        if config.tie_embeddings:
            weights["lm_head.weight"] = weights["backbone.embeddings.weight"]
        with torch.device("meta"):
            model = cls(config)
        try:
            model.load_state_dict(weights, assign=True)
        except RuntimeError as error:
            raise ValueError(f"MambaLM: the weights in {path} do not fit its config.json: {error}") from error
        model._tie()
        return model._cast(dtype).to(device)

    def forward(self, ids: Tensor) -> Tensor:
        return self.lm_head(self.backbone(ids))

    @torch.jit.export
    def prefill(self, ids: Tensor, cache: Optional[List[LayerCache]] = None) -> Tuple[Tensor, List[LayerCache]]:
        """Read ids (batch, length), length >= 1; return the logits after the last (batch, vocab_size) and a cache.

        Given the cache of an earlier part, it continues from there and leaves that cache alone. Differentiable.
        """
        hidden, caches = self.backbone.prefill(ids, cache)
        return self.lm_head(hidden[:, -1]), caches

    @torch.jit.export
    def step(self, token: Tensor, cache: List[LayerCache]) -> Tensor:
        """Read one token for each row, (batch,), advance `cache` in place and return the logits (batch, vocab_size).

        Not differentiable.
        """
        with torch.no_grad():
            logits = self.lm_head(self.backbone.step(token, cache))
        return logits

    @torch.jit.export
    def new_cache(self, batch: int) -> List[LayerCache]:
        """The cache before the first token, for `batch` rows."""
        caches: List[LayerCache] = []
        for layer in self.backbone.layers:
            caches.append(layer.mixer.new_cache(batch))
        return caches

    @torch.no_grad()
    def _init_weights(self) -> None:
        """As published: small embeddings, no biases, and out_proj scaled down by the root of the number of layers."""
        nn.init.normal_(self.backbone.embeddings.weight, std=0.02)
        nn.init.normal_(self.lm_head.weight, std=0.02)
        for layer in self.backbone.layers:
            mixer = layer.mixer
            mixer.out_proj.weight.div_(math.sqrt(self.config.n_layer))
            for projection in (mixer.in_proj, mixer.out_proj):
                if projection.bias is not None:
                    nn.init.zeros_(projection.bias)

    def _tie(self) -> None:
        if self.config.tie_embeddings:
            self.lm_head.weight = self.backbone.embeddings.weight

    def _cast(self, dtype: Optional[torch.dtype]) -> "MambaLM":
        if dtype is not None:
            for name, parameter in self.named_parameters():
                of_the_scan = name.endswith(("A_log", ".D", "dt_proj.bias"))
                wanted = torch.promote_types(dtype, torch.float32) if of_the_scan else dtype
                parameter.data = parameter.data.to(wanted)
        return self

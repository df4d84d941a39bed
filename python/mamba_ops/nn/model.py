"""The Mamba language model, with the decoding methods that TorchScript exports."""

import math
from pathlib import Path
from typing import List, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from . import checkpoint
from .block import MambaBlock, RMSNorm, _at_least_float32
from .cache import MambaCache, last_of_each, layer_of, pack
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

    def prefill(
        self, residual: Tensor, cache: Optional[MambaCache], cu_seqlens: Optional[Tensor]
    ) -> Tuple[Tensor, MambaCache]:
        y, cache = self.mixer.prefill(self.norm(residual), cache, cu_seqlens)
        return residual + y, cache

    def step(self, residual: Tensor, cache: MambaCache, state_batch_indices: Optional[Tensor]) -> Tensor:
        return residual + self.mixer.step(self.norm(residual), cache, state_batch_indices)


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

    def prefill(
        self, ids: Tensor, cache: Optional[MambaCache] = None, cu_seqlens: Optional[Tensor] = None
    ) -> Tuple[Tensor, MambaCache]:
        """Run ids (batch, length) after what `cache` has seen; return the hidden states and the new cache.

        With cu_seqlens the batch is one row of packed sequences, and the caches have a slot for each of them.
        """
        hidden = self._embed(ids)
        if cache is not None:
            self._check(cache)
        conv: List[Tensor] = []
        ssm: List[Tensor] = []
        for i, layer in enumerate(self.layers):
            seen = None if cache is None else layer_of(cache, i)
            hidden, after = layer.prefill(hidden, seen, cu_seqlens)
            conv.append(after.conv)
            ssm.append(after.ssm)
        return self.norm_f(hidden), MambaCache(torch.stack(conv, 1), torch.stack(ssm, 1))

    def step(self, token: Tensor, cache: MambaCache, state_batch_indices: Optional[Tensor] = None) -> Tensor:
        """Run one token for each row, (batch,), to (batch, d_model), and advance `cache` in place."""
        hidden = self._embed(token)
        self._check(cache)
        for i, layer in enumerate(self.layers):
            hidden = layer.step(hidden, layer_of(cache, i), state_batch_indices)
        return self.norm_f(hidden)

    def new_cache(self, slots: int) -> MambaCache:
        conv: List[Tensor] = []
        ssm: List[Tensor] = []
        for layer in self.layers:
            cache = layer.mixer.new_cache(slots)
            conv.append(cache.conv)
            ssm.append(cache.ssm)
        return MambaCache(torch.stack(conv, 1), torch.stack(ssm, 1))

    def _check(self, cache: MambaCache) -> None:
        layers = len(self.layers)
        for x in (cache.conv, cache.ssm):
            if x.dim() != 4 or x.size(1) != layers:
                raise ValueError(
                    f"MambaLM: expected a cache of this model, (slots, {layers} layers, ...), but got one of shape "
                    f"{x.size()}; make it with new_cache or prefill"
                )

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
        cast, except what the operators read in float32: A_log, D, the bias of dt_proj, and the convolution.

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
    def prefill(
        self,
        ids: Tensor,
        cache: Optional[MambaCache] = None,
        lengths: Optional[Tensor] = None,
        left_padded: bool = False,
        cu_seqlens: Optional[Tensor] = None,
    ) -> Tuple[Tensor, MambaCache]:
        """Read prompts, or further parts of them; return the logits after the last token of each, and a cache.

        Three layouts, the same results: rows of one length, padded rows with `lengths`, packed rows with `cu_seqlens`.
        A sequence without a token leaves its state as it was, and its logits are those of a hidden state of 0. Given
        the cache of earlier parts, it continues from there and leaves that cache alone. Differentiable.

        Args:
            ids: (batch, length). Padding may be any token.
            cache: what the sequences have seen; without it nothing.
            lengths: (batch,) int64, how many tokens of each row count, from 0 to length. Others raise on the CPU, and
                are clamped where values are not read back: on other devices, and in exported or compiled graphs.
            left_padded: whether a row's tokens are its last ones, not its first.
            cu_seqlens: boundaries of packed sequences in ids (1, length), (sequences + 1,), as in `selective_scan`.

        Returns:
            logits, (rows, vocab_size), and a cache with `rows` slots: batch of them, or sequences with cu_seqlens.

        Raises:
            ValueError: lengths and cu_seqlens both, left_padded without lengths, lengths that are none, a cache of
                another number of layers, or shapes and values that the operators refuse.
        """
        if lengths is not None:
            if cu_seqlens is not None:
                raise ValueError("MambaLM.prefill: expected lengths or cu_seqlens, but got both")
            if lengths.dim() != 1 or lengths.size(0) != ids.size(0):
                raise ValueError(
                    f"MambaLM.prefill: expected lengths to have the shape (batch) = [{ids.size(0)}], "
                    f"but got {lengths.size()}"
                )
            ids, cu_seqlens = pack(ids, lengths, left_padded)
        elif left_padded:
            raise ValueError("MambaLM.prefill: expected lengths with left_padded, but got none")
        hidden, after = self.backbone.prefill(ids, cache, cu_seqlens)
        return self.lm_head(last_of_each(hidden, cu_seqlens)), after

    @torch.jit.export
    def step(self, token: Tensor, cache: MambaCache, state_batch_indices: Optional[Tensor] = None) -> Tensor:
        """Read one token for each row, (batch,), advance `cache` in place and return the logits (batch, vocab_size).

        state_batch_indices, (batch,) int32 or int64, names the slot of each row; a negative one is padding: it touches
        no slot, and its logits mean nothing. Without it row i is slot i. Not differentiable.

        Raises ValueError for a cache of another number of layers.
        """
        with torch.no_grad():
            logits = self.lm_head(self.backbone.step(token, cache, state_batch_indices))
        return logits

    @torch.jit.export
    def new_cache(self, slots: int) -> MambaCache:
        """A cache of so many slots, each before its first token: zeros."""
        return self.backbone.new_cache(slots)

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
                of_an_operator = name.endswith(("A_log", ".D", "dt_proj.bias", "conv1d.weight", "conv1d.bias"))
                wanted = torch.promote_types(dtype, torch.float32) if of_an_operator else dtype
                parameter.data = parameter.data.to(wanted)
        return self

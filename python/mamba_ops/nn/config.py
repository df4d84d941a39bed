"""The sizes of a Mamba language model, and their two spellings in config.json files."""

import math
from dataclasses import dataclass
from typing import Any, Dict


@dataclass(frozen=True)
class MambaConfig:
    """Sizes and options of a `MambaLM`.

    The dt_* fields only say where training starts: the bias of dt_proj is drawn so that the step sizes are log-uniform
    in [dt_min, dt_max] and at least dt_floor.

    Raises ValueError for a size below 1.
    """

    vocab_size: int
    d_model: int
    n_layer: int
    d_state: int = 16
    d_conv: int = 4
    d_inner: int = 0
    """Channels of the scan; 0: 2 * d_model."""
    dt_rank: int = 0
    """Rank of the projection to the step sizes; 0: d_model / 16, rounded up."""
    bias: bool = False
    conv_bias: bool = True
    norm_eps: float = 1e-5
    residual_in_fp32: bool = True
    tie_embeddings: bool = True
    dt_min: float = 1e-3
    dt_max: float = 1e-1
    dt_floor: float = 1e-4
    dt_scale: float = 1.0

    def __post_init__(self) -> None:
        for name in ("vocab_size", "d_model", "n_layer", "d_state", "d_conv"):
            if getattr(self, name) < 1:
                raise ValueError(f"MambaConfig: expected {name} to be at least 1, but got {getattr(self, name)}")
        for name in ("d_inner", "dt_rank"):
            if getattr(self, name) < 0:
                raise ValueError(f"MambaConfig: expected {name} to be at least 0, but got {getattr(self, name)}")
        if not self.d_inner:
            object.__setattr__(self, "d_inner", 2 * self.d_model)
        if not self.dt_rank:
            object.__setattr__(self, "dt_rank", math.ceil(self.d_model / 16))

    @classmethod
    def from_dict(cls, values: Dict[str, Any]) -> "MambaConfig":
        """Read the content of a config.json, of Hugging Face's transformers or of the original mamba_ssm.

        Raises ValueError for another architecture, or for an option that this model does not have.
        """
        if "hidden_size" in values:
            return cls._from_transformers(values)
        if "d_model" in values:
            return cls._from_mamba_ssm(values)
        raise ValueError("MambaConfig: expected a config.json with hidden_size or d_model, but it has neither")

    @classmethod
    def _from_transformers(cls, values: Dict[str, Any]) -> "MambaConfig":
        _expect(values, "model_type", "mamba")
        _expect(values, "hidden_act", "silu")
        hidden = values["hidden_size"]
        rank = values.get("time_step_rank", "auto")
        return cls(
            vocab_size=values["vocab_size"],
            d_model=hidden,
            n_layer=values["num_hidden_layers"],
            d_state=values.get("state_size", 16),
            d_conv=values.get("conv_kernel", 4),
            d_inner=values.get("intermediate_size") or int(values.get("expand", 2) * hidden),
            dt_rank=0 if rank == "auto" else rank,
            bias=values.get("use_bias", False),
            conv_bias=values.get("use_conv_bias", True),
            norm_eps=values.get("layer_norm_epsilon", 1e-5),
            residual_in_fp32=values.get("residual_in_fp32", True),
            tie_embeddings=values.get("tie_word_embeddings", True),
            dt_min=values.get("time_step_min", 1e-3),
            dt_max=values.get("time_step_max", 1e-1),
            dt_floor=values.get("time_step_floor", 1e-4),
            dt_scale=values.get("time_step_scale", 1.0),
        )

    @classmethod
    def _from_mamba_ssm(cls, values: Dict[str, Any]) -> "MambaConfig":
        ssm = values.get("ssm_cfg") or {}
        _expect(ssm, "layer", "Mamba1")
        _expect(values, "rms_norm", True)
        if values.get("d_intermediate") or values.get("attn_layer_idx"):
            raise ValueError("MambaConfig: models with MLP or attention layers are not supported")
        multiple = values.get("pad_vocab_size_multiple", 8)
        rank = ssm.get("dt_rank", "auto")
        return cls(
            vocab_size=math.ceil(values["vocab_size"] / multiple) * multiple,
            d_model=values["d_model"],
            n_layer=values["n_layer"],
            d_state=ssm.get("d_state", 16),
            d_conv=ssm.get("d_conv", 4),
            d_inner=int(ssm.get("expand", 2) * values["d_model"]),
            dt_rank=0 if rank == "auto" else rank,
            bias=ssm.get("bias", False),
            conv_bias=ssm.get("conv_bias", True),
            residual_in_fp32=values.get("residual_in_fp32", True),
            tie_embeddings=values.get("tie_embeddings", True),
        )


def _expect(values: Dict[str, Any], name: str, supported: Any) -> None:
    if values.get(name, supported) != supported:
        raise ValueError(
            f"MambaConfig: expected {name} {supported!r}, but got {values[name]!r}, which is not supported"
        )

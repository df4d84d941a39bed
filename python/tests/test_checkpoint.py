"""MambaLM.from_pretrained: Hugging Face's and the original names, file formats, and what is refused."""

import json
import struct

import pytest
import torch
from mamba_ops.nn import MambaConfig, MambaLM
from mamba_ops.nn.checkpoint import read_safetensors

HF_CONFIG = {
    "model_type": "mamba",
    "vocab_size": 40,
    "hidden_size": 16,
    "state_size": 4,
    "num_hidden_layers": 2,
    "conv_kernel": 4,
    "expand": 2,
    "time_step_rank": 3,
    "hidden_act": "silu",
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
}
ORIGINAL_CONFIG = {
    "d_model": 16,
    "n_layer": 2,
    "vocab_size": 37,
    "ssm_cfg": {"d_state": 4, "dt_rank": 3},
    "rms_norm": True,
    "residual_in_fp32": True,
    "fused_add_norm": True,
    "pad_vocab_size_multiple": 8,
}


def hf_weights():
    """A state dict with the names and shapes that transformers gives to HF_CONFIG, the tied head left out."""

    def new(*shape):
        return torch.randn(shape) / 4

    weights = {"backbone.embeddings.weight": new(40, 16), "backbone.norm_f.weight": new(16)}
    for i in range(2):
        layer = f"backbone.layers.{i}"
        weights[f"{layer}.norm.weight"] = new(16)
        weights |= {
            f"{layer}.mixer.{name}": tensor
            for name, tensor in {
                "in_proj.weight": new(64, 16),
                "conv1d.weight": new(32, 1, 4),
                "conv1d.bias": new(32),
                "x_proj.weight": new(3 + 2 * 4, 32),
                "dt_proj.weight": new(32, 3),
                "dt_proj.bias": new(32),
                "A_log": new(32, 4),
                "D": new(32),
                "out_proj.weight": new(16, 32),
            }.items()
        }
    return weights


NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64", torch.int64: "I64"}


def write_safetensors(path, tensors):
    """The format as it is documented, written independently of the reader."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in tensors.items():
        raw = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        begin = len(data)
        data += raw
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_checkpoint(folder, config, weights, form="safetensors"):
    folder.joinpath("config.json").write_text(json.dumps(config))
    if form == "safetensors":
        write_safetensors(folder / "model.safetensors", weights)
    elif form == "bin":
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        names = sorted(weights)
        parts = {"model-1-of-2.safetensors": names[::2], "model-2-of-2.safetensors": names[1::2]}
        for file, part in parts.items():
            write_safetensors(folder / file, {name: weights[name] for name in part})
        index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
        folder.joinpath("model.safetensors.index.json").write_text(json.dumps(index))


def model_of(weights):
    model = MambaLM(MambaConfig(vocab_size=40, d_model=16, n_layer=2, d_state=4, dt_rank=3))
    model.load_state_dict({**weights, "lm_head.weight": weights["backbone.embeddings.weight"]})
    return model.eval()


@pytest.mark.parametrize("form", ["safetensors", "bin", "shards"])
@pytest.mark.parametrize("naming", ["hf", "original", "without_head"])
def test_checkpoints_load(tmp_path, form, naming):
    weights = hf_weights()
    ids = torch.randint(40, (2, 7))
    expected = model_of(weights)(ids)
    if naming == "original":
        written = {name.replace("embeddings", "embedding"): tensor for name, tensor in weights.items()}
        written["lm_head.weight"] = weights["backbone.embeddings.weight"]
    elif naming == "without_head":
        written = {name.removeprefix("backbone."): tensor for name, tensor in weights.items()}
    else:
        written = weights
    write_checkpoint(tmp_path, ORIGINAL_CONFIG if naming == "original" else HF_CONFIG, written, form)

    model = MambaLM.from_pretrained(tmp_path)
    torch.testing.assert_close(model(ids), expected, rtol=0, atol=0)
    assert model.lm_head.weight is model.backbone.embeddings.weight
    assert all(parameter.requires_grad for parameter in model.parameters())
    torch.testing.assert_close(torch.jit.script(model)(ids), expected)


def test_names_are_hugging_faces():
    model = MambaLM(MambaConfig(vocab_size=40, d_model=16, n_layer=2, d_state=4, dt_rank=3))
    shapes = {name: tensor.shape for name, tensor in hf_weights().items()}
    shapes["lm_head.weight"] = shapes["backbone.embeddings.weight"]
    assert {name: tensor.shape for name, tensor in model.state_dict().items()} == shapes


def test_an_untied_head(tmp_path):
    weights = hf_weights()
    weights["lm_head.weight"] = torch.randn(40, 16)
    write_checkpoint(tmp_path, {**HF_CONFIG, "tie_word_embeddings": False}, weights)
    model = MambaLM.from_pretrained(tmp_path)
    torch.testing.assert_close(model.lm_head.weight, weights["lm_head.weight"], rtol=0, atol=0)
    torch.testing.assert_close(model.backbone.embeddings.weight, weights["backbone.embeddings.weight"], rtol=0, atol=0)


def test_a_dtype_casts_all_but_what_the_operators_read_in_float32(tmp_path):
    write_checkpoint(tmp_path, HF_CONFIG, hf_weights())
    model = MambaLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    kept = {name.rpartition("mixer.")[2] for name, p in model.named_parameters() if p.dtype is torch.float32}
    assert kept == {"A_log", "D", "dt_proj.bias", "conv1d.weight", "conv1d.bias"}
    assert model.lm_head.weight is model.backbone.embeddings.weight
    ids = torch.randint(40, (2, 7))
    expected = MambaLM.from_pretrained(tmp_path)(ids)
    torch.testing.assert_close(model(ids).float(), expected, rtol=0.05, atol=0.1)
    with torch.no_grad():
        _, cache = model.prefill(ids[:, :6])
        assert cache.conv.dtype is torch.bfloat16
        torch.testing.assert_close(model.step(ids[:, 6], cache).float(), expected[:, -1], rtol=0.05, atol=0.1)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"model_type": "falcon_mamba"}, "model_type 'mamba', but got 'falcon_mamba'"),
        ({"hidden_act": "gelu"}, "hidden_act 'silu', but got 'gelu'"),
        ({"hidden_size": 20}, "do not fit its config.json"),
        ({"num_hidden_layers": 3}, "backbone.layers.2"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(tmp_path, change, message):
    write_checkpoint(tmp_path, {**HF_CONFIG, **change}, hf_weights())
    with pytest.raises(ValueError, match=message):
        MambaLM.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "change", [{"ssm_cfg": {"layer": "Mamba2"}}, {"rms_norm": False}, {"attn_layer_idx": [1]}, {"d_intermediate": 64}]
)
def test_other_architectures_of_the_original_are_refused(change):
    with pytest.raises(ValueError, match="not supported"):
        MambaConfig.from_dict({**ORIGINAL_CONFIG, **change})


def test_a_folder_without_the_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="config.json"):
        MambaLM.from_pretrained(tmp_path)
    tmp_path.joinpath("config.json").write_text(json.dumps(HF_CONFIG))
    with pytest.raises(FileNotFoundError, match="model.safetensors"):
        MambaLM.from_pretrained(tmp_path)


def test_safetensors_dtypes(tmp_path):
    tensors = {str(dtype): (10 * torch.randn(3, 5)).to(dtype) for dtype in NAMES}
    tensors |= {"scalar": torch.tensor(3.0), "empty": torch.zeros(0, 4)}
    write_safetensors(tmp_path / "x.safetensors", tensors)
    read = read_safetensors(tmp_path / "x.safetensors")
    assert list(read) == list(tensors)
    for name, tensor in tensors.items():
        assert read[name].dtype is tensor.dtype and torch.equal(read[name], tensor)


@pytest.mark.parametrize("kept", [4, 60, -8])
def test_a_safetensors_file_cut_short_is_refused(tmp_path, kept):
    path = tmp_path / "x.safetensors"
    write_safetensors(path, {"x": torch.randn(10)})
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match="cut short"):
        read_safetensors(path)

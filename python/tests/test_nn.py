"""mamba_ops.nn: the block and the language model, eager and scripted, whole and token by token."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from mamba_ops.nn import MambaBlock, MambaCache, MambaConfig, MambaLM, RMSNorm
from mamba_ops.reference import selective_scan_ref
from models import CONFIGS, make_model, roundtrip

FORMS = pytest.mark.parametrize(
    "form", [lambda m: m, torch.jit.script, lambda m: roundtrip(torch.jit.script(m))], ids=["eager", "script", "loaded"]
)


def block_written_out(block, x):
    """The block with the reference scan and one convolution term after another."""
    x, z = F.linear(x, block.in_proj.weight, block.in_proj.bias).transpose(1, 2).chunk(2, 1)
    weight, bias = block.conv1d.weight[:, 0], block.conv1d.bias
    y = torch.zeros_like(x) if bias is None else bias[:, None].expand_as(x).clone()
    for k in range(block.d_conv):
        lag = block.d_conv - 1 - k
        y[..., lag:] += weight[:, k, None] * x[..., : x.shape[-1] - lag]
    x = F.silu(y)
    dt, B, C = (x.transpose(1, 2) @ block.x_proj.weight.T).split([block.dt_rank, block.d_state, block.d_state], -1)
    delta = dt @ block.dt_proj.weight.T + block.dt_proj.bias
    y = selective_scan_ref(
        x,
        delta.transpose(1, 2),
        -block.A_log.exp(),
        B.transpose(1, 2),
        C.transpose(1, 2),
        block.D,
        z,
        delta_softplus=True,
    )
    return F.linear(y.transpose(1, 2), block.out_proj.weight, block.out_proj.bias)


@pytest.mark.parametrize("name", CONFIGS)
def test_block_and_model_are_the_published_ones(name):
    model = make_model(name)
    ids = torch.randint(31, (2, 9))
    hidden = model.backbone.embeddings(ids)
    for layer in model.backbone.layers:
        normed = F.rms_norm(hidden, hidden.shape[-1:], layer.norm.weight, 1e-5)
        torch.testing.assert_close(layer.mixer(normed), block_written_out(layer.mixer, normed))
        hidden = hidden + block_written_out(layer.mixer, normed)
    hidden = F.rms_norm(hidden, hidden.shape[-1:], model.backbone.norm_f.weight, 1e-5)
    torch.testing.assert_close(model(ids), hidden @ model.lm_head.weight.T)


@FORMS
@pytest.mark.parametrize("name", CONFIGS)
def test_prefill_and_steps_equal_the_whole(form, name, device):
    model = make_model(name, device=device)
    ids = torch.randint(31, (3, 12), device=device)
    with torch.no_grad():
        expected = model(ids)
        model = form(model)
        torch.testing.assert_close(model(ids), expected)
        logits, cache = model.prefill(ids[:, :5])
        torch.testing.assert_close(logits, expected[:, 4])
        logits, cache = model.prefill(ids[:, 5:7], cache)
        torch.testing.assert_close(logits, expected[:, 6])
        for t in range(7, 12):
            torch.testing.assert_close(model.step(ids[:, t], cache), expected[:, t])
        cache = model.new_cache(3)
        for t in range(12):
            torch.testing.assert_close(model.step(ids[:, t], cache), expected[:, t])


@torch.no_grad()
def test_prefill_leaves_its_cache_alone_and_step_advances_it():
    model = make_model("default")
    ids = torch.randint(31, (2, 6))
    _, cache = model.prefill(ids[:, :3])
    before = copy.deepcopy(cache)
    _, after = model.prefill(ids[:, 3:4], cache)
    torch.testing.assert_close(cache, before, rtol=0, atol=0)
    model.step(ids[:, 3], cache)
    torch.testing.assert_close(cache, after)
    assert not torch.equal(cache.ssm, before.ssm) and not torch.equal(cache.conv, before.conv)


def test_a_cache_passes_between_eager_and_scripted_models():
    model = make_model("default")
    scripted = torch.jit.script(model)
    ids = torch.randint(31, (2, 6))
    expected = model(ids)[:, 4:]
    for first, second in ((model, scripted), (scripted, model)):
        _, cache = first.prefill(ids[:, :4])
        torch.testing.assert_close(second.step(ids[:, 4], cache), expected[:, 0])
        torch.testing.assert_close(second.prefill(ids[:, 5:], cache)[0], expected[:, 1])


def test_training_through_carried_state():
    """Gradients of a sequence read in two parts are those of the whole."""
    model = make_model("default")
    ids = torch.randint(31, (2, 8))
    parameters = list(model.parameters())
    expected = torch.autograd.grad(model(ids).square().sum(), parameters)
    first, cache = model.backbone.prefill(ids[:, :3])
    second, _ = model.backbone.prefill(ids[:, 3:], cache)
    logits = model.lm_head(torch.cat([first, second], 1))
    torch.testing.assert_close(torch.autograd.grad(logits.square().sum(), parameters), expected)


def test_gradients_through_a_scripted_model():
    model = make_model("default")
    scripted = roundtrip(torch.jit.script(model))
    ids = torch.randint(31, (2, 8))
    model(ids).square().sum().backward()
    for _ in range(3):  # the executor specialises after the first runs
        scripted.zero_grad()
        scripted(ids).square().sum().backward()
        got = dict(scripted.named_parameters())
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(got[name].grad, parameter.grad)


def test_a_step_in_training_mode_asks_for_no_gradient():
    model = make_model("default").train()
    _, cache = model.prefill(torch.randint(31, (2, 4)))
    assert not model.step(torch.tensor([1, 2]), cache).requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@torch.no_grad()
def test_dtypes_of_a_cache(dtype):
    block = MambaBlock(16).to(dtype)
    x = torch.randn(2, 5, 16, dtype=dtype)
    y, cache = block.prefill(x)
    assert y.dtype is dtype
    for made in (cache, block.new_cache(2)):
        assert isinstance(made, MambaCache)
        assert made.conv.dtype is dtype and made.conv.shape == (2, 32, 3)
        assert made.ssm.dtype is torch.float32 and made.ssm.shape == (2, 32, 16)
    assert block.step(x[:, 0], cache).dtype is dtype


def test_bfloat16_is_close_to_float32():
    model = make_model("default", torch.float32)
    ids = torch.randint(31, (2, 20))
    with torch.no_grad():
        expected = model(ids)
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(model(ids).float(), expected, rtol=0.05, atol=0.1)
        torch.testing.assert_close(model.bfloat16()(ids).float(), expected, rtol=0.05, atol=0.1)


def test_rms_norm():
    x = 1e4 * torch.randn(2, 3, 8).half()
    norm = RMSNorm(8).half()
    expected = F.rms_norm(x.float(), (8,), eps=1e-5)
    torch.testing.assert_close(norm(x).float(), expected, rtol=1e-3, atol=1e-3)


def test_initialisation_is_the_published_one():
    config = MambaConfig(vocab_size=500, d_model=64, n_layer=4)
    model = MambaLM(config)
    assert model.lm_head.weight is model.backbone.embeddings.weight
    torch.testing.assert_close(model.lm_head.weight.std(), torch.tensor(0.02), rtol=0.05, atol=0)
    for layer in model.backbone.layers:
        mixer = layer.mixer
        torch.testing.assert_close(-mixer.A_log.exp(), -torch.arange(1.0, 17).expand(128, 16))
        assert torch.equal(mixer.D, torch.ones(128))
        dt = F.softplus(mixer.dt_proj.bias)
        assert dt.min() >= 0.999e-3 and dt.max() <= 0.1001
        assert dt.log().mean().item() == pytest.approx(math.log(1e-2), abs=0.5)
        assert mixer.dt_proj.weight.abs().max() <= config.dt_rank**-0.5
        # Kaiming-uniform with a = sqrt(5) is uniform in +-1 / sqrt(fan_in), here divided by sqrt(n_layer).
        assert 0.9 * 128**-0.5 / 2 < mixer.out_proj.weight.abs().max() <= 128**-0.5 / 2
    floored = MambaBlock(16, dt_min=1e-6, dt_max=1e-5)
    torch.testing.assert_close(F.softplus(floored.dt_proj.bias), torch.full((32,), 1e-4), rtol=1e-3, atol=0)


@pytest.mark.parametrize("name", ["vocab_size", "d_model", "n_layer", "d_state", "d_conv", "d_inner", "dt_rank"])
def test_sizes_below_their_least_are_refused(name):
    least = 0 if name in ("d_inner", "dt_rank") else 1
    sizes = dict(vocab_size=8, d_model=8, n_layer=1) | {name: least - 1}
    with pytest.raises(ValueError, match=f"MambaConfig: expected {name} to be at least {least}, but got {least - 1}"):
        MambaConfig(**sizes)

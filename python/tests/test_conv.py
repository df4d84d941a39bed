"""The convolution of the block: against PyTorch's, its transforms, its place in programs."""

import mamba_ops
import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck
from torch.func import grad, jvp, vmap

conv = torch.ops.mamba.causal_conv1d
step = torch.ops.mamba.causal_conv1d_update


def inputs(batch=2, dim=3, length=7, width=4, packed=None, device="cpu"):
    wide = dict(dtype=torch.float64, device=device)
    rows = batch if packed is None else len(packed) - 1
    made = dict(
        x=torch.randn(batch, dim, length, **wide),
        weight=torch.randn(dim, width, **wide),
        bias=torch.randn(dim, **wide),
        initial_state=torch.randn(rows, dim, width - 1, **wide),
    )
    if packed is not None:
        made["cu_seqlens"] = torch.tensor(packed, device=device)
    return made


PACKED = dict(batch=1, length=9, packed=(1, 3, 3, 8))
FORMS = pytest.mark.parametrize("form", [{}, PACKED], ids=["dense", "packed"])
NAMES = ("x", "weight", "bias", "initial_state")


def test_equals_pytorchs_convolution(device):
    kw = inputs(device=device)
    seen = torch.cat([kw["initial_state"], kw["x"]], -1)
    expected = F.silu(F.conv1d(seen, kw["weight"].unsqueeze(1), kw["bias"], groups=3))
    out, last_state = mamba_ops.causal_conv1d(**kw, silu=True)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(last_state, seen[..., -3:], rtol=0, atol=0)


@FORMS
@pytest.mark.parametrize("silu", [False, True])
def test_derivatives_in_both_modes(silu, form, device):
    kw = inputs(**form, device=device)
    rest = {name: x for name, x in kw.items() if name not in NAMES}
    tensors = [kw[name].requires_grad_() for name in NAMES]
    assert gradcheck(
        lambda *args: conv(**dict(zip(NAMES, args)), **rest, silu=silu),
        tensors,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )


def calls(form, names, device):
    made = []
    for seed in range(3):
        torch.manual_seed(seed)
        made.append(inputs(**form, device=device))
    for call in made:
        call.update({name: x for name, x in made[0].items() if name not in names})
    return made, {name: torch.stack([call[name] for call in made]) for name in names}


@FORMS
@pytest.mark.parametrize("names", [["x"], ["weight"], ["x", "initial_state"], NAMES], ids="+".join)
def test_vmap_and_per_sample_gradients(names, form, device):
    made, mapped = calls(form, names, device)
    rest = {name: x for name, x in made[0].items() if name not in names}

    def loss(kw):
        out, state = conv(**kw, **rest, silu=True)
        return out.square().sum() + state.sum()

    expected = [conv(**call, silu=True) for call in made]
    torch.testing.assert_close(
        vmap(lambda kw: conv(**kw, **rest, silu=True))(mapped), tuple(map(torch.stack, zip(*expected)))
    )
    gradients = [grad(loss)({name: call[name] for name in names}) for call in made]
    torch.testing.assert_close(
        vmap(grad(loss))(mapped), {name: torch.stack([g[name] for g in gradients]) for name in names}
    )


def test_vmap_over_packings(device):
    kw = inputs(batch=1, length=9, packed=(0, 3, 9), device=device)
    packings = torch.tensor([[0, 3, 9], [1, 1, 5]], device=device)
    del kw["cu_seqlens"]
    actual = vmap(lambda packing: conv(**kw, cu_seqlens=packing))(packings)
    expected = [conv(**kw, cu_seqlens=packing) for packing in packings]
    torch.testing.assert_close(actual, tuple(map(torch.stack, zip(*expected))))


@pytest.mark.parametrize("shared_weight", [False, True])
def test_vmap_of_a_step(shared_weight, device):
    states = torch.randn(3, 5, 2, 3, device=device)
    xs, rows = torch.randn(3, 2, 2, device=device), torch.tensor([[4, -1], [0, 1], [2, 3]], device=device)
    weights = torch.randn(3, 2, 4, device=device)
    expected_states = states.clone()
    expected = [
        step(s, x, weights[0 if shared_weight else i], state_batch_indices=r)
        for i, (s, x, r) in enumerate(zip(expected_states, xs, rows))
    ]

    def one(state, x, r, weight):
        return step(state, x, weight, state_batch_indices=r)

    in_dims = (0, 0, 0, None if shared_weight else 0)
    out = vmap(one, in_dims=in_dims)(states, xs, rows, weights[0] if shared_weight else weights)
    torch.testing.assert_close(out, torch.stack(expected))
    torch.testing.assert_close(states, expected_states)
    with pytest.raises(ValueError, match="expected conv_state to be mapped by vmap"):
        vmap(lambda x: step(states[0], x, weights[0], state_batch_indices=rows[0]))(xs)


def test_a_tangent_of_a_step_is_refused(device):
    state, x, weight = torch.zeros(2, 3, 3), torch.randn(2, 3), torch.randn(3, 4)
    with pytest.raises(NotImplementedError, match="^causal_conv1d_update: "):
        jvp(lambda x: step(state, x, weight), (x,), (x,))
    assert not state.any()


@pytest.mark.parametrize("names", [[], ["x", "weight"]], ids=["plain", "grad"])
@FORMS
def test_opcheck_of_the_private_backward(names, form, device):
    kw = inputs(**form, device=device)
    out, last_state = conv(**kw)
    kw = {name: x.detach().requires_grad_() if name in names else x for name, x in kw.items()}
    kw.setdefault("cu_seqlens", None)
    call = dict(kw, dout=torch.randn_like(out), dlast_state=torch.randn_like(last_state), silu=True)
    torch.library.opcheck(torch.ops.mamba._causal_conv1d_bwd.default, (), {**call, "output_mask": [True] * 4})


def test_packed_chunked_and_stepped_agree_to_the_bit():
    kw = inputs(batch=1, length=8)
    out, last_state = conv(**kw, silu=True)
    first, state = conv(kw["x"][..., :5], kw["weight"], kw["bias"], kw["initial_state"], silu=True)
    rest = [step(state, kw["x"][..., t], kw["weight"], kw["bias"], silu=True) for t in range(5, 8)]
    assert torch.equal(torch.cat([first, torch.stack(rest, -1)], -1), out) and torch.equal(state, last_state)
    twice = torch.cat([kw["x"], kw["x"]], -1)
    states = torch.cat([kw["initial_state"]] * 2)
    packed, _ = conv(twice, kw["weight"], kw["bias"], states, torch.tensor([0, 8, 16]), silu=True)
    assert torch.equal(packed, torch.cat([out, out], -1))

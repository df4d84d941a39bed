"""Decoding: what is refused, and in which words; and what is clamped where values are not read back."""

import pytest
import torch
from mamba_ops.nn import MambaCache
from models import make_model

FORMS = pytest.mark.parametrize("form", [lambda model: model, torch.jit.script], ids=["eager", "script"])


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def random_ids(batch, length, device="cpu"):
    return torch.randint(31, (batch, length), device=device)


def test_lengths_and_boundaries_together_are_refused():
    ids, lengths = torch.zeros(1, 4, dtype=torch.long), torch.tensor([4])
    with pytest.raises(ValueError, match="expected lengths or cu_seqlens, but got both"):
        make_model("default").prefill(ids, None, lengths, cu_seqlens=torch.tensor([0, 4]))


@FORMS
@pytest.mark.parametrize("lengths", [[4, 9], [4], [[4, 9, 1]]])
def test_lengths_of_another_shape_are_refused(lengths, form):
    model = form(make_model("default"))
    message = r"expected lengths to have the shape \(batch\) = \[3\], but got "
    with pytest.raises(Exception, match=message):
        model.prefill(random_ids(3, 9), lengths=torch.tensor(lengths))
    with pytest.raises(Exception, match="expected lengths with left_padded, but got none"):
        model.prefill(random_ids(3, 9), left_padded=True)


@FORMS
@pytest.mark.parametrize("lengths", [[4, 10, 9], [-1, 0, 9]])
def test_lengths_outside_the_prompt_are_refused(lengths, form):
    model = form(make_model("default"))
    message = rf"expected lengths to lie between 0 and length \(9\), but got {min(lengths)} to {max(lengths)}"
    with pytest.raises(Exception, match=message):
        model.prefill(random_ids(3, 9), lengths=torch.tensor(lengths))


class Padded(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, lengths):
        return self.model.prefill(ids, None, lengths)


def test_lengths_are_clamped_where_values_are_not_read():
    model, ids = Padded(make_model("default")), random_ids(2, 5)
    exported = torch.export.export(model, (ids, torch.tensor([5, 3]))).module()
    torch.testing.assert_close(exported(ids, torch.tensor([8, -2])), model(ids, torch.tensor([5, 0])))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_lengths_are_clamped_on_the_gpu():
    model, ids = make_model("default", device="cuda"), random_ids(2, 5, "cuda")
    lengths = torch.tensor([[8, -2], [5, 0]], device="cuda")
    torch.testing.assert_close(model.prefill(ids, None, lengths[0]), model.prefill(ids, None, lengths[1]))


@FORMS
@pytest.mark.parametrize("layers", [1, 3])
def test_a_cache_of_another_number_of_layers_is_refused(layers, form):
    model = form(make_model("default"))
    cache = model.new_cache(3)
    other = MambaCache(*(torch.cat([x, x], 1)[:, :layers] for x in cache))
    token = random_ids(3, 1)
    for call in (lambda cache: model.step(token[:, 0], cache), lambda cache: model.prefill(token, cache)):
        with pytest.raises(Exception, match=r"expected a cache of this model, \(slots, 2 layers, ...\), but got"):
            call(other)
        with pytest.raises(Exception, match="expected a cache of this model"):
            call(MambaCache(*(x[:, 0] for x in cache)))

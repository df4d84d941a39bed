"""What decoding carries from one token to the next, and the slots that a pool of sequences lives in."""

from typing import NamedTuple, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor


class MambaCache(NamedTuple):
    """The states of a block or of a model, one for each slot.

    A slot holds one sequence. A step names the slots of its rows by state_batch_indices, so a cache can be a pool that
    sequences enter and leave; without it row i is slot i. Its size does not depend on how long the sequences are, and
    all of a sequence lies together in each tensor.
    """

    conv: Tensor
    """The last d_conv - 1 inputs of the convolution, oldest first: (slots, d_inner, d_conv - 1), and of a model
    (slots, n_layer, d_inner, d_conv - 1)."""
    ssm: Tensor
    """The state of the scan, (slots, d_inner, d_state) or (slots, n_layer, d_inner, d_state), in float32 (float64 in a
    float64 model)."""


torch.serialization.add_safe_globals([MambaCache])  # torch.load reads a saved cache


def layer_of(cache: MambaCache, layer: int) -> MambaCache:
    """One layer of a model's cache, as a view."""
    return MambaCache(cache.conv[:, layer], cache.ssm[:, layer])


def read_slots(cache: MambaCache, slots: Tensor) -> MambaCache:
    """A copy of some slots, as a cache of its own: row i is slot slots[i].

    A slot named twice is copied twice, which forks a sequence.
    """
    return MambaCache(cache.conv.index_select(0, slots), cache.ssm.index_select(0, slots))


@torch.no_grad()
def write_slots(cache: MambaCache, slots: Tensor, rows: MambaCache) -> None:
    """Put row i of `rows` into slot slots[i] of `cache`, in place and in its dtypes. Not differentiable, as a step."""
    for to, of in zip(cache, rows):
        to.index_copy_(0, slots, of.to(to.dtype))


def pack(ids: Tensor, lengths: Tensor, left_padded: bool) -> Tuple[Tensor, Tensor]:
    """A padded batch (batch, length) as packed sequences: ids (1, batch * length), and cu_seqlens (batch + 1,).

    The padding ends up behind the last sequence. Nothing is read back from the device, and no shape depends on a value.
    """
    time = torch.arange(ids.size(1), device=ids.device)
    if lengths.is_cpu and not torch.compiler.is_compiling():  # elsewhere nothing is read back
        if bool(((lengths < 0) | (lengths > ids.size(1))).any()):
            raise ValueError(
                f"MambaLM.prefill: expected lengths to lie between 0 and length ({ids.size(1)}), but got "
                f"{int(lengths.min())} to {int(lengths.max())}; count the tokens of each row, without its padding"
            )
    lengths = lengths.clamp(0, ids.size(1)).unsqueeze(1)
    is_padding = time < ids.size(1) - lengths if left_padded else time >= lengths
    order = torch.argsort(is_padding.flatten().to(torch.uint8), stable=True)
    return ids.flatten()[order].unsqueeze(0), F.pad(lengths.flatten().cumsum(0), [1, 0])


def last_of_each(hidden: Tensor, cu_seqlens: Optional[Tensor]) -> Tensor:
    """The last step of each row, or packed sequence, of (batch, length, d_model): (rows, d_model); 0 if it is empty."""
    if hidden.size(1) == 0:
        return hidden.new_zeros([hidden.size(0) if cu_seqlens is None else cu_seqlens.size(0) - 1, hidden.size(2)])
    if cu_seqlens is None:
        return hidden[:, -1]
    last = (cu_seqlens[1:] - 1).clamp(0, hidden.size(1) - 1)
    is_empty = (cu_seqlens[1:] == cu_seqlens[:-1]).unsqueeze(1)
    return hidden[0].index_select(0, last).masked_fill(is_empty, 0.0)

"""Decoding on top of a `MambaLM`: whole steps as CUDA graphs, sampling, and a loop that generates."""

import contextlib
from typing import Iterator, List, Optional

import torch
from torch import Tensor

from .cache import MambaCache
from .model import MambaLM


class Decoder:
    """Steps of up to `batch` rows on one cache: a CUDA graph, captured once and replayed; eager on the CPU.

        decoder = Decoder(model, cache, batch=8)
        logits = decoder.step(token, slots)

    The graph holds the model's weights and the cache by address: change them in place, or make a new Decoder. Works in
    and out of torch.inference_mode(); making one leaves the cache as it was.

    Args:
        model: the language model, on the cache's device.
        cache: a cache of `model`, which the steps advance in place; any number of slots.
        batch: the largest number of rows in a step. The graph always runs that many, the rest as padding.

    Raises ValueError for a negative batch.
    """

    def __init__(self, model: MambaLM, cache: MambaCache, batch: int) -> None:
        if batch < 0:
            raise ValueError(f"Decoder: expected batch, the most rows of a step, to be at least 0, but got {batch}")
        self._model, self._cache, self._batch = model, cache, batch
        self._every_slot = torch.arange(batch, device=cache.ssm.device)
        self._graph: Optional[torch.cuda.CUDAGraph] = None
        if cache.ssm.is_cuda:
            with torch.inference_mode(), torch.cuda.device(cache.ssm.device), _without_autocast_cache():
                self._capture()

    def step(self, token: Tensor, state_batch_indices: Optional[Tensor] = None) -> Tensor:
        """`MambaLM.step` with at most `batch` rows: token (rows,) to logits (rows, vocab_size), the cache in place.

        Without state_batch_indices row i is slot i. The graph runs on the current stream.

        Raises ValueError for more than `batch` rows.
        """
        rows = token.size(0)
        if rows > self._batch:
            raise ValueError(f"Decoder.step: expected at most {self._batch} rows, but got {rows}")
        slots = self._every_slot[:rows] if state_batch_indices is None else state_batch_indices
        with torch.inference_mode():
            logits = self._model.step(token, self._cache, slots) if self._graph is None else self._replay(token, slots)
        return logits.clone()  # by the caller's rules on inference mode, and safe from the next replay

    def _capture(self) -> None:
        self._token = torch.zeros_like(self._every_slot)
        self._slots = torch.full_like(self._every_slot, -1)  # while capturing no slot is touched
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # Libraries set themselves up, and a scripted model compiles itself, in the first calls: not in the graph.
            for _ in range(3):
                self._model.step(self._token, self._cache, self._slots)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=stream):
                self._logits = self._model.step(self._token, self._cache, self._slots)
        torch.cuda.current_stream().wait_stream(stream)

    def _replay(self, token: Tensor, slots: Tensor) -> Tensor:
        rows = token.size(0)
        self._token[:rows].copy_(token)
        self._slots[:rows].copy_(slots)
        self._slots[rows:].fill_(-1)
        self._graph.replay()
        return self._logits[:rows]


@contextlib.contextmanager
def _without_autocast_cache() -> Iterator[None]:
    """Autocast keeps the weights it has cast until its block ends; a graph that reads them would outlive them."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def sample(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    generator: Optional[torch.Generator] = None,
) -> Tensor:
    """Draw a token for each row of logits (batch, vocab_size): (batch,) int64.

    Args:
        temperature: the logits are divided by it; 0: the likeliest token, whatever the other arguments are.
        top_k: draw among the k likeliest tokens (and those as likely as the k-th); 0: among all.
        top_p: draw among the likeliest tokens, as many as it takes for their probabilities to sum to top_p.
        generator: the source of randomness, on the logits' device; the same seed gives the same tokens.

    Raises ValueError for a negative temperature or top_k, or top_p outside (0, 1].
    """
    if not temperature >= 0 or top_k < 0 or not 0 < top_p <= 1:
        raise ValueError(
            "sample: expected temperature >= 0, top_k >= 0 and 0 < top_p <= 1, "
            f"but got temperature {temperature}, top_k {top_k}, top_p {top_p}"
        )
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits.float()
    divisor = max(temperature, torch.finfo(torch.float32).tiny)  # a GPU multiplies by 1 / divisor
    logits = (logits - logits.amax(-1, keepdim=True)) / divisor  # the likeliest at 0: none becomes inf
    if 0 < top_k < logits.size(-1):
        least = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    probabilities = logits.softmax(-1)
    if top_p < 1:
        ordered, tokens = probabilities.sort(descending=True, stable=True)
        before = ordered.cumsum(-1) - ordered
        probabilities = probabilities.scatter(-1, tokens, ordered.masked_fill(before >= top_p, 0.0))
    return torch.multinomial(probabilities, 1, generator=generator).squeeze(-1)


@torch.no_grad()
def generate(
    model: MambaLM,
    ids: Tensor,
    max_new_tokens: int,
    lengths: Optional[Tensor] = None,
    left_padded: bool = False,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    stop_token: Optional[int] = None,
    generator: Optional[torch.Generator] = None,
) -> Tensor:
    """Continue prompts (batch, length) by max_new_tokens tokens each, chosen as `sample` does: (batch, new tokens).

    Prompts of several lengths are padded, see `MambaLM.prefill`. A row that has given stop_token goes on giving it, and
    when every row has, the result ends there.

    Raises ValueError for a negative max_new_tokens, and what `MambaLM.prefill` and `sample` raise.
    """
    if max_new_tokens < 0:
        raise ValueError(f"generate: expected max_new_tokens to be at least 0, but got {max_new_tokens}")
    logits, cache = model.prefill(ids, None, lengths, left_padded)
    decoder = Decoder(model, cache, ids.size(0))
    tokens: List[Tensor] = []
    while len(tokens) < max_new_tokens:
        token = sample(logits, temperature, top_k, top_p, generator)
        if stop_token is not None and tokens:
            token = torch.where(tokens[-1] == stop_token, stop_token, token)
        tokens.append(token)
        if len(tokens) == max_new_tokens or (stop_token is not None and bool((token == stop_token).all())):
            break
        logits = decoder.step(token)
    return torch.stack(tokens, 1) if tokens else ids.new_empty([ids.size(0), 0])

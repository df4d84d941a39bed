"""Decoding: whatever way a sequence is read, in parts, padded, packed, from any slot, the logits and states agree."""

import pytest
import torch
from mamba_ops.nn import MambaCache, read_slots, write_slots
from models import make_model

# Of the largest value: the layouts and the step round differently, in float16 and bfloat16 between any two operators.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 2e-2}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
FORMS = pytest.mark.parametrize("form", [lambda model: model, torch.jit.script], ids=["eager", "script"])
LENGTHS = [5, 1, 9, 4]
PADDING = 7  # a token like any other


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def random_ids(batch, length, device="cpu"):
    return torch.randint(31, (batch, length), device=device)


def close(actual, expected, dtype=torch.float64):
    """Logits, a cache, or a tuple of those."""
    if isinstance(expected, tuple):
        assert len(actual) == len(expected)
        for x, y in zip(actual, expected):
            close(x, y, dtype)
    else:
        largest = expected.abs().max().item() if expected.numel() else 0
        torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCES[dtype] * largest)


def same_bits(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def one_by_one(model, sequences, caches=None):
    """The logits after each sequence, and the cache of all, every sequence read alone."""
    results = [model.prefill(ids[None], cache) for ids, cache in zip(sequences, caches or [None] * len(sequences))]
    parts = [cache for _, cache in results]
    joined = MambaCache(torch.cat([part.conv for part in parts]), torch.cat([part.ssm for part in parts]))
    return torch.cat([logits for logits, _ in results]), joined


def padded(sequences, left):
    width = max(len(ids) for ids in sequences) + 2
    batch = torch.full((len(sequences), width), PADDING, device=sequences[0].device)
    for row, ids in zip(batch, sequences):
        row[width - len(ids) if left else 0 :][: len(ids)] = ids
    return batch, torch.tensor([len(ids) for ids in sequences], device=batch.device)


def packed(sequences):
    ends = torch.tensor([0, *(len(ids) for ids in sequences)], device=sequences[0].device).cumsum(0)
    return torch.cat(sequences)[None], ends


def prefill(model, sequences, layout, cache=None):
    if layout == "packed":
        ids, cu_seqlens = packed(sequences)
        return model.prefill(ids, cache, cu_seqlens=cu_seqlens)
    ids, lengths = padded(sequences, layout == "left")
    return model.prefill(ids, cache, lengths, layout == "left")


LAYOUTS = pytest.mark.parametrize("layout", ["left", "right", "packed"])


@pytest.mark.parametrize("name", ["default", "all_options", "width_one"])
@DTYPES
def test_prefill_and_steps_equal_a_longer_prefill(dtype, name, device):
    model = make_model(name, dtype, device)
    ids = random_ids(3, 12, device)
    for split in (1, 2, 7, 11):
        logits, cache = model.prefill(ids[:, :split])
        for t in range(split, 12):
            close(logits, model.prefill(ids[:, :t])[0], dtype)
            logits = model.step(ids[:, t], cache)
        close((logits, cache), model.prefill(ids), dtype)


@pytest.mark.parametrize("parts", [[1] * 12, [2, 10], [7, 5], [3, 1, 8], [11, 1]], ids=str)
@DTYPES
def test_a_prompt_may_be_read_in_any_parts(dtype, parts, device):
    model = make_model("default", dtype, device)
    ids = random_ids(3, 12, device)
    cache = None
    for part in ids.split(parts, 1):
        logits, cache = model.prefill(part, cache)
    close((logits, cache), model.prefill(ids), dtype)


@FORMS
@LAYOUTS
@DTYPES
def test_every_layout_equals_each_sequence_alone(dtype, layout, form, device):
    model = make_model("default", dtype, device)
    sequences = [random_ids(1, length, device)[0] for length in LENGTHS]
    expected = one_by_one(model, sequences)
    model = form(model)
    logits, cache = prefill(model, sequences, layout)
    close((logits, cache), expected, dtype)

    token = logits.argmax(-1)
    longer = [torch.cat([ids, token[i : i + 1]]) for i, ids in enumerate(sequences)]
    close((model.step(token, cache), cache), one_by_one(model, longer), dtype)


@LAYOUTS
@DTYPES
def test_prefill_in_every_layout_and_steps_equal_a_longer_prefill(dtype, layout, device):
    model = make_model("default", dtype, device)
    sequences = [random_ids(1, length + 4, device)[0] for length in LENGTHS]
    for steps in (1, 4):
        logits, cache = prefill(model, [ids[:-steps] for ids in sequences], layout)
        for back in range(steps, 0, -1):
            close(logits, prefill(model, [ids[: len(ids) - back] for ids in sequences], layout)[0], dtype)
            logits = model.step(torch.stack([ids[-back] for ids in sequences]), cache)
        close((logits, cache), prefill(model, sequences, layout), dtype)


@LAYOUTS
def test_uneven_parts_continue_and_an_empty_part_changes_nothing(layout, device):
    model = make_model("default", device=device)
    sequences = [random_ids(1, length, device)[0] for length in LENGTHS]
    _, cache = prefill(model, [ids[:split] for ids, split in zip(sequences, [2, 1, 3, 0])], layout)
    assert not cache.conv[3].any() and not cache.ssm[3].any()
    before = cache
    logits, cache = prefill(model, [ids[split:] for ids, split in zip(sequences, [2, 1, 3, 0])], layout, before)
    expected_logits, expected = one_by_one(model, sequences)
    close(cache, expected)
    close(logits[[0, 2, 3]], expected_logits[[0, 2, 3]])
    same_bits(read_slots(cache, torch.tensor([1], device=device)), read_slots(before, torch.tensor([1], device=device)))
    assert not logits[1].any()


@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_padding_tokens_do_not_matter(left):
    model = make_model("default")
    ids, lengths = padded([random_ids(1, length)[0] for length in LENGTHS], left)
    expected = model.prefill(ids, None, lengths, left)
    columns = torch.arange(ids.shape[1])
    is_padding = columns < ids.shape[1] - lengths[:, None] if left else columns >= lengths[:, None]
    same_bits(model.prefill(torch.where(is_padding, 3, ids), None, lengths, left), expected)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_tokens_outside_every_packed_sequence_do_not_matter(dtype, device):
    model = make_model("default", device=device)
    sequences = [random_ids(1, length, device)[0] for length in LENGTHS]
    ids, ends = packed(sequences)
    around = torch.cat([random_ids(1, 3, device), ids, random_ids(1, 2, device)], 1)
    close(model.prefill(around, cu_seqlens=(ends + 3).to(dtype)), one_by_one(model, sequences))


@pytest.mark.parametrize("layout", ["left", "right", "packed"])
def test_gradients_of_padded_and_packed_prompts(layout):
    model = make_model("default")
    parameters = list(model.parameters())
    sequences = [random_ids(1, length)[0] for length in LENGTHS]
    with torch.enable_grad():
        expected, cache = one_by_one(model, sequences)
        expected = torch.autograd.grad(expected.square().sum() + cache.ssm.sum(), parameters)
        logits, cache = prefill(model, sequences, layout)
        got = torch.autograd.grad(logits.square().sum() + cache.ssm.sum(), parameters)
    close(got, expected)


@FORMS
@pytest.mark.parametrize("layout", ["dense", "padded", "packed"])
def test_an_empty_prompt_has_logits_of_0_and_keeps_the_states(layout, form):
    model = form(make_model("default"))
    ids = random_ids(1 if layout == "packed" else 3, 0)
    _, cache = model.prefill(random_ids(3, 5))
    before = MambaCache(cache.conv.clone(), cache.ssm.clone())
    lengths = torch.zeros(3, dtype=torch.int64) if layout == "padded" else None
    bounds = torch.zeros(4, dtype=torch.int64) if layout == "packed" else None
    logits, after = model.prefill(ids, cache, lengths, cu_seqlens=bounds)
    assert logits.shape[0] == 3 and not logits.any()
    same_bits(tuple(after), tuple(before))


def test_a_cache_can_be_saved_and_loaded(tmp_path):
    _, cache = make_model("default").prefill(random_ids(2, 5))
    torch.save(cache, tmp_path / "cache.pt")
    loaded = torch.load(tmp_path / "cache.pt")
    assert isinstance(loaded, MambaCache)
    same_bits(tuple(loaded), tuple(cache))


def filled_cache(model, slots, dtype=torch.float64):
    """A cache whose every slot has seen something of its own."""
    device = model.lm_head.weight.device
    return model.prefill(random_ids(slots, 6, device))[1]


def test_slots_are_written_in_the_dtypes_of_the_pool_and_without_a_graph():
    model = make_model("default", torch.float32)
    pool, slots = model.new_cache(4), torch.tensor([2, 0])
    with torch.enable_grad(), torch.autocast("cpu", torch.bfloat16):
        _, cache = model.prefill(random_ids(2, 5))
        assert cache.conv.dtype == torch.bfloat16 and cache.ssm.requires_grad
        write_slots(pool, slots, cache)
    assert not pool.conv.requires_grad and not pool.ssm.requires_grad
    same_bits(read_slots(pool, slots), MambaCache(cache.conv.detach().float(), cache.ssm.detach()))


@FORMS
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
@DTYPES
def test_rows_step_in_the_slots_they_name(dtype, index_dtype, form, device):
    model = make_model("default", dtype, device)
    pool = filled_cache(model, 7)
    rows = torch.tensor([4, 0, -1, 6, -3, 2], dtype=index_dtype, device=device)
    before = MambaCache(pool.conv.clone(), pool.ssm.clone())
    real = (rows >= 0).nonzero().flatten()
    alone = read_slots(pool, rows[real].long())
    token = random_ids(6, 1, device)[:, 0]
    expected = model.step(token[real], alone)
    logits = form(model).step(token, pool, rows)
    close(logits[real], expected, dtype)
    assert logits.isfinite().all()
    close(read_slots(pool, rows[real].long()), alone, dtype)
    idle = torch.tensor([1, 3, 5], device=device)
    same_bits(read_slots(pool, idle), read_slots(before, idle))


def test_a_batch_of_padding_touches_nothing(device):
    model = make_model("default", device=device)
    pool = filled_cache(model, 3)
    before = MambaCache(pool.conv.clone(), pool.ssm.clone())
    model.step(random_ids(5, 1, device)[:, 0], pool, torch.full((5,), -1, device=device))
    same_bits(pool, before)


def test_sequences_enter_leave_and_fork(device):
    """Slots are written, freed, and copied while the others go on, each as if it were alone."""
    model = make_model("default", device=device)
    pool = filled_cache(model, 4)
    texts = {slot: random_ids(1, 3 + slot, device) for slot in (3, 1)}
    for slot, ids in texts.items():
        write_slots(pool, torch.tensor([slot], device=device), model.prefill(ids)[1])
    write_slots(pool, torch.tensor([0, 2], device=device), read_slots(pool, torch.tensor([1, 1], device=device)))
    texts |= {0: texts[1], 2: texts[1]}
    for rows in ([3, 1, 0], [2, 0], [1, 3, 2, 0], [2]):
        token = random_ids(len(rows), 1, device)
        logits = model.step(token[:, 0], pool, torch.tensor(rows, device=device))
        for i, slot in enumerate(rows):
            texts[slot] = torch.cat([texts[slot], token[i : i + 1]], 1)
            close(logits[i : i + 1], model.prefill(texts[slot])[0])
    for slot, ids in texts.items():
        close(read_slots(pool, torch.tensor([slot], device=device)), model.prefill(ids)[1])


def test_the_pool_is_contiguous_and_a_slot_costs_the_same_at_any_age():
    model = make_model("all_options", torch.bfloat16)
    cache = model.new_cache(5)
    assert cache.conv.shape == (5, 3, 20, 2) and cache.conv.dtype is torch.bfloat16
    assert cache.ssm.shape == (5, 3, 20, 5) and cache.ssm.dtype is torch.float32
    assert all(x.is_contiguous() and not x.any() for x in cache)
    assert [x.shape for x in model.prefill(random_ids(5, 40))[1]] == [x.shape for x in cache]


def test_autocast_prefills_and_steps(device):
    model = make_model("default", torch.float32, device)
    ids = random_ids(3, 9, device)
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        expected = model.prefill(ids)[0]
        for cache in (model.prefill(ids[:, :1])[1], model.new_cache(3)):
            for t in range(0 if not cache.ssm.any() else 1, 9):
                logits = model.step(ids[:, t], cache)
            close(logits.float(), expected.float(), torch.bfloat16)

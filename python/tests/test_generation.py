"""mamba_ops.nn: the decoder that replays a CUDA graph, sampling, and the loop that generates."""

import functools

import pytest
import torch
from mamba_ops.nn import Decoder, MambaCache, generate, sample
from models import make_model

MODES = pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])


def random_ids(batch, length, device="cpu"):
    return torch.randint(31, (batch, length), device=device)


def copy_of(cache):
    return MambaCache(cache.conv.clone(), cache.ssm.clone())


def same_bits(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@MODES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_decoder_steps_as_the_model_does(dtype, mode, device):
    model = make_model("default", dtype, device)
    with mode():
        _, cache = model.prefill(random_ids(5, 4, device))
        start = copy_of(cache)
        decoder = Decoder(model, cache, batch=3)
        same_bits(cache, start)
        expected_cache = copy_of(cache)
        # Other tokens, other slots, fewer rows, padding between the rows, and then all of them again.
        for rows in ([4, 0, 2], [1, 3], [-1, 2, -1], [0], [3, 4, 1]):
            token, rows = random_ids(len(rows), 1, device)[:, 0], torch.tensor(rows, device=device)
            logits = decoder.step(token, rows)
            # As many rows as the graph runs, for a product of matrices may depend on their number to rounding.
            padded = 3 - len(rows) if logits.is_cuda else 0
            every_token = torch.cat([token, token.new_zeros(padded)])
            every_row = torch.cat([rows, rows.new_full((padded,), -1)])
            expected = model.step(every_token, expected_cache, every_row)[: len(rows)]
            same_bits(logits[rows >= 0], expected[rows >= 0])
            same_bits(cache, expected_cache)


def test_a_decoder_without_slots_takes_row_i_as_slot_i(device):
    model = make_model("default", torch.float32, device)
    cache, expected_cache = model.new_cache(3), model.new_cache(3)
    decoder = Decoder(model, cache, batch=3)
    for rows in (3, 3, 2, 1, 3):
        token = random_ids(rows, 1, device)[:, 0]
        expected = model.step(token, expected_cache, torch.arange(rows, device=device))
        torch.testing.assert_close(decoder.step(token), expected)
    torch.testing.assert_close(cache, expected_cache)


def test_logits_stay_when_the_decoder_goes_on(device):
    model = make_model("default", torch.float32, device)
    decoder = Decoder(model, model.new_cache(2), batch=2)
    first = decoder.step(random_ids(2, 1, device)[:, 0])
    kept = first.clone()
    decoder.step(random_ids(2, 1, device)[:, 0])
    same_bits(first, kept)
    assert not first.is_inference() and not first.requires_grad


def test_a_decoder_follows_weights_changed_in_place(device):
    model = make_model("default", torch.float32, device)
    cache = model.new_cache(2)
    decoder = Decoder(model, cache, batch=2)
    with torch.no_grad():
        model.backbone.layers[0].mixer.A_log.add_(1)
        model.lm_head.weight.mul_(2)
        token = random_ids(2, 1, device)[:, 0]
        for _ in range(3):
            start = copy_of(cache)
            same_bits(decoder.step(token), model.step(token, start))


def test_a_decoder_made_under_autocast_keeps_its_dtypes(device):
    """Also when the model has run under autocast before, and when the weights it has cast are gone."""
    model = make_model("default", torch.float32, device)
    cache, expected_cache = model.new_cache(2), model.new_cache(2)
    autocast = torch.autocast(torch.device(device).type, torch.bfloat16)
    token = random_ids(2, 1, device)[:, 0]
    with autocast:
        model(token[None])
        decoder = Decoder(model, cache, batch=2)
        assert torch.is_autocast_cache_enabled()
    for _ in range(3):
        junk = [torch.full_like(parameter, torch.nan) for parameter in model.parameters()]  # where those may have been
        with autocast:
            expected = model.step(token, expected_cache)
            torch.testing.assert_close(decoder.step(token), expected)
        del junk
    torch.testing.assert_close(cache, expected_cache)


def test_too_many_rows_are_refused(device):
    model = make_model("default", torch.float32, device)
    decoder = Decoder(model, model.new_cache(4), batch=2)
    with pytest.raises(ValueError, match="expected at most 2 rows, but got 3"):
        decoder.step(random_ids(3, 1, device)[:, 0], torch.arange(3, device=device))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
def test_two_streams_decode_at_once(graphs):
    """Each stream has a cache of its own, and the device is kept busy so that their steps overlap."""
    model = make_model("default", torch.float32, "cuda")
    tokens = random_ids(16, 3, "cuda")
    with torch.no_grad():
        starts = [model.prefill(random_ids(3, 5, "cuda"))[1] for _ in range(2)]

    def decode(step, stream):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            return [step(token) for token in tokens]

    expected_caches, caches = ([copy_of(cache) for cache in starts] for _ in range(2))
    expected = [[model.step(token, cache) for token in tokens] for cache in expected_caches]
    steps = [
        Decoder(model, cache, batch=3).step if graphs else functools.partial(model.step, cache=cache)
        for cache in caches
    ]
    results = [decode(step, torch.cuda.Stream()) for step in steps]
    torch.cuda.synchronize()
    same_bits(results, expected)
    same_bits(caches, expected_caches)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device only")
def test_a_decoder_on_a_device_that_is_not_the_current_one():
    model = make_model("default", torch.float32, "cuda:1")
    cache = model.new_cache(2)
    expected_cache = copy_of(cache)
    decoder = Decoder(model, cache, batch=2)
    for _ in range(3):
        token = random_ids(2, 1, "cuda:1")[:, 0]
        same_bits(decoder.step(token), model.step(token, expected_cache))
    assert torch.cuda.current_device() == 0


def draws(logits, **options):
    """How often each token is drawn, (batch, vocab_size), of 4000."""
    many = logits.repeat_interleave(4000, 0)
    tokens = sample(many, **options).view(len(logits), 4000)
    return torch.stack([(tokens == i).sum(1) for i in range(logits.size(1))], 1)


def test_sampling_follows_the_probabilities(device):
    probabilities = torch.tensor([[0.5, 0.2, 0.3], [0.05, 0.9, 0.05]], device=device)
    counts = draws(probabilities.log(), generator=torch.Generator(device).manual_seed(0))
    torch.testing.assert_close(counts / 4000, probabilities, rtol=0, atol=0.03)
    counts = draws(0.5 * probabilities.log(), temperature=0.5, generator=torch.Generator(device).manual_seed(0))
    torch.testing.assert_close(counts / 4000, probabilities, rtol=0, atol=0.03)


@pytest.mark.parametrize(
    "options, allowed",
    [
        (dict(top_k=1), [1]),
        (dict(top_k=2), [1, 3]),
        (dict(top_k=9), [0, 1, 2, 3]),
        (dict(top_p=0.3), [1]),
        (dict(top_p=0.5), [1, 3]),
        (dict(top_p=0.75), [1, 2, 3]),
        (dict(top_p=0.95), [0, 1, 2, 3]),
        (dict(top_k=3, top_p=0.5), [1, 3]),
        (dict(temperature=0.0), [1]),
    ],
    ids=str,
)
def test_sampling_draws_from_the_likeliest_alone(options, allowed, device):
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]], device=device).log()
    counts = draws(logits, **options)
    assert counts.nonzero()[:, 1].tolist() == allowed
    kept = logits[:, allowed].softmax(-1)
    torch.testing.assert_close(counts[:, allowed] / 4000, kept, rtol=0, atol=0.04)


def test_the_same_seed_draws_the_same(device):
    logits = torch.randn(3, 31, device=device)
    first, again, other = (sample(logits, generator=torch.Generator(device).manual_seed(seed)) for seed in (5, 5, 6))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_the_smallest_temperature_draws_the_likeliest(device):
    logits = torch.randn(5, 31, device=device)
    assert torch.equal(sample(logits, 1e-40), logits.argmax(-1))


@pytest.mark.parametrize(
    "options",
    [dict(temperature=-1.0), dict(temperature=float("nan")), dict(top_k=-1), dict(top_p=0.0), dict(top_p=1.1)],
    ids=str,
)
def test_sampling_refuses_what_has_no_meaning(options):
    with pytest.raises(ValueError, match="^sample: expected temperature >= 0, top_k >= 0 and 0 < top_p <= 1, but got"):
        sample(torch.zeros(1, 3), **options)


def test_negative_counts_are_refused():
    model = make_model("default")
    with pytest.raises(ValueError, match="generate: expected max_new_tokens to be at least 0, but got -1"):
        generate(model, random_ids(1, 3), -1)
    with pytest.raises(ValueError, match="Decoder: expected batch, .*, to be at least 0, but got -2"):
        Decoder(model, model.new_cache(1), -2)


@MODES
def test_generation_is_prefill_and_steps(mode, device):
    model = make_model("default", device=device)
    ids = random_ids(3, 4, device)
    text = ids
    with mode():
        for _ in range(6):
            text = torch.cat([text, model(text)[:, -1:].argmax(-1)], 1)
        assert torch.equal(generate(model, ids, 6), text[:, 4:])
        assert generate(model, ids, 0).shape == (3, 0)


def test_padded_prompts_generate_as_each_alone(device):
    model = make_model("default", device=device)
    ids, lengths = random_ids(3, 7, device), torch.tensor([2, 7, 4], device=device)
    expected = torch.cat([generate(model, row[None, :length], 5) for row, length in zip(ids, lengths)])
    assert torch.equal(generate(model, ids, 5, lengths), expected)
    right_aligned = torch.stack([row.roll(7 - int(length)) for row, length in zip(ids, lengths)])
    assert torch.equal(generate(model, right_aligned, 5, lengths, left_padded=True), expected)


def test_seeded_generation_repeats(device):
    model = make_model("default", device=device)
    ids = random_ids(2, 4, device)

    def run(seed):
        generator = torch.Generator(device).manual_seed(seed)
        return generate(model, ids, 12, temperature=1.5, top_k=20, top_p=0.9, generator=generator)

    assert torch.equal(run(3), run(3)) and not torch.equal(run(3), run(4))


def test_generation_stops_at_the_stop_token(device):
    model = make_model("default", device=device)
    ids = random_ids(2, 4, device)
    free = generate(model, ids, 12)
    stop = int(free[0, 3])
    first = [int((row == stop).nonzero()[0]) if (row == stop).any() else 11 for row in free]
    tokens = generate(model, ids, 12, stop_token=stop)
    assert tokens.shape == (2, max(first) + 1)
    for row, expected, end in zip(tokens, free, first):
        assert torch.equal(row[: end + 1], expected[: end + 1]) and (row[end:] == row[end]).all()


def test_a_decoder_of_a_scripted_model(device):
    model = make_model("default", torch.float32, device)
    cache, expected_cache = model.new_cache(2), model.new_cache(2)
    decoder = Decoder(torch.jit.script(model), cache, batch=2)
    for _ in range(5):
        token = random_ids(2, 1, device)[:, 0]
        torch.testing.assert_close(decoder.step(token), model.step(token, expected_cache))
    torch.testing.assert_close(cache, expected_cache)

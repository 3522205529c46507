"""Decoding step by step equals one parallel pass, alone or in a batch."""

import numpy as np
import pytest
import torch

from sparing.errors import UserError
from sparing.generate.decode import WHOLE, GenerationConfig, prefill, stream_tokens
from sparing.generate.sampling import SamplingConfig

GREEDY = SamplingConfig(temperature=0)
START = 10


def ids(text: bytes) -> np.ndarray:
    return np.frombuffer(text, dtype=np.uint8)


def written(model, prompts, config: GenerationConfig, hardware) -> list[list[int]]:
    steps = stream_tokens(
        model, [ids(prompt) for prompt in prompts], config, start=START, hardware=hardware
    )
    return np.stack(list(steps), axis=1).tolist()


@pytest.mark.parametrize("memory", [0, 64])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_greedy_decoding_is_the_arg_max_of_one_parallel_pass(
    tiny, cpu, memory: int, chunk: int
) -> None:
    model, prompt = tiny(memory=memory), b"a prompt"
    config = GenerationConfig(length=12, chunk=chunk, sampling=GREEDY)
    (tokens,) = written(model, [prompt], config, cpu)
    whole = torch.tensor([START, *prompt, *tokens])[None]
    with torch.no_grad():
        out = model.eval()(whole[:, :-1], model.initial_state(1))
    best = model.head.logits(out.hidden_BTD)[0].argmax(-1)
    assert tokens == best[len(prompt) :].tolist()
    assert len(set(tokens)) > 1


def test_prefill_in_chunks_equals_prefill_at_once(tiny) -> None:
    model, tokens_BT = tiny(memory=64).eval(), torch.arange(22).view(2, 11)
    once, state = prefill(model, tokens_BT, model.initial_state(2), chunk=11)
    for chunk in (1, 4, 50):
        logits_BV, after = prefill(model, tokens_BT, model.initial_state(2), chunk)
        torch.testing.assert_close(logits_BV, once)
        torch.testing.assert_close(after, state)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 40, WHOLE + 40])
def test_no_pass_reads_more_of_a_prompt_than_a_chunk(tiny, length: int) -> None:
    model, read = tiny(memory=64).eval(), list[int]()
    model.register_forward_pre_hook(lambda _, given: read.append(given[0].size(1)))
    prefill(model, torch.zeros(1, length, dtype=torch.int64), model.initial_state(1), chunk=4)
    assert sum(read) == length
    assert max(read) <= 4


def test_a_long_prompt_is_read_as_any_segment(tiny) -> None:
    model = tiny(memory=512).eval()
    tokens_BT = torch.randint(11, (2, 3 * WHOLE), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits_BV, state = prefill(model, tokens_BT, model.initial_state(2), chunk=100)
        out = model(tokens_BT, model.initial_state(2))
    wanted_BV = model.head.logits(out.hidden_BTD[:, -1])
    torch.testing.assert_close(logits_BV, wanted_BV, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state, out.state, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("memory", [0, 5, 64])
def test_the_text_of_a_prompt_does_not_depend_on_the_batch(tiny, cpu, memory: int) -> None:
    model = tiny(memory=memory)
    prompts = [b"long, longer, longest", b"", b"short", b"", b"other", b"longer than memory"]
    config = GenerationConfig(length=9, chunk=4, sampling=SamplingConfig(seed=7, temperature=0.9))
    together = written(model, prompts, config, cpu)
    for number, prompt in enumerate(prompts):
        own = GenerationConfig(
            length=9, chunk=4, sampling=SamplingConfig(seed=7 + number, temperature=0.9)
        )
        assert written(model, [prompt], own, cpu) == [together[number]]
    assert together[1] != together[3]


def test_memories_of_different_lengths_are_not_read_together(tiny, cpu) -> None:
    model, lanes_read = tiny(memory=5), []
    model.register_forward_pre_hook(lambda _, inputs: lanes_read.append(tuple(inputs[0].shape)))
    prompts = [b"ab", b"abcdefgh", b"cd", b"abcdefghijk"]
    written(model, prompts, GenerationConfig(length=2, chunk=50), cpu)
    # Three lengths are read; the two that filled the memory go on together.
    assert lanes_read == [(2, 3), (1, 9), (1, 12), (2, 1), (2, 1)]


def test_the_same_seed_gives_the_same_text_and_another_does_not(tiny, cpu) -> None:
    def say(seed: int, length: int = 20) -> list[int]:
        config = GenerationConfig(length=length, sampling=SamplingConfig(seed=seed))
        return written(tiny(), [b"say"], config, cpu)[0]

    assert say(1) == say(1)
    assert say(1) != say(2)
    assert say(1, length=5) == say(1)[:5]


def test_the_start_and_every_token_but_the_last_are_read_once(tiny, cpu) -> None:
    model, reads = tiny(), []
    model.register_forward_pre_hook(lambda _, inputs: reads.append(inputs[0].tolist()))
    ((first, second, _),) = written(model, [b"abc"], GenerationConfig(length=3), cpu)
    assert reads == [[[START, *b"abc"]], [[first]], [[second]]]


def test_mode_and_gradients_are_restored_between_two_tokens(tiny, cpu) -> None:
    model = tiny().train()
    for _ in stream_tokens(model, [ids(b"a")], GenerationConfig(length=2), start=0, hardware=cpu):
        assert model.training
        assert torch.is_grad_enabled()


def test_a_full_memory_does_not_grow(tiny, cpu) -> None:
    model, sizes = tiny(memory=6), []
    model.register_forward_hook(lambda _, inputs, out: sizes.append(out.state["memory"].shape[1]))
    written(model, [b"abc"], GenerationConfig(length=10), cpu)
    assert sizes == [4, 5, 6, 6, 6, 6, 6, 6, 6, 6]


@pytest.mark.parametrize("wrong", [{"length": 0}, {"chunk": 0}, {"stop": ("a", "")}])
def test_settings_out_of_range_are_refused_by_name(wrong) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        GenerationConfig(**wrong)

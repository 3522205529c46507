"""Compiled code writes what the model itself writes, and is used only while it fits."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.models.tiny import CONFIGS, tiny
from torch import Tensor

from sparing.config import with_settings
from sparing.errors import UserError
from sparing.generate import compiled
from sparing.generate.compiled import compile_step, is_compiled, open_lane
from sparing.generate.decode import GenerationConfig, stream_tokens
from sparing.generate.sampling import SamplingConfig
from sparing.models.api import LanguageModel, State
from sparing.models.stack.config import StackConfig
from sparing.models.stack.model import Stack

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
SETTINGS = [
    "pattern=ga",
    "dim=16",
    "windowed.heads=2",
    "windowed.head_dim=4",
    "windowed.span_starts=3.5,90.25",
    "windowed.key_shift=true",
    "ngrams.lengths=2",
    "ngrams.rows=16",
    "ngrams.dim=4",
]


def make() -> Stack:
    torch.manual_seed(5)
    model = Stack(with_settings(StackConfig(vocab_size=256), SETTINGS)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        model.embedding.weight.copy_(model.embedding.weight.bfloat16().float())
    return model


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Stack:
    """A compiled model; its code is kept for the tests of this file."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARING_HOME", str(home))
        model = make()
        assert not is_compiled(model)
        compile_step(model)
    return model


def write(model: LanguageModel, cpu, prompts: list[bytes], temperature: float) -> list[list[int]]:
    ids = [np.frombuffer(prompt, dtype=np.uint8) for prompt in prompts]
    config = GenerationConfig(length=40, sampling=SamplingConfig(temperature=temperature, seed=3))
    steps = stream_tokens(model, ids, config, start=10, hardware=cpu)
    return np.stack(list(steps), axis=1).tolist()


def read(model: LanguageModel, text_1T: Tensor) -> State:
    with torch.no_grad():
        return model(text_1T, model.initial_state(1, inference=True)).state


@needs_compiler
@pytest.mark.parametrize("start", [5, 200])
@torch.no_grad()
def test_logits_are_those_of_the_model_while_rings_fill_and_grow(
    built: Stack, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "FIRST", 32)
    state = read(built, torch.arange(start)[None] % 256)
    lane = open_lane(built, state)
    assert lane is not None
    for token in torch.randint(256, (150,), generator=torch.Generator().manual_seed(1)).tolist():
        out = built(torch.full((1, 1), token), state)
        state = out.state
        expected_1V = built.head.logits(out.hidden_BTD[:, -1])
        torch.testing.assert_close(lane.read(token), expected_1V, rtol=0, atol=1e-4)


@needs_compiler
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_texts_of_a_batch_are_the_same(built: Stack, cpu, temperature: float) -> None:
    prompts = [b"one", b"another", b"two", b""]
    lanes = []
    built.register_forward_hook(lambda _, given, out: lanes.append(given[0].size(1)))
    found = write(built, cpu, prompts, temperature)
    # Only prompts were read by the model itself.
    assert max(lanes) > 1
    assert len(lanes) == 3
    assert found == write(make(), cpu, prompts, temperature)


@needs_compiler
@torch.no_grad()
def test_a_state_can_be_continued_twice(built: Stack) -> None:
    state = read(built, torch.arange(50)[None])
    before = {name: tensor.clone() for name, tensor in state.items()}
    lanes = [open_lane(built, state), open_lane(built, state)]
    first, second = ([lane.read(token) for token in (1, 2, 3)] for lane in lanes if lane)
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))
    assert all(torch.equal(tensor, before[name]) for name, tensor in state.items())


@needs_compiler
@torch.no_grad()
def test_code_for_other_weights_is_not_used(built: Stack) -> None:
    state = read(built, torch.arange(5)[None])
    assert open_lane(built, state) is not None
    assert open_lane(make(), state) is None
    built.embedding.weight.mul_(1)
    assert open_lane(built, state) is None


@needs_compiler
@pytest.mark.soak
@pytest.mark.parametrize("name", CONFIGS)
def test_every_family_can_be_compiled(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARING_HOME", str(tmp_path))
    model = tiny(name).float()
    model.collapse()
    # Code whose logits differ from those of the model is refused.
    compile_step(model)
    assert is_compiled(model)


def test_models_that_differ_in_a_setting_alone_have_code_of_their_own() -> None:
    one, two = tiny("adaptive_span"), tiny("adaptive_span masked")
    assert all(torch.equal(x, two.state_dict()[name]) for name, x in one.state_dict().items())
    assert compiled._folder(one) != compiled._folder(two)


def test_without_a_compiler_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPARING_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match="no C\\+\\+ compiler 'no-such-compiler'"):
        compile_step(make())
    assert not list(tmp_path.rglob("*.pt2"))


def test_damaged_code_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARING_HOME", str(tmp_path))
    model = make()
    path = compiled._folder(model) / compiled.FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no code")
    with pytest.raises(UserError, match="damaged code; delete it"):
        compile_step(model)


def test_only_models_in_float32_are_compiled() -> None:
    with pytest.raises(UserError, match="float32"):
        compile_step(make().double())

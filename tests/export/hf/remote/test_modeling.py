"""What holds for every family that Transformers has loaded."""

import sys
from typing import Any

import pytest
import torch
from tests.export.hf.conftest import LETTERS, SEGMENT, Export
from tests.models.tiny import CONFIGS
from torch import Tensor

from sparing import models
from sparing.models.api import LanguageModel

FAMILIES = ["adaptive_span", "awd_lstm", "mlstm", "sha_rnn", "stack in rounds", "transformer_xl"]
SPECIAL = [
    "adaptive_span fixed",
    "adaptive_span words",
    "awd_lstm split",
    "stack of scans",
    "stack of SHA-RNN",
    "stack of Transformer-XL",
    "stack with mtp",
    "transformer_xl shrinking",
]
"""Weights that are shared, buffers that are not stored, blocks of every kind."""
every_config = pytest.mark.parametrize("name", [*FAMILIES, *SPECIAL])
every_family = pytest.mark.parametrize("name", FAMILIES)


@torch.no_grad()
def own_logits(model: LanguageModel, tokens_BT: Tensor) -> Tensor:
    state, rows = model.initial_state(tokens_BT.size(0), inference=True), []
    for piece_BT in tokens_BT.split(SEGMENT, dim=1):
        out = model(piece_BT, state)
        state = out.state
        rows.append(model.head.logits(out.hidden_BTD))
    return torch.cat(rows, dim=1)


def test_every_family_that_can_be_exported_is_among_them() -> None:
    assert {CONFIGS[name][0] for name in FAMILIES} == set(models.FAMILIES) - {"supernet"}


@every_config
def test_logits_equal_ours(name: str, export: Export, tokens_BT: Tensor) -> None:
    own, loaded = export(name)
    assert type(loaded).__module__.startswith("transformers_modules.")
    assert type(loaded.model) is not type(own)
    with torch.no_grad():
        found_BTV = loaded(tokens_BT).logits
    torch.testing.assert_close(found_BTV, own_logits(own, tokens_BT), atol=1e-5, rtol=1e-5)


@every_family
def test_a_cache_carries_on_where_a_text_stopped(
    name: str, export: Export, tokens_BT: Tensor
) -> None:
    _, loaded = export(name)
    with torch.no_grad():
        whole_BTV = loaded(tokens_BT).logits
        cache, pieces = None, []
        for piece_BT in tokens_BT.split([9, 1, 1, 14], dim=1):
            out = loaded(piece_BT, past_key_values=cache)
            cache = out.past_key_values
            pieces.append(out.logits)
    assert cache.get_seq_length() == 25
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole_BTV, atol=1e-5, rtol=1e-4)


@every_family
def test_a_batch_padded_on_the_left_reads_each_text_as_if_alone(
    name: str, export: Export, tokens_BT: Tensor
) -> None:
    _, loaded = export(name)
    mask_BT = torch.ones_like(tokens_BT)
    mask_BT[1, :6], mask_BT[2, :20] = 0, 0
    with torch.no_grad():
        found_BTV = loaded(tokens_BT, attention_mask=mask_BT).logits
        for lane, padding in enumerate((0, 6, 20)):
            alone_TV = loaded(tokens_BT[lane : lane + 1, padding:]).logits[0]
            torch.testing.assert_close(found_BTV[lane, padding:], alone_TV, atol=1e-5, rtol=1e-4)


@every_family
def test_generation_carries_state(name: str, export: Export, tokens_BT: Tensor) -> None:
    own, loaded = export(name)
    prompt_1T = tokens_BT[:1, :9]
    lengths: list[int] = []
    hook = loaded.model.register_forward_pre_hook(
        lambda _, inputs: lengths.append(inputs[0].size(1))
    )
    found_1T = loaded.generate(prompt_1T, max_new_tokens=8, do_sample=False)
    hook.remove()
    # The start token in a prompt is a token like any other, not padding.
    assert LETTERS.start in prompt_1T[0, 1:]
    assert lengths == [SEGMENT, 2, *[1] * 7]
    expected_1T = prompt_1T
    for _ in range(8):
        best_11 = own_logits(own, expected_1T)[:, -1:].argmax(-1)
        expected_1T = torch.cat([expected_1T, best_11], dim=1)
    assert found_1T.tolist() == expected_1T.tolist()


@every_family
def test_batches_and_beams_generate_what_they_do_without_a_cache(
    name: str, export: Export, tokens_BT: Tensor
) -> None:
    _, loaded = export(name)
    mask_BT = torch.ones_like(tokens_BT)
    mask_BT[1, :6] = 0
    for beams in (1, 3):
        cached, recomputed = (
            loaded.generate(
                tokens_BT[:2],
                attention_mask=mask_BT[:2],
                max_new_tokens=7,
                num_beams=beams,
                do_sample=False,
                use_cache=use_cache,
            )
            for use_cache in (True, False)
        )
        assert cached.tolist() == recomputed.tolist()


def test_generation_goes_on_from_a_cache_that_was_returned(
    export: Export, tokens_BT: Tensor
) -> None:
    _, loaded = export("stack in rounds")
    settings = {"do_sample": False, "return_dict_in_generate": True}
    whole = loaded.generate(tokens_BT[:1], max_new_tokens=10, **settings)
    first = loaded.generate(tokens_BT[:1], max_new_tokens=4, **settings)
    rest = loaded.generate(
        first.sequences, past_key_values=first.past_key_values, max_new_tokens=6, **settings
    )
    assert rest.sequences.tolist() == whole.sequences.tolist()


@every_family
def test_lanes_of_a_cache_are_repeated_and_selected_in_order(
    name: str, export: Export, tokens_BT: Tensor
) -> None:
    _, loaded = export(name)
    with torch.no_grad():
        cache = loaded(tokens_BT[:2, :9]).past_key_values
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([3, 0, 1]))
        after_BT = tokens_BT[[1, 0, 0], 9:]
        found_BTV = loaded(after_BT, past_key_values=cache).logits
        whole_BTV = loaded(tokens_BT[[1, 0, 0]]).logits[:, 9:]
    torch.testing.assert_close(found_BTV, whole_BTV, atol=1e-5, rtol=1e-4)


@every_family
def test_the_loss_and_every_gradient_are_those_of_next_tokens(
    name: str, export: Export, tokens_BT: Tensor
) -> None:
    _, loaded = export(name)
    out = loaded(tokens_BT, labels=tokens_BT)
    logits_NV = out.logits[:, :-1].flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits_NV, tokens_BT[:, 1:].flatten())
    torch.testing.assert_close(out.loss, expected)
    out.loss.backward()
    missing = [name for name, weight in loaded.named_parameters() if weight.grad is None]
    loaded.zero_grad()
    assert not missing


@pytest.mark.parametrize("name", ["stack of Transformer-XL", "stack with mtp"])
def test_it_can_be_compiled_as_a_whole(name: str, export: Export, tokens_BT: Tensor) -> None:
    _, loaded = export(name)
    # What is traced counts: a compiler behind it would take a minute more.
    compiled: Any = torch.compile(loaded, backend="eager")
    with torch.no_grad():
        found_BTV, expected_BTV = compiled(tokens_BT).logits, loaded(tokens_BT).logits
    torch.testing.assert_close(found_BTV, expected_BTV, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["adaptive_span", "transformer_xl"])
def test_where_a_gpu_has_kernels_the_slower_forms_are_used(
    name: str, export: Export, tokens_BT: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, loaded = export(name)
    expected_BTV = loaded(tokens_BT).logits
    folder = type(loaded).__module__.rpartition(".")[0]
    ops = [module for path, module in sys.modules.items() if path.startswith(f"{folder}.")]
    asking = [module for module in ops if hasattr(module, "has_tiles")]
    monkeypatch.setitem(sys.modules, "triton", None)
    for module in asking:
        monkeypatch.setattr(module, "has_tiles", lambda *_: True)
    torch.testing.assert_close(loaded(tokens_BT).logits, expected_BTV, atol=1e-5, rtol=1e-4)
    assert asking


def test_a_saved_copy_loads_again(export: Export, tokens_BT: Tensor, tmp_path: object) -> None:
    from transformers import AutoModelForCausalLM

    _, loaded = export("stack of SHA-RNN")
    loaded.save_pretrained(f"{tmp_path}/again")
    again = AutoModelForCausalLM.from_pretrained(f"{tmp_path}/again", trust_remote_code=True)
    with torch.no_grad():
        assert torch.equal(again(tokens_BT).logits, loaded(tokens_BT).logits)


def test_its_parts_are_those_of_the_folder(export: Export) -> None:
    _, loaded = export("stack in rounds")
    modules = {type(module).__module__ for module in loaded.modules()}
    assert not {name for name in modules if name.startswith("sparing.")}
    assert any(name in sys.modules and "sparing_models_stack_model" in name for name in modules)
    assert LETTERS.size == loaded.config.vocab_size

"""Where the attention of the blocks of a stack looks."""

import pytest
import torch
from tests.models.tiny import CONFIGS, VOCAB

from sparing.config import with_settings
from sparing.models.stack.config import StackConfig
from sparing.models.stack.model import Stack
from sparing.nn.attention.windowed import WindowedAttentionBlock

TINY = next(config for name, (_, config) in CONFIGS.items() if name.startswith("stack"))


def build(pattern: str, *settings: str) -> Stack:
    torch.manual_seed(2)
    config: StackConfig = with_settings(TINY, [f"pattern={pattern}", *settings])
    model = Stack(config).double().eval()
    for parameter in model.parameters():
        # An untrained block adds nothing to the stream.
        torch.nn.init.normal_(parameter, std=0.5)
    return model


@pytest.mark.parametrize("settings", [[], ["embedding_skip=false"], ["windowed.key_shift=true"]])
def test_blocks_are_shown_what_they_read(
    settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokens_BT = build("afsfla", *settings), torch.randint(VOCAB, (2, 7))
    state = model(tokens_BT, model.initial_state(2, inference=True)).state
    read = []
    for block in model.blocks:
        if isinstance(block, WindowedAttentionBlock):
            project = block.attend.project
            monkeypatch.setattr(
                block.attend,
                "project",
                lambda hidden, own, project=project: (read.append(hidden), project(hidden, own))[1],
            )
    with torch.no_grad():
        model(tokens_BT, state)
    forward, read = read, []
    found = model.attention_weights(tokens_BT, state)
    assert sorted(found) == [0, 2, 5]
    # Each is read once for the weights and once for what comes after it.
    torch.testing.assert_close(read[::2], forward)


def test_weights_are_causal_add_up_and_end_with_the_span() -> None:
    model, tokens_BT = build("afs"), torch.randint(VOCAB, (1, 40))
    for block in model.blocks:
        if isinstance(block, WindowedAttentionBlock):
            with torch.no_grad():
                block.log_span.copy_(torch.tensor([2.5, 8.5]).log1p())
    found = model.attention_weights(tokens_BT, model.initial_state(1, inference=True))
    assert {place: weights.shape for place, weights in found.items()} == {
        0: (1, 2, 40, 40),
        2: (1, 1, 40, 40),
    }
    for weights_BHTS in found.values():
        torch.testing.assert_close(weights_BHTS.sum(-1), torch.ones_like(weights_BHTS[..., 0]))
        assert not weights_BHTS.triu(1).any()
    ramp = TINY.windowed.ramp
    for head, span in enumerate((3, 9)):
        last_S = found[0][0, head, -1]
        assert not last_S[: 40 - span - ramp].any()
        assert last_S[40 - span :].all()

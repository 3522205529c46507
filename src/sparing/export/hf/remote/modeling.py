"""A model of this package as Transformers expects it: state is carried by a cache object.

Axes: B batch, T segment, D dim, V vocabulary.
"""

import itertools
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from sparing.export.hf.remote.family import FamilyConfig, FamilyModel
from sparing.models.api import LanguageModel, Output, State, select_lanes


class SparingConfig(PreTrainedConfig):
    """The settings of a model, and how it reads."""

    model_type = "sparing"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012  # not ours to annotate

    def __init__(
        self, *, settings: Mapping[str, Any] | None = None, segment: int = 1024, **others: Any
    ) -> None:
        """`settings` are those of the model's family; `segment` is the tokens read at a time."""
        self.settings, self.segment = dict(settings or {}), segment
        super().__init__(**others)


class SparingCache:
    """What the model carries, and how many positions it has read."""

    is_compileable = False

    def __init__(self, state: State, seen: int) -> None:
        self.state, self.seen = state, seen

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions read so far, padding included."""
        return self.seen

    def get_max_length(self) -> int:
        """No limit."""
        return -1

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep the lanes of the best beams."""
        self.state = select_lanes(self.state, beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some lanes."""
        self.state = select_lanes(self.state, indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every lane."""
        self.state = {name: x.repeat_interleave(repeats, 0) for name, x in self.state.items()}


class SparingForCausalLM(PreTrainedModel, GenerationMixin):
    """A language model that reads in segments and carries its state from one to the next."""

    config_class = SparingConfig
    _is_stateful = True

    def __init__(self, config: SparingConfig) -> None:
        super().__init__(config)
        self.model: LanguageModel = FamilyModel(build_config(FamilyConfig, config.settings))
        self._tied_weights_keys = {
            f"model.{name}": f"model.{first}" for name, first in shared_weights(self.model).items()
        }
        self._has_buffers = False
        self.post_init()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Compute what is not stored: the model was built without memory for it."""
        lost = [getattr(module, name) for name in module._non_persistent_buffers_set]
        if self._has_buffers or not lost or lost[0].is_meta:
            return
        with torch.device("cpu"):
            fresh = FamilyModel(build_config(FamilyConfig, self.config.settings))
        for name, own in self.model.named_modules():
            for each in own._non_persistent_buffers_set:
                getattr(own, each).copy_(getattr(fresh.get_submodule(name), each))
        self._has_buffers = True

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding, which may be of several tables."""
        found: nn.Module = self.model.get_submodule("embedding")
        return found

    def get_output_embeddings(self) -> None:
        """There is no linear layer in the shape that Transformers could resize."""

    def forward(  # noqa: PLR0913  # as Transformers calls it
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: SparingCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_hidden_states: bool | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        """Read tokens (B, T) after those of `past_key_values`; a lane starts where its mask does.

        Hidden states, if asked for, are those before the softmax only.
        """
        cache = past_key_values
        if cache is None:
            # What inference carries has no gradient.
            inference = not torch.is_grad_enabled()
            cache = SparingCache(
                self.model.initial_state(input_ids.size(0), inference=inference), 0
            )
        hidden_BTD = self._read(input_ids, cache, attention_mask)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits_BTV = self.model.head.logits(hidden_BTD[:, kept])
        loss = None
        if labels is not None:
            size = self.config.vocab_size
            loss = self.loss_function(logits=logits_BTV, labels=labels, vocab_size=size, **others)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits_BTV,
            past_key_values=None if use_cache is False else cache,
            hidden_states=(hidden_BTD,) if output_hidden_states else None,
        )

    def _read(self, tokens_BT: Tensor, cache: SparingCache, mask_BS: Tensor | None) -> Tensor:
        """Return the hidden vectors of `tokens`, and note in `cache` that they were read."""
        length = tokens_BT.size(1)
        begins_BT = lane_begins(mask_BS, length)
        starts = begins_BT.any(0).nonzero().flatten().tolist() if begins_BT is not None else []
        edges = sorted({*range(0, length, self.config.segment), *starts, length})
        pieces = []
        for first, last in itertools.pairwise(edges):
            if first in starts and begins_BT is not None:
                cache.state = self.model.reset_lanes(cache.state, begins_BT[:, first])
            out: Output = self.model(tokens_BT[:, first:last], cache.state)
            cache.state = out.state
            pieces.append(out.hidden_BTD)
        cache.seen += length
        return torch.cat(pieces, dim=1)


def lane_begins(mask_BS: Tensor | None, length: int) -> Tensor | None:
    """Return where, in the last `length` positions, a lane begins after padding: (B, T)."""
    if mask_BS is None or mask_BS.ndim != 2 or bool(mask_BS.all()):
        return None
    filled_BS = mask_BS.bool()
    # Without padding in front of it, the first position begins a lane that is fresh anyway.
    before_BS = torch.cat([torch.ones_like(filled_BS[:, :1]), filled_BS[:, :-1]], dim=1)
    return (filled_BS & ~before_BS)[:, -length:]


def shared_weights(model: nn.Module) -> dict[str, str]:
    """Return the names of weights that are stored under another name as well, and that name."""
    first: dict[int, str] = {}
    named = list(model.named_parameters(remove_duplicate=False))
    found = {name: first.setdefault(id(weight), name) for name, weight in named}
    return {name: other for name, other in found.items() if name != other}


def build_config(kind: Any, settings: Mapping[str, Any]) -> Any:
    """Build a config, with its groups, from the values of a JSON file."""
    hints = get_type_hints(kind)
    return kind(**{name: _value(hints[name], value) for name, value in settings.items()})


def _value(hint: Any, value: Any) -> Any:
    if is_dataclass(hint):
        return build_config(hint, value)
    return tuple(value) if isinstance(value, list) else value

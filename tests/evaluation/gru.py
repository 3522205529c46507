"""A small language model for tests, with and without a memory."""

import torch
from torch import Tensor, nn

from sparing.models.api import LanguageModel, Output, State
from sparing.nn.head import SoftmaxHead


class Tiny(LanguageModel):
    """A GRU, dropout, and attention to the last `memory` positions (this segment's included)."""

    def __init__(self, vocab_size: int, memory: int = 0) -> None:
        super().__init__()
        self.memory = memory
        self.embedding = nn.Embedding(vocab_size, 8)
        self.recurrent = nn.GRU(8, 8, batch_first=True)
        self.dropout = nn.Dropout(0.5)
        self.head = SoftmaxHead(self.embedding.weight)

    def initial_state(self, batch: int, *, inference: bool = False) -> State:
        zeros = self.embedding.weight.new_zeros
        return {"hidden": zeros(batch, 8), "memory": zeros(batch, 0, 8)}

    def forward(self, tokens_BT: Tensor, state: State) -> Output:
        y_BTD, hidden = self.recurrent(self.embedding(tokens_BT), state["hidden"][None])
        stored_BSD = y_BTD[:, :0]
        if self.memory:
            space = max(0, self.memory - tokens_BT.size(1))
            kept = state["memory"][:, max(0, state["memory"].size(1) - space) :]
            stored_BSD = torch.cat([kept, y_BTD], dim=1)
            y_BTD = y_BTD + self._attend(y_BTD, stored_BSD)
        carried = {"hidden": hidden[0], "memory": stored_BSD[:, -self.memory :]}
        return Output(self.dropout(y_BTD), carried, y_BTD.new_zeros(()))

    def _attend(self, y_BTD: Tensor, stored_BSD: Tensor) -> Tensor:
        scores_BTS = 3 * y_BTD @ stored_BSD.transpose(1, 2)
        later_TS = torch.ones_like(scores_BTS[0], dtype=torch.bool).triu(
            stored_BSD.size(1) - y_BTD.size(1) + 1
        )
        return scores_BTS.masked_fill(later_TS, -torch.inf).softmax(-1) @ stored_BSD


def tiny(vocab_size: int, memory: int = 0) -> Tiny:
    """A model with weights large enough for confident predictions."""
    torch.manual_seed(3)
    model = Tiny(vocab_size, memory).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.7)
    return model

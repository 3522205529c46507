"""A model with a parameter of every role, and gradients for it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sparing.models.api import LanguageModel, Output, State
from sparing.nn.head import SoftmaxHead
from sparing.training.optim import OptimizerSet

DIM = 6


class TinyModel(LanguageModel):
    """Embedding, LSTM, one linear layer and a tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, DIM)
        self.core = nn.LSTM(DIM, DIM, batch_first=True)
        self.mix = nn.Linear(DIM, DIM)
        self.scale = nn.Parameter(torch.zeros(1, 1, DIM))
        self.frozen = nn.Parameter(torch.ones(DIM), requires_grad=False)
        self.head = SoftmaxHead(self.embedding.weight)

    def initial_state(self, batch: int, *, inference: bool = False) -> State:
        return {}

    def forward(self, tokens_BT: Tensor, state: State) -> Output:
        hidden_BTD = self.core(self.embedding(tokens_BT) * self.frozen)[0]
        hidden_BTD = self.mix(hidden_BTD) * (1 + self.scale)
        return Output(hidden_BTD, state, hidden_BTD.new_zeros(()))


@pytest.fixture
def tiny() -> Callable[[], TinyModel]:
    """Makes the same model every time."""

    def make() -> TinyModel:
        torch.manual_seed(3)
        return TinyModel()

    return make


@pytest.fixture
def train() -> Callable[[TinyModel, OptimizerSet, range], None]:
    """Takes the given steps; a step's tokens depend on its number alone."""

    def steps(model: TinyModel, optimizer: OptimizerSet, numbers: range) -> None:
        for number in numbers:
            generator = torch.Generator().manual_seed(number)
            tokens_BT = torch.randint(0, 11, (2, 8), generator=generator).to(model.device)
            out: Output = model(tokens_BT[:, :-1], {})
            model.head.nats(out.hidden_BTD, tokens_BT[:, 1:]).mean().backward()
            optimizer.scale_lr(1 / (1 + number))
            optimizer.step()
            optimizer.zero_grad()

    return steps

"""Model families: the config class and the model class of each, by name."""

from collections.abc import Mapping
from typing import NamedTuple

from sparing.models.adaptive_span.config import AdaptiveSpanConfig
from sparing.models.adaptive_span.model import AdaptiveSpanTransformer
from sparing.models.api import LanguageModel, ModelConfig
from sparing.models.awd_lstm import AWDLSTM, AWDLSTMConfig
from sparing.models.mlstm import MLSTM, MLSTMConfig
from sparing.models.sha_rnn.config import SHARNNConfig
from sparing.models.sha_rnn.model import SHARNN
from sparing.models.stack.config import StackConfig
from sparing.models.stack.model import Stack
from sparing.models.supernet.config import SupernetConfig
from sparing.models.supernet.model import Supernet
from sparing.models.transformer_xl.config import TransformerXLConfig
from sparing.models.transformer_xl.model import TransformerXL


class Family(NamedTuple):
    """A config class and the model built from it."""

    config: type[ModelConfig]
    model: type[LanguageModel]


FAMILIES: Mapping[str, Family] = {
    "adaptive_span": Family(AdaptiveSpanConfig, AdaptiveSpanTransformer),
    "awd_lstm": Family(AWDLSTMConfig, AWDLSTM),
    "mlstm": Family(MLSTMConfig, MLSTM),
    "sha_rnn": Family(SHARNNConfig, SHARNN),
    "stack": Family(StackConfig, Stack),
    "supernet": Family(SupernetConfig, Supernet),
    "transformer_xl": Family(TransformerXLConfig, TransformerXL),
}

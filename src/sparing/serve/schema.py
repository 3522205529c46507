"""The JSON of requests and answers, as OpenAPI describes it; unknown fields are refused."""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
)


def _described(kinds: str) -> WrapValidator:
    """Say what a field may be, in place of what is wrong with each of the kinds."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise ValueError(f"must be {kinds}") from None

    return WrapValidator(check)


TEXT_LIMIT = 1 << 20
Text = Annotated[str, Field(max_length=TEXT_LIMIT)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
Prompt = Annotated[
    Text
    | Annotated[list[Text], Field(min_length=1, max_length=256)]
    | Annotated[list[TokenId], Field(min_length=1, max_length=TEXT_LIMIT)]
    | Annotated[
        list[Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1, max_length=256)
    ]
    | None,
    _described("a text, its token ids, or a list of 1 to 256 texts or lists of token ids"),
]
StopString = Annotated[str, Field(min_length=1, max_length=256)]
Stop = Annotated[
    StopString | Annotated[list[StopString], Field(max_length=16)] | None,
    _described("a text of 1 to 256 characters, or a list of at most 16"),
]


class Strict(BaseModel):
    """A request: types are not converted, and what is not known is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(Strict):
    """How to stream."""

    include_usage: bool | None = False
    """Whether the last chunk counts the tokens."""
    include_obfuscation: bool | None = False
    """Accepted and ignored: nothing is added to the chunks."""


class CompletionRequest(Strict):
    """OpenAI's fields, and `top_k` and `min_p`."""

    model: Annotated[str, Field(max_length=256)] | None = None
    """An id of `/v1/models`; the first of them if left out."""
    prompt: Prompt = ""
    """A text or several, or their token ids; null is the empty text."""
    max_tokens: Annotated[int, Field(ge=0, lt=1 << 31)] | None = 16
    temperature: Annotated[float, Field(ge=0, le=100)] | None = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] | None = 1.0
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = 0
    """0 and -1 keep all tokens."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = 0.0
    n: Annotated[int, Field(ge=1, le=128)] | None = 1
    """Choices for each prompt; choice i uses `seed` + i."""
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    """The same seed gives the same text; none: a random one."""
    stop: Stop = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    echo: bool | None = False
    logprobs: Annotated[int, Field(ge=0, le=10)] | None = None
    best_of: Annotated[int, Field(ge=1, le=128)] | None = None
    """Accepted if it is `n`."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = 0.0
    """Accepted if it is 0, like the other penalty."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = 0.0
    repetition_penalty: float | None = 1.0
    """Accepted if it is 1."""
    logit_bias: dict[str, float] | None = None
    """Accepted if it is empty."""
    suffix: str | None = None
    """Accepted if it is empty."""
    ignore_eos: bool | None = None
    """Accepted: no token ends a text."""
    user: Annotated[str, Field(max_length=1024)] | None = None
    """Accepted and ignored."""

    @field_validator(
        "frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "suffix"
    )
    @classmethod
    def _refuse_unless_neutral(cls, value: Any, info: ValidationInfo) -> Any:
        neutral = 1.0 if info.field_name == "repetition_penalty" else 0.0
        if value not in (None, neutral, {}, ""):
            raise ValueError("is not supported; leave it out")
        return value


class ScoreTexts(Strict):
    """Texts to score, each from its own beginning."""

    model: Annotated[str, Field(max_length=256)] | None = None
    texts: Annotated[
        list[Annotated[Text, Field(min_length=1)]], Field(min_length=1, max_length=256)
    ]
    top: Annotated[int, Field(ge=0, le=10)] = 0
    """Most probable tokens to report beside each token."""


class AttentionText(Strict):
    """A text at whose last token to look."""

    model: Annotated[str, Field(max_length=256)] | None = None
    text: Annotated[Text, Field(min_length=1)]


class TopToken(BaseModel):
    """A token that was probable, and its log-probability in nats."""

    bytes: list[int]
    logprob: float


class Logprobs(BaseModel):
    """What OpenAI's field of this name holds; the last two are ours."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]
    bytes: list[list[int]]
    top_bytes: list[list[TopToken]]


class Choice(BaseModel):
    """One text."""

    index: int
    text: str
    finish_reason: Literal["length", "stop"] | None
    logprobs: Logprobs | None


class Usage(BaseModel):
    """Tokens read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionAnswer(BaseModel):
    """The answer, or a chunk of it."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None


class Score(BaseModel):
    """The loss of one text, in total and per token."""

    bytes: int
    tokens: int
    loss_nats: float
    bits_per_byte: float
    token_logprobs: list[float]
    token_bytes: list[list[int]]
    top_bytes: list[list[TopToken]]


class Scores(BaseModel):
    """In the order of the texts."""

    model: str
    scores: list[Score]


class HeadView(BaseModel):
    """A head's learned window in positions, if any, and its weights, the newest position last."""

    span: float | None
    weights: list[float]


class LayerView(BaseModel):
    """The heads of one layer."""

    layer: int
    heads: list[HeadView]


class Attention(BaseModel):
    """Where the heads look at the last of `length` tokens."""

    model: str
    length: int
    layers: list[LayerView]


class ModelCard(BaseModel):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["sparing"]
    recipe: str
    family: str
    parameters: int
    vocabulary: str
    bits_per_byte: float | None
    attention: bool


class ModelList(BaseModel):
    """All models that are served."""

    object: Literal["list"]
    data: list[ModelCard]


class Problem(BaseModel):
    """What was wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """OpenAI's form of an error."""

    error: Problem


class State(BaseModel):
    """Whether the server works, or takes requests."""

    status: Literal["ok", "ready", "stopping", "failed"]

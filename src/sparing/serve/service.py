"""The models of a server by name, and how an answer gets from an engine's thread to asyncio."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import torch

from sparing.errors import UserError
from sparing.lm import LM
from sparing.models.api import eval_mode
from sparing.serve.engine import Engine
from sparing.serve.errors import ApiError
from sparing.serve.limits import Limits
from sparing.serve.requests import (
    BrokenError,
    ClosedError,
    Event,
    Failed,
    FullQueueError,
    Request,
    is_last,
)

RETRY_AFTER_S = 1
STATUSES = {"refused": 400, "timeout": 504, "error": 500, "unavailable": 503}


class Model:
    """A model that is served."""

    def __init__(self, id: str, lm: LM, limits: Limits) -> None:
        self.id, self.lm = id, lm
        self.card = _card(id, lm)
        self.engine = Engine(lm, limits)


class Service:
    """Several models; the first is used where a request names none."""

    def __init__(self, models: Mapping[str, LM], limits: Limits) -> None:
        self.limits = limits
        self.models = {id: Model(id, lm, limits) for id, lm in models.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    @property
    def failed(self) -> bool:
        """Whether an engine does not work that should."""
        return any(model.engine.failed for model in self.models.values())

    @property
    def open(self) -> bool:
        """Whether every engine takes requests."""
        return all(model.engine.open for model in self.models.values())

    def model(self, id: str | None) -> Model:
        """The model a request is for."""
        if id is None:
            return next(iter(self.models.values()))
        if id not in self.models:
            known = ", ".join(self.models)
            raise ApiError(
                404,
                f"no model has this name; choose one of: {known}",
                param="model",
                code="model_not_found",
            )
        return self.models[id]

    def close(self, *, wait_s: float = 0.0) -> None:
        """Finish what was begun, within a time, and stop."""
        for model in self.models.values():
            model.engine.close(wait_s=wait_s)


class Events:
    """The events of several requests that belong together. Leaving the block frees their lanes."""

    def __init__(self, engine: Engine, requests: Sequence[Request]) -> None:
        self._engine, self._left = engine, len(requests)
        self._queue = asyncio.Queue[tuple[int, Event]]()
        loop = asyncio.get_running_loop()
        deliver = [partial(self._deliver, loop, index) for index in range(len(requests))]
        try:
            self._jobs = engine.submit(requests, deliver)
        except FullQueueError as problem:
            raise ApiError(
                429, str(problem), code="queue_full", retry_after_s=RETRY_AFTER_S
            ) from None
        except ClosedError as problem:
            raise ApiError(
                503, str(problem), code="shutting_down", retry_after_s=RETRY_AFTER_S
            ) from None
        except BrokenError as problem:
            raise ApiError(
                503, str(problem), code="unavailable", retry_after_s=RETRY_AFTER_S
            ) from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        """Nobody waits for the rest."""
        if self._left:
            self._engine.cancel(self._jobs)

    def _deliver(self, loop: asyncio.AbstractEventLoop, index: int, event: Event) -> None:
        """Called in the engine's thread."""
        loop.call_soon_threadsafe(self._queue.put_nowait, (index, event))

    async def __aiter__(self) -> AsyncIterator[tuple[int, Event]]:
        """Yield events with the number of the request; a failure is raised as an `ApiError`."""
        while self._left:
            index, event = await self._queue.get()
            # Events that wait already would be sent without a break, although the client has gone.
            await asyncio.sleep(0)
            if is_last(event):
                self._left -= 1
            if isinstance(event, Failed):
                raise ApiError(STATUSES[event.reason], event.message, code=event.reason)
            yield index, event


def _card(id: str, lm: LM) -> dict[str, Any]:
    """What `/v1/models` says of a model."""
    results, created = dict[str, Any](), 0
    if lm.folder is not None:
        results |= lm.folder.results()
        created = int((lm.folder.path / "config.json").stat().st_mtime)
    found = (results.get(name) for name in ("test", "valid", "best_valid"))
    figure = next((each["bits_per_byte"] for each in found if each), None)
    return {
        "id": id,
        "object": "model",
        "created": created,
        "owned_by": "sparing",
        "recipe": lm.config.recipe,
        "family": lm.config.family,
        "parameters": lm.costs["parameters"]["deployed"],
        "vocabulary": lm.vocab.kind,
        "bits_per_byte": figure,
        "attention": _shows_attention(lm),
    }


def _shows_attention(lm: LM) -> bool:
    with eval_mode(lm.model, lm.hardware):
        tokens_1T = torch.from_numpy(np.array([[lm.vocab.start]])).to(lm.model.device)
        try:
            return bool(lm.attention_weights(tokens_1T, lm.model.initial_state(1, inference=True)))
        except UserError:
            return False

"""One model and all requests for it: read in turn, written together. Knows nothing of HTTP.

Everything that touches the model happens in one thread. Between two tokens lanes join and leave;
between two chunks of a prompt every other lane writes a token. Axes: B lanes, V vocabulary.
"""

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from sparing.errors import UserError
from sparing.generate.decode import eval_step
from sparing.generate.sampling import SamplingConfig, sample
from sparing.lm import LM
from sparing.serve.job import Counts, Job
from sparing.serve.lanes import PromptReader, open_lanes
from sparing.serve.limits import Limits
from sparing.serve.prefixes import PrefixCache
from sparing.serve.requests import Deliver, Failed, Ids, Request
from sparing.serve.tasks import Writing, task_for


class FullQueueError(Exception):
    """No place is left in the queue; later there will be one."""


class ClosedError(Exception):
    """The engine takes no more requests."""


class Engine:
    """Advances all requests for one model. Use `submit`; `close` ends the thread."""

    def __init__(self, lm: LM, limits: Limits, *, clock: Callable[[], float] = time.monotonic):
        self.lm, self.limits, self.counts = lm, limits, Counts()
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting = deque[Job]()
        self._open, self._running = True, True
        with eval_step(lm.model, lm.hardware):
            self._reader = PromptReader(lm)
            self._lanes = open_lanes(self._reader, limits.lanes)
        self._jobs: list[Job | None] = [None] * limits.lanes
        self._cache = PrefixCache(limits.cache_bytes, limits.chunk)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def failed(self) -> bool:
        """Whether the thread has ended without being asked to."""
        return self._open and not self._thread.is_alive()

    @property
    def open(self) -> bool:
        """Whether requests are taken."""
        return self._open and not self.failed

    def submit(self, requests: Sequence[Request], deliver: Sequence[Deliver]) -> list[Job]:
        """Queue requests, all or none; their events are delivered from the engine's thread."""
        now = self._clock()
        jobs = [Job(request, each, now) for request, each in zip(requests, deliver, strict=True)]
        with self._changed:
            if not self.open:
                raise ClosedError("the server is shutting down")
            free = sum(job is None for job in self._jobs) + self.limits.queue
            if len(self._waiting) + len(jobs) > free:
                raise FullQueueError(f"{len(self._waiting)} texts are waiting; try again later")
            self._waiting.extend(jobs)
            self.counts.queued = len(self._waiting)
            self._changed.notify()
        return jobs

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Nobody waits for these any more. From any thread."""
        with self._changed:
            for job in jobs:
                job.over = True
            self._waiting = deque(job for job in self._waiting if not job.over)
            self.counts.queued = len(self._waiting)
            self._changed.notify()

    def close(self, *, wait_s: float = 0.0) -> None:
        """Take no more requests, finish those that are there, within a time; then stop."""
        with self._changed:
            self._open = False
            self._changed.notify()
        self._thread.join(wait_s)
        with self._changed:
            self._running = False
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._wait():
                with eval_step(self.lm.model, self.lm.hardware):
                    self._turn()
        finally:
            for job in self._all():
                job.send(Failed("error", "the server has stopped"))

    def _all(self) -> list[Job]:
        with self._changed:
            return [job for job in [*self._jobs, *self._waiting] if job is not None]

    def _wait(self) -> bool:
        """Wait for work; False when the thread is to end."""
        with self._changed:
            while self._running and self._open and not (self._waiting or any(self._jobs)):
                self._changed.wait()
            return self._running and bool(self._waiting or any(self._jobs))

    def _turn(self) -> None:
        """One chunk of one prompt, and one token in every lane that writes."""
        self._drop()
        self._admit()
        self._read()
        self._write()
        self._drop()
        self.counts.lanes_busy = sum(job is not None for job in self._jobs)
        self.counts.cache_bytes = self._cache.used_bytes

    def _drop(self) -> None:
        """Free the lanes of requests that are over, or that took too long."""
        limit_s, late = self.limits.time_s, list[Job]()
        for job in self._all():
            if self._clock() > job.arrived_s + limit_s:
                job.send(Failed("timeout", f"the answer was not complete after {limit_s:g} s"))
                late.append(job)
        if late:
            self.cancel(late)
        for lane, holder in enumerate(self._jobs):
            if holder is not None and holder.over:
                self._jobs[lane] = None
                if holder.last_V is not None:
                    self._lanes.leave(lane)

    def _admit(self) -> None:
        """Give free lanes to the requests that have waited longest."""
        for lane in [lane for lane, job in enumerate(self._jobs) if job is None]:
            with self._changed:
                if not self._waiting:
                    return
                admitted = self._jobs[lane] = self._waiting.popleft()
                self.counts.queued = len(self._waiting)
            with self._guarded(admitted):
                admitted.task = task_for(self._reader, admitted.request)

    def _read(self) -> None:
        """Read a chunk of one prompt. What needs no reading is finished on the way."""
        began = time.perf_counter()
        while reading := [job for job in self._jobs if job is not None and job.reading]:
            job = min(reading, key=lambda job: job.order)
            with self._guarded(job):
                if not job.begun:
                    self._begin(job)
                if job.reading:
                    self._read_chunk(job)
                    break
        self.counts.read_s += time.perf_counter() - began

    def _begin(self, job: Job) -> None:
        """Find the longest beginning of a prompt that is known."""
        task = job.task
        assert task is not None
        job.begun = True
        self.counts.prompts += 1
        known = None if task.scores_all else self._cache.find(task.ids)
        job.shared = self._cache.shared(task.ids)
        if known is None:
            job.state = self._reader.begin()
            return
        job.state, task.read = known.state, known.length
        self.counts.prompts_reused += 1
        self.counts.tokens_reused += known.length
        if not task.left:
            self._finish(job, known.hidden_D)

    def _read_chunk(self, job: Job) -> None:
        """Read one chunk. Chunks begin at multiples of their length, whatever else goes on."""
        task = job.task
        assert task is not None
        ids = task.ids[task.read : task.read + self.limits.chunk]
        hidden_TD, job.state = self._reader.read(ids, job.state)
        task.take(hidden_TD)
        task.read += len(ids)
        self.counts.tokens_read += len(ids)
        if task.left == 0 or task.read == job.shared:
            self._cache.add(task.ids[: task.read], job.state, hidden_TD[-1])
        if not task.left:
            self._finish(job, hidden_TD[-1])

    def _finish(self, job: Job, hidden_D: Tensor) -> None:
        """All is read: answer, or begin to write."""
        task = job.task
        assert task is not None
        answer = task.finish(hidden_D, job.state)
        if answer is not None:
            job.send(answer)
            return
        assert isinstance(task, Writing)
        self._lanes.join(self._jobs.index(job), job.state)
        job.state, job.last_V = {}, self._reader.logits(hidden_D)
        if (echo := task.opening()) is not None:
            job.send(echo)

    def _write(self) -> None:
        """Choose the next token of every lane that writes, and read those tokens together."""
        began = time.perf_counter()
        ids_B = np.full(len(self._jobs), self.lm.vocab.start, dtype=np.int64)
        for lane, id in self._choose().items():
            ids_B[lane] = id
            job = self._jobs[lane]
            assert job is not None
            with self._guarded(job):
                assert isinstance(job.task, Writing)
                assert job.last_V is not None
                self.counts.tokens_written += 1
                if (piece := job.task.write(id, job.last_V)) is not None:
                    job.send(piece)
        writing = [job for job in self._jobs if job is not None and job.writing]
        if writing:
            self._step(ids_B, writing)
            self.counts.step_s += time.perf_counter() - began

    def _step(self, ids_B: Ids, writing: Sequence[Job]) -> None:
        try:
            logits_BV = self._lanes.step(ids_B)
        except Exception:
            # The lanes may hold anything now. Texts that are still read are not affected.
            for job in writing:
                self._fail(job)
            self._lanes = open_lanes(self._reader, self.limits.lanes)
            return
        self.counts.steps += 1
        for job in writing:
            job.last_V = logits_BV[self._jobs.index(job)]

    def _choose(self) -> dict[int, int]:
        """Return the next id of every lane that writes; lanes of like settings are one batch."""
        alike = dict[SamplingConfig, list[tuple[int, Tensor, float]]]()
        for lane, job in enumerate(self._jobs):
            if job is None or not job.writing or job.last_V is None:
                continue
            assert isinstance(job.task, Writing)
            config = replace(job.task.request.sampling, seed=0)
            alike.setdefault(config, []).append((lane, job.last_V, job.task.draw()))
        chosen = dict[int, int]()
        for config, each in alike.items():
            lanes, rows, draws = zip(*each, strict=True)
            logits_BV = torch.stack(rows)
            uniform_B = torch.tensor(draws, dtype=torch.float64, device=logits_BV.device)
            ids = sample(logits_BV, config, uniform_B).tolist()
            chosen |= dict(zip(lanes, ids, strict=True))
        return chosen

    @contextmanager
    def _guarded(self, job: Job) -> Iterator[None]:
        """What goes wrong with one request is reported, and ends that request alone."""
        try:
            yield
        except UserError as problem:
            job.send(Failed("refused", str(problem)))
        except Exception:
            self._fail(job)

    def _fail(self, job: Job) -> None:
        self.counts.failures += 1
        traceback.print_exc(file=sys.stderr)
        job.send(Failed("error", "an error of the server; its log has the details"))

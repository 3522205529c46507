"""One model and all its requests: prompts read in turn, text generated in one batch. No HTTP.

Everything that touches the model happens in one thread. Between two tokens lanes join and leave;
between two chunks of a prompt every other lane generates a token. Axes: B lanes, V vocabulary.
"""

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from sparing.errors import UserError
from sparing.lm import LM
from sparing.models.api import eval_mode
from sparing.serve.choice import alike, choose
from sparing.serve.job import Counts, Job
from sparing.serve.lanes import AttentionReader, Lanes
from sparing.serve.limits import Limits
from sparing.serve.prefixes import Prefix, PrefixCache
from sparing.serve.requests import (
    BrokenError,
    ClosedError,
    Deliver,
    Failed,
    FullQueueError,
    Request,
)
from sparing.serve.tasks import GenerateTask, task_for

RETRY_S = 5.0
"""How often an engine that does not work tries to work again."""
BROKEN = "the model does not work; see the server's log"


class Engine:
    """Advances all requests for one model. Use `submit`; `close` ends the thread."""

    def __init__(self, lm: LM, limits: Limits, *, clock: Callable[[], float] = time.monotonic):
        self.lm, self.limits, self.counts = lm, limits, Counts()
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting = deque[Job]()
        self._open, self._running, self._works = True, True, True
        with eval_mode(lm.model, lm.hardware):
            self._lanes = Lanes(lm, limits.lanes, limits.chunk)
            self._attention = AttentionReader(lm)
        self._jobs: list[Job | None] = [None] * limits.lanes
        self._cache = PrefixCache(limits.cache_bytes, limits.chunk)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def failed(self) -> bool:
        """Whether it does not work, although nobody has closed it."""
        return self._open and not self._works

    @property
    def open(self) -> bool:
        """Whether requests are taken."""
        return self._open and not self.failed

    def submit(self, requests: Sequence[Request], deliver: Sequence[Deliver]) -> list[Job]:
        """Queue requests, all or none; their events are delivered from the engine's thread."""
        now = self._clock()
        jobs = [Job(request, each, now) for request, each in zip(requests, deliver, strict=True)]
        with self._changed:
            if not self._open:
                raise ClosedError("the server is shutting down")
            if not self._works:
                raise BrokenError(BROKEN)
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
                with eval_mode(self.lm.model, self.lm.hardware):
                    if not (self._works and self._succeeds(self._turn)):
                        self._recover()
        finally:
            self._refuse_all("the server has stopped")

    def _succeeds(self, work: Callable[[], None]) -> bool:
        """Whether nothing goes wrong; when this returns, nothing holds what the work has held."""
        try:
            work()
        except Exception:
            traceback.print_exc(file=sys.stderr)
            return False
        return True

    def _recover(self) -> None:
        """Begin anew: the lanes may hold anything now, and there may be no memory for others."""
        for job in self._jobs:
            if job is not None:
                self._fail(job)
                job.release()
        self._jobs = [None] * self.limits.lanes
        self._cache.clear()
        self.counts.lanes_busy = self.counts.cache_bytes = 0
        self._attention = AttentionReader(self.lm)
        self._works = self._succeeds(self._lanes.reset)
        if not self._works:
            self._refuse_all(BROKEN)

    def _refuse_all(self, message: str) -> None:
        """Take no requests, and none of those that are there."""
        with self._changed:
            self._works = False
            refused = self._all()
            self._waiting.clear()
            self.counts.queued = 0
        for job in refused:
            job.send(Failed("unavailable", message))

    def _all(self) -> list[Job]:
        with self._changed:
            return [job for job in [*self._jobs, *self._waiting] if job is not None]

    def _wait(self) -> bool:
        """Wait for work; False when the thread is to end."""
        with self._changed:
            while self._running and self._open and not (self._waiting or any(self._jobs)):
                if not self._changed.wait(None if self._works else RETRY_S):
                    return True
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
                job.send(Failed("timeout", f"the answer was not finished after {limit_s:g} s"))
                late.append(job)
        if late:
            self.cancel(late)
        for lane, holder in enumerate(self._jobs):
            if holder is not None and holder.over:
                self._jobs[lane] = None
                self._lanes.leave(lane)
                holder.release()

    def _admit(self) -> None:
        """Give free lanes to the requests that have waited longest."""
        for lane in [lane for lane, job in enumerate(self._jobs) if job is None]:
            with self._changed:
                if not self._waiting:
                    return
                admitted = self._jobs[lane] = self._waiting.popleft()
                self.counts.queued = len(self._waiting)
            with self._guarded(admitted):
                admitted.task = task_for(self._lanes, self._attention, admitted.request)

    def _read(self) -> None:
        """Read a chunk of one prompt. What needs no reading is finished on the way."""
        began = time.perf_counter()
        while reading := self._to_read():
            job = min(reading, key=lambda job: job.order)
            with self._guarded(job):
                if not job.begun:
                    self._begin(job)
                if job.reading:
                    self._read_chunk(job)
                    break
        self.counts.read_s += time.perf_counter() - began

    def _to_read(self) -> list[Job]:
        """The prompts of which a chunk may be read now."""
        reading = [job for job in self._jobs if job is not None and job.reading]
        single = [job for job in reading if job.task is not None and job.task.one_at_a_time]
        if any(job.begun for job in single):
            return [job for job in reading if job.begun or job not in single]
        return reading

    def _begin(self, job: Job) -> None:
        """Find the longest beginning of a prompt that is known."""
        task, lane = job.task, self._jobs.index(job)
        assert task is not None
        job.begun = True
        self.counts.prompts += 1
        known = self._cache.find(task.ids) if task.from_prefix else None
        job.shared = self._cache.shared(task.ids) if task.from_prefix else 0
        if known is None:
            self._lanes.begin(lane)
            return
        self._lanes.restore(lane, known.kept)
        task.read = known.kept.read
        self.counts.prompts_reused += 1
        self.counts.tokens_reused += task.read
        if not task.left:
            self._finish(job, known.hidden_D)

    def _read_chunk(self, job: Job) -> None:
        """Read one chunk. Chunks begin at multiples of their length, whatever else goes on."""
        task, lane = job.task, self._jobs.index(job)
        assert task is not None
        before = task.read
        hidden_D = task.read_chunk(lane)
        self.counts.tokens_read += task.read - before
        ids = task.ids[: task.read]
        known = task.from_prefix and (not task.left or task.read == job.shared)
        if known and self._cache.lacks(ids):
            self._cache.add(ids, Prefix(self._lanes.keep(lane), hidden_D.clone()))
        if not task.left:
            self._finish(job, hidden_D)

    def _finish(self, job: Job, hidden_D: Tensor) -> None:
        """All is read: answer, or begin to write."""
        task = job.task
        assert task is not None
        if (answer := task.finish()) is not None:
            job.send(answer)
            return
        assert isinstance(task, GenerateTask)
        self._lanes.write(self._jobs.index(job))
        job.last_V = self._lanes.logits(hidden_D)
        if (echo := task.opening()) is not None:
            job.send(echo)

    def _write(self) -> None:
        """Choose the next token of every lane that writes, and read those tokens together."""
        began, chosen = time.perf_counter(), dict[int, int]()
        for group in alike(self._jobs):
            with self._guarded(*group.values()):
                chosen |= choose(group)
        for lane, id in chosen.items():
            job = self._jobs[lane]
            assert job is not None
            with self._guarded(job):
                assert isinstance(job.task, GenerateTask)
                assert job.last_V is not None
                self.counts.tokens_written += 1
                if (piece := job.task.write(id, job.last_V)) is not None:
                    job.send(piece)
        writing = {
            lane: job for lane, job in enumerate(self._jobs) if job is not None and job.writing
        }
        if writing:
            logits_BV = self._lanes.step({lane: chosen[lane] for lane in writing})
            self.counts.steps += 1
            for lane, job in writing.items():
                job.last_V = logits_BV[lane]
            self.counts.step_s += time.perf_counter() - began

    @contextmanager
    def _guarded(self, *jobs: Job) -> Iterator[None]:
        """What goes wrong with some requests is reported, and ends these alone."""
        try:
            yield
        except UserError as problem:
            for job in jobs:
                job.send(Failed("refused", str(problem)))
        except Exception:
            traceback.print_exc(file=sys.stderr)
            for job in jobs:
                self._fail(job)

    def _fail(self, job: Job) -> None:
        self.counts.failures += not job.over
        job.send(Failed("error", "internal server error; see the server's log"))

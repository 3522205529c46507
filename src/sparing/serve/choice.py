"""The next tokens of the lanes that write. Axes: B lanes, V vocabulary."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from sparing.generate.sampling import SamplingConfig, sample
from sparing.serve.job import Job
from sparing.serve.tasks import GenerateTask


def alike(jobs: Sequence[Job | None]) -> list[dict[int, Job]]:
    """Group the lanes that write by their settings; each group is one batch."""
    found = dict[SamplingConfig, dict[int, Job]]()
    for lane, job in enumerate(jobs):
        if job is not None and job.writing:
            assert isinstance(job.task, GenerateTask)
            config = replace(job.task.request.sampling, seed=0)
            found.setdefault(config, {})[lane] = job
    return list(found.values())


def choose(jobs: Mapping[int, Job]) -> dict[int, int]:
    """Return the next id of every lane of such a group."""
    rows, draws = [], []
    for job in jobs.values():
        assert isinstance(job.task, GenerateTask)
        assert job.last_V is not None
        config = job.task.request.sampling
        rows.append(job.last_V)
        draws.append(job.task.draw())
    logits_BV = torch.stack(rows)
    uniform_B = torch.tensor(draws, dtype=torch.float64, device=logits_BV.device)
    return dict(zip(jobs, sample(logits_BV, config, uniform_B).tolist(), strict=True))

"""Figures for Prometheus: what the engines count, and how long answers take."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sparing.serve.service import Service

if TYPE_CHECKING:
    from prometheus_client.core import Metric

BUCKETS_S = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
COUNTERS = {
    "tokens_read": "Tokens of prompts and of texts to score that the model has read.",
    "tokens_reused": "Tokens of prompts that were not read because a state was kept.",
    "tokens_written": "Tokens written.",
    "prompts": "Prompts and texts begun.",
    "prompts_reused": "Prompts that began with one whose state was kept.",
    "steps": "Steps of all lanes together.",
    "step_s": "Seconds spent on steps and on choosing tokens.",
    "read_s": "Seconds spent on reading.",
    "failures": "Requests that ended in an internal server error.",
}
GAUGES = {
    "queued": "Texts waiting for a lane.",
    "lanes_busy": "Lanes in use.",
    "cache_bytes": "Memory of the states that are kept.",
}


class Metrics:
    """A registry of its own for each server."""

    def __init__(self, service: Service) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector

        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(service))
        ProcessCollector(registry=self.registry)
        self.answers = Counter(
            "sparing_answers",
            "Answers by path and status.",
            ["path", "status"],
            registry=self.registry,
        )
        self.answer_s = Histogram(
            "sparing_answer_seconds",
            "Time from a request to the end of its answer.",
            ["path"],
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        self.first_s = Histogram(
            "sparing_first_byte_seconds",
            "Time from a request to the first byte of its answer.",
            ["path"],
            buckets=BUCKETS_S,
            registry=self.registry,
        )

    def page(self) -> bytes:
        """All figures as text."""
        from prometheus_client import generate_latest

        found: bytes = generate_latest(self.registry)
        return found

    def note(self, path: str, status: int, first_s: float, answer_s: float) -> None:
        """Count an answer."""
        self.answers.labels(path, str(status)).inc()
        self.first_s.labels(path).observe(first_s)
        self.answer_s.labels(path).observe(answer_s)


class EngineCollector:
    """Reads the counts of every engine when somebody asks for them."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> "Iterable[Metric]":
        """Yield one family for each count, with the model as its label."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        kinds = [(CounterMetricFamily, COUNTERS), (GaugeMetricFamily, GAUGES)]
        for kind, named in kinds:
            for name, help in named.items():
                shown = name.removesuffix("_s") + "_seconds" if name.endswith("_s") else name
                family = kind(f"sparing_{shown}", help, labels=["model"])
                for id, model in self._service.models.items():
                    family.add_metric([id], getattr(model.engine.counts, name))
                yield family

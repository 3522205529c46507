"""The same application as a Ray Serve deployment: replicas, on one machine or many.

Each replica loads the models and has engines of its own. Ray starts another for one that ends, and
more or fewer of them as requests come.
"""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from sparing import device
from sparing.errors import UserError
from sparing.serve.app import create_app
from sparing.serve.limits import Limits
from sparing.serve.models import open_models
from sparing.serve.service import Service

NAME = "sparing"
DOWNSCALE_S = 300.0
"""How long there must be too little to do for a replica before it ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RayOptions:
    """How many replicas there are, and where."""

    replicas: int = 1
    """Replicas to start with, and at least."""
    most: int | None = None
    """Replicas at most; none: always as many as at the start."""
    cluster: str | None = None
    """Address of a running cluster, or `auto`; none: this machine alone."""

    def __post_init__(self) -> None:
        if self.replicas < 1 or (self.most is not None and self.most < self.replicas):
            raise UserError(
                "--replicas must be at least 1, and --max-replicas not below --replicas"
            )

    def scaling(self, limits: Limits) -> dict[str, Any]:
        """The settings of a deployment."""
        if self.most in (None, self.replicas):
            return {"num_replicas": self.replicas}
        return {
            "autoscaling_config": {
                "min_replicas": self.replicas,
                "max_replicas": self.most,
                # As many as are written together: more only wait.
                "target_ongoing_requests": limits.lanes,
                "downscale_delay_s": DOWNSCALE_S,
            }
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Replicated:
    """What every replica serves."""

    paths: tuple[Path, ...]
    target: str
    checkpoint: str | None
    limits: Limits
    token: str | None

    def build(self) -> FastAPI:
        """Load the models; called in each replica."""
        models = open_models(self.paths, self.target, self.checkpoint)
        service = Service(models, self.limits)
        app = create_app(service, self.token)
        app.state.service = service
        return app


class Replica:
    """What Ray asks of a replica beside its answers."""

    app: FastAPI

    def check_health(self) -> None:
        """Raise an error if an engine does not work: Ray then starts another replica."""
        if self.app.state.service.failed:
            raise RuntimeError("an engine does not work")


def deployment(what: Replicated, options: RayOptions) -> Any:
    """The Ray Serve application."""
    from ray import serve

    build: Callable[[], FastAPI] = lambda: what.build()  # noqa: E731  Ray wants a function
    cuda = device.pick(what.target, "float32").device.type == "cuda"
    decorate = serve.deployment(
        name=NAME,
        max_ongoing_requests=what.limits.lanes + what.limits.queue,
        ray_actor_options={"num_cpus": 1, "num_gpus": int(cuda)},
        health_check_period_s=5,
        **options.scaling(what.limits),
    )
    return decorate(serve.ingress(build)(Replica)).bind()


def start_replicas(what: Replicated, options: RayOptions, host: str, port: int) -> None:
    """Start or join a cluster, and wait until all replicas answer."""
    # Nothing is sent to anybody.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if options.cluster is None:
        # Ray's own ports, too, are for this machine only: it then takes 127.0.0.1 for its address.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    import ray
    from ray import serve

    if options.cluster is None:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
    else:
        ray.init(options.cluster, log_to_driver=False, logging_level=logging.WARNING)
    where = "HeadOnly" if options.cluster is None else "EveryNode"
    serve.start(http_options={"host": host, "port": port, "location": where})
    serve.run(deployment(what, options), name=NAME, route_prefix="/")


def wait_for_stop_signal() -> int:
    """Wait until a signal asks to stop; return its number."""
    from sparing.signals import catch_stop_signals

    found = list[int]()
    with catch_stop_signals(lambda number, frame: found.append(number)):
        while not found:
            time.sleep(0.2)
    return found[0]


def stop_replicas() -> None:
    """Finish what was begun, and end the replicas; a cluster that was joined goes on."""
    import ray
    from ray import serve

    # They have no types.
    ends: list[Any] = [serve.shutdown, ray.shutdown]
    for end in ends:
        end()

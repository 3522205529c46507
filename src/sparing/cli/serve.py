"""`sparing serve`: models over HTTP, with an OpenAI-compatible API."""

import math
import os
import re
import socket
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from sparing.cli.complete import complete_runs
from sparing.cli.options import CheckpointName, Device, print_message
from sparing.errors import UserError
from sparing.lm import LM
from sparing.serve.guard import is_loopback
from sparing.serve.limits import Limits
from sparing.serve.models import open_models

DEFAULTS = Limits()
NEEDED = ("fastapi", "uvicorn", "prometheus_client")
TOKEN = "SPARING_TOKEN"
MIB = 1 << 20


Paths = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="RUN...",
        help="Folders written by `sparing train`; default: the package's model.",
        autocompletion=complete_runs,
    ),
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes any free one.")]
Token = Annotated[
    str | None,
    typer.Option(help=f"What clients must send; safer in {TOKEN}, which others cannot see."),
]
LaneCount = Annotated[int, typer.Option("--lanes", help="Texts generated in one batch.")]
Queue = Annotated[int, typer.Option(help="Texts that may wait for a lane.")]
Chunk = Annotated[int, typer.Option(help="Tokens of a prompt read at a time.")]
PromptTokens = Annotated[int, typer.Option(help="Longest prompt.")]
MaxTokens = Annotated[int, typer.Option(help="Longest answer.")]
BodyBytes = Annotated[int, typer.Option(help="Longest request body.")]
Connections = Annotated[int, typer.Option(help="Connections open at once.")]
TimeLimit = Annotated[float, typer.Option("--time", help="Seconds an answer may take.")]
Cache = Annotated[int, typer.Option(metavar="MIB", help="Memory for cached prompt states.")]
Drain = Annotated[float, typer.Option("--drain", help="Seconds to finish answers after SIGTERM.")]
Ray = Annotated[bool, typer.Option("--ray", help="Run as replicas managed by Ray.")]
Replicas = Annotated[int, typer.Option(help="Replicas to start with, with --ray.")]
MaxReplicas = Annotated[
    int | None, typer.Option("--max-replicas", help="Most replicas under load, with --ray.")
]
Cluster = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="A running Ray cluster, or auto, with --ray."),
]


def serve(
    paths: Paths = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Port = 8000,
    token: Token = None,
    lanes: LaneCount = DEFAULTS.lanes,
    queue: Queue = DEFAULTS.queue,
    chunk: Chunk = DEFAULTS.chunk,
    prompt_tokens: PromptTokens = DEFAULTS.prompt_tokens,
    max_tokens: MaxTokens = DEFAULTS.max_tokens,
    body_bytes: BodyBytes = DEFAULTS.body_bytes,
    connections: Connections = DEFAULTS.connections,
    time_s: TimeLimit = DEFAULTS.time_s,
    cache: Cache = DEFAULTS.cache_bytes // MIB,
    drain_s: Drain = 30.0,
    ray: Ray = False,
    replicas: Replicas = 1,
    most: MaxReplicas = None,
    cluster: Cluster = None,
    checkpoint: CheckpointName = None,
    target: Device = "auto",
) -> None:
    """Serve models over HTTP until Ctrl-C or SIGTERM."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise UserError(f"the server needs {missing[0]}: pip install 'sparing[serve]'")
    token = _token(token)
    if token is None and not is_loopback(host):
        raise UserError(
            f"--host {host} lets other machines connect, which needs a token; set {TOKEN}, "
            "or leave --host out"
        )
    if not 0 <= drain_s < math.inf:
        raise UserError(f"--drain takes a number of seconds, 0 or more, not {drain_s:g}")
    limits = Limits(
        lanes=lanes,
        queue=queue,
        chunk=chunk,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        body_bytes=body_bytes,
        connections=connections,
        time_s=time_s,
        cache_bytes=cache * MIB,
    )
    if ray:
        options = (replicas, most, cluster)
        _serve_with_ray(paths or [], (target, checkpoint), limits, token, options, (host, port))
        return
    if (replicas, most, cluster) != (1, None, None):
        raise UserError("--replicas, --max-replicas and --cluster need --ray")
    # Before the models are loaded, which takes longer than to see that a port is in use.
    with _listen(host, port) as listening:
        models = open_models(paths or [], target, checkpoint)
        _serve(models, limits, listening, token, drain_s)
    print_message("stopped")


def _serve(
    models: dict[str, LM],
    limits: Limits,
    listening: socket.socket,
    token: str | None,
    drain_s: float,
) -> None:
    from sparing.serve.app import create_app
    from sparing.serve.server import new_server
    from sparing.serve.service import Service

    with Service(models, limits) as service:
        server = new_server(create_app(service, token), limits, drain_s)
        listening.listen(2048)
        print_message(f"serving {', '.join(models)} at {_address(listening)}")
        server.run(sockets=[listening])


def _serve_with_ray(
    paths: list[Path],
    model: tuple[str, str | None],
    limits: Limits,
    token: str | None,
    options: tuple[int, int | None, str | None],
    address: tuple[str, int],
) -> None:
    if find_spec("ray") is None:
        raise UserError("--ray needs Ray: pip install 'sparing[ray]'")
    from sparing.runs.folder import open_run
    from sparing.serve import ray_cluster as cluster

    # Refuses what cannot be served before Ray is started.
    for path in paths:
        open_run(path)
    # Refuses a port in use, which Ray would report at length.
    with _listen(*address):
        pass
    replicas, most, where = options
    what = cluster.Replicated(
        paths=tuple(path.resolve() for path in paths),
        target=model[0],
        checkpoint=model[1],
        limits=limits,
        token=token,
    )
    try:
        cluster.start_replicas(
            what, cluster.RayOptions(replicas=replicas, most=most, cluster=where), *address
        )
        print_message(f"serving {replicas} replicas at http://{address[0]}:{address[1]}")
        cluster.wait_for_stop_signal()
    finally:
        cluster.stop_replicas()
    print_message("stopped")


def _token(given: str | None) -> str | None:
    token = os.environ.get(TOKEN) if given is None else given
    if token is not None and not re.fullmatch(r"[!-~]{8,256}", token):
        raise UserError("a token must have 8 to 256 printable ASCII characters and no spaces")
    return token


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with ExitStack() as stack:
            listening = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
            stack.pop_all()
    except (OSError, UnicodeError, OverflowError) as problem:
        reason = getattr(problem, "strerror", None) or "no such address"
        raise UserError(f"cannot listen on {host}, port {port}: {reason}") from None
    return listening


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

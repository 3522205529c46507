"""`sparing bench`: speed and memory, with hardware and commit."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from sparing import device
from sparing.bench.cutoffs import bench_cutoffs, zipf
from sparing.bench.distributed import bench_distributed
from sparing.bench.evaluate import EvaluateOptions, bench_evaluate
from sparing.bench.generate import GenerateOptions, bench_generate
from sparing.bench.profile import bench_profile
from sparing.bench.report import append, check_file, processor, report
from sparing.bench.size import Purpose, Size, resolve_size, small
from sparing.bench.span import bench_span
from sparing.bench.timing import threads
from sparing.bench.train import bench_train
from sparing.cli.options import Device, Json, Settings, out_path, show
from sparing.data.cutoffs import frequencies
from sparing.data.tokens import DataConfig, prepare
from sparing.device import Hardware
from sparing.launch import launch
from sparing.runs.build import build_model
from sparing.runs.config import RunConfig, with_settings
from sparing.runs.folder import RunFolder, load_model, open_run
from sparing.runs.provenance import provenance
from sparing.runs.recipes import RECIPES, recipe
from sparing.search.run import bench_cost

app = typer.Typer(
    help="Benchmarks: train, generate, evaluate, span, cutoffs, cost, distributed, profile.",
    no_args_is_help=True,
)

DEFAULT = "enwik8_sha_rnn"
POSITIONS = (10_000, 1_000_000)

SizeOption = Annotated[
    Size, typer.Option("--size", help="small, full, or auto: small on a CPU, full on a GPU.")
]
Threads = Annotated[int | None, typer.Option("--threads", help="CPU threads; torch's choice.")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FILE", parser=out_path, help="Append the result as a JSON line."
    ),
]


class Wish(NamedTuple):
    """What every benchmark of a recipe is asked with."""

    name: str
    settings: list[str]
    size: Size
    threads: int | None
    device: str
    out: Path | None
    as_json: bool


@app.command()
def train(
    name: Annotated[str, typer.Argument(metavar="RECIPE")] = DEFAULT,
    settings: Settings = None,
    size: SizeOption = "auto",
    steps: Annotated[int, typer.Option(help="Steps to measure.")] = 12,
    count: Threads = None,
    target: Device = "auto",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """The whole training step against its bare matrix work, on random tokens."""
    wish = Wish(name, settings or [], size, count, target, out, as_json)
    _measure("train", "train", wish, lambda run, hardware: bench_train(run, hardware, steps))


@app.command()
def generate(
    name: Annotated[str, typer.Argument(metavar="RECIPE-or-RUN")] = DEFAULT,
    settings: Settings = None,
    size: SizeOption = "auto",
    length: Annotated[int, typer.Option(help="Tokens written in one measured block.")] = 100,
    positions: Annotated[
        list[int] | None,
        typer.Option("--position", help="Where in the text to write; may be repeated."),
    ] = None,
    batch: Annotated[int, typer.Option(help="Texts written side by side.")] = 1,
    count: Threads = None,
    target: Device = "auto",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Reading a prompt, then writing early and late in a text: the cost must not grow."""
    options = GenerateOptions(positions=tuple(positions or POSITIONS), length=length, batch=batch)
    hardware = device.pick(target, "float32")
    folder, run = _find(name)
    size = "full" if folder else resolve_size(size, hardware.device)
    run = with_settings(small(run, "generate") if size == "small" else run, settings or [])
    check_file(out)
    # So narrow a model gains nothing from a second thread, and loses much on a busy machine.
    with threads(1 if size == "small" and count is None else count):
        model = (
            load_model(folder, hardware, run=run) if folder else build_model(run, hardware.device)
        )
        figures = bench_generate(model, run, hardware, options)
        record = report("generate", run, hardware, {"size": size, **figures})
    _tell(record, out, as_json=as_json)


@app.command()
def evaluate(
    name: Annotated[str, typer.Argument(metavar="RECIPE")] = "enwik8_transformer_xl",
    settings: Settings = None,
    size: SizeOption = "auto",
    memory: Annotated[int, typer.Option(min=0, help="Positions of memory.")] = 2048,
    segment: Annotated[int, typer.Option(help="Tokens read at a time.")] = 64,
    batch: Annotated[int, typer.Option(help="Streams side by side.")] = 1,
    rounds: Annotated[int, typer.Option(help="Segments to measure.")] = 9,
    count: Threads = None,
    target: Device = "auto",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Reading with keys and values kept, against projecting the memory for every segment."""
    options = EvaluateOptions(memory=memory, segment=segment, batch=batch, rounds=rounds)
    wish = Wish(name, settings or [], size, count, target, out, as_json)
    _measure(
        "evaluate", "evaluate", wish, lambda run, hardware: bench_evaluate(run, hardware, options)
    )


@app.command()
def span(
    name: Annotated[str, typer.Argument(metavar="RECIPE")] = "enwik8_adaptive_span_small",
    settings: Settings = None,
    size: SizeOption = "auto",
    limits: Annotated[
        tuple[int, int], typer.Option("--limits", help="The two limits to compare.")
    ] = (8192, 64),
    steps: Annotated[int, typer.Option(help="Steps to measure under either limit.")] = 10,
    count: Threads = None,
    target: Device = "auto",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Training steps with short spans under a long limit, against those under a short one."""
    wish = Wish(name, settings or [], size, count, target, out, as_json)
    _measure("span", "train", wish, lambda run, hardware: bench_span(run, hardware, limits, steps))


@app.command()
def cutoffs(
    corpus: Annotated[
        str | None, typer.Option("--data", metavar="CORPUS", help="Its words too, counted first.")
    ] = None,
    words: Annotated[int, typer.Option(help="Made-up words, by Zipf's law.")] = 267_735,
    clusters: Annotated[int, typer.Option(help="One up to so many clusters.")] = 3,
    turns: Annotated[int, typer.Option(help="Times each is found; the least counts.")] = 3,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Finding the optimal cut-offs of an adaptive softmax, each word a possible cut."""
    check_file(out)
    tasks = {f"{words:,} words by Zipf's law": zipf(words)}
    if corpus is not None:
        tokens = prepare(DataConfig(corpus=corpus, vocab="words"))
        tasks[corpus] = frequencies(tokens.split("train").ids, tokens.vocab.size)
    hardware = device.pick("cpu", "float32")
    figures = {
        name: bench_cutoffs(counts, most=clusters, turns=turns) for name, counts in tasks.items()
    }
    origin = {**provenance(hardware, 0), "processor": processor()}
    _tell({"bench": "cutoffs", **figures, **origin}, out, as_json=as_json)


@app.command()
def cost(
    name: Annotated[str, typer.Argument(metavar="RECIPE")] = "toy_par_search",
    settings: Settings = None,
    size: SizeOption = "auto",
    stacks: Annotated[int, typer.Option(help="Random stacks to check the sum on.")] = 20,
    count: Threads = None,
    target: Device = "auto",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """What each block of a search costs here, and whether costs add up."""
    wish = Wish(name, settings or [], size, count, target, out, as_json)
    _measure("cost", "train", wish, lambda run, hardware: bench_cost(run, hardware, stacks))


@app.command()
def distributed(
    name: Annotated[str, typer.Argument(metavar="RECIPE")] = DEFAULT,
    settings: Settings = None,
    size: SizeOption = "auto",
    steps: Annotated[int, typer.Option(help="Steps of either kind to measure.")] = 12,
    shard: Annotated[bool, typer.Option("--shard", help="With weights cut up.")] = False,
    count: Threads = None,
    target: Device = "auto",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Steps of all processes of a torchrun against those of one alone; without it, of one."""
    wish = Wish(name, settings or [], size, count, target, out, as_json)
    _measure(
        "distributed",
        "train",
        wish,
        lambda run, hardware: bench_distributed(run, hardware, steps, sharded=shard),
    )


@app.command()
def profile(
    name: Annotated[str, typer.Argument(metavar="RECIPE")] = DEFAULT,
    settings: Settings = None,
    size: SizeOption = "auto",
    steps: Annotated[int, typer.Option(help="Steps to time, and to watch.")] = 5,
    rows: Annotated[int, typer.Option(help="How many of the longest to tell of.")] = 25,
    count: Threads = None,
    target: Device = "auto",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Where the time of a training step goes."""
    wish = Wish(name, settings or [], size, count, target, out, as_json)
    _measure(
        "profile", "train", wish, lambda run, hardware: bench_profile(run, hardware, steps, rows)
    )


def _measure(
    kind: str, purpose: Purpose, wish: Wish, work: Callable[[RunConfig, Hardware], dict[str, Any]]
) -> None:
    """Size a recipe for the machine, do the work, report it."""
    run = recipe(wish.name)
    hardware = device.pick(wish.device, with_settings(run, wish.settings).train.precision)
    size = resolve_size(wish.size, hardware.device)
    run = with_settings(small(run, purpose) if size == "small" else run, wish.settings)
    check_file(wish.out)
    with threads(wish.threads):
        record = report(kind, run, hardware, {"size": size, **work(run, hardware)})
    if launch().rank == 0:
        _tell(record, wish.out, as_json=wish.as_json)


def _find(name: str) -> tuple[RunFolder | None, RunConfig]:
    path = Path(name)
    if name in RECIPES or not (path.exists() or "/" in name):
        return None, recipe(name)
    folder = open_run(path)
    return folder, folder.config()


def _tell(record: dict[str, Any], out: Path | None, *, as_json: bool) -> None:
    if out is not None:
        append(out, record)
    if as_json:
        show(record, as_json=True)
        return
    lines = {name: value for name, value in record.items() if value is not None}
    for row in lines.pop("work", []):
        typer.echo(f"{row['ms']:10.3f} ms {row['calls']:8,.0f} x  {row['what']}")
    for place in lines.pop("positions", []):
        about = {name: value for name, value in place.items() if name != "position"}
        lines[f"at {place['position']:,}"] = about
    show(lines, as_json=False)

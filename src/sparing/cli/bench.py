"""`sparing bench`: speed and memory, with hardware and commit."""

from pathlib import Path
from typing import Annotated

import typer

from sparing import device
from sparing.bench.compiled import bench_compiled
from sparing.bench.distributed import bench_distributed
from sparing.bench.inference import (
    EvaluateOptions,
    GenerateOptions,
    bench_evaluate,
    bench_generate,
)
from sparing.bench.micro import bench_cutoffs, bench_span, zipf_counts
from sparing.bench.profile import bench_profile
from sparing.bench.report import check_out_file, cpu_name, make_report
from sparing.bench.size import resolve_size, small
from sparing.bench.timing import threads
from sparing.bench.train import bench_train
from sparing.cli.measure import (
    BenchRequest,
    Out,
    Recipe,
    SizeOption,
    Threads,
    measure,
    print_record,
)
from sparing.cli.options import Device, Json, Settings
from sparing.data.cutoffs import count_ids
from sparing.data.tokens import DataConfig, prepare
from sparing.runs.build import build_model
from sparing.runs.config import RunConfig, with_settings
from sparing.runs.folder import RunFolder, load_model, open_run
from sparing.runs.provenance import provenance
from sparing.runs.recipes import RECIPES, recipe
from sparing.search.run import bench_cost
from sparing.units import pluralize

app = typer.Typer(
    help="Benchmarks: train, generate, evaluate, span, cutoffs, cost, distributed, profile.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

DEFAULT = "enwik8_sha_rnn"
POSITIONS = (10_000, 1_000_000)


@app.command(short_help="Training step compared with its matrix products alone.")
def train(
    name: Recipe = DEFAULT,
    settings: Settings = None,
    size: SizeOption = "auto",
    steps: Annotated[int, typer.Option(help="Steps to measure.")] = 12,
    thread_count: Threads = None,
    target: Device = "auto",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Training step compared with its matrix products alone, on random tokens."""
    request = BenchRequest(name, settings or [], size, thread_count, target, out, as_json)
    measure("train", "train", request, lambda run, hardware: bench_train(run, hardware, steps))


@app.command(short_help="Prefill, then decoding early and late in a text.")
def generate(
    name: Annotated[
        str, typer.Argument(metavar="RECIPE-or-RUN", help="Recipe or run folder.")
    ] = DEFAULT,
    settings: Settings = None,
    size: SizeOption = "auto",
    length: Annotated[int, typer.Option(help="Tokens decoded in one measured block.")] = 100,
    positions: Annotated[
        list[int] | None,
        typer.Option("--position", help="Position to decode at; may be repeated."),
    ] = None,
    batch: Annotated[int, typer.Option(help="Texts decoded in parallel.")] = 1,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Compare decoding with and without compilation.")
    ] = False,
    thread_count: Threads = None,
    target: Device = "auto",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Prefill, then decoding early and late in a text: its cost must not grow."""
    options = GenerateOptions(positions=tuple(positions or POSITIONS), length=length, batch=batch)
    hardware = device.pick(target, "float32")
    folder, run = _find(name)
    size = "full" if folder else resolve_size(size, hardware.device)
    run = with_settings(small(run, "generate") if size == "small" else run, settings or [])
    check_out_file(out)
    # Such a narrow model gains nothing from a second thread and is slower on a busy machine.
    with threads(1 if size == "small" and thread_count is None else thread_count):
        model = (
            load_model(folder, hardware, run=run) if folder else build_model(run, hardware.device)
        )
        figures = (
            bench_compiled(model, run.model.vocab_size, hardware, positions)
            if compiled
            else bench_generate(model, run, hardware, options)
        )
        record = make_report("generate", run, hardware, {"size": size, **figures})
    print_record(record, out, as_json=as_json)


@app.command(short_help="Evaluation with and without cached keys and values.")
def evaluate(
    name: Recipe = "enwik8_transformer_xl",
    settings: Settings = None,
    size: SizeOption = "auto",
    memory: Annotated[int, typer.Option(min=0, help="Positions of memory.")] = 2048,
    segment: Annotated[int, typer.Option(help="Tokens read at a time.")] = 64,
    batch: Annotated[int, typer.Option(help="Streams read in parallel.")] = 1,
    rounds: Annotated[int, typer.Option(help="Segments to measure.")] = 9,
    thread_count: Threads = None,
    target: Device = "auto",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Evaluation with cached keys and values, against projecting the memory every time."""
    options = EvaluateOptions(memory=memory, segment=segment, batch=batch, rounds=rounds)
    request = BenchRequest(name, settings or [], size, thread_count, target, out, as_json)
    measure(
        "evaluate",
        "evaluate",
        request,
        lambda run, hardware: bench_evaluate(run, hardware, options),
    )


@app.command(short_help="Short spans under a long and a short limit.")
def span(
    name: Recipe = "enwik8_adaptive_span_small",
    settings: Settings = None,
    size: SizeOption = "auto",
    limits: Annotated[
        tuple[int, int], typer.Option("--limits", help="The two limits to compare.")
    ] = (8192, 64),
    steps: Annotated[int, typer.Option(help="Steps to measure under each limit.")] = 10,
    thread_count: Threads = None,
    target: Device = "auto",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Training steps with short spans: a long span limit against a short one."""
    request = BenchRequest(name, settings or [], size, thread_count, target, out, as_json)
    measure(
        "span", "train", request, lambda run, hardware: bench_span(run, hardware, limits, steps)
    )


@app.command(short_help="Search for the cut-offs of an adaptive softmax.")
def cutoffs(
    corpus: Annotated[
        str | None,
        typer.Option("--data", metavar="CORPUS", help="Also use the words of this corpus."),
    ] = None,
    words: Annotated[
        int, typer.Option(help="Size of a synthetic vocabulary (Zipf's law).")
    ] = 267_735,
    clusters: Annotated[int, typer.Option(help="Measure one to this many clusters.")] = 3,
    turns: Annotated[int, typer.Option(help="Repetitions; the fastest counts.")] = 3,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Search for the optimal cut-offs of an adaptive softmax, at any word."""
    check_out_file(out)
    tasks = {f"{pluralize(words, 'word')} by Zipf's law": zipf_counts(words)}
    if corpus is not None:
        tokens = prepare(DataConfig(corpus=corpus, vocab="words"))
        tasks[corpus] = count_ids(tokens.split("train").ids, tokens.vocab.size)
    hardware = device.pick("cpu", "float32")
    figures = {
        name: bench_cutoffs(counts, most=clusters, turns=turns) for name, counts in tasks.items()
    }
    origin = {**provenance(hardware, 0), "processor": cpu_name()}
    print_record({"bench": "cutoffs", **figures, **origin}, out, as_json=as_json)


@app.command(short_help="Cost of each block of a search.")
def cost(
    name: Recipe = "toy_par_search",
    settings: Settings = None,
    size: SizeOption = "auto",
    stacks: Annotated[int, typer.Option(help="Random stacks to check the sum of costs on.")] = 20,
    thread_count: Threads = None,
    target: Device = "auto",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Cost of each block of a search on this machine, and whether costs add up."""
    request = BenchRequest(name, settings or [], size, thread_count, target, out, as_json)
    measure("cost", "train", request, lambda run, hardware: bench_cost(run, hardware, stacks))


@app.command(short_help="All torchrun processes compared with one alone.")
def distributed(
    name: Recipe = DEFAULT,
    settings: Settings = None,
    size: SizeOption = "auto",
    steps: Annotated[int, typer.Option(help="Steps of each kind to time.")] = 12,
    shard: Annotated[bool, typer.Option("--shard", help="Shard the weights (FSDP).")] = False,
    thread_count: Threads = None,
    target: Device = "auto",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Steps of all torchrun processes together, against those of one process alone."""
    request = BenchRequest(name, settings or [], size, thread_count, target, out, as_json)
    measure(
        "distributed",
        "train",
        request,
        lambda run, hardware: bench_distributed(run, hardware, steps, sharded=shard),
    )


@app.command(short_help="Profile of a training step.")
def profile(
    name: Recipe = DEFAULT,
    settings: Settings = None,
    size: SizeOption = "auto",
    steps: Annotated[int, typer.Option(help="Steps to time and to profile.")] = 5,
    rows: Annotated[int, typer.Option(help="Number of kernels or operators to print.")] = 25,
    thread_count: Threads = None,
    target: Device = "auto",
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Profile of a training step."""
    request = BenchRequest(name, settings or [], size, thread_count, target, out, as_json)
    measure(
        "profile", "train", request, lambda run, hardware: bench_profile(run, hardware, steps, rows)
    )


def _find(name: str) -> tuple[RunFolder | None, RunConfig]:
    path = Path(name)
    if name in RECIPES or not (path.exists() or "/" in name):
        return None, recipe(name)
    folder = open_run(path)
    return folder, folder.config()

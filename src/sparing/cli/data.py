"""`sparing data`: list, download, verify and tokenize corpora."""

import time
from itertools import pairwise
from typing import Annotated, Any

import typer

from sparing.cli.complete import complete_corpora
from sparing.cli.options import Json, Source, print_report
from sparing.data.corpora import CORPORA, SPLITS
from sparing.data.cutoffs import NARROW_HEAD, CutoffConfig, count_ids, optimal_cutoffs
from sparing.data.splits import check_source, fetch_corpus, read_splits
from sparing.data.textfile import Unpacking
from sparing.data.tokens import DataConfig, Tokens, tokens_folder
from sparing.data.tokens import prepare as prepare_tokens
from sparing.data.vocab import VocabKind
from sparing.errors import unknown_name
from sparing.terminal import print_json, print_line

app = typer.Typer(
    help="Corpora: list, get, prepare; cut-offs of an adaptive softmax.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
Corpus = Annotated[
    str,
    typer.Argument(
        metavar="CORPUS",
        help="Corpus name, or your own text file or folder.",
        autocompletion=complete_corpora,
    ),
]
MaxBytes = Annotated[
    int | None,
    typer.Option(metavar="N", help="Largest text, unpacked; default: half of the free disk space."),
]

TextColumn = Annotated[
    str,
    typer.Option(metavar="NAME", help="Column of .parquet files, or field of .jsonl, to read."),
]


@app.command("list")
def list_corpora(as_json: Json = False) -> None:
    """List the known corpora."""
    known = {name: corpus.description for name, corpus in CORPORA.items()}
    if as_json:
        print_json(known)
    else:
        print_report(known, as_json=False)


@app.command()
def get(
    name: Annotated[
        str,
        typer.Argument(
            metavar="CORPUS", help="See `sparing data list`.", autocompletion=complete_corpora
        ),
    ],
    source: Source = None,
    max_bytes: MaxBytes = None,
    as_json: Json = False,
) -> None:
    """Download a corpus (or take a local copy), verify it and store it."""
    if name not in CORPORA:
        raise unknown_name("corpus", name, CORPORA)
    if source is not None:
        check_source(name, source)
    folder = fetch_corpus(name, source, Unpacking.of(max_bytes, progress=True))
    sizes = {split: len(text) for split, text in read_splits(name).items()}
    print_report({"corpus": name, "folder": str(folder), "bytes": sizes}, as_json=as_json)


@app.command()
def prepare(
    corpus: Corpus,
    vocab: Annotated[VocabKind, typer.Option(help="Type of token.")] = "bytes",
    vocab_size: Annotated[int | None, typer.Option(help="Number of pieces to train.")] = None,
    newlines: Annotated[bool, typer.Option(help="Keep line ends.")] = True,
    text_column: TextColumn = DataConfig().text_column,
    source: Source = None,
    max_bytes: MaxBytes = None,
    as_json: Json = False,
) -> None:
    """Tokenize a corpus; `train` does so itself if needed."""
    config = DataConfig(
        corpus=corpus,
        vocab=vocab,
        vocab_size=vocab_size,
        newlines=newlines,
        text_column=text_column,
    )
    if source is not None:
        check_source(corpus, source)
        if CORPORA[corpus].checksums and (folder := tokens_folder(config)).exists():
            again = f"--from {source} is not read; remove that folder to tokenize again"
            print_line(f"{corpus} is already tokenized in {folder}: {again}", err=True)
    print_report(_report(prepare_tokens(config, source, max_bytes=max_bytes)), as_json=as_json)


@app.command(short_help="Find the cut-offs of a cheap adaptive softmax.")
def cutoffs(
    corpus: Corpus,
    vocab: Annotated[VocabKind, typer.Option(help="Type of token.")] = "words",
    vocab_size: Annotated[int | None, typer.Option(help="Number of pieces to train.")] = None,
    clusters: Annotated[
        int, typer.Option(help="Number of clusters besides the head, and of cut-offs.")
    ] = CutoffConfig().clusters,
    dim: Annotated[int, typer.Option(help="Width of the model's vectors.")] = CutoffConfig().dim,
    shrink: Annotated[
        int, typer.Option(help="How many times narrower each cluster is than the one before.")
    ] = CutoffConfig().shrink,
    head: Annotated[
        int | None,
        typer.Option(help=f"Minimum words in the head; 1, or {NARROW_HEAD} with --shrink."),
    ] = None,
    align: Annotated[
        int, typer.Option(help="Make the sizes of head and clusters multiples of this.")
    ] = CutoffConfig().align,
    text_column: TextColumn = DataConfig().text_column,
    source: Source = None,
    as_json: Json = False,
) -> None:
    """Find the cut-offs of an adaptive softmax that need the fewest multiply-adds."""
    wanted = CutoffConfig(clusters=clusters, dim=dim, shrink=shrink, least_head=head, align=align)
    config = DataConfig(corpus=corpus, vocab=vocab, vocab_size=vocab_size, text_column=text_column)
    tokens = prepare_tokens(config, source)
    counts = count_ids(tokens.split("train").ids, tokens.vocab.size)
    started_at = time.perf_counter()
    found = optimal_cutoffs(counts, wanted)
    elapsed_s = time.perf_counter() - started_at
    edges = pairwise([0, *found.cutoffs, len(counts)])
    parts = {
        f"cluster {number}" if number else "head": {
            "words": high - low,
            "share_of_tokens": float(counts[low:high].sum() / counts.sum()),
        }
        for number, (low, high) in enumerate(edges)
    }
    report = {
        "cutoffs": list(found.cutoffs) if as_json else ",".join(map(str, found.cutoffs)),
        **parts,
        "multiply_adds": found.cost,
        "of_plain": found.cost / found.plain,
        "elapsed_s": elapsed_s,
    }
    print_report(report, as_json=as_json)


def _report(tokens: Tokens) -> dict[str, Any]:
    return {
        "folder": str(tokens.folder),
        "vocabulary": tokens.vocab.size,
        "tokens": {name: tokens.about(name)["tokens"] for name in SPLITS},
        "bytes": {name: tokens.about(name)["bytes"] for name in SPLITS},
    }

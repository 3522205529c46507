"""`sparing data`: corpora, fetched, verified, tokenised."""

import json
import time
from itertools import pairwise
from typing import Annotated, Any

import typer

from sparing.cli.options import Json, Source, show
from sparing.data.corpora import CORPORA
from sparing.data.cutoffs import NARROW_HEAD, CutoffConfig, frequencies, optimal
from sparing.data.splits import check_source, read_splits
from sparing.data.splits import get as get_corpus
from sparing.data.tokens import DataConfig, Tokens, place
from sparing.data.tokens import prepare as prepare_tokens
from sparing.data.vocab import Kind
from sparing.errors import unknown

app = typer.Typer(help="Corpora: list, get, prepare; cutoffs of a softmax.", no_args_is_help=True)


@app.command("list")
def list_corpora(as_json: Json = False) -> None:
    """The corpora this program knows."""
    known = {name: corpus.description for name, corpus in CORPORA.items()}
    if as_json:
        typer.echo(json.dumps(known))
    else:
        show(known, as_json=False)


@app.command()
def get(
    name: Annotated[str, typer.Argument(metavar="CORPUS", help="See `sparing data list`.")],
    source: Source = None,
    as_json: Json = False,
) -> None:
    """Fetch a corpus (or take a local copy), verify it, keep it."""
    if name not in CORPORA:
        raise unknown("corpus", name, CORPORA)
    if source is not None:
        check_source(name, source)
    folder = get_corpus(name, source)
    sizes = {split: len(text) for split, text in read_splits(name).items()}
    show({"corpus": name, "folder": str(folder), "bytes": sizes}, as_json=as_json)


@app.command()
def prepare(
    corpus: Annotated[
        str, typer.Argument(metavar="CORPUS", help="A name, or a text file or folder of yours.")
    ],
    vocab: Annotated[Kind, typer.Option(help="What one token is.")] = "bytes",
    vocab_size: Annotated[int | None, typer.Option(help="How many pieces to learn.")] = None,
    newlines: Annotated[bool, typer.Option(help="Keep line ends.")] = True,
    source: Source = None,
    as_json: Json = False,
) -> None:
    """Tokenise a corpus once; `train` does it by itself where needed."""
    config = DataConfig(corpus=corpus, vocab=vocab, vocab_size=vocab_size, newlines=newlines)
    if source is not None:
        check_source(corpus, source)
        if CORPORA[corpus].checksums and (folder := place(config)).exists():
            again = f"--from {source} is not read; remove that folder to tokenise anew"
            typer.echo(f"{corpus} is tokenised already, in {folder}: {again}", err=True)
    show(_report(prepare_tokens(config, source)), as_json=as_json)


@app.command()
def cutoffs(
    corpus: Annotated[
        str, typer.Argument(metavar="CORPUS", help="A name, or a text file or folder of yours.")
    ],
    vocab: Annotated[Kind, typer.Option(help="What one token is.")] = "words",
    vocab_size: Annotated[int | None, typer.Option(help="How many pieces to learn.")] = None,
    clusters: Annotated[
        int, typer.Option(help="Rarer clusters beside the head: as many cut-offs.")
    ] = CutoffConfig().clusters,
    dim: Annotated[int, typer.Option(help="Width of the model's vectors.")] = CutoffConfig().dim,
    shrink: Annotated[
        int, typer.Option(help="How many times narrower each cluster is than the one before.")
    ] = CutoffConfig().shrink,
    head: Annotated[
        int | None,
        typer.Option(help=f"Least words in the head; 1, or {NARROW_HEAD} with --shrink."),
    ] = None,
    align: Annotated[
        int, typer.Option(help="Rows of head and clusters are a multiple of this.")
    ] = CutoffConfig().align,
    source: Source = None,
    as_json: Json = False,
) -> None:
    """Where to cut a vocabulary, in the order of its ids, for a softmax that multiplies least."""
    wanted = CutoffConfig(clusters=clusters, dim=dim, shrink=shrink, least_head=head, align=align)
    tokens = prepare_tokens(DataConfig(corpus=corpus, vocab=vocab, vocab_size=vocab_size), source)
    counts = frequencies(tokens.split("train").ids, tokens.vocab.size)
    started_at = time.perf_counter()
    found = optimal(counts, wanted)
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
    show(report, as_json=as_json)


def _report(tokens: Tokens) -> dict[str, Any]:
    splits = {name: tokens.split(name) for name in ("train", "valid", "test")}
    return {
        "folder": str(tokens.folder),
        "vocabulary": tokens.vocab.size,
        "tokens": {name: int(split.ids.size) for name, split in splits.items()},
        "bytes": {name: split.size_bytes for name, split in splits.items()},
    }

"""Released checkpoints: a file of the published layout becomes a run, anything else is refused."""

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import pytest
import torch
from torch import Tensor

from sparing.data.splits import read_splits
from sparing.data.tokens import split_from_text
from sparing.device import Hardware
from sparing.errors import UserError
from sparing.evaluation.loss import evaluate_streams
from sparing.generate.decode import GenerationConfig
from sparing.generate.text import complete
from sparing.models.adaptive_span.model import AdaptiveSpanTransformer
from sparing.runs.folder import RunFolder, load_model, open_run
from sparing.runs.released.adaptive_span import import_adaptive_span
from sparing.runs.released.alphabets import ENWIK8, ENWIK8_BY_FREQUENCY_IN_TRAIN, TEXT8

CPU = Hardware(torch.device("cpu"), "float32")
DIM, HEADS, LIMIT, DEPTH, WIDE = 8, 2, 96, 2, 12
Write = Callable[..., Path]


def layer(persistent: int) -> dict[str, Tensor]:
    weights = {
        "attn.attn.adaptive_span._mask.current_val": torch.rand(HEADS, 1, 1) / 8,
        "attn.attn.adaptive_span._mask.mask_template": torch.linspace(1 - LIMIT, 0, LIMIT),
        **{f"attn.proj_{n}.weight": torch.randn(DIM, DIM) for n in ("query", "key", "val", "out")},
        "norm1.weight": torch.ones(DIM),
        "norm1.bias": torch.zeros(DIM),
    }
    if persistent:
        memory = "attn.attn.persistent_memory."
        twice = "attn.attn.adaptive_span._mask."
        return weights | {
            memory + "key": torch.randn(HEADS, DIM // HEADS, persistent),
            memory + "val": torch.randn(HEADS, persistent, DIM // HEADS),
            memory + "adaptive_span._mask.current_val": weights[twice + "current_val"],
            memory + "adaptive_span._mask.mask_template": weights[twice + "mask_template"],
        }
    return weights | {
        "norm2.weight": torch.ones(DIM),
        "norm2.bias": torch.zeros(DIM),
        "ff.fc1.weight": torch.randn(WIDE, DIM),
        "ff.fc1.bias": torch.randn(WIDE),
        "ff.fc2.weight": torch.randn(DIM, WIDE),
        "ff.fc2.bias": torch.randn(DIM),
    }


def published(vocab_size: int = 205, persistent: int = 0) -> dict[str, Any]:
    """What the original saves, at a tiny size."""
    torch.manual_seed(0)
    model = {
        "key_pe": torch.randn(1, DIM // HEADS, LIMIT),
        "in_emb.weight": torch.randn(vocab_size, DIM),
        "out_emb.weight": torch.randn(vocab_size, DIM),
        "out_emb.bias": torch.randn(vocab_size),
    }
    for number in range(DEPTH):
        model |= {f"layers.{number}.{name}": x for name, x in layer(persistent).items()}
    return {
        "iter_no": 600,
        "model": {f"module.{name}": tensor for name, tensor in model.items()},
        "logger": {"loss_train": [1.5, 1.25], "iter_no": 600},
        "optimizer": {"state": {0: {"sum": torch.ones(3)}}, "param_groups": [{"lr": 0.07}]},
        "scheduler_iter": 600_000,
    }


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(data: Any, *, legacy: bool = True) -> Path:
        path = tmp_path / "released.pt"
        torch.save(data, path, _use_new_zipfile_serialization=not legacy)
        return path

    return to_file


def imported(file: Path, out: Path) -> tuple[RunFolder, AdaptiveSpanTransformer]:
    import_adaptive_span(file, out, {"commit": None})
    folder = open_run(out)
    model = load_model(folder, CPU)
    assert isinstance(model, AdaptiveSpanTransformer)
    return folder, model


@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize("persistent", [0, 5])
def test_a_file_of_the_published_layout_becomes_a_run(
    write: Write, tmp_path: Path, legacy: bool, persistent: int
) -> None:
    data = published(persistent=persistent)
    folder, model = imported(write(data, legacy=legacy), tmp_path / "run")
    c, theirs = model.config, data["model"]
    sizes = (c.vocab_size, c.dim, c.depth, c.heads, c.span_limit, c.persistent)
    assert sizes == (205, DIM, DEPTH, HEADS, LIMIT, persistent)
    assert persistent or c.ff_dim == WIDE
    torch.testing.assert_close(model.position.detach(), theirs["module.key_pe"][0])
    torch.testing.assert_close(
        model.blocks[1].span.ratio.detach(),
        theirs["module.layers.1.attn.attn.adaptive_span._mask.current_val"].flatten(),
    )
    assert folder.vocab().to_json()["symbols"] == list(ENWIK8)
    assert folder.read("provenance")["imported"] == "released.pt"


def test_the_run_evaluates_and_generates(write: Write, tmp_path: Path) -> None:
    folder, model = imported(write(published()), tmp_path / "run")
    split = split_from_text(b"<mediawiki>\n  <page>\n    <title>AaA</title>\n", folder.vocab())
    result = evaluate_streams(model, split, CPU, batch=1, segment=16)
    assert result.tokens == 44
    assert 0 < result.bits_per_byte < 100
    (written,) = complete(model, folder.vocab(), [b"<page>"], GenerationConfig(length=9), CPU)
    assert written.tokens == 9


def test_text8_keeps_its_end_of_line_behind_our_own_ids(write: Write, tmp_path: Path) -> None:
    data = published(vocab_size=28)
    folder, model = imported(write(data), tmp_path / "run")
    assert folder.config().recipe == "text8_adaptive_span"
    vocab, table = folder.vocab(), data["model"]["module.in_emb.weight"]
    for symbol, row in ((b"a", 0), (b"m", 7), (b" ", 8), (b"x", 26), (b"\n", 27)):
        (id_,) = vocab.encode(symbol)
        torch.testing.assert_close(model.embedding.weight[id_].detach(), table[row])
        assert model.head.bias[id_] == data["model"]["module.out_emb.bias"][row]
    assert vocab.to_json()["symbols"] == list(b" " + TEXT8.replace(b" ", b"") + b"\n")


@pytest.mark.soak
@pytest.mark.parametrize("corpus", ["enwik8", "text8-prefix"])
def test_the_alphabets_are_those_of_the_corpora(corpus: str) -> None:
    shared = Path(__file__).parents[3] / ".." / "shared" / "data"
    folder = Path(os.environ.get("SPARING_DATA", shared))
    if not folder.is_dir():
        pytest.skip("no local corpora; set SPARING_DATA")
    try:
        text = bytes(read_splits(corpus, folder)["train"])
    except UserError as problem:
        pytest.skip(str(problem))
    first = sorted(set(text[:90_000_000]), key=text.find)
    expected = ENWIK8 if corpus == "enwik8" else b" " + TEXT8.replace(b" ", b"")
    assert bytes(first) == expected
    if corpus == "enwik8":
        # Ties stay in the order of first appearance.
        assert bytes(sorted(first, key=text.count, reverse=True)) == ENWIK8_BY_FREQUENCY_IN_TRAIN
    else:
        assert bytes(sorted(set(text), key=text.strip().find)) == TEXT8


def refusal(file: Path, out: Path) -> str:
    with pytest.raises(UserError) as caught:
        import_adaptive_span(file, out, {})
    assert "\n" not in str(caught.value)
    assert not (out / "config.json").exists()
    assert not (out / "checkpoints").exists()
    return str(caught.value)


class Bomb:
    """Runs a command when it is unpickled by somebody careless."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("legacy", [True, False])
def test_a_hostile_file_is_refused_and_not_run(write: Write, tmp_path: Path, legacy: bool) -> None:
    data = {**published(), "logger": Bomb(tmp_path / "exploded")}
    assert "cannot be read safely" in refusal(write(data, legacy=legacy), tmp_path / "run")
    assert not (tmp_path / "exploded").exists()


def test_files_of_other_kinds_are_refused(write: Write, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert "is missing" in refusal(tmp_path / "nowhere.pt", out)
    assert "is a folder, not a file" in refusal(tmp_path, out)
    os.mkfifo(tmp_path / "pipe")
    assert "is a named pipe, not a file" in refusal(tmp_path / "pipe", out)
    text = tmp_path / "text.pt"
    text.write_text("not a checkpoint")
    assert "cannot be read safely" in refusal(text, out)
    text.write_bytes(b"")
    assert "cannot be read safely" in refusal(text, out)
    whole = write(published()).read_bytes()
    for length in (10, len(whole) // 2, len(whole) - 3):
        text.write_bytes(whole[:length])
        assert "cannot be read safely" in refusal(text, out)
    assert "holds a list" in refusal(write([1, 2]), out)
    assert "has no `model`" in refusal(write({"weights": {}}), out)
    assert "tensors by name" in refusal(write({"model": {"a": 3}}), out)
    assert "has no in_emb.weight" in refusal(write({"model": {"a": torch.ones(2)}}), out)


@pytest.mark.parametrize(
    ("name", "tensor", "complaint"),
    [
        ("key_pe", torch.randn(4, 96), "2 axes"),
        ("key_pe", torch.full((1, 4, 96), float("nan")), "not finite"),
        ("key_pe", torch.ones(1, 4, 96, dtype=torch.long), "plain numbers"),
        ("key_pe", torch.ones(1, 4, 96, device="meta"), "plain numbers"),
        ("key_pe", torch.ones(1, 4, 96).to(torch.float8_e5m2), "plain "),
        ("key_pe", torch.randn(1, 3, 96), "do not make a width"),
        ("in_emb.weight", torch.randn(99, DIM), "99 symbols; known are enwik8 with 205"),
        ("out_emb.bias", torch.randn(7), "head.bias is"),
        ("layers.1.ff.fc1.weight", torch.randn(3, DIM), "feed.0.weight is"),
        ("layers.9.norm1.bias", torch.randn(DIM), "layers are missing"),
        ("layers.1.nonsense", torch.randn(DIM), "unknown to Adaptive Span"),
        ("layers.1.ff.fc1.bias", None, "feed.0.bias is missing"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    write: Write, tmp_path: Path, name: str, tensor: Tensor | None, complaint: str
) -> None:
    data = published()
    data["model"][f"module.{name}"] = tensor
    if tensor is None:
        del data["model"][f"module.{name}"]
    assert complaint in refusal(write(data), tmp_path / "run")


def test_a_file_that_unpacks_beyond_the_limit_is_refused(write: Write, tmp_path: Path) -> None:
    file, packed = write(published(), legacy=False), tmp_path / "packed.pt"
    with zipfile.ZipFile(file) as stored, zipfile.ZipFile(packed, "w") as smaller:
        for member in stored.infolist():
            content = bytes(50_000) if "/data/" in member.filename else stored.read(member)
            smaller.writestr(member.filename, content, zipfile.ZIP_DEFLATED)
    repeated = published()
    repeated["model"]["module.in_emb.weight"] = torch.zeros(()).expand(205, 1 << 20)
    for bomb in (packed, write(repeated)):
        assert bomb.stat().st_size < 300_000
        with pytest.raises(UserError, match=r"above the limit of .*; allow more with --max-bytes"):
            import_adaptive_span(bomb, tmp_path / "run", {}, max_bytes=600_000)
    assert not (tmp_path / "run").exists()


def test_the_librarys_warnings_are_not_shown(write: Write, tmp_path: Path) -> None:
    data = published()
    with catch_warnings(action="ignore"):
        data["model"]["module.key_pe"] = torch.eye(3).to_sparse_csr()
    file = write(data)
    assert "not a tensor of plain numbers" in refusal(file, tmp_path / "run")


def test_a_run_is_not_overwritten(write: Write, tmp_path: Path) -> None:
    file = write(published())
    imported(file, tmp_path / "run")
    with pytest.raises(UserError, match="already holds a run"):
        import_adaptive_span(file, tmp_path / "run", {})

"""Files of many texts: JSON lines and Parquet, compressed or not."""

import gzip
import io
import json
import lzma
import subprocess
import sys
import tarfile
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.data.conftest import zip_of
from tests.data.test_archives import mutated

from sparing.data import records
from sparing.data.local import read_path
from sparing.data.textfile import Unpacking
from sparing.data.tokens import DataConfig, prepare, tokens_folder
from sparing.errors import UserError

TEXTS = ["first, with ümlauts and 😀", "", "second\nin two lines\n", "third " * 30]
JOINED = "".join(text.removesuffix("\n") + "\n" for text in TEXTS if text).encode()


def jsonl_of(texts: list[Any], field: str = "text") -> bytes:
    lines = (json.dumps({"id": at, field: text}) for at, text in enumerate(texts))
    return "\n".join(lines).encode()


def parquet_of(texts: Any, column: str = "text", **how: Any) -> bytes:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    buffer = io.BytesIO()
    table = arrow.table({"id": list(range(len(texts))), column: texts})
    parquet.write_table(table, buffer, **how)
    return buffer.getvalue()


def zstd_of(data: bytes) -> bytes:
    packed: bytes = pytest.importorskip("zstandard").compress(data)
    return packed


def tar_of(name: str, data: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        # Something before it, so that it does not start at the beginning of the archive.
        for each, content in (("a.txt", b"plain\n"), (name, data)):
            member = tarfile.TarInfo(each)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def read(path: Path, data: bytes, column: str = "text") -> bytes:
    path.write_bytes(data)
    return bytes(read_path(path, Unpacking.of(text_column=column)))


@pytest.mark.parametrize(
    ("name", "pack"),
    [("x.jsonl", bytes), ("x.JSONL.gz", gzip.compress), ("x.jsonl.xz", lzma.compress),
     ("x.jsonl.zst", zstd_of), ("x.ndjson.zst", zstd_of)],
)  # fmt: skip
def test_the_texts_of_json_lines_are_joined(tmp_path: Path, name: str, pack: Any) -> None:
    assert read(tmp_path / name, pack(jsonl_of(TEXTS))) == JOINED


@pytest.mark.parametrize("name", ["x.parquet", "named-like-nothing"])
def test_the_texts_of_a_parquet_file_are_joined(tmp_path: Path, name: str) -> None:
    assert read(tmp_path / name, parquet_of(TEXTS)) == JOINED
    assert read(tmp_path / name, parquet_of(TEXTS, row_group_size=2, compression="zstd")) == JOINED


@pytest.mark.parametrize("kind", ["large_string", "string_view", "dictionary"])
def test_every_type_of_string_is_a_text(tmp_path: Path, kind: str) -> None:
    arrow = pytest.importorskip("pyarrow")
    plain = arrow.array(TEXTS * 50)
    column = (
        plain.dictionary_encode() if kind == "dictionary" else plain.cast(getattr(arrow, kind)())
    )
    assert read(tmp_path / "x.parquet", parquet_of(column)) == JOINED * 50


def test_the_column_can_be_chosen(tmp_path: Path) -> None:
    assert read(tmp_path / "x.jsonl", jsonl_of(TEXTS, "body"), "body") == JOINED
    assert read(tmp_path / "x.parquet", parquet_of(TEXTS, "a.b"), "a.b") == JOINED
    # JSON by another name is a text like any other.
    plain = jsonl_of(TEXTS)
    assert read(tmp_path / "x.json", plain) == plain


def test_another_column_is_tokenized_anew_and_the_usual_one_is_found_again(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"one {n}", "title": f"two {n}"}) for n in range(99)]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    usual = DataConfig(corpus=str(tmp_path / "x.jsonl"))
    other = DataConfig(corpus=usual.corpus, text_column="title")
    for config, word in ((usual, b"one"), (other, b"two")):
        assert bytes(prepare(config).split("train").ids[:3]) == word
        assert tokens_folder(config).exists()


def test_records_in_folders_and_archives_are_read(tmp_path: Path) -> None:
    packed, folder = tmp_path / "packed", tmp_path / "folder"
    files = {"a.txt": b"plain\n", "b.jsonl": jsonl_of(TEXTS), "c.parquet": parquet_of(TEXTS)}
    assert read(packed, zip_of(files)) == b"plain\n" + JOINED + JOINED
    assert read(packed, tar_of("b.jsonl", files["b.jsonl"])) == b"plain\n" + JOINED
    assert read(packed, zstd_of(tar_of("c.parquet", files["c.parquet"]))) == b"plain\n" + JOINED
    folder.mkdir()
    for name, data in (files | {"b.jsonl.zst": zstd_of(files["b.jsonl"])}).items():
        (folder / name).write_bytes(data)
    assert bytes(read_path(folder)) == b"plain\n" + JOINED * 3


def test_a_byte_order_mark_and_empty_lines_are_passed_over(tmp_path: Path) -> None:
    lines = jsonl_of(TEXTS).replace(b"\n", b"\r\n\r\n")
    assert read(tmp_path / "x.jsonl", b"\xef\xbb\xbf" + lines + b"\n\n") == JOINED


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"text", r"it is not JSON \(Expecting value, column 1\)"),
        (b'{"text": "a"', "it is not JSON"),
        (b'{"text": "\xff"}', r"it is not UTF-8 \(byte 0xff at offset 10 of the line\)"),
        (b'["text"]', "it must be a JSON object, not "),
        (b'{"txt": "a"}', "there is no field 'text'; did you mean 'txt'?"),
        (b"{}", "there is no field 'text'; it has none"),
        (b'{"text": null}', "'text' must be a string, not None"),
        (b'{"text": 7}', "'text' must be a string, not 7"),
        (b'{"text": "\\ud800"}', "'text' holds half of a surrogate pair"),
        (b'{"text": "a", "n": ' + b"9" * 5000 + b"}", "too long a number"),
        (b"[" * 100_000, "too deep"),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: bytes, reason: str) -> None:
    with pytest.raises(UserError, match=rf"x\.jsonl, line 5: .*{reason}") as refused:
        read(tmp_path / "x.jsonl", jsonl_of(TEXTS) + b"\n" + line)
    assert "\n" not in str(refused.value)


def test_a_line_that_is_too_long_for_memory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MAX_LINE_BYTES", 400)
    with pytest.raises(UserError, match=r"x\.jsonl, line 2: it is longer than 400 bytes"):
        read(tmp_path / "x.jsonl", jsonl_of(["short", "long" * 100]))


def test_a_column_without_text_is_refused_and_the_row_named(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    broken = arrow.array([b"good", b"\xff"], arrow.binary()).view(arrow.string())
    for column, name, reason in (
        (TEXTS, "txt", r"x\.parquet: there is no column 'text'; did you mean 'txt'\?"),
        ([1, 2], "text", r"x\.parquet: column 'text' must hold strings, not int64"),
        ([["a"], ["b"]], "text", "column 'text' must hold strings, not list<"),
        ([b"a", b"b"], "text", "column 'text' must hold strings, not binary"),
        (["a", None], "text", r"x\.parquet, row 2: 'text' must be a string, not None"),
        (broken, "text", r"x\.parquet, row 2: it is not UTF-8"),
    ):
        with pytest.raises(UserError, match=reason) as refused:
            read(tmp_path / "x.parquet", parquet_of(column, name))
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("keep", [3, 100, -9])
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, keep: int) -> None:
    data = parquet_of(TEXTS)
    for name, whole, reason in (
        ("x.parquet", data, "x.parquet is a damaged Parquet file"),
        (
            "x.jsonl.zst",
            zstd_of(jsonl_of(TEXTS * 9)),
            "x.jsonl.zst(, line 1| is a damaged archive)",
        ),
    ):
        with pytest.raises(UserError, match=reason) as refused:
            read(tmp_path / name, whole[:keep])
        assert "\n" not in str(refused.value)


def test_a_parquet_file_with_other_bytes_inside_is_refused(tmp_path: Path) -> None:
    data = parquet_of(TEXTS, write_page_checksum=True, use_dictionary=False, compression="none")
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    changed = data[:footer] + b"\xff" * 8 + data[footer + 8 :]
    renamed = parquet_of(TEXTS, "texts", store_schema=False).replace(b"texts", b"text\xff")
    for damaged in (changed, data.replace(b"first", b"worst"), renamed):
        with pytest.raises(UserError, match="damaged Parquet file") as refused:
            read(tmp_path / "x.parquet", damaged)
        assert "\n" not in str(refused.value)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_mutated_records_are_read_or_refused(tmp_path: Path, seed: int) -> None:
    random, texts = Random(seed), TEXTS * 20
    plain = parquet_of(texts, compression="zstd", use_dictionary=False)
    sources = [("x.parquet", parquet_of(texts)), ("x.parquet", plain)]
    sources += [("x.jsonl", jsonl_of(texts)), ("x.jsonl.zst", zstd_of(jsonl_of(texts)))]
    refusals = []
    for _ in range(1000):
        name, data = random.choice(sources)
        try:
            read(tmp_path / name, mutated(data, random))
        except UserError as problem:
            refusals.append(str(problem))
    assert refusals
    assert not [line for line in refusals if "\n" in line]


@pytest.mark.parametrize(
    ("library", "name", "start", "wanted"),
    [
        ("pyarrow", "x.parquet", b"PAR1", "PyArrow"),
        ("zstandard", "x.jsonl.zst", b"\x28\xb5\x2f\xfd", "zstandard"),
    ],
)
def test_a_missing_library_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    library: str,
    name: str,
    start: bytes,
    wanted: str,
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UserError, match=rf"{name} needs {wanted}: pip install 'sparing\[data\]'"):
        read(tmp_path / name, start + bytes(99))


GROWTH = """
import sys
from pathlib import Path
from sparing.data.local import read_path
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
small, large = map(Path, sys.argv[1:])
read_path(small)
before = peak()
print(len(read_path(large)), peak() - before)
"""


@pytest.mark.parametrize("name", ["x.parquet", "x.jsonl.zst"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, name: str) -> None:
    pack = parquet_of if name.endswith("parquet") else lambda texts: zstd_of(jsonl_of(texts))
    small, large = tmp_path / f"small-{name}", tmp_path / f"large-{name}"
    small.write_bytes(pack(["one text of several"] * 100))
    # One row group, as large as writers make them by default.
    large.write_bytes(pack([f"{n} " * 400 for n in range(40_000)]))
    said = subprocess.run(
        [sys.executable, "-c", GROWTH, small, large], capture_output=True, text=True, check=True
    )
    size_bytes, growth_kb = map(int, said.stdout.split())
    assert size_bytes > 90_000_000
    assert growth_kb < 45_000

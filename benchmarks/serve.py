"""The server under load: `python benchmarks/serve.py together|same|load`; one JSON object.

Everything runs here and talks over loopback only. `together`: 16 streams at once against the same
16 after each other, with the package's model. `same`: texts and log-probabilities of that model
alone and among 15 others. `load`: many clients for a while against a tiny model; each asks for a
text that only its own prompt has, and compares.
"""

import argparse
import asyncio
import http.client
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

STREAMS, LENGTH = 16, 64
PROMPT = "  <page>\n    <title>{}</title>\n    <revision>\n      <text xml:space=\"preserve\">'''"
TITLES = [f"Article {number}" for number in range(STREAMS)]


@contextmanager
def serving(*words: str) -> Iterator[tuple[int, int]]:
    """A server process: its port and its number."""
    command = [sys.executable, "-m", "sparing", "serve", *words, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield int(line.rsplit(":", 1)[1]), process.pid
        finally:
            process.terminate()


def post(port: int, **fields: Any) -> tuple[int, Any]:
    """Status and JSON of a completion."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=300)) as connection:
        body, headers = json.dumps(fields), {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def at_once(port: int, requests: Sequence[dict[str, Any]]) -> list[Any]:
    """The answers to requests that are sent together."""
    found: list[Any] = [None] * len(requests)

    def ask(index: int) -> None:
        found[index] = post(port, **requests[index])[1]["choices"][0]

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def asked(length: int = LENGTH, **more: Any) -> list[dict[str, Any]]:
    """One request for each title."""
    return [
        {"prompt": PROMPT.format(title), "max_tokens": length, "seed": seed, **more}
        for seed, title in enumerate(TITLES)
    ]


def cpu_s(pid: int) -> float:
    """CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def together() -> dict[str, Any]:
    """Bytes per second of 16 streams after each other, and at once; the better of two rounds."""
    with serving() as (port, pid):
        at_once(port, asked(8))
        alone, joint = list[tuple[float, float]](), list[tuple[float, float]]()
        for _ in range(2):
            for found, ask in ((alone, False), (joint, True)):
                began, cpu = time.perf_counter(), cpu_s(pid)
                if ask:
                    at_once(port, asked())
                else:
                    for request in asked():
                        post(port, **request)
                found.append((time.perf_counter() - began, cpu_s(pid) - cpu))
    size = STREAMS * LENGTH
    wall = [min(each)[0] for each in (alone, joint)]
    cpu = [min(spent for _, spent in each) for each in (alone, joint)]
    return {
        "bytes": size,
        "after_each_other_bytes_per_s": size / wall[0],
        "together_bytes_per_s": size / wall[1],
        "ratio": wall[0] / wall[1],
        "cpu_time_ratio": cpu[0] / cpu[1],
        "together_cpu_s_per_byte": cpu[1] / size,
        "generate_cpu_s_per_byte": generate_cpu_s(),
    }


def generate_cpu_s() -> float:
    """CPU time of a byte with `LM.generate`, one text at a time, for comparison."""
    import sparing

    lm = sparing.load()
    lm.generate("warm", length=8)
    began = time.process_time()
    for request in asked()[:4]:
        lm.generate(request["prompt"], length=LENGTH, seed=request["seed"])
    return (time.process_time() - began) / (4 * LENGTH)


def same() -> dict[str, Any]:
    """How many texts, and log-probabilities, are equal alone and among 15 others."""
    requests = asked(100, logprobs=3)
    # Of all lengths, so that lanes of different ages are computed together.
    for index, request in enumerate(requests):
        request["prompt"] = ("x" * 11 * index * index)[:2000] + request["prompt"]
    with serving("--prompt-tokens", "16384") as (port, _):
        alone = [post(port, **request)[1]["choices"][0] for request in requests]
        joint = at_once(port, requests)
    pairs = list(zip(alone, joint, strict=True))
    return {
        "texts": len(pairs),
        "tokens": 100 * len(pairs),
        "equal_texts": sum(a["text"] == b["text"] for a, b in pairs),
        "bitwise_equal_logprobs": sum(a["logprobs"] == b["logprobs"] for a, b in pairs),
    }


def load(clients: int, duration_s: float) -> dict[str, Any]:
    """Clients that ask one request after the other."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", "quickstart", "--out", f"{folder}/tiny", "--quiet"]
        text = Path(folder, "text.txt")
        text.write_text("".join(f"line {n} of a text, {n * n}\n" for n in range(4000)))
        small = ["model.dim=16", "model.boom_dim=32", "model.memory=64", "train.steps=20"]
        small += ["train.batch=4", "train.segment=16", "evaluate.batch=4", "evaluate.segment=32"]
        settings = [word for each in small for word in ("--set", each)]
        subprocess.run(
            [sys.executable, "-m", "sparing", *words, "--data", str(text), *settings], check=True
        )
        with serving(f"{folder}/tiny", "--queue", "128") as (port, pid):
            expected = {}
            for number in range(64):
                request = {"prompt": f"marker {number:04d}: ", "seed": number, "echo": True}
                request["max_tokens"] = 8 + number
                expected[number] = request, post(port, **request)[1]["choices"][0]["text"]
            return asyncio.run(_crowd(port, pid, expected, clients, duration_s))


async def _crowd(
    port: int, pid: int, expected: dict[int, Any], clients: int, duration_s: float
) -> dict[str, Any]:
    statuses, wrong, lost, waits = Counter[int](), [0], [0], list[float]()
    until = time.monotonic() + duration_s
    memory = list[int]()

    async def client(number: int) -> None:
        draw = random.Random(number)
        while time.monotonic() < until:
            request, text = expected[draw.randrange(len(expected))]
            began = time.monotonic()
            try:
                status, found = await _ask(port, request, stream=draw.random() < 0.5)
            except (OSError, EOFError, ValueError):
                lost[0] += 1
                continue
            statuses[status] += 1
            waits.append(time.monotonic() - began)
            if status == 200:
                wrong[0] += found != text
            else:
                await asyncio.sleep(0.2 + draw.random())

    async def watch() -> None:
        while time.monotonic() < until:
            await asyncio.sleep(duration_s / 12)
            memory.append(_rss_mib(pid))

    await asyncio.gather(watch(), *(client(number) for number in range(clients)))
    page = await asyncio.to_thread(_metrics, port)
    waits.sort()
    return {
        "clients": clients,
        "duration_s": duration_s,
        "statuses": dict(statuses),
        "lost": lost[0],
        "wrong_texts": wrong[0],
        "answers_per_s": statuses[200] / duration_s,
        "median_s": waits[len(waits) // 2],
        "p99_s": waits[len(waits) * 99 // 100],
        "memory_mib": memory,
        "failures": page["sparing_failures_total"],
        "lanes_busy_after": page["sparing_lanes_busy"],
        "queued_after": page["sparing_queued"],
    }


async def _ask(port: int, request: dict[str, Any], *, stream: bool) -> tuple[int, str]:
    """Status and text, over a connection of its own."""
    body = json.dumps({**request, "stream": stream}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    try:
        head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        found = await reader.read()
    finally:
        writer.close()
    head_found, _, content = found.partition(b"\r\n\r\n")
    status = int(head_found.split()[1])
    if not stream or status != 200:
        return status, json.loads(content)["choices"][0]["text"] if status == 200 else ""
    if b"data: [DONE]" not in content:
        raise EOFError("the stream ended early")
    lines = [line[6:] for line in content.split(b"\n") if line.startswith(b"data: {")]
    return status, "".join(json.loads(line)["choices"][0]["text"] for line in lines)


def _metrics(port: int) -> dict[str, float]:
    time.sleep(1)
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    lines = [line for line in text.splitlines() if line[0] != "#"]
    return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}


def _rss_mib(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() >> 20


def main() -> None:
    """Run one of the three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("together", "same", "load"))
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--duration", type=float, default=60.0)
    given = parser.parse_args()
    found = {
        "together": together,
        "same": same,
        "load": lambda: load(given.clients, given.duration),
    }[given.what]()
    print(json.dumps({"machine": platform.processor() or platform.machine(), **found}))


if __name__ == "__main__":
    main()

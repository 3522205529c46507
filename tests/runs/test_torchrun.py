"""`sparing train` under torchrun: kills, frozen processes, full disks, lost machines."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.training.workers import free_port

from sparing.runs.folder import RunFolder
from sparing.training.journal import read

SETTINGS = [
    "model.dim=16", "model.boom_dim=32", "model.memory=48", "train.batch=8", "train.segment=12",
    "train.randomised=true", "train.log_every=5", "train.checkpoint_every=10",
    "train.evaluate_bytes=400", "optim.name=adamw", "optim.lr=3e-3", "optim.eps=1e-4",
    "schedule.shape=constant",
]  # fmt: skip
SOURCE = Path(__file__).parents[2] / "src"


def words(out: Path, corpus: Path, steps: int, *more: str) -> list[str]:
    settings = [word for one in (*SETTINGS, f"train.steps={steps}") for word in ("--set", one)]
    start = ["train", "quickstart", "--data", str(corpus), "--out", str(out), *settings]
    return [*start, "--timeout", "20", "--quiet", *more]


def environment(tmp_path: Path) -> dict[str, str]:
    own = {"SPARING_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    return {**os.environ, "PYTHONPATH": str(SOURCE), **own}


def torchrun(tmp_path: Path, options: list[str], program: list[str]) -> "subprocess.Popen[bytes]":
    launcher = [sys.executable, "-m", "torch.distributed.run", *options, *program]
    with open(tmp_path / "said.txt", "ab") as said:
        return subprocess.Popen(launcher, env=environment(tmp_path), stderr=said, stdout=said)


def on_one_machine(processes: int, restarts: int = 0) -> list[str]:
    # Without a port of its own, two tests at a time would share one.
    options = ["--nproc-per-node", str(processes), "--max-restarts", str(restarts)]
    return [*options, "--master-port", str(free_port())]


def said(tmp_path: Path) -> str:
    return (tmp_path / "said.txt").read_text(errors="replace")


def ended(launcher: "subprocess.Popen[bytes]", tmp_path: Path) -> int:
    try:
        return launcher.wait(timeout=240)
    finally:
        launcher.kill()
        if launcher.returncode:
            sys.stderr.write(said(tmp_path))


def a_corpus(tmp_path: Path) -> Path:
    corpus = tmp_path / "text.txt"
    corpus.write_text("".join(f"{n} green bottles, {n * n} walls\n" for n in range(400)))
    return corpus


def alone(tmp_path: Path, corpus: Path, steps: int, *more: str) -> Path:
    out = tmp_path / "alone"
    command = [sys.executable, "-m", "sparing", *words(out, corpus, steps, *more)]
    subprocess.run(command, env=environment(tmp_path), check=True, capture_output=True)
    return out


def steps_done(out: Path) -> int:
    entries = read(out / "metrics.jsonl")
    return int(entries[-1]["step"]) if entries else 0


def wait_for(ready: Callable[[], bool], launcher: "subprocess.Popen[bytes]") -> bool:
    """Wait until `ready`; False if the launcher ended first."""
    while not ready():
        if launcher.poll() is not None:
            return False
        time.sleep(0.01)
    return True


def workers(launcher: "subprocess.Popen[bytes]") -> list[int]:
    listing = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
    found = [int(pid) for task in listing.parent.parent.glob("*/children") for pid in _pids(task)]
    return [pid for pid in found if b"sparing" in _read(Path(f"/proc/{pid}/cmdline"))]


def _pids(task: Path) -> list[str]:
    return _read(task).decode().split()


def _read(path: Path) -> bytes:
    """A file of a process that may have ended by now."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def figures(out: Path, kind: str) -> dict[int, float]:
    entries = read(out / "metrics.jsonl")
    return {e["step"]: e["nats_per_token"] for e in entries if e["kind"] == kind}


def same_figures(found: Path, wanted: Path) -> None:
    """Every loss of the journal, and the final one, to 1e-5."""
    for kind in ("train", "valid"):
        assert figures(found, kind) == pytest.approx(figures(wanted, kind), abs=1e-5)


def events(out: Path) -> list[str]:
    return [e["what"] for e in read(out / "metrics.jsonl") if e["kind"] == "event"]


def kill_ranks(tmp_path: Path, *, kills: int, processes: int, steps: int, seed: int) -> None:
    """Kill one rank after the other, each after some more steps; the end must be the same."""
    moments, corpus, out = random.Random(seed), a_corpus(tmp_path), tmp_path / "run"
    wanted = alone(tmp_path, corpus, steps)
    program = ["-m", "sparing", *words(out, corpus, steps)]
    launcher, killed = torchrun(tmp_path, on_one_machine(processes, kills), program), 0
    for number in range(1, kills + 1):
        goal = number * steps // (kills + 2)
        if not wait_for(lambda goal=goal: steps_done(out) >= goal, launcher):  # type: ignore[misc]
            break
        time.sleep(moments.uniform(0, 0.1))
        # The journal may be ahead of the processes that are being restarted.
        if not wait_for(lambda: len(workers(launcher)) == processes, launcher):
            break
        os.kill(moments.choice(workers(launcher)), signal.SIGKILL)
        killed += 1
        # torchrun may report first that the other rank, which ends at once, has failed.
        wait_for(
            lambda number=number: said(tmp_path).count("failed (exitcode") >= number,  # type: ignore[misc]
            launcher,
        )
    assert ended(launcher, tmp_path) == 0
    assert killed == kills
    same_figures(out, wanted)
    assert len(events(out)) == kills
    assert all("restarted by torchrun" in what for what in events(out))


def test_a_killed_rank_does_not_change_the_losses(tmp_path: Path) -> None:
    kill_ranks(tmp_path, kills=1, processes=2, steps=240, seed=1)


@pytest.mark.soak
def test_ten_killed_ranks_do_not_change_the_losses(tmp_path: Path) -> None:
    kill_ranks(tmp_path, kills=10, processes=2, steps=1200, seed=2)


def test_a_signal_to_the_launcher_leaves_a_checkpoint(tmp_path: Path) -> None:
    corpus, out = a_corpus(tmp_path), tmp_path / "run"
    program = ["-m", "sparing", *words(out, corpus, 4000)]
    launcher = torchrun(tmp_path, on_one_machine(2), program)
    assert wait_for(lambda: steps_done(out) > 5, launcher), said(tmp_path)
    launcher.send_signal(signal.SIGTERM)
    launcher.wait(timeout=60)
    assert "stopped; to continue: sparing train --resume" in said(tmp_path)
    step = RunFolder(out).step("last")
    again = ["train", "--resume", "--out", str(out), "--set", f"train.steps={step + 5}", "--quiet"]
    command = [sys.executable, "-m", "sparing", *again]
    subprocess.run(command, env=environment(tmp_path), check=True, capture_output=True)
    same_figures(out, alone(tmp_path, corpus, step + 5))


@pytest.mark.soak
def test_ranks_save_and_end_when_their_launcher_is_killed(tmp_path: Path) -> None:
    corpus, out = a_corpus(tmp_path), tmp_path / "run"
    launcher = torchrun(tmp_path, on_one_machine(2), ["-m", "sparing", *words(out, corpus, 40000)])
    assert wait_for(lambda: steps_done(out) > 5, launcher), said(tmp_path)
    ranks = workers(launcher)
    launcher.kill()
    launcher.wait()
    while any(is_running(pid) for pid in ranks):
        time.sleep(0.1)
    step = RunFolder(out).step("last")
    assert "stopped; to continue: sparing train --resume" in said(tmp_path)
    again = ["train", "--resume", "--out", str(out), "--set", f"train.steps={step + 5}", "--quiet"]
    command = [sys.executable, "-m", "sparing", *again]
    subprocess.run(command, env=environment(tmp_path), check=True, capture_output=True)
    same_figures(out, alone(tmp_path, corpus, step + 5))


def is_running(pid: int) -> bool:
    """Whether a process has not ended; one that nobody has waited for yet has."""
    state = _read(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split()
    return bool(state) and state[0] != b"Z"


# The disk is full until the processes are restarted.
LIMITED = """
import os, resource, signal, sys
from sparing.cli.main import main
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.soak
def test_a_full_disk_is_reported_in_one_line_and_survived(tmp_path: Path) -> None:
    corpus, out, program = a_corpus(tmp_path), tmp_path / "run", tmp_path / "limited.py"
    program.write_text(LIMITED)
    wanted = alone(tmp_path, corpus, 20)
    options = on_one_machine(2, 1)
    launcher = torchrun(tmp_path, options, [str(program), *words(out, corpus, 20)])
    assert ended(launcher, tmp_path) == 0
    assert said(tmp_path).count("File too large") == 1
    same_figures(out, wanted)


@pytest.mark.parametrize("restarts", [0, pytest.param(20, marks=pytest.mark.soak)])
def test_a_batch_that_cannot_be_split_is_refused_and_not_tried_again(
    restarts: int, tmp_path: Path
) -> None:
    corpus, out = a_corpus(tmp_path), tmp_path / "run"
    program = ["-m", "sparing", *words(out, corpus, 20, "--set", "train.batch=7")]
    assert torchrun(tmp_path, on_one_machine(2, restarts), program).wait(timeout=240) == 1
    problem = "train.batch 7 must be a multiple of the 2 processes"
    found = [line for line in said(tmp_path).splitlines() if problem in line]
    lines = [line for line in found if line.startswith("sparing: ")]
    # torchrun may stop the slower process before it prints the message as well.
    assert 1 <= len(lines) <= 2
    assert set(lines) <= {f"sparing: {problem}", f"sparing: rank 1 of 2: {problem}"}
    # torchrun quotes it at its end, below its own reports of every restart.
    assert len(found) > len(lines)
    assert not out.exists()


@pytest.mark.soak
def test_a_frozen_rank_is_replaced(tmp_path: Path) -> None:
    corpus, out = a_corpus(tmp_path), tmp_path / "run"
    wanted = alone(tmp_path, corpus, 300)
    program = ["-m", "sparing", *words(out, corpus, 300, "--timeout", "3")]
    launcher = torchrun(tmp_path, on_one_machine(2, 1), program)
    assert wait_for(lambda: steps_done(out) > 20, launcher), said(tmp_path)
    os.kill(workers(launcher)[0], signal.SIGSTOP)
    assert ended(launcher, tmp_path) == 0
    assert said(tmp_path).count("lost another process (no answer in time)") == 1
    same_figures(out, wanted)


@dataclass(frozen=True)
class Host:
    """A machine: a network namespace of its own, or this machine itself."""

    address: str
    prefix: tuple[str, ...] = ()
    interface: str = "lo"


# Two hosts with one cable between them; holds them until its input ends.
CABLE = """
set -e
mount -t tmpfs tmpfs /run
for n in 1 2; do ip netns add host$n; ip -n host$n link set lo up; done
ip link add veth1 netns host1 type veth peer name veth2 netns host2
for n in 1 2; do
  ip -n host$n addr add 10.77.0.$n/24 dev veth$n
  ip -n host$n link set veth$n up
done
echo ready
cat
"""


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    """Network namespaces where they are allowed; else this machine, twice."""
    words = ["unshare", "-rnm", "sh", "-c", CABLE]
    try:
        holder = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except FileNotFoundError:
        yield Host("127.0.0.1"), Host("127.0.0.1")
        return
    with holder:
        if holder.stdout is None or holder.stdout.readline() != b"ready\n":
            yield Host("127.0.0.1"), Host("127.0.0.1")
            return
        enter = ["nsenter", "-t", str(holder.pid), "-U", "-n", "-m", "--preserve-credentials"]
        first, second = (
            Host(f"10.77.0.{n}", (*enter, "ip", "netns", "exec", f"host{n}"), f"veth{n}")
            for n in (1, 2)
        )
        yield first, second


@dataclass(frozen=True)
class Job:
    """An elastic job of one or two machines, whose addresses the first one keeps."""

    folder: Path
    program: list[str]
    hosts: tuple[Host, Host]
    port: int

    def start(self, number: int) -> "subprocess.Popen[bytes]":
        """torchrun on one of the machines."""
        host, is_host = self.hosts[number], int(number == 0)
        options = [
            "--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "9", "--rdzv-id", "a-job",
            "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{self.hosts[0].address}:{self.port}",
            "--rdzv-conf", f"is_host={is_host},last_call_timeout=1,join_timeout=120",
            "--local-addr", host.address,
        ]  # fmt: skip
        launcher = [sys.executable, "-m", "torch.distributed.run", *options, *self.program]
        own = {"GLOO_SOCKET_IFNAME": host.interface, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        with open(self.folder / "said.txt", "ab") as said:
            return subprocess.Popen(
                [*host.prefix, *launcher],
                env=environment(self.folder) | own,
                stderr=said,
                stdout=said,
            )


def kill_machine(launcher: "subprocess.Popen[bytes]") -> None:
    """Kill everything on a machine at once."""
    for pid in [launcher.pid, *workers(launcher)]:
        os.kill(pid, signal.SIGKILL)
    launcher.wait()


def processes_of(out: Path) -> list[int]:
    """How many processes each start of the run has had."""
    record = RunFolder(out).read("provenance")
    return [each["processes"] for each in [record, *record.get("resumed", [])]]


@pytest.mark.soak
def test_a_machine_is_lost_and_comes_back(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    corpus, out, steps = a_corpus(tmp_path), tmp_path / "run", 1200
    # Long steps at a low rate: at the edge of stability, training multiplies the differences of
    # rounding by ten every five steps, with or without a loss (seen at 1e-3 from step 650 on).
    long = ["--set", "train.segment=64", "--set", "model.dim=32", "--set", "optim.lr=1e-4"]
    job = Job(tmp_path, ["-m", "sparing", *words(out, corpus, steps, *long)], hosts, free_port())
    wanted = alone(tmp_path, corpus, steps, *long)
    first, second = job.start(0), job.start(1)
    assert wait_for(lambda: steps_done(out) >= 100, first), said(tmp_path)
    assert processes_of(out)[-1] == 2
    kill_machine(second)
    assert wait_for(lambda: processes_of(out)[-1] == 1, first), said(tmp_path)
    at = steps_done(out)
    assert wait_for(lambda: steps_done(out) >= at + 50, first), said(tmp_path)
    third = job.start(1)
    assert wait_for(lambda: processes_of(out)[-1] == 2, first), said(tmp_path)
    assert ended(first, tmp_path) == 0
    assert third.wait(timeout=60) == 0
    same_figures(out, wanted)

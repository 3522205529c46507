"""A request in an engine: once nobody waits for it, it is over for good."""

from tests.serve.conftest import write

from sparing.generate.text import Finish
from sparing.serve.job import Job
from sparing.serve.requests import Piece


def test_a_job_that_is_cancelled_while_it_sends_stays_cancelled() -> None:
    job = Job(write("a"), lambda event: None, 0.0)

    class Cancelling(Piece):
        """Asked whether it is the last, it lets another thread cancel the job."""

        @property
        def finish(self) -> Finish | None:
            job.over = True
            return None

    job.send(Cancelling("b", [], None, 1))
    assert job.over

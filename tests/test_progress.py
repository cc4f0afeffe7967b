"""The progress line."""

from __future__ import annotations

import io

from openeqa_lab.progress import Progress
from openeqa_lab.records import Answer, Failure, Record, Usage, Verdict
from openeqa_lab.testing import tiny_case


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def done(dollars: float | None) -> Record:
    return Record(
        tiny_case(), result=Answer("x", usage=Usage(1, dollars=dollars)), verdict=Verdict(1.0)
    )


def test_the_line_says_done_failed_dollars_rate_and_time_left() -> None:
    progress = Progress(total=4, done=1, stream=io.StringIO())
    progress.add(done(0.25), Usage(1, dollars=0.25))
    failed = Record(tiny_case(), result=Failure("answer", "timeout", "90 s"))
    progress.add(failed, Usage())
    line = progress.line()
    assert line.startswith("3/4 done, 1 failed, $0.25, ")
    assert line.endswith("left")
    assert progress.values() == {"done": 3, "failed": 1, "dollars": 0.25}


def test_calls_of_unknown_price_are_not_counted_as_free() -> None:
    progress = Progress(total=2, stream=io.StringIO())
    progress.add(done(None), Usage(1, dollars=None))
    progress.add(done(0.5), Usage(1, dollars=0.5))
    assert "$0.50 + unpriced calls" in progress.line()


def test_a_log_file_gets_whole_lines_and_few_of_them() -> None:
    stream = io.StringIO()
    progress = Progress(total=500, stream=stream)
    for _ in range(500):
        progress.add(done(0.0), Usage())
    progress.show(last=True)
    assert stream.getvalue().count("\n") == 1
    assert "\r" not in stream.getvalue()


def test_a_terminal_gets_one_line_that_is_rewritten() -> None:
    stream = Terminal()
    progress = Progress(total=2, stream=stream)
    progress.show()
    progress.show(last=True)
    assert stream.getvalue().count("\r") == 2
    assert stream.getvalue().count("\n") == 1


def test_a_run_with_nothing_left_says_so() -> None:
    assert Progress(total=3, done=3, stream=io.StringIO()).line().endswith("nothing left to do")

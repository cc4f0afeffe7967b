"""Processes for a decoder that is fast and holds the interpreter's lock.

Each is a fresh interpreter that loads what the preparation needs and nothing else, and speaks over
its standard input and output: no process with threads is forked, and nothing of the caller's
`__main__` is run again. It ends when it is told to, when its input ends, and soon after the caller
has ended in whatever way.
"""

from __future__ import annotations

import os
import pickle
import select
import struct
import subprocess
import sys
import threading
import traceback
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import IO, Any

from openeqa_lab.data.episode import Image, RawFrame
from openeqa_lab.errors import FrameError, OpenEQAError
from openeqa_lab.images.decoding import can_decode_fast, plain_png
from openeqa_lab.images.preparation import Preparation

_START = (
    "import sys; sys.path[:] = sys.argv[1:]; from openeqa_lab.images.workers import serve; serve()"
)
# A library's own threads would fight over the same cores, and each of them holds memory.
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "OPENCV_FOR_THREADS_NUM": "1",
}
_WORTH_PIXELS = 250_000  # a smaller picture is decoded about as soon as it is sent
_WORTH_FRAMES = 8  # starting a process costs as much as so many frames save
_MOST_PROCESSES = 4  # when the number is not given
_LENGTHS = struct.Struct(">IQ")  # of what is said of the bytes, and of the bytes
_END_S = 5.0  # in which a process that is told to end has to, in seconds
_LOOK_S = 10.0  # after which an idle process looks whether its caller lives, in seconds


class Workers:
    """Prepares frames, those that a fast decoder can take in processes; the bytes are the same.

    Large plain PNGs go to processes, if kornia-rs (the extra ``fast``) is installed, after the
    first few frames. All else is prepared where it is asked for: the other decoders let go of the
    interpreter's lock. Processes are started when a frame finds none idle; one that is killed is
    replaced, and its frame tried once more. They end with the object, with the interpreter, or
    when the caller dies.

    Args:
        prepare: What is done with a frame; it is pickled.
        processes: At most so many; None for one a core, up to four.
    """

    def __init__(self, prepare: Preparation, processes: int | None) -> None:
        self._prepare = prepare
        most = min(_cores(), _MOST_PROCESSES) if processes is None else processes
        self.processes = most if can_decode_fast() else 0
        self._free = threading.Semaphore(self.processes)
        self._idle: deque[_Worker] = deque()
        self._lock = threading.Lock()
        self._large = 0
        weakref.finalize(self, _end_all, self._idle, os.getpid())

    def __call__(self, raw: RawFrame) -> Image:
        """The picture of a frame; blocks its thread.

        Raises:
            FrameError: As the preparation raised it, or (kind ``worker_died``) two processes ended
                over this frame.
            OpenEQAError: A process cannot be started.
            RuntimeError: An unforeseen error in a process, with its traceback.
        """
        if not self._worth_a_process(raw):
            return self._prepare(raw)
        with self._free:
            for _ in range(2):
                try:
                    return self._elsewhere(raw)
                except _EndedError as error:
                    ending = str(error)
        raise FrameError(
            f"{raw.name}: two processes that were to prepare it ended, the second {ending}: leave "
            "more memory free, or set encoder.processes=0",
            kind="worker_died",
        )

    def _worth_a_process(self, raw: RawFrame) -> bool:
        if not self.processes or not isinstance(raw.content, bytes):
            return False
        height, width = plain_png(raw.content) or (0, 0)
        if height * width < _WORTH_PIXELS:
            return False
        with self._lock:
            self._large += 1
            return self._large > _WORTH_FRAMES

    def _elsewhere(self, raw: RawFrame) -> Image:
        try:
            worker = self._idle.pop()
        except IndexError:
            worker = _Worker(replace(self._prepare, fast=True))
        try:
            picture = worker.prepare(raw)
        except OpenEQAError:
            self._idle.append(worker)
            raise
        except BaseException:
            worker.end()
            raise
        self._idle.append(worker)
        return picture


class _EndedError(Exception):
    """A process has ended before its time; the message says how."""


class _Worker:
    """One process, and the caller's ends of its pipes."""

    def __init__(self, prepare: Preparation) -> None:
        try:
            # In a session of its own: Ctrl-C is the caller's to hear.
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-c", _START, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | _ONE_THREAD,
                start_new_session=True,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
        except (OSError, TypeError) as error:  # TypeError: an embedded Python has no executable
            raise OpenEQAError(_no_start(f"{sys.executable}: {error}")) from None
        assert self._process.stdin is not None  # noqa: S101
        assert self._process.stdout is not None  # noqa: S101
        self._input, self._output = self._process.stdin, self._process.stdout
        try:
            self._ask("at its start", prepare)
        except _EndedError as error:
            if self._process.returncode < 0:  # killed, as it may be at any other time
                raise
            raise OpenEQAError(_no_start(f"it ended {error}")) from None
        except RuntimeError:
            self.end()
            raise

    def prepare(self, raw: RawFrame) -> Image:
        """The picture of a frame."""
        assert isinstance(raw.content, bytes)  # noqa: S101
        said, data = self._ask(f"over {raw.name}", (raw.sha256, raw.name), raw.content)
        if isinstance(said, OpenEQAError):
            raise said
        return Image(data, *said)

    def _ask(self, when: str, words: object, data: bytes = b"") -> tuple[Any, bytes]:
        try:
            _send(self._input.fileno(), words, data)
            said, answer = _receive(self._output)
        except OSError:  # the pipe is broken
            raise _EndedError(self.end()) from None
        if isinstance(said, str):  # a traceback
            raise RuntimeError(f"A process that prepares frames failed {when}:\n{said}")  # noqa: TRY004
        return said, answer

    def tell_to_end(self) -> None:
        """Asks it to end, and closes its input; a second time does nothing."""
        if not self._input.closed:
            with suppress(OSError):  # it has ended
                _send(self._input.fileno(), None)
            self._input.close()

    def end(self) -> str:
        """Waits until the process has ended, or makes it; says how it did."""
        self.tell_to_end()
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._output.close()
        if code >= 0:
            return f"with exit code {code}"
        return f"by signal {-code}" + (" (killed, as when memory runs out)" * (code == -9))


def serve() -> None:
    """What a process does: prepares the frames that come in, until its input ends."""
    incoming, caller = sys.stdin.buffer, os.getppid()
    outgoing = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a library prints is no picture

    def report(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        with suppress(BrokenPipeError):  # nobody is left to tell
            _send(outgoing, "".join(traceback.format_exception(kind, error, trace)))

    sys.excepthook = report
    prepare, _ = _receive(incoming)
    _send(outgoing, None)
    while True:
        try:
            request, content = _next(incoming, caller)
        except BrokenPipeError:
            return
        if request is None:
            return
        digest, name = request
        data = b""
        try:
            picture = prepare(RawFrame(content, digest, name))
            said: object = (picture.media_type, picture.width, picture.height)
            data = picture.data
        except OpenEQAError as error:
            said = error
        try:
            _send(outgoing, said, data)
        except BrokenPipeError:
            return


def _next(incoming: IO[bytes], caller: int) -> tuple[Any, bytes]:
    """The next request; raises `BrokenPipeError` when there can be none.

    A fork of the caller may hold our input open after the caller died, so that is looked at, too.
    """
    if os.name == "posix":
        while not select.select([incoming], [], [], _LOOK_S)[0]:
            if os.getppid() != caller:
                raise BrokenPipeError
    return _receive(incoming)


def _send(pipe: int, said: object, data: bytes = b"") -> None:
    words = pickle.dumps(said)
    for part in (_LENGTHS.pack(len(words), len(data)) + words, data):
        view = memoryview(part)
        while view:
            view = view[os.write(pipe, view) :]


def _receive(pipe: IO[bytes]) -> tuple[Any, bytes]:
    """What `_send` sent; raises `BrokenPipeError` when the other side is gone."""
    words, data = _LENGTHS.unpack(_exactly(pipe, _LENGTHS.size))
    return pickle.loads(_exactly(pipe, words)), _exactly(pipe, data)  # noqa: S301 - our own


def _exactly(pipe: IO[bytes], length: int) -> bytes:
    data = pipe.read(length)
    if len(data) < length:
        raise BrokenPipeError
    return data


def _end_all(idle: deque[_Worker], owner: int) -> None:
    if os.getpid() != owner:  # a fork of the owner, whose processes these are not
        return
    for worker in idle:
        worker.tell_to_end()
    while idle:
        idle.pop().end()


def _cores() -> int:
    """The cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows
        return os.cpu_count() or 1


def _no_start(why: str) -> str:
    return f"a process that prepares frames could not start ({why}): set encoder.processes=0"

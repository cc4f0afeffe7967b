"""Prepares each frame once, however many questions ask for it at the same time."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from openeqa_lab.data.episode import Frame, FrameSource, Image, RawFrame, Stamped
from openeqa_lab.errors import FrameError
from openeqa_lab.images.store import FrameStore

_Key = tuple[FrameSource, int]  # the source itself: two roots may hold one path
_FRAMES_A_PASS = 64  # of a video, whose pixels are all held until its pass is over


@dataclass(eq=False, slots=True)
class _Pass:
    """One reading of a source: a frame that is a file of its own, or several of a video."""

    keys: tuple[_Key, ...]
    future: Future[Mapping[_Key, Image | FrameError]]
    waiting: int = 0


class PreparedOnce:
    """Frames prepared on threads, awaited by all who ask, the most recent ones kept.

    A question that is given up takes nothing from the others: what nobody waits for any more is
    dropped unless it has begun. A frame that failed is tried again when it is next asked for.
    Nothing is bound to an event loop. The threads end with the object or the process.

    Args:
        prepare: Turns a raw frame into a picture; called on the threads.
        cache_mb: Megabytes of pictures to keep.
        threads: How many threads there are.
        store: Where pictures are kept from run to run, None for nowhere.
    """

    def __init__(
        self,
        prepare: Callable[[RawFrame], Image],
        cache_mb: int,
        threads: int,
        store: FrameStore | None = None,
    ) -> None:
        self._prepare = prepare
        self._store = store
        self._most_bytes = cache_mb * 1_000_000
        self._bytes = 0
        self._kept: OrderedDict[_Key, Image] = OrderedDict()
        self._pending: dict[_Key, _Pass] = {}
        self._lock = threading.Lock()  # over all of the above but `_prepare`
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="frames")

    async def get(self, frames: Sequence[Frame]) -> tuple[Image, ...]:
        """The pictures of these frames.

        Raises:
            FrameError: As the source or the preparation raised it.
        """
        keys = [(frame.source, frame.index) for frame in frames]
        wanted = set(keys)
        found, passes = self._claim(frames)
        try:
            for begun in passes:
                for key, picture in (await _result(begun.future)).items():
                    if isinstance(picture, Image):
                        found[key] = picture
                    elif key in wanted:
                        # One of its own for each question: raising adds to an error's traceback.
                        raise FrameError(str(picture), kind=picture.kind)
        finally:
            self._release(passes)
        return tuple(found[key] for key in keys)

    def _claim(self, frames: Sequence[Frame]) -> tuple[dict[_Key, Image], list[_Pass]]:
        """What is there already, and the passes, old and new, that bring the rest."""
        found: dict[_Key, Image] = {}
        passes: dict[_Pass, None] = {}
        missing: dict[tuple[FrameSource, str], dict[_Key, Frame]] = {}
        with self._lock:
            for frame in frames:
                key = (frame.source, frame.index)
                if key in self._kept:
                    self._kept.move_to_end(key)
                    found[key] = self._kept[key]
                elif key in self._pending:
                    passes[self._pending[key]] = None
                else:
                    # Frames of one file (a video's are `name.mp4#12`) are read in one pass.
                    file = frame.path.partition("#")[0]
                    missing.setdefault((frame.source, file), {})[key] = frame
            for wanted in missing.values():
                for begun in self._begin(list(wanted.values())):
                    passes[begun] = None
            for begun in passes:
                begun.waiting += 1
        return found, list(passes)

    def _begin(self, frames: Sequence[Frame]) -> Iterator[_Pass]:
        source = frames[0].source
        indices = sorted(frame.index for frame in frames)
        for start in range(0, len(indices), _FRAMES_A_PASS):
            part = indices[start : start + _FRAMES_A_PASS]
            keys = tuple((source, index) for index in part)
            begun = _Pass(keys, self._pool.submit(self._run, source, part))
            self._pending.update(dict.fromkeys(keys, begun))
            yield begun

    def _release(self, passes: Sequence[_Pass]) -> None:
        with self._lock:
            for begun in passes:
                begun.waiting -= 1
                if begun.waiting == 0 and begun.future.cancel():
                    for key in begun.keys:
                        del self._pending[key]

    def _run(
        self, source: FrameSource, indices: Sequence[int]
    ) -> Mapping[_Key, Image | FrameError]:
        """Reads and prepares on a thread; an unforeseen error reaches all who wait as it is."""
        outcome: dict[_Key, Image | FrameError] = {}
        try:
            for index, picture in self._pictures(source, indices):
                outcome[source, index] = picture
        finally:
            with self._lock:
                for index in indices:
                    del self._pending[source, index]
                for key, picture in outcome.items():
                    if isinstance(picture, Image):
                        self._keep(key, picture)
        return outcome

    def _pictures(
        self, source: FrameSource, indices: Sequence[int]
    ) -> Iterator[tuple[int, Image | FrameError]]:
        """Each frame's picture, from the store where it is there, or why there is none."""
        missing: dict[int, str | None] = {}
        for index in indices:
            stamp = _stamp(source, index) if self._store else None
            stored = self._store.by_stamp(stamp) if self._store and stamp else None
            if stored is None:
                missing[index] = stamp
            else:
                _remember(source, index, stored[1])
                yield index, stored[0]
        for index, raw in _read(source, list(missing)) if missing else ():
            if isinstance(raw, FrameError):
                yield index, raw
                continue
            try:
                picture = self._picture(raw)
            except FrameError as error:
                yield index, error
                continue
            stamp = missing[index]
            if self._store and stamp and stamp == _stamp(source, index):
                self._store.note(stamp, raw)
            yield index, picture

    def _picture(self, raw: RawFrame) -> Image:
        if self._store is None:
            return self._prepare(raw)
        picture = self._store.by_content(raw)
        if picture is None:
            picture = self._prepare(raw)
            self._store.keep(raw, picture)
        return picture

    def _keep(self, key: _Key, picture: Image) -> None:
        self._kept[key] = picture
        self._bytes += len(picture.data)
        while self._bytes > self._most_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= len(oldest.data)


def _stamp(source: FrameSource, index: int) -> str | None:
    return source.stamp(index) if isinstance(source, Stamped) else None


def _remember(source: FrameSource, index: int, digest: str) -> None:
    if isinstance(source, Stamped):
        source.remember(index, digest)


def _read(
    source: FrameSource, indices: Sequence[int]
) -> Iterator[tuple[int, RawFrame | FrameError]]:
    """Each frame or why it cannot be read, narrowed down by halves when a pass fails."""
    try:
        frames = source.read(indices)
    except FrameError as error:
        if len(indices) == 1:
            yield indices[0], error
            return
        middle = len(indices) // 2
        yield from _read(source, indices[:middle])
        yield from _read(source, indices[middle:])
        return
    yield from zip(indices, frames, strict=True)


async def _result(
    future: Future[Mapping[_Key, Image | FrameError]],
) -> Mapping[_Key, Image | FrameError]:
    """Awaits a thread's future without ever cancelling it, as `asyncio.wrap_future` would."""
    if not future.done():
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        future.add_done_callback(partial(_wake, loop, waiter))
        await waiter
    return future.result()


def _wake(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None], _: object) -> None:
    try:
        loop.call_soon_threadsafe(_set, waiter)
    except RuntimeError:  # the loop is closed: nobody waits
        return


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)

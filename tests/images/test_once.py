from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from openeqa_lab.data.episode import Frame, Image, RawFrame
from openeqa_lab.errors import FrameError
from openeqa_lab.images.once import PreparedOnce


class Source:
    """A folder or video in memory that notes how it is read and can be held back."""

    def __init__(self, key: str = "room", *, video: bool = False, bad: Sequence[int] = ()) -> None:
        self.key = key
        self.video = video
        self.bad = set(bad)
        self.reads: list[list[int]] = []
        self.threads: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def path(self, index: int) -> str:
        return f"{self.key}.mp4#{index}" if self.video else f"{self.key}/{index:05}-rgb.png"

    def read(self, indices: Sequence[int]) -> Sequence[RawFrame]:
        self.reads.append(list(indices))
        self.threads.add(threading.current_thread().name)
        self.entered.set()
        assert self.gate.wait(10)
        for index in indices:
            if index in self.bad:
                raise FrameError(f"{self.path(index)} is cut")
        return [RawFrame(bytes([index]), "", self.path(index)) for index in indices]

    def sha256(self, index: int) -> str | None:
        return None

    def frames(self, *indices: int) -> list[Frame]:
        return [Frame(self, index) for index in indices]

    @property
    def read_frames(self) -> list[int]:
        return sorted(index for read in self.reads for index in read)


def prepare(raw: RawFrame) -> Image:
    """A picture of 400 kB."""
    assert isinstance(raw.content, bytes)
    return Image(raw.content * 400_000, "image/png", raw.content[0], 1)


def once(
    cache_mb: int = 10, threads: int = 3, make: Callable[[RawFrame], Image] = prepare
) -> PreparedOnce:
    return PreparedOnce(make, cache_mb, threads)


async def soon(condition: Callable[[], bool]) -> None:
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("waited for ten seconds in vain")


def shown(images: Sequence[Image]) -> list[int]:
    return [image.width for image in images]


async def test_pictures_come_in_the_order_asked_for_with_repeats() -> None:
    source = Source()
    assert shown(await once().get(source.frames(3, 1, 2, 1))) == [3, 1, 2, 1]
    assert source.read_frames == [1, 2, 3]


async def test_questions_at_once_and_later_share_one_preparation() -> None:
    source, pictures = Source(), once()
    source.gate.clear()
    questions = [
        asyncio.create_task(pictures.get(source.frames(*range(start, start + 5))))
        for start in (0, 1, 2, 3) * 3
    ]
    await asyncio.to_thread(source.entered.wait, 10)
    source.gate.set()
    for question, start in zip(questions, (0, 1, 2, 3) * 3, strict=True):
        assert shown(await question) == list(range(start, start + 5))
    assert shown(await pictures.get(source.frames(7, 0))) == [7, 0]
    assert source.read_frames == list(range(8))


async def test_two_roots_that_hold_one_path_do_not_share_its_pictures() -> None:
    first, second, other = Source("a"), Source("a"), Source("b")
    pictures = once()
    for source in (first, second, other):
        await pictures.get(source.frames(1))
    await pictures.get(first.frames(1))
    assert (first.reads, second.reads, other.reads) == ([[1]], [[1]], [[1]])


async def test_files_are_spread_over_threads_and_never_read_on_the_loops() -> None:
    source = Source()
    source.gate.clear()
    task = asyncio.create_task(once(threads=3).get(source.frames(*range(9))))
    await soon(lambda: len(source.reads) == 3)
    await asyncio.sleep(0.02)
    assert sorted(source.reads) == [[0], [1], [2]]  # no more at once than there are threads
    source.gate.set()
    assert shown(await task) == list(range(9))
    assert len(source.threads) == 3
    assert threading.current_thread().name not in source.threads


async def test_frames_of_a_video_are_read_in_one_pass_in_order() -> None:
    source, pictures = Source(video=True), once(cache_mb=100)
    assert shown(await pictures.get(source.frames(40, 2, 30))) == [40, 2, 30]
    await pictures.get(source.frames(1, 2, 3))
    assert source.reads == [[2, 30, 40], [1, 3]]


async def test_a_pass_is_bounded() -> None:
    source = Source(video=True)
    assert len(await once(threads=1).get(source.frames(*range(150)))) == 150
    assert [len(read) for read in source.reads] == [64, 64, 22]


async def test_a_cancelled_question_takes_nothing_from_the_others() -> None:
    source, pictures = Source(), once()
    source.gate.clear()
    given_up = asyncio.create_task(pictures.get(source.frames(1, 2)))
    waiting = asyncio.create_task(pictures.get(source.frames(1, 2)))
    await asyncio.to_thread(source.entered.wait, 10)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    source.gate.set()
    assert shown(await waiting) == [1, 2]
    assert shown(await pictures.get(source.frames(1, 2))) == [1, 2]
    assert source.read_frames == [1, 2]


async def test_what_nobody_waits_for_any_more_is_not_begun() -> None:
    source, pictures = Source(), once(threads=1)
    source.gate.clear()
    first = asyncio.create_task(pictures.get(source.frames(0, 1, 2, 3, 4)))
    second = asyncio.create_task(pictures.get(source.frames(3)))
    await asyncio.to_thread(source.entered.wait, 10)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    source.gate.set()
    assert shown(await second) == [3]
    assert source.read_frames == [0, 3]  # 0 had begun, 3 is still wanted
    assert shown(await pictures.get(source.frames(0, 1))) == [0, 1]
    assert source.read_frames == [0, 1, 3]


async def test_a_failed_frame_fails_each_question_that_shows_it_and_is_tried_again() -> None:
    source, pictures = Source(bad=[2]), once()
    source.gate.clear()
    tasks = [
        asyncio.create_task(pictures.get(source.frames(*frames)))
        for frames in ((1, 2), (2, 3), (3, 4))
    ]
    await asyncio.to_thread(source.entered.wait, 10)
    source.gate.set()
    first, second, third = await asyncio.gather(*tasks, return_exceptions=True)
    for error in (first, second):
        assert isinstance(error, FrameError)
        assert str(error) == "room/00002-rgb.png is cut"
    assert first is not second
    assert not isinstance(third, BaseException)
    source.bad.clear()
    assert shown(await pictures.get(source.frames(1, 2))) == [1, 2]


async def test_a_failure_while_preparing_keeps_its_kind() -> None:
    def refuse(raw: RawFrame) -> Image:
        raise FrameError(f"{raw.name} is a web page", kind="own_kind")

    with pytest.raises(FrameError, match="web page") as error:
        await once(make=refuse).get(Source().frames(1))
    assert error.value.kind == "own_kind"


async def test_a_bad_frame_of_a_video_fails_only_the_questions_that_show_it() -> None:
    source, pictures = Source(video=True, bad=[5]), once(cache_mb=100)
    source.gate.clear()
    whole = asyncio.create_task(pictures.get(source.frames(*range(16))))
    await asyncio.to_thread(source.entered.wait, 10)
    part = asyncio.create_task(pictures.get(source.frames(3, 4, 6)))
    await asyncio.sleep(0)
    source.gate.set()
    with pytest.raises(FrameError, match=r"room\.mp4#5 is cut"):
        await whole
    assert shown(await part) == [3, 4, 6]
    assert len(source.reads) == 9  # narrowed down by halves, not frame by frame


async def test_an_unforeseen_error_reaches_all_who_wait() -> None:
    def break_down(raw: RawFrame) -> Image:
        raise ZeroDivisionError(raw.name)

    source, pictures = Source(), once(make=break_down)
    outcomes = await asyncio.wait_for(
        asyncio.gather(
            *(pictures.get(source.frames(1, 2)) for _ in range(3)), return_exceptions=True
        ),
        10,
    )
    assert [type(outcome) for outcome in outcomes] == [ZeroDivisionError] * 3


async def test_a_source_that_gives_too_few_frames_is_not_believed() -> None:
    class Short(Source):
        def read(self, indices: Sequence[int]) -> Sequence[RawFrame]:
            return super().read(indices)[1:]

    with pytest.raises(ValueError, match=r"zip\(\)"):
        await once().get(Short().frames(1))


async def test_the_longest_unused_pictures_go_when_the_bound_is_passed() -> None:
    source, pictures = Source(), once(cache_mb=2, threads=1)  # holds five
    await pictures.get(source.frames(1, 2, 3, 4, 5))
    await pictures.get(source.frames(1))
    await pictures.get(source.frames(6))
    source.reads.clear()
    await pictures.get(source.frames(1, 3, 4, 5, 6))
    assert source.reads == []
    await pictures.get(source.frames(2))
    assert source.reads == [[2]]


@pytest.mark.parametrize("cache_mb", [0, 1])
async def test_more_frames_than_the_cache_holds_are_still_given(cache_mb: int) -> None:
    source, pictures = Source(), once(cache_mb=cache_mb)
    for _ in range(2):
        assert shown(await pictures.get(source.frames(*range(20)))) == list(range(20))
    held = sum(len(picture.data) for picture in pictures._kept.values())
    assert held == pictures._bytes <= cache_mb * 1_000_000
    assert not pictures._pending


def test_one_object_serves_loop_after_loop() -> None:
    source, pictures = Source(), once()
    for frames in ((1, 2), (2, 3), (1, 2, 3)):
        assert shown(asyncio.run(pictures.get(source.frames(*frames)))) == list(frames)
    assert source.read_frames == [1, 2, 3]


def test_a_loop_that_closed_while_a_frame_was_read_does_not_hurt_the_next() -> None:
    source, pictures = Source(), once(threads=1)
    source.gate.clear()

    async def give_up() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(pictures.get(source.frames(1)), 0.05)

    asyncio.run(give_up())
    source.gate.set()
    assert shown(asyncio.run(pictures.get(source.frames(1)))) == [1]
    assert source.read_frames == [1]


def test_loops_on_several_threads_share_one_preparation() -> None:
    source, pictures = Source(), once()
    seen: list[list[int]] = []
    threads = [
        threading.Thread(
            target=lambda: seen.append(shown(asyncio.run(pictures.get(source.frames(*range(20))))))
        )
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert seen == [list(range(20))] * 6
    assert source.read_frames == list(range(20))


async def test_threads_end_with_the_object() -> None:
    before = set(threading.enumerate())
    pictures = once()
    await pictures.get(Source().frames(1, 2, 3))
    own = set(threading.enumerate()) - before
    assert own
    del pictures
    gc.collect()
    await soon(lambda: not any(thread.is_alive() for thread in own))


async def test_many_questions_of_random_frames_give_what_each_asked_for() -> None:
    generator = np.random.default_rng(0)
    sources = [Source("a"), Source("b"), Source("c", video=True)]
    pictures = once(cache_mb=4, threads=4)

    async def ask() -> None:
        source = sources[generator.integers(3)]
        wanted = [int(index) for index in generator.integers(0, 30, 8)]
        task = asyncio.create_task(pictures.get(source.frames(*wanted)))
        await asyncio.sleep(generator.random() * 0.01)
        if generator.random() < 0.3:
            task.cancel()
        try:
            assert shown(await task) == wanted
        except asyncio.CancelledError:
            return

    await asyncio.wait_for(asyncio.gather(*(ask() for _ in range(200))), 30)
    assert all(claim.waiting == 0 for claim in pictures._pending.values())
    await soon(lambda: not pictures._pending)
    assert sum(len(picture.data) for picture in pictures._kept.values()) == pictures._bytes

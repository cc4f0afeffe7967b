"""Recorded episodes are opened once, shared by their questions, and missing ones are named."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from openeqa_lab.data.case import Case, Question
from openeqa_lab.data.episode import Episode
from openeqa_lab.data.recorded import Recorded
from openeqa_lab.errors import FrameError, OpenEQAError


def case(episode: str, name: str = "q") -> Case:
    return Case(name, Question(name, "What?"), "That.", "c", episode)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for key in ("hm3d-v0/000-a", "scannet-v0/000-b"):
        (tmp_path / key).mkdir(parents=True)
        for index in range(6):
            (tmp_path / key / f"{index:05}-rgb.png").write_bytes(b"%d" % index)
    return tmp_path


class Listings:
    """Counts what is really listed, and on which threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        self.threads: set[int] = set()
        scandir = os.scandir

        def counted(path: Path) -> object:
            self.paths.append(str(path))
            self.threads.add(threading.get_ident())
            return scandir(path)

        monkeypatch.setattr(os, "scandir", counted)


async def test_an_episode_is_given_with_its_frames_unopened(root: Path) -> None:
    episode = await Recorded(str(root)).episode(case("hm3d-v0/000-a"))
    assert episode.id == "hm3d-v0/000-a"
    assert [frame.index for frame in episode.frames] == list(range(6))
    assert {frame.sha256 for frame in episode.frames} == {None}


async def test_questions_that_wait_at_once_share_one_listing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listings = Listings(monkeypatch)
    source = Recorded(root)
    cases = [
        case(key, f"{key}{i}") for i in range(20) for key in ("hm3d-v0/000-a", "scannet-v0/000-b")
    ]
    episodes = await asyncio.gather(*map(source.episode, cases))
    episodes.append(await source.episode(cases[0]))
    assert len(listings.paths) == 2
    assert threading.get_ident() not in listings.threads
    assert len({id(episode.frames[0].source) for episode in episodes}) == 2


async def test_a_digest_is_shared_by_all_questions_of_an_episode(root: Path) -> None:
    source = Recorded(root)
    first = await source.episode(case("hm3d-v0/000-a", "one"))
    second = await source.episode(case("hm3d-v0/000-a", "two"))
    first.frames[2].read()
    assert second.frames[2].sha256 is not None


async def test_max_frames_leaves_a_strided_part(root: Path) -> None:
    source = Recorded(root, max_frames=3)
    episode = await source.episode(case("hm3d-v0/000-a"))
    assert [frame.index for frame in episode.frames] == [0, 2, 4]
    assert source.identity == {"name": "recorded", "max_frames": 3}


def test_a_negative_number_of_frames_is_refused(root: Path) -> None:
    with pytest.raises(OpenEQAError, match=r"max_frames is -1: expected 0 \(all frames\)"):
        Recorded(root, max_frames=-1)


async def test_a_missing_episode_ends_its_own_questions_only(root: Path) -> None:
    source = Recorded(root)
    cases = [case(key, str(i)) for i, key in enumerate(["hm3d-v0/001-c", "hm3d-v0/000-a"] * 3)]
    results = await asyncio.gather(*map(source.episode, cases), return_exceptions=True)
    for result in results[::2]:
        assert isinstance(result, FrameError)
        assert result.kind == "episode_missing"
        assert "'hm3d-v0/001-c' is missing" in str(result)
    assert all(isinstance(result, Episode) for result in results[1::2])
    assert len({id(result) for result in results[::2]}) == 3


async def test_an_episode_that_arrives_later_is_found(root: Path) -> None:
    source = Recorded(root)
    with pytest.raises(FrameError):
        await source.episode(case("hm3d-v0/001-c"))
    (root / "hm3d-v0/001-c").mkdir()
    (root / "hm3d-v0/001-c/0.png").write_bytes(b"")
    assert len((await source.episode(case("hm3d-v0/001-c"))).frames) == 1


async def test_no_root_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(OpenEQAError, match="No frames folder") as caught:
        await Recorded(tmp_path / "nowhere").episode(case("hm3d-v0/000-a"))
    assert not isinstance(caught.value, FrameError)


async def test_two_episodes_in_one_place_are_refused(tmp_path: Path) -> None:
    (tmp_path / "000").mkdir()
    (tmp_path / "000/0.png").write_bytes(b"")
    source = Recorded(tmp_path)
    await source.episode(case("hm3d-v0/000"))
    with pytest.raises(OpenEQAError, match="'hm3d-v0/000' and 'scannet-v0/000' both lead to"):
        await source.episode(case("scannet-v0/000"))


async def test_a_question_that_is_given_up_leaves_the_others_waiting(root: Path) -> None:
    source = Recorded(root)
    given_up = asyncio.create_task(source.episode(case("hm3d-v0/000-a", "one")))
    waiting = asyncio.create_task(source.episode(case("hm3d-v0/000-a", "two")))
    await asyncio.sleep(0)
    given_up.cancel()
    assert len((await waiting).frames) == 6
    with pytest.raises(asyncio.CancelledError):
        await given_up


def test_a_source_can_be_used_in_one_event_loop_after_another(root: Path) -> None:
    source = Recorded(root)
    first = asyncio.run(source.episode(case("hm3d-v0/000-a")))
    assert asyncio.run(source.episode(case("hm3d-v0/000-a"))) is first


async def test_the_real_walk_is_found_for_its_three_questions(shared: Path) -> None:
    source = Recorded(shared / "data/openeqa")
    episode = await source.episode(case("assets/open-eqa-hm3d-demo"))
    assert len(episode.frames) == 168
    assert episode.frames[3].path == "open-eqa-hm3d-demo.mp4#3"

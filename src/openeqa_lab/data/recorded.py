"""Walkthroughs that were recorded before: OpenEQA's episodic memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from openeqa_lab.data.case import Case
from openeqa_lab.data.episode import Episode
from openeqa_lab.data.layouts import frames_of, open_source
from openeqa_lab.errors import FrameError, OpenEQAError


class Recorded:
    """Episodes read from disk, a folder of pictures or a video each; `data.layouts` says where.

    An episode is listed once and kept: all its questions share its source, and with it the
    digests. Nothing is decoded. A root that is not there ends the run; an episode that is not
    there ends its questions only.

    Args:
        root: The folder that holds the episodes.
        max_frames: Leave so many frames of an episode, those at round(i * n / max_frames) of
            its n; 0 for all.
    """

    def __init__(self, root: str | Path, max_frames: int = 0) -> None:
        if max_frames < 0:
            raise OpenEQAError(f"max_frames is {max_frames}: expected 0 (all frames) or more")
        self._root = Path(root)
        self._max_frames = max_frames
        self._episodes: dict[str, Episode] = {}
        self._opening: dict[str, asyncio.Task[Episode]] = {}
        self._owners: dict[str, str] = {}

    @property
    def identity(self) -> Mapping[str, object]:
        """Name and `max_frames`; where the frames lie changes no answer."""
        return {"name": "recorded", "max_frames": self._max_frames}

    async def episode(self, case: Case) -> Episode:
        """The case's episode, listed on a thread when it is first asked for.

        Raises:
            FrameError: Kind ``episode_missing``: the episode is not there or has no RGB frame.
            OpenEQAError: There is no root, or two episodes lead to one place.
        """
        key = case.episode
        if key not in self._episodes:
            task = self._opening.get(key)
            if task is None:
                task = asyncio.create_task(self._open(key))
                self._opening[key] = task
                task.add_done_callback(lambda done: self._close(key, done))
            try:
                # Shielded: a question that is given up must not take the others with it.
                await asyncio.shield(task)
            except FrameError as error:
                # Each question gets an error of its own: raising adds to an error's traceback.
                raise FrameError(str(error), kind=error.kind) from None
        return self._episodes[key]

    async def _open(self, key: str) -> Episode:
        source = await asyncio.to_thread(open_source, self._root, key)
        owner = self._owners.setdefault(source.key, key)
        if owner != key:
            raise OpenEQAError(
                f"Episodes {owner!r} and {key!r} both lead to {self._root / source.key}: put each "
                "under its full key, split/episode"
            )
        episode = Episode(key, frames_of(source, self._max_frames))
        self._episodes[key] = episode
        return episode

    def _close(self, key: str, task: asyncio.Task[Episode]) -> None:
        del self._opening[key]
        if not task.cancelled():
            task.exception()  # seen, also when every question that waited was given up

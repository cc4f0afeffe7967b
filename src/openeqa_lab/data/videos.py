"""An episode that is stored as one video file."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openeqa_lab.data.episode import RawFrame
from openeqa_lab.errors import FrameError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)


class VideoSource:
    """The frames of a video that can be decoded, in the order they are shown.

    Opening it counts packets and decodes no picture, unless the file's header disagrees with its
    packets or says nothing: then the pictures are counted, since only they can be shown. The
    digest of a frame is that of its RGB pixels.

    Args:
        path: The video file.
        key: Its path relative to the data root.

    Raises:
        FrameError: The file is not a video, or no picture of it can be decoded.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.key = key
        self._path = path
        self._sha256: dict[int, str] = {}
        declared, clean = _count_packets(path)
        self.count = declared if clean else _count_pictures(path)
        if self.count == 0:
            raise FrameError(f"No picture of the video {path} can be decoded")
        if declared and self.count != declared:
            logger.warning(
                "%s: the header says %d frames, %d can be decoded and are used; the file may "
                "have been cut",
                path,
                declared,
                self.count,
            )

    def path(self, index: int) -> str:
        """``<key>#<index>``."""
        return f"{self.key}#{index}"

    def sha256(self, index: int) -> str | None:
        """Of the RGB pixels; None before they were read."""
        return self._sha256.get(index)

    def read(self, indices: Sequence[int]) -> Sequence[RawFrame]:
        """The pixels at these indices, decoded in one pass that ends with the last of them."""
        wanted = set(indices)
        frames: dict[int, RawFrame] = {}
        last = max(wanted, default=-1)
        with closing(_pictures(self._path)) as pictures:
            for index, picture in enumerate(pictures if wanted else ()):
                if index in wanted:
                    frames[index] = self._raw(index, picture)
                if index == last:
                    break
        for index in indices:
            if index not in frames:
                raise FrameError(f"Frame {self._path}#{index} cannot be decoded")
        return [frames[index] for index in indices]

    def _raw(self, index: int, picture: Any) -> RawFrame:
        name = f"{self._path}#{index}"
        if picture.is_corrupt:
            raise FrameError(f"Frame {name} is damaged and cannot be decoded in full")
        pixels = _upright(picture)
        digest = sha256(pixels.data).hexdigest()
        self._sha256[index] = digest
        return RawFrame(pixels, digest, name)


def _upright(picture: Any) -> NDArray[np.uint8]:
    import numpy as np

    pixels: NDArray[np.uint8] = picture.to_ndarray(format="rgb24")
    # Degrees counterclockwise, as players turn it; older releases of PyAV do not say.
    quarters = round(getattr(picture, "rotation", 0) / 90) % 4
    return np.ascontiguousarray(np.rot90(pixels, quarters))


def _count_packets(path: Path) -> tuple[int, bool]:
    """How many frames the header declares, and whether whole packets are there for all of them."""
    whole, corrupt = 0, False
    with closing(_packets(path)) as packets:
        declared = next(packets)
        for packet in packets:
            corrupt = corrupt or packet.is_corrupt
            whole += bool(packet.size) and not packet.is_discard
    return declared, not corrupt and 0 < declared == whole


def _count_pictures(path: Path) -> int:
    """One more than the index of the last picture that can be decoded in full."""
    count = 0
    with closing(_pictures(path)) as pictures:
        for index, picture in enumerate(pictures):
            if not picture.is_corrupt:
                count = index + 1
    return count


def _packets(path: Path) -> Generator[Any, None, None]:
    """The number of frames that the header declares (0 when it does not), then the packets."""
    import av

    try:
        with av.open(str(path)) as container:
            stream = _video_stream(path, container)
            yield stream.frames
            yield from container.demux(stream)
    except (av.error.FFmpegError, OSError) as error:
        raise _unreadable(path, error) from None


def _pictures(path: Path) -> Generator[Any, None, None]:
    """The decoded pictures up to the first packet that cannot be decoded."""
    import av

    try:
        with av.open(str(path)) as container:
            stream = _video_stream(path, container)
            stream.thread_type = "AUTO"
            try:
                for packet in container.demux(stream):
                    yield from packet.decode()
            except av.error.FFmpegError:
                yield from _held_back(stream)
    except (av.error.FFmpegError, OSError) as error:
        raise _unreadable(path, error) from None


def _held_back(stream: Any) -> Iterator[Any]:
    """Whole pictures that the decoder still holds when a packet cannot be decoded."""
    import av

    try:
        yield from stream.codec_context.decode(None)
    except av.error.FFmpegError:
        return


def _video_stream(path: Path, container: Any) -> Any:
    if not container.streams.video:
        raise FrameError(f"{path} holds no video stream: expected a video of the episode")
    return container.streams.video[0]


def _unreadable(path: Path, error: Exception) -> FrameError:
    reason = getattr(error, "strerror", None) or error
    return FrameError(f"Cannot read the video {path}: {reason}; copy or download it again")

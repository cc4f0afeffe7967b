"""An episode that is stored as one video file."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from openeqa_lab.data.episode import RawFrame
from openeqa_lab.data.stamps import file_stamp
from openeqa_lab.errors import FrameError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

Threads = Literal["AUTO", "SLICE"]


class VideoSource:
    """The frames of a video that can be decoded, in the order they are shown.

    Opening it reads the packets' times and decodes no picture, unless the header disagrees with
    the packets or says nothing: then the pictures are decoded once to be counted, since only
    they can be shown. Frames are told apart by their times, so that a picture that the decoder
    leaves out is an error and never shifts the others. The digest of a frame is that of its RGB
    pixels.

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
        declared, times = _packet_times(path)
        # Decoding on several threads loses whole pictures beside a damaged one.
        self._threads: Threads = "AUTO" if times else "SLICE"
        self._times = times or _picture_times(path)
        self.count = len(self._times)
        if not self.count:
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

    def stamp(self, index: int) -> str | None:
        """The file's, the frame's number, and the versions of what decodes it."""
        import av

        decoder = [av.__version__, sorted(av.library_versions.items())]
        file = file_stamp(self._path)
        return None if file is None else f"{index} {decoder} {file}"

    def remember(self, index: int, sha256: str) -> None:
        """Takes over the digest that the frame's pixels had under this stamp."""
        self._sha256[index] = sha256

    def read(self, indices: Sequence[int]) -> Sequence[RawFrame]:
        """The pixels at these indices, decoded in one pass that ends with the last of them."""
        wanted = {self._times[index]: index for index in indices}
        frames: dict[int, RawFrame] = {}
        with closing(_pictures(self._path, self._threads)) as pictures:
            while len(frames) < len(wanted):
                picture = next(pictures, None)
                if picture is None:
                    break
                index = wanted.get(picture.pts)
                if index is not None:
                    frames[index] = self._raw(index, picture)
        for index in indices:
            if index not in frames:
                raise FrameError(
                    f"Frame {self._path}#{index} cannot be decoded; copy or download the video "
                    "again"
                )
        return [frames[index] for index in indices]

    def _raw(self, index: int, picture: Any) -> RawFrame:
        name = f"{self._path}#{index}"
        if picture.is_corrupt:
            raise FrameError(f"Frame {name} is damaged; copy or download the video again")
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


def _packet_times(path: Path) -> tuple[int, tuple[int, ...]]:
    """How many frames the header declares (0 when it does not), and when each is shown.

    No times when they cannot be trusted: when there is not one whole packet for each frame.
    """
    times: list[int | None] = []
    with _opened(path) as (container, stream):
        for packet in container.demux(stream):
            if packet.is_corrupt:
                return stream.frames, ()
            if packet.size and not packet.is_discard:
                times.append(packet.pts)
        declared: int = stream.frames
    known = sorted({time for time in times if time is not None})
    return declared, tuple(known) if len(known) == len(times) == declared else ()


def _picture_times(path: Path) -> tuple[int, ...]:
    """When each picture that can be decoded in full is shown."""
    with closing(_pictures(path, "SLICE")) as pictures:
        times = [picture.pts for picture in pictures if not picture.is_corrupt]
    if None in times or len(set(times)) < len(times):
        raise FrameError(f"The pictures of the video {path} have no times of their own")
    return tuple(times)


def _pictures(path: Path, threads: Threads) -> Generator[Any, None, None]:
    """The decoded pictures up to the first packet that is cut or cannot be decoded."""
    import av

    with _opened(path) as (container, stream):
        stream.thread_type = threads
        # After a failure the decoder would fill up what it still holds with guesses.
        with suppress(av.error.FFmpegError):
            for packet in container.demux(stream):
                if packet.is_corrupt:
                    yield from stream.codec_context.decode(None)
                    return
                yield from packet.decode()


def _container(path: Path) -> Any:
    """The file opened, whatever encoding its titles are in."""
    import av

    try:
        return av.open(str(path), metadata_errors="replace")
    except TypeError:  # PyAV 19 no longer has the option
        return av.open(str(path))


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """The file and its video stream."""
    import av

    try:
        with _container(path) as container:
            if not container.streams.video:
                raise FrameError(f"{path} holds no video stream: expected a video of the episode")
            stream = container.streams.video[0]
            if stream.codec_context is None:
                raise FrameError(f"Cannot read the video {path}: cut, or of an unknown codec")
            yield container, stream
    except (av.error.FFmpegError, OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FrameError(
            f"Cannot read the video {path}: {reason}; copy or download it again"
        ) from None

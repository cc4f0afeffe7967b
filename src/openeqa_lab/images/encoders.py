"""From a frame's bytes to the picture a model is sent; each frame is prepared once a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from PIL import __version__ as pillow_version

from openeqa_lab.data.episode import Frame, Image
from openeqa_lab.errors import OpenEQAError
from openeqa_lab.images.once import PreparedOnce
from openeqa_lab.images.preparation import (
    PILLOWS,
    Format,
    Preparation,
    Resampling,
    Shrinking,
    UpstreamShrinking,
)
from openeqa_lab.images.store import FrameStore
from openeqa_lab.images.workers import Workers


class Encoder:
    """Decodes, orients, shrinks and encodes frames: the same bytes for the same frame.

    `decoding.decode` says what is taken for a frame. Pictures are never enlarged. Each of the
    resamplings is anti-aliased: the filter widens as the picture shrinks. Where a frame is
    decoded, and whether it comes from the store, changes no byte.

    Args:
        format: What is sent. PNG keeps every pixel at some eight times the bytes of JPEG.
        size: Long side in pixels; 0 leaves pictures as they are.
        quality: Of JPEG and WebP, from 1 to 100; PNG has none.
        resampling: The filter that pictures are shrunk with; ``box`` is the area average.
            ``catmull_rom`` is the filter of ``bicubic``, computed by fast_image_resize (the extra
            ``fast``) in less exact numbers and another order: mostly within one level of it.
        cache_mb: Megabytes of encoded pictures that are kept in memory; 0 keeps none.
        threads: Threads that read and decode.
        processes: At most so many processes decode plain PNG, where the extra ``fast`` is
            installed; None for one a core, up to four; 0 for none.
        store_dir: Where pictures are kept from run to run; None for nowhere.
        store_mb: Megabytes that are kept there.

    Raises:
        OpenEQAError: A setting is out of range, or ``catmull_rom`` is not installed.
    """

    def __init__(
        self,
        format: Format = "jpeg",  # noqa: A002 - the word of the YAML file
        size: int = 512,
        quality: int = 90,
        resampling: Resampling = "bicubic",
        cache_mb: int = 128,
        threads: int = 4,
        processes: int | None = None,
        store_dir: str | Path | None = None,
        store_mb: int = 4000,
    ) -> None:
        _check_choice("format", format, ("jpeg", "png", "webp"))
        _check_range("size", size, 0)
        _check_range("quality", quality, 1, 100)
        _check_choice("resampling", resampling, (*PILLOWS, "catmull_rom"))
        self._shrinking = Shrinking(format, size, quality, resampling)
        versions = {"pillow": pillow_version}
        if resampling == "catmull_rom":
            versions["cykooz-resizer"] = _resizer_version()
        recipe = {**self.identity, **versions}
        self._once = _once(
            self._shrinking, recipe, cache_mb, threads, processes, store_dir, store_mb
        )

    @property
    def identity(self) -> Mapping[str, object]:
        """Format, size, resampling and, where the format has one, quality."""
        how = self._shrinking
        settings = {"format": how.format, "size": how.size, "resampling": how.resampling}
        return settings if how.format == "png" else settings | {"quality": how.quality}

    async def encode(self, frames: Sequence[Frame], /) -> Sequence[Image]:
        """One picture a frame, in the order given; frames that wait share one decoding.

        Raises:
            FrameError: A frame cannot be read; the message names its path.
        """
        return await self._once.get(frames)


class UpstreamEncoder:
    """Pixels identical to upstream's preparation, with OpenCV (the extra ``upstream``).

    OpenCV reads the frame (orientation applied, alpha dropped, gray and palette made colour),
    resizes by ``size / long side`` without anti-aliasing, *up as well as down*, and writes PNG.
    What `decoding.opened` refuses is refused here too, where upstream would show a wrong picture.
    In processes, plain PNG is decoded and written by kornia-rs (the extra ``fast``): other bytes,
    the same pixels.

    Args:
        size: Long side in pixels; 0 leaves pictures as they are.
        cache_mb: Megabytes of encoded pictures that are kept in memory; 0 keeps none.
        threads: Threads that read and decode.
        processes: At most so many processes decode plain PNG, where the extra ``fast`` is
            installed; None for one a core, up to four; 0 for none.
        store_dir: Where pictures are kept from run to run; None for nowhere.
        store_mb: Megabytes that are kept there.

    Raises:
        OpenEQAError: A setting is out of range, or OpenCV is not installed.
    """

    def __init__(
        self,
        size: int = 512,
        cache_mb: int = 128,
        threads: int = 4,
        processes: int | None = None,
        store_dir: str | Path | None = None,
        store_mb: int = 4000,
    ) -> None:
        _check_range("size", size, 0)
        try:
            import cv2  # said now, not at the first frame
        except ImportError as error:
            raise OpenEQAError(
                f"encoder=png_upstream needs OpenCV ({error}): pip install 'openeqa-lab[upstream]'"
            ) from None
        self._shrinking = UpstreamShrinking(size)
        recipe = {**self.identity, "opencv": cv2.__version__}
        self._once = _once(
            self._shrinking, recipe, cache_mb, threads, processes, store_dir, store_mb
        )

    @property
    def identity(self) -> Mapping[str, object]:
        """Name and size."""
        return {"format": "png_upstream", "size": self._shrinking.size}

    async def encode(self, frames: Sequence[Frame], /) -> Sequence[Image]:
        """One PNG a frame, in the order given; frames that wait share one decoding.

        Raises:
            FrameError: A frame cannot be read; the message names its path.
        """
        return await self._once.get(frames)


def _once(
    prepare: Preparation,
    recipe: Mapping[str, object],
    cache_mb: int,
    threads: int,
    processes: int | None,
    store_dir: str | Path | None,
    store_mb: int,
) -> PreparedOnce:
    """The preparation with processes, memory and store around it."""
    _check_range("cache_mb", cache_mb, 0)
    _check_range("threads", threads, 1)
    if processes is not None:
        _check_range("processes", processes, 0)
    _check_range("store_mb", store_mb, 1)
    workers = Workers(prepare, processes)
    store = FrameStore(Path(store_dir), store_mb, recipe) if store_dir is not None else None
    # A thread waits for each process.
    return PreparedOnce(workers, cache_mb, max(threads, workers.processes), store)


def _resizer_version() -> str:
    try:
        import cykooz_resizer  # noqa: F401 - said now, not at the first frame
    except ImportError as error:
        raise OpenEQAError(
            f"encoder.resampling=catmull_rom needs cykooz-resizer ({error}): pip install "
            "'openeqa-lab[fast]', or take resampling=bicubic"
        ) from None
    return version("cykooz-resizer")


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise OpenEQAError(f"encoder.{name} must be one of {', '.join(choices)}, not {value!r}")


def _check_range(name: str, value: int, low: int, high: int | None = None) -> None:
    number = isinstance(value, int) and not isinstance(value, bool)
    if not number or value < low or (high is not None and value > high):
        bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise OpenEQAError(f"encoder.{name} must be a whole number {bounds}, not {value!r}")

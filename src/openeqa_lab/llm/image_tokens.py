"""What a picture costs in tokens, by the formulas of the vendors: for estimates only."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Protocol

from openeqa_lab.errors import OpenEQAError


class ImageTokens(Protocol):
    """A vendor's formula. The vendor's own count, which comes with the reply, is what is paid."""

    def of(self, width: int, height: int, /) -> int:
        """Tokens of a picture of so many pixels."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """The same for every picture.

    Args:
        tokens: Of a picture.
    """

    tokens: int

    def __post_init__(self) -> None:
        _check_positive(self)

    def of(self, _width: int, _height: int, /) -> int:
        """Tokens of a picture of so many pixels."""
        return self.tokens


@dataclass(frozen=True, slots=True)
class Patches:
    """One for each square of a grid laid over the picture, squares that stand out counted whole.

    OpenAI since GPT-4.1 mini (guide "Images and vision", Calculating costs) and Anthropic (guide
    "Vision", Evaluate image size). A picture that is too large is shrunk first, by OpenAI's rule;
    Anthropic's keeps some percent more of it.

    Args:
        side_px: Of a square.
        most: Squares at most, after shrinking; None is no limit.
        longest_side_px: Of the picture, after shrinking; None is no limit.
        factor: Tokens billed a square; the sum is rounded up.
    """

    side_px: int
    most: int | None = None
    longest_side_px: int | None = None
    factor: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(self)

    def of(self, width: int, height: int, /) -> int:
        """Tokens of a picture of so many pixels."""
        scale = self._scale(width, height)
        squares = self._squares(int(width * scale), int(height * scale))
        if self.most is not None:
            squares = min(squares, self.most)
        return math.ceil(round(squares * self.factor, 6))

    def _squares(self, width: int, height: int) -> int:
        return max(math.ceil(width / self.side_px), 1) * max(math.ceil(height / self.side_px), 1)

    def _scale(self, width: int, height: int) -> float:
        """What the picture is shrunk by."""
        scale = 1.0
        if self.longest_side_px is not None:
            scale = min(scale, self.longest_side_px / max(width, height))
        if self.most is None or self._squares(int(width * scale), int(height * scale)) <= self.most:
            return scale
        shrunk = math.sqrt(self.side_px**2 * self.most / (width * height))
        across, down = width * shrunk / self.side_px, height * shrunk / self.side_px
        whole = min(max(math.floor(across), 1) / across, max(math.floor(down), 1) / down)
        return min(scale, shrunk * whole)


@dataclass(frozen=True, slots=True)
class Tiles:
    """A base, and more for each tile of the picture after it was shrunk.

    OpenAI's GPT-4V to GPT-4.1 at high detail (guide "Images and vision", Calculating costs):
    shrunk into a square of 2048 pixels, then to a shorter side of 768, then cut into tiles.

    Args:
        base: Of a picture.
        tile: Of a tile.
        side_px: Of a tile.
        square_px: Side of the square that the picture is shrunk into.
        shorter_side_px: That the picture is shrunk to; a smaller one is not enlarged.
    """

    base: int
    tile: int
    side_px: int = 512
    square_px: int = 2048
    shorter_side_px: int = 768

    def __post_init__(self) -> None:
        _check_positive(self)

    def of(self, width: int, height: int, /) -> int:
        """Tokens of a picture of so many pixels."""
        scale = min(1.0, self.square_px / max(width, height))
        scale = min(scale, self.shorter_side_px / min(width, height))
        across, down = (
            math.ceil(max(int(round(length * scale, 6)), 1) / self.side_px)
            for length in (width, height)
        )
        return self.base + self.tile * across * down


@dataclass(frozen=True, slots=True)
class Crops:
    """So many a crop; a small picture is one, a larger one is cut into squares.

    Google's Gemini 2.x (guide "Image understanding", Token calculation): the crop's side is the
    shorter side divided by 1.5. Its bounds of 256 and 768 stand there for Gemini 1.5.

    Args:
        tokens: Of a crop.
        small_px: A picture with no longer side is one crop.
        least_px: Shortest side of a crop.
        most_px: Longest side of a crop.
    """

    tokens: int = 258
    small_px: int = 384
    least_px: int = 256
    most_px: int = 768

    def __post_init__(self) -> None:
        _check_positive(self)

    def of(self, width: int, height: int, /) -> int:
        """Tokens of a picture of so many pixels."""
        if max(width, height) <= self.small_px:
            return self.tokens
        side = min(max(math.floor(min(width, height) / 1.5), self.least_px), self.most_px)
        return self.tokens * math.ceil(width / side) * math.ceil(height / side)


def _check_positive(formula: Constant | Patches | Tiles | Crops) -> None:
    for knob in fields(formula):
        value = getattr(formula, knob.name)
        if value is not None and not value > 0:
            raise OpenEQAError(
                f"llm.request_limits.tokens_an_image.{knob.name} is {value}: expected more than 0"
            )

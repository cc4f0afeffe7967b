"""Draws the frames of the demo's three episodes: a camera that walks along one wall of each room.

    python experiments/demo/draw.py            # into the package, src/openeqa_lab/demo/frames
    python experiments/demo/draw.py --output elsewhere

The answers in src/openeqa_lab/demo/questions.json are true of these drawings: change both together.
Needs Pillow alone. Units are those of a wall 300 high and 1200 wide; its floor begins at 215.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image, ImageDraw

SEED = 7
SCALE = 3  # drawn so much larger, for smooth edges
HEIGHT, FLOOR = 300, 215
FRAMES, SIZE = 10, (320, 240)
DEMO = Path(__file__).resolve().parents[2] / "src/openeqa_lab/demo/frames"

Colour = tuple[int, int, int]
WOOD: Colour = (166, 116, 72)
DARK_WOOD: Colour = (110, 74, 46)
WHITE: Colour = (244, 243, 238)
BLACK: Colour = (40, 40, 44)
RED: Colour = (196, 58, 50)
GREEN: Colour = (72, 138, 82)
BLUE: Colour = (70, 108, 176)
YELLOW: Colour = (240, 202, 84)
ORANGE: Colour = (236, 140, 44)
SILVER: Colour = (176, 180, 186)
SKY: Colour = (178, 214, 238)


def shade(colour: Colour, factor: float) -> Colour:
    """The colour made darker (below 1) or lighter (above 1)."""
    red, green, blue = (min(255, round(part * factor)) for part in colour)
    return red, green, blue


class Wall:
    """A long picture of one wall of a room, in units that are scaled while drawing."""

    def __init__(self, width: int, wall: Colour, floor: Colour) -> None:
        self.width = width
        self.image = Image.new("RGB", (width * SCALE, HEIGHT * SCALE), wall)
        self.draw = ImageDraw.Draw(self.image)
        for y in range(FLOOR):  # the wall gets darker toward the floor
            self.box(0, y, width, y + 1, shade(wall, 1.03 - 0.1 * y / FLOOR))
        for row in range(HEIGHT - FLOOR):  # and the floor lighter toward us
            self.box(0, FLOOR + row, width, FLOOR + row + 1, shade(floor, 0.8 + row / 350))
        self.box(0, FLOOR - 9, width, FLOOR, shade(wall, 1.1))
        self.box(0, FLOOR - 1, width, FLOOR, shade(floor, 0.6))

    def box(
        self, x0: float, y0: float, x1: float, y1: float, fill: Colour, radius: float = 0
    ) -> None:
        """A rectangle, its corners rounded."""
        corners = [x0 * SCALE, y0 * SCALE, x1 * SCALE - 1, y1 * SCALE - 1]
        self.draw.rounded_rectangle(corners, radius * SCALE, fill)

    def oval(self, x: float, y: float, half_width: float, half_height: float, fill: Colour) -> None:
        """An ellipse around (x, y)."""
        self.draw.ellipse(
            [
                (x - half_width) * SCALE,
                (y - half_height) * SCALE,
                (x + half_width) * SCALE,
                (y + half_height) * SCALE,
            ],
            fill,
        )

    def line(self, points: Sequence[tuple[float, float]], fill: Colour, width: float = 1) -> None:
        """A line through the points."""
        scaled = [(x * SCALE, y * SCALE) for x, y in points]
        self.draw.line(scaled, fill, max(1, round(width * SCALE)), joint="curve")

    def shape(self, points: Sequence[tuple[float, float]], fill: Colour) -> None:
        """A filled polygon."""
        self.draw.polygon([(x * SCALE, y * SCALE) for x, y in points], fill)

    def shadow(self, x: float, y: float, half_width: float) -> None:
        """What stands on the floor darkens it."""
        left, top = round((x - half_width) * SCALE), round((y - 5) * SCALE)
        patch = (left, top, round((x + half_width) * SCALE), round((y + 6) * SCALE))
        under = self.image.crop(patch)
        mask = Image.new("L", under.size, 0)
        ImageDraw.Draw(mask).ellipse([0, 0, under.width - 1, under.height - 1], 80)
        self.image.paste(Image.new("RGB", under.size, BLACK), patch, mask)


def boards(wall: Wall, colour: Colour) -> None:
    """A floor of boards that run toward us."""
    middle = wall.width / 2
    for step in range(-40, 41):
        x = middle + step * 32
        wall.line([(x, FLOOR), (x + step * 14, HEIGHT)], shade(colour, 0.72), 0.6)


def tiles(wall: Wall, colour: Colour) -> None:
    """A floor of square tiles."""
    boards(wall, colour)
    for y in (222, 233, 249, 271):
        wall.line([(0, y), (wall.width, y)], shade(colour, 0.72), 0.6)


def window(wall: Wall, x: float, curtains: Colour) -> None:
    """A closed window on a sunny day, with curtains."""
    wall.box(x - 52, 38, x + 52, 142, WHITE, 2)
    wall.box(x - 46, 44, x + 46, 136, SKY)
    wall.oval(x + 22, 66, 9, 9, (252, 232, 140))
    for dx, dy, size in ((-26, 70, 10), (-16, 66, 12), (-5, 71, 9)):
        wall.oval(x + dx, dy, size, size * 0.6, WHITE)
    below = (round((x - 90) * SCALE), 136 * SCALE, round((x + 90) * SCALE), 190 * SCALE)
    kept = wall.image.crop(below)
    wall.oval(x - 18, 146, 27, 34, (120, 172, 104))
    wall.oval(x + 20, 150, 25, 30, (104, 158, 92))
    wall.image.paste(kept, below)
    wall.box(x - 52, 136, x + 52, 141, shade(WHITE, 0.93))
    wall.box(x - 2.5, 44, x + 2.5, 136, WHITE)
    wall.box(x - 46, 88, x + 46, 92, WHITE)
    wall.box(x - 60, 140, x + 60, 148, shade(WHITE, 0.98), 2)
    wall.box(x - 60, 148, x + 60, 161, shade(WHITE, 0.8))
    for side in (-1, 1):
        for fold in range(4):
            left = x + side * 46 + side * fold * 7
            tint = shade(curtains, 1.08 if fold % 2 else 0.9)
            wall.box(min(left, left + side * 7), 32, max(left, left + side * 7), 158, tint, 2)
    wall.line([(x - 84, 31), (x + 84, 31)], DARK_WOOD, 3)
    for end in (-84, 84):
        wall.oval(x + end, 31, 4, 4, DARK_WOOD)


def plant(wall: Wall, x: float, y: float, size: float) -> None:
    """A green plant in a clay pot that stands at y."""
    for angle in range(-70, 71, 20):
        tip_x = x + math.sin(math.radians(angle)) * 26 * size
        tip_y = y - 14 * size - math.cos(math.radians(angle)) * 34 * size
        middle_x, middle_y = (x + tip_x) / 2, (y - 14 * size + tip_y) / 2
        across = 5 * size
        leaf = [
            (x, y - 14 * size),
            (middle_x - across, middle_y),
            (tip_x, tip_y),
            (middle_x + across, middle_y),
        ]
        wall.shape(leaf, shade(GREEN, 0.85 + (angle + 70) / 350))
    pot = (190, 104, 66)
    wall.shape(
        [(x - 11 * size, y - 16 * size), (x + 11 * size, y - 16 * size), (x + 8 * size, y),
         (x - 8 * size, y)], pot
    )  # fmt: skip
    wall.box(x - 13 * size, y - 20 * size, x + 13 * size, y - 14 * size, shade(pot, 1.12), 1)


def clock(wall: Wall, x: float, y: float, hour: int) -> None:
    """A round wall clock at a full hour."""
    wall.oval(x, y, 21, 21, DARK_WOOD)
    wall.oval(x, y, 18, 18, WHITE)
    for mark in range(12):
        sine, cosine = math.sin(mark * math.pi / 6), math.cos(mark * math.pi / 6)
        inner = 13 if mark % 3 == 0 else 15
        wall.line(
            [(x + sine * inner, y - cosine * inner), (x + sine * 16.5, y - cosine * 16.5)], BLACK, 1
        )
    angle = hour * math.pi / 6
    wall.line([(x, y), (x, y - 14)], BLACK, 1.3)
    wall.line([(x, y), (x + math.sin(angle) * 9, y - math.cos(angle) * 9)], BLACK, 2.2)
    wall.oval(x, y, 1.8, 1.8, RED)


def picture(wall: Wall, x: float, y: float) -> None:
    """A framed picture of a sailing boat."""
    wall.box(x - 36, y - 26, x + 36, y + 26, DARK_WOOD, 1)
    wall.box(x - 32, y - 22, x + 32, y + 22, (214, 230, 240))
    wall.box(x - 32, y + 8, x + 32, y + 22, (86, 142, 178))
    wall.shape([(x - 14, y + 7), (x + 16, y + 7), (x + 10, y + 14), (x - 8, y + 14)], RED)
    wall.shape([(x + 1, y - 16), (x + 1, y + 5), (x + 15, y + 5)], WHITE)
    wall.shape([(x - 1, y - 12), (x - 1, y + 5), (x - 11, y + 5)], shade(WHITE, 0.92))


def chair(wall: Wall, x: float, colour: Colour, facing: int) -> None:
    """A wooden chair seen from the side; it faces right (1) or left (-1)."""
    wall.shadow(x, 262, 30)
    back = x - facing * 19
    wall.line([(back, 208), (back + facing * 2, 262)], shade(colour, 0.9), 5)
    wall.line([(x + facing * 18, 212), (x + facing * 19, 262)], colour, 5)
    wall.line([(back - facing * 4, 146), (back, 208)], shade(colour, 1.1), 6)
    wall.line([(back - facing * 4, 146), (back - facing * 2, 178)], shade(colour, 1.25), 8)
    wall.box(x - 22, 206, x + 22, 214, shade(colour, 1.12), 3)


def orange_bowl(wall: Wall, x: float, y: float) -> None:
    """Three oranges in a blue bowl that stands at y."""
    for dx, dy in ((-11, -18), (11, -18), (0, -25)):
        wall.oval(x + dx, y + dy, 10, 10, ORANGE)
        wall.oval(x + dx - 3, y + dy - 3, 3, 3, shade(ORANGE, 1.18))
    wall.shape([(x - 27, y - 16), (x + 27, y - 16), (x + 14, y), (x - 14, y)], BLUE)
    wall.box(x - 28, y - 18, x + 28, y - 14, shade(BLUE, 1.2), 2)


def rug(wall: Wall, x: float, half_width: float, colour: Colour) -> None:
    """An oval rug with a border."""
    wall.oval(x, 270, half_width, 22, shade(colour, 0.8))
    wall.oval(x, 270, half_width * 0.93, 18, colour)
    wall.oval(x, 270, half_width * 0.6, 10, shade(colour, 1.12))


def lamp_shade(wall: Wall, x: float, top: float, *, lit: bool) -> None:
    """A cloth shade, with its glow when the lamp is on."""
    if lit:
        for size in range(12, 0, -1):
            centre = (round(x * SCALE), round((top + 14) * SCALE))
            reach = size * 7 * SCALE
            patch = (
                max(0, centre[0] - reach),
                max(0, centre[1] - reach),
                centre[0] + reach,
                centre[1] + reach,
            )
            under = wall.image.crop(patch)
            mask = Image.new("L", under.size, 0)
            ImageDraw.Draw(mask).ellipse([0, 0, under.width - 1, under.height - 1], 10)
            wall.image.paste(Image.new("RGB", under.size, (255, 236, 150)), patch[:2], mask)
    colour = (255, 238, 160) if lit else (150, 140, 122)
    wall.shape([(x - 13, top), (x + 13, top), (x + 23, top + 30), (x - 23, top + 30)], colour)
    wall.line([(x - 23, top + 30), (x + 23, top + 30)], shade(colour, 0.86), 2)


def kitchen(_: random.Random) -> Wall:
    """Fridge, stove, counter under a window, table with two chairs."""
    floor = (206, 196, 180)
    wall = Wall(1200, (240, 228, 190), floor)
    tiles(wall, floor)
    wall.shadow(105, 258, 62)
    wall.box(52, 58, 158, 258, WHITE, 5)
    wall.box(52, 124, 158, 127, shade(WHITE, 0.75))
    wall.box(150, 58, 158, 258, shade(WHITE, 0.88), 4)
    for y0, y1 in ((88, 116), (136, 180)):
        wall.box(60, y0, 65, y1, SILVER, 2)
    wall.box(96, 82, 112, 100, YELLOW)
    wall.oval(104, 81, 4, 4, RED)
    wall.shadow(440, 258, 240)
    wall.box(200, 172, 690, 258, WOOD, 2)
    wall.box(200, 250, 690, 258, shade(WOOD, 0.6))
    for x in range(290, 690, 80):
        wall.box(x + 4, 180, x + 76, 200, shade(WOOD, 1.1), 2)
        wall.box(x + 4, 204, x + 76, 246, shade(WOOD, 1.1), 2)
        wall.oval(x + 40, 190, 3, 3, DARK_WOOD)
        wall.oval(x + 66, 222, 3, 3, DARK_WOOD)
    wall.box(194, 164, 696, 174, (92, 96, 104), 2)
    wall.box(204, 176, 286, 250, (222, 222, 224), 2)
    wall.box(212, 196, 278, 240, BLACK, 4)
    wall.box(218, 202, 272, 234, (70, 70, 78), 3)
    for x in range(214, 284, 16):
        wall.oval(x, 185, 4, 4, BLACK)
    wall.box(212, 161, 278, 165, BLACK)
    wall.box(222, 134, 268, 162, RED, 3)
    wall.box(218, 132, 272, 138, shade(RED, 0.85), 2)
    wall.oval(245, 130, 4, 3, BLACK)
    for x in (214, 268):
        wall.box(x, 142, x + 10, 147, BLACK, 2)
    wall.shape([(214, 66), (276, 66), (290, 88), (200, 88)], SILVER)
    wall.box(230, 0, 260, 66, shade(SILVER, 1.08))
    window(wall, 430, RED)
    plant(wall, 400, 140, 0.8)
    wall.line([(455, 164), (455, 140), (470, 138), (472, 148)], SILVER, 4)
    wall.box(440, 162, 520, 168, shade(SILVER, 0.8), 2)
    wall.box(560, 138, 616, 164, SILVER, 6)
    wall.box(568, 133, 608, 140, (176, 124, 70), 3)
    wall.box(612, 146, 620, 150, BLACK, 1)
    kettle = (60, 128, 96)
    wall.shape([(640, 164), (674, 164), (668, 134), (646, 134)], kettle)
    wall.line([(672, 158), (684, 142)], kettle, 5)
    wall.line([(644, 138), (634, 142), (634, 156), (642, 160)], BLACK, 3)
    wall.oval(657, 132, 8, 4, BLACK)
    clock(wall, 610, 72, 3)
    wall.line([(900, 0), (900, 48)], BLACK, 1.5)
    lamp_shade(wall, 900, 48, lit=True)
    rug(wall, 900, 170, GREEN)
    chair(wall, 790, DARK_WOOD, 1)
    chair(wall, 1010, DARK_WOOD, -1)
    wall.shadow(900, 268, 60)
    wall.box(893, 192, 907, 262, shade(WOOD, 0.85))
    wall.box(868, 260, 932, 268, shade(WOOD, 0.8), 4)
    wall.box(820, 184, 980, 194, shade(WOOD, 1.1), 4)
    orange_bowl(wall, 900, 184)
    wall.shadow(1120, 258, 32)
    wall.shape([(1094, 180), (1146, 180), (1140, 258), (1100, 258)], (120, 126, 134))
    wall.box(1090, 172, 1150, 182, (96, 102, 110), 4)
    return wall


def bedroom(generator: random.Random) -> Wall:
    """Wardrobe, bed with bedside table, window, desk with a chair."""
    floor = (178, 136, 96)
    wall = Wall(1200, (206, 220, 214), floor)
    boards(wall, floor)
    wall.shadow(110, 258, 88)
    wall.box(30, 44, 190, 258, DARK_WOOD, 3)
    for x in (38, 113):
        wall.box(x, 54, x + 69, 246, shade(DARK_WOOD, 1.2), 2)
        wall.box(x + 8, 64, x + 61, 236, shade(DARK_WOOD, 1.1), 2)
    for x in (101, 119):
        wall.oval(x, 152, 3, 5, SILVER)
    rug(wall, 420, 220, BLUE)
    wall.shadow(400, 258, 160)
    wall.box(244, 128, 262, 258, WOOD, 4)
    wall.box(546, 176, 560, 258, WOOD, 4)
    wall.box(250, 214, 556, 240, shade(WOOD, 0.9), 2)
    wall.box(258, 190, 550, 218, WHITE, 8)
    wall.box(340, 180, 552, 222, YELLOW, 8)
    for x in range(356, 552, 28):
        wall.box(x, 181, x + 6, 221, shade(YELLOW, 0.9))
    wall.box(264, 170, 336, 196, WHITE, 10)
    wall.box(268, 190, 330, 195, shade(WHITE, 0.88), 4)
    cat = (70, 66, 68)
    wall.oval(474, 170, 32, 13, cat)
    wall.oval(446, 166, 12, 10, cat)
    for ear in ((436, 448), (446, 457)):
        wall.shape([(ear[0], 162), (sum(ear) / 2, 148), (ear[1], 162)], cat)
    wall.line([(504, 172), (516, 178), (500, 181), (480, 180)], cat, 5)
    wall.line([(440, 167), (444, 168)], WHITE, 1)
    picture(wall, 400, 84)
    wall.shadow(614, 258, 34)
    wall.box(584, 188, 644, 258, WOOD, 2)
    wall.box(580, 184, 648, 191, shade(WOOD, 1.15), 2)
    for y in (198, 228):
        wall.box(590, y, 638, y + 24, shade(WOOD, 1.1), 2)
        wall.oval(614, y + 12, 3, 3, DARK_WOOD)
    wall.line([(600, 184), (600, 150)], SILVER, 3)
    wall.oval(600, 184, 11, 3, SILVER)
    lamp_shade(wall, 600, 124, lit=True)
    wall.box(620, 170, 644, 184, BLACK, 2)
    for digit, lines in enumerate(("7", "3", "0")):
        seven_segments(wall, 624 + digit * 6 + (2 if digit else 0), 173, lines)
    wall.oval(630.5, 175.5, 0.6, 0.6, RED)
    wall.oval(630.5, 179, 0.6, 0.6, RED)
    window(wall, 780, BLUE)
    plant(wall, 800, 140, 0.8)
    wall.shadow(1010, 258, 110)
    wall.box(910, 178, 1120, 188, shade(WOOD, 1.1), 2)
    for x in (916, 1106):
        wall.box(x, 188, x + 8, 258, WOOD)
    wall.box(1050, 188, 1106, 220, shade(WOOD, 0.95))
    wall.oval(1078, 204, 3, 3, DARK_WOOD)
    wall.box(960, 126, 1036, 172, BLACK, 3)
    wall.box(964, 130, 1032, 168, (58, 66, 82))
    wall.box(952, 172, 1044, 178, SILVER, 2)
    wall.box(1064, 160, 1080, 178, WHITE, 2)
    wall.line([(1080, 164), (1086, 166), (1086, 172), (1080, 174)], WHITE, 2.5)
    books(wall, generator, 930, 92, 8)
    wall.box(920, 92, 1000, 97, WOOD, 1)
    chair(wall, 975, RED, 1)
    return wall


SEGMENTS = {
    "0": "abcdef",
    "3": "abgcd",
    "7": "abc",
}


def seven_segments(wall: Wall, x: float, y: float, digit: str) -> None:
    """One digit of an alarm clock, 4 wide and 8 high."""
    places = {
        "a": [(x, y), (x + 4, y)],
        "b": [(x + 4, y), (x + 4, y + 4)],
        "c": [(x + 4, y + 4), (x + 4, y + 8)],
        "d": [(x, y + 8), (x + 4, y + 8)],
        "e": [(x, y + 4), (x, y + 8)],
        "f": [(x, y), (x, y + 4)],
        "g": [(x, y + 4), (x + 4, y + 4)],
    }
    for segment in SEGMENTS[digit]:
        wall.line(places[segment], (255, 92, 70), 0.9)


def books(wall: Wall, generator: random.Random, x: float, y: float, count: int) -> None:
    """A row of books that stands at y."""
    for _ in range(count):
        width, height = generator.uniform(5, 9), generator.uniform(24, 34)
        colour = shade(generator.choice((RED, GREEN, BLUE, YELLOW, WHITE, ORANGE)), 0.92)
        wall.box(x, y - height, x + width, y, colour, 1)
        wall.box(x, y - height + 5, x + width, y - height + 7, shade(colour, 0.75))
        x += width + 0.6


def living_room(generator: random.Random) -> Wall:
    """Door, bookshelf, sofa with a coffee table, plant, television."""
    floor = (170, 124, 84)
    wall = Wall(1200, (224, 208, 200), floor)
    boards(wall, floor)
    wall.box(34, 50, 138, 215, shade(WHITE, 0.85))
    wall.box(42, 58, 130, 215, (150, 98, 62))
    for y0, y1 in ((70, 130), (142, 204)):
        wall.box(54, y0, 118, y1, (132, 84, 52), 2)
    wall.oval(122, 140, 4, 4, YELLOW)
    wall.shadow(225, 258, 66)
    wall.box(166, 60, 286, 258, DARK_WOOD, 2)
    for y in (72, 120, 168, 214):
        wall.box(173, y, 279, y + 40, shade(DARK_WOOD, 0.7))
    for y in (112, 160, 254):
        books(wall, generator, 176, y, 12)
    wall.oval(200, 196, 9, 12, BLUE)
    wall.box(196, 178, 204, 188, BLUE)
    wall.box(240, 184, 270, 208, (222, 190, 140), 2)
    rug(wall, 470, 210, RED)
    picture(wall, 400, 84)
    clock(wall, 520, 82, 3)
    sofa = (92, 138, 110)
    wall.shadow(460, 256, 150)
    for x in (334, 578):
        wall.box(x, 244, x + 10, 258, DARK_WOOD)
    wall.box(330, 146, 590, 232, sofa, 12)
    wall.box(330, 214, 590, 248, shade(sofa, 0.85), 8)
    for x in (345, 462):
        wall.box(x, 196, x + 114, 226, shade(sofa, 1.12), 8)
    for x in (318, 570):
        wall.box(x, 176, x + 32, 250, shade(sofa, 0.95), 12)
    wall.box(356, 164, 396, 202, YELLOW, 8)
    wall.box(522, 164, 562, 202, YELLOW, 8)
    wall.shadow(470, 284, 90)
    for x in (398, 536):
        wall.box(x, 250, x + 6, 284, WOOD)
    wall.box(386, 244, 554, 253, shade(WOOD, 1.12), 3)
    orange_bowl(wall, 470, 244)
    wall.shadow(642, 258, 26)
    plant(wall, 642, 258, 1.7)
    window(wall, 760, BLUE)
    wall.shadow(880, 258, 24)
    wall.line([(880, 254), (880, 120)], BLACK, 3)
    wall.oval(880, 255, 17, 4, BLACK)
    lamp_shade(wall, 880, 92, lit=False)
    wall.shadow(1040, 258, 120)
    wall.box(930, 206, 1150, 254, WHITE, 3)
    for x in (936, 1044):
        wall.box(x, 212, x + 100, 246, shade(WHITE, 0.92), 2)
        wall.oval(x + 50, 229, 3, 3, SILVER)
    wall.box(1010, 198, 1070, 207, BLACK, 2)
    wall.box(950, 96, 1130, 200, BLACK, 4)
    wall.box(956, 102, 1124, 194, (34, 36, 44), 2)
    wall.shape([(956, 194), (956, 170), (1040, 102), (1072, 102)], (44, 47, 57))
    return wall


def walk(wall: Wall, folder: Path, generator: random.Random) -> None:
    """Photographs the wall from left to right, at changing distances."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*-rgb.png"):
        old.unlink()
    for number in range(FRAMES):
        along = number / (FRAMES - 1)
        width = 396 - 46 * math.sin(math.pi * along) ** 2 - generator.uniform(0, 4)
        height = width * SIZE[1] / SIZE[0]
        left = along * (wall.width - 1 - width)
        top = (HEIGHT - 1 - height) * generator.uniform(0.7, 1.0)
        seen = (left * SCALE, top * SCALE, (left + width) * SCALE, (top + height) * SCALE)
        frame = wall.image.resize(SIZE, Image.Resampling.LANCZOS, box=seen)
        # 256 colours are enough for flat paint, and halve the file.
        frame = frame.quantize(256, kmeans=3, dither=Image.Dither.NONE)
        frame.save(folder / f"{number:05}-rgb.png", optimize=True)


ROOMS: dict[str, Callable[[random.Random], Wall]] = {
    "000-kitchen": kitchen,
    "001-bedroom": bedroom,
    "002-living-room": living_room,
}


def main() -> None:
    """Draws every room and walks through it."""
    parser = argparse.ArgumentParser(description="Draws the frames of the demo's episodes.")
    parser.add_argument("--output", type=Path, default=DEMO)
    output: Path = parser.parse_args().output
    for name, room in ROOMS.items():
        generator = random.Random(f"{SEED} {name}")
        walk(room(generator), output / "demo" / name, generator)


if __name__ == "__main__":
    main()

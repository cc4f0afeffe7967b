"""Small real parts for tests, and the kits that hold an implementation against its protocol.

A class of one's own is tested by handing it to the kit of its role: each `check_*` returns
nothing and raises AssertionError with what the contract asks for.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from openeqa_lab import report
from openeqa_lab.data.case import Case, Question
from openeqa_lab.data.episode import Episode, EpisodeSource, Frame, FrameSource, Image, RawFrame
from openeqa_lab.errors import CallError, FrameError
from openeqa_lab.images import FrameEncoder
from openeqa_lab.judges import Judge
from openeqa_lab.llm import LLM, Completion, FinishReason
from openeqa_lab.loggers import Logger, RunInfo
from openeqa_lab.metrics import Estimate, Metric
from openeqa_lab.reasoners import Reasoner
from openeqa_lab.records import Answer, Failure, Record, Usage, Verdict
from openeqa_lab.report import Timing
from openeqa_lab.sampling import Sampler


@dataclass
class EchoLLM:
    """A language model that repeats its prompt, or says what it is told to: no network, no cost.

    Args:
        reply: What to say, or a function of a prompt's texts joined by line ends; those texts
            themselves by default.
        finish_reason: Of every reply.
        seconds: How long each reply takes.
    """

    reply: str | Callable[[str], str] = field(default=lambda prompt: prompt)
    finish_reason: FinishReason = "stop"
    seconds: float = 0.0
    calls: list[tuple[str, Sequence[str | Image]]] = field(default_factory=list)

    @property
    def identity(self) -> Mapping[str, object]:
        """The name alone."""
        return {"model": "echo"}

    async def complete(self, prompt: Sequence[str | Image], /, system: str = "") -> Completion:
        """The reply; every call is kept in `calls`."""
        self.calls.append((system, prompt))
        await asyncio.sleep(self.seconds)
        said = "\n".join(part for part in prompt if isinstance(part, str))
        text = self.reply if isinstance(self.reply, str) else self.reply(said)
        words = sum(len(part.split()) for part in prompt if isinstance(part, str))
        usage = Usage(1, words, len(text.split()), 0.0, self.seconds)
        return Completion(text, self.finish_reason, "echo", usage)


@dataclass(eq=False)
class TinyFrames:
    """A source of real little pictures, each of one colour of its own, that counts its reads."""

    key: str = "tiny/000-room"
    count: int = 5
    reads: list[int] = field(default_factory=list)

    def path(self, index: int) -> str:
        """As a folder of frames names them."""
        return f"{self.key}/{index:05d}-rgb.png"

    def read(self, indices: Sequence[int]) -> Sequence[RawFrame]:
        """The pixels, 24 by 32."""
        import numpy as np

        self.reads += indices
        frames = []
        for index in indices:
            colour = np.array([40 * index % 256, 90, 200 - 30 * index % 200], dtype=np.uint8)
            pixels = np.broadcast_to(colour, (24, 32, 3)).copy()
            digest = hashlib.sha256(pixels.tobytes()).hexdigest()
            frames.append(RawFrame(pixels, digest, self.path(index)))
        return frames

    def sha256(self, index: int) -> str | None:
        """Known once the frame was read."""
        return self.read([index])[0].sha256 if index in self.reads else None


def tiny_episode(count: int = 5, key: str = "tiny/000-room") -> Episode:
    """An episode of little pictures."""
    source: FrameSource = TinyFrames(key, count)
    return Episode(key, tuple(Frame(source, index) for index in range(count)))


def write_frames(folder: Path, count: int, width: int = 32, height: int = 24) -> list[Path]:
    """Real PNG files `00000-rgb.png` and on in a folder that is made; gives their paths."""
    from PIL import Image as Picture

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{index:05d}-rgb.png" for index in range(count)]
    for index, path in enumerate(paths):
        Picture.new("RGB", (width, height), (10 * index % 256, 90, 160)).save(path)
    return paths


def tiny_case(number: int = 0, episode: str = "tiny/000-room") -> Case:
    """A case with one right answer and one more."""
    question = Question(f"q-{number}", f"What color is chair number {number}?")
    return Case(question.id, question, "red", "attribute recognition", episode, ("dark red",))


def _check_identity(part: object, identity: Mapping[str, object]) -> None:
    name = type(part).__name__
    again = json.loads(json.dumps(identity))
    assert again, f"{name}.identity is empty: it must at least name what this is"
    assert again == json.loads(json.dumps(identity)), f"{name}.identity changes between two looks"
    text = json.dumps(again)
    assert str(Path.home()) not in text, f"{name}.identity holds a path of this machine: {text}"


def check_sampler(sampler: Sampler) -> None:
    """Sorted, unique, within range, stable, asked-for length, and an error for no frames."""
    _check_identity(sampler, sampler.identity)
    question = Question("q", "Where is the lamp?")
    lengths = {}
    for count in (1, 2, 3, 7, 64, 600):
        frames = tiny_episode(count).frames
        chosen = list(sampler.sample(frames, question))
        indices = [frame.index for frame in chosen]
        assert indices == sorted(set(indices)), f"of {count} frames: not sorted and unique"
        assert all(frame in frames for frame in chosen), f"of {count} frames: not the given ones"
        assert indices, f"of {count} frames: none was chosen"
        again = [frame.index for frame in sampler.sample(frames, question)]
        assert indices == again, f"of {count} frames: two calls choose differently"
        lengths[count] = len(indices)
    most = max(lengths.values())
    for count, length in lengths.items():
        assert length == min(count, most), f"of {count} frames {length} were chosen, k is {most}"
    try:
        sampler.sample((), question)
    except FrameError:
        return
    raise AssertionError("no frames at all must be a FrameError")


async def check_episode_source(source: EpisodeSource, case: Case) -> None:
    """The same episode for the same case, also when asked many times at once; lazy frames."""
    _check_identity(source, source.identity)
    episodes = await asyncio.gather(*(source.episode(case) for _ in range(4)))
    first = episodes[0]
    for episode in episodes:
        assert [frame.path for frame in episode.frames] == [frame.path for frame in first.frames]
    numbers = [frame.index for frame in first.frames]
    assert numbers == sorted(set(numbers)), "frames must be numbered in the order they were seen"
    for frame in first.frames:
        assert not Path(frame.path).is_absolute(), f"{frame.path} must be relative to the data root"
    if first.frames:
        raw = first.frames[0].read()
        assert first.frames[0].sha256 == raw.sha256, "a frame that was read must know its digest"


async def check_encoder(encoder: FrameEncoder) -> None:
    """One whole picture a frame, in the order given, the same every time and for everybody."""
    _check_identity(encoder, encoder.identity)
    frames = tiny_episode(6).frames
    pictures = list(await encoder.encode(frames))
    assert len(pictures) == len(frames), f"{len(pictures)} pictures of {len(frames)} frames"
    for picture in pictures:
        assert picture.data, "a picture without bytes"
        assert picture.media_type.startswith("image/"), picture.media_type
        assert picture.width > 0
        assert picture.height > 0
    assert list(await encoder.encode(frames[::-1])) == pictures[::-1], "the order must be kept"
    both = await asyncio.gather(encoder.encode(frames), encoder.encode(frames[2:4]))
    assert list(both[1]) == pictures[2:4], "two questions that share frames must see the same"


def check_logger(logger: Logger, folder: Path) -> None:
    """A whole run, one that is stopped at once, and one after the other with one object."""
    record = Record(tiny_case(), result=Answer("red"), verdict=Verdict(1.0, 5))
    for name, records in (("first", [record, Record(tiny_case(1))]), ("second", [])):
        info = RunInfo(name, None, folder / name, {"sampler": {"k": 5}}, {"judge": {"name": "x"}})
        info.output_dir.mkdir(parents=True, exist_ok=True)
        logger.start(info)
        logger.log({"done": 1.0, "failed": 0.0}, 1)
        time = Timing("2026-01-01T00:00:00+00:00", "2026-01-01T00:01:00+00:00", 60.0)
        made = report.build(
            records, {"llm_match": Estimate(100.0, count=1)}, name=name, state="complete",
            identity=info.identity, settings=info.config, versions={}, timing=time,
        )  # fmt: skip
        logger.finish(made, records)


async def check_llm(llm: LLM, *, pictures: bool = True) -> None:
    """Text, a picture and a system part are taken; usage is counted.

    Args:
        llm: The model.
        pictures: Whether it sees; one that does not must refuse a picture as a bad request.
    """
    from PIL import Image as Picture

    _check_identity(llm, llm.identity)
    picture = _png(Picture.new("RGB", (8, 8), (200, 30, 30)))
    shown: list[str | Image] = ["Look.", picture, "What color is it?"]
    if not pictures:
        try:
            await llm.complete(shown)
        except CallError as error:
            refused = error.kind
        else:
            raise AssertionError("a model that reads text alone must refuse a picture")
        assert refused == "bad_request", f"a picture is refused as {refused}: bad_request is meant"
        shown = ["Look.", "What color is it?"]
    reply = await llm.complete(shown, system="Be brief.")
    assert isinstance(reply, Completion), f"{reply!r} is no Completion"
    assert reply.usage.calls >= 1, "a call must be counted"
    assert reply.usage.dollars is None or reply.usage.dollars >= 0
    both = await asyncio.gather(*(llm.complete(["Hello."]) for _ in range(3)))
    assert len(both) == 3


def _png(picture: object) -> Image:
    import io

    from PIL import Image as Picture

    assert isinstance(picture, Picture.Image)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return Image(buffer.getvalue(), "image/png", picture.width, picture.height)


async def check_reasoner(
    reasoner: Reasoner, question: Question, frames: Sequence[Frame] = ()
) -> None:
    """Answers with a status and a text that go together, also when asked several at once."""
    _check_identity(reasoner, reasoner.identity)
    before = json.dumps(reasoner.identity, sort_keys=True)
    answers = await asyncio.gather(*(reasoner.answer(question, frames) for _ in range(3)))
    for answer in answers:
        assert isinstance(answer, Answer), f"{answer!r} is no Answer"
        spoke = answer.status == "answered"
        assert bool(answer.text.strip()) == spoke, f"{answer.status} with the text {answer.text!r}"
    assert json.dumps(reasoner.identity, sort_keys=True) == before, "answering changed the identity"


async def check_judge(judge: Judge, case: Case) -> None:
    """Scores from 0 to 1, marks that fit the scale, the right answer not below a wrong one."""
    _check_identity(judge, judge.identity)
    assert "name" in judge.identity, "a judge's identity must hold its name"
    verdicts = []
    for text in (case.answer, "something else altogether"):
        verdict = await judge.judge(case, Answer(text))
        verdicts.append(verdict)
        assert isinstance(verdict, Verdict), f"{verdict!r} is no Verdict"
        assert 0 <= verdict.score <= 1, f"score {verdict.score} of {text!r} is outside 0 to 1"
        if judge.scale == "1-5":
            assert verdict.mark in (1, 2, 3, 4, 5), f"mark {verdict.mark!r} on a scale of 1-5"
            assert math.isclose(verdict.score, (verdict.mark - 1) / 4), "score is (mark - 1) / 4"
        else:
            assert verdict.mark is None, f"mark {verdict.mark} on a scale of 0-1"
    assert verdicts[0].score >= verdicts[1].score, "the right answer scores below a wrong one"


def check_metric(metric: Metric) -> None:
    """Finite figures or None, intervals around them, counts that fit, order of no matter."""
    cases = [tiny_case(number, f"tiny/{number % 3:03d}-room") for number in range(9)]
    good = [
        Record(case, result=Answer("red"), verdict=Verdict(number % 5 / 4, number % 5 + 1))
        for number, case in enumerate(cases[:7])
    ]
    bad = [
        Record(cases[7], result=Failure("answer", "timeout", "q-7 took longer than 90 s")),
        Record(cases[8], result=Answer("red"), verdict=Failure("judge", "unparsed", "no mark")),
    ]
    for records in ([], good[:1], bad, good + bad):
        for key, estimate in metric.compute(records).items():
            for value in (estimate.value, estimate.low, estimate.high, estimate.error):
                assert value is None or math.isfinite(value), f"{key} is {value}: None is meant"
            if None not in (estimate.value, estimate.low, estimate.high):
                assert estimate.low <= estimate.value <= estimate.high, f"{key}: {estimate}"  # type: ignore[operator]
            assert 0 <= estimate.count <= len(records), f"{key} counts {estimate.count} records"
    mixed, turned = good + bad, bad[::-1] + good[::-1]
    assert metric.compute(mixed) == metric.compute(turned), "the order of records must not matter"

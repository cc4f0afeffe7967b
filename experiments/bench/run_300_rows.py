"""What each row of `run_300.py` does; started by it.

`upstream` is what the paper's scripts do: one question after the other, its frames decoded anew,
resized and sent as PNG through a client of its own, all answers written again each time; then one
judgement after the other. `floor` sends bodies that are ready beforehand, with aiohttp, and writes
and syncs a line of JSON a call. The others are `Evaluation` as the command `openeqa-lab` builds it,
with an encoder each.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from openeqa_lab.evaluation import Evaluation

FRAMES, K, SIZE = 60, 50, 512
KEY = "OPENEQA_BENCH_KEY"
ENCODERS = {  # overrides of conf/run.yaml; processes need the extra [fast], as jpeg_fast does
    "jpeg": ["encoder@reasoner.encoder=jpeg"],
    "jpeg_fast": ["encoder@reasoner.encoder=jpeg_fast"],
    "jpeg by Pillow": ["encoder@reasoner.encoder=jpeg", "reasoner.encoder.processes=0"],
    "png_upstream": ["encoder@reasoner.encoder=png_upstream"],
}


@dataclass(frozen=True)
class Job:
    """What is asked, and where.

    Args:
        work: The folder of frames, stores and run folders.
        port: Of the endpoint.
        questions: How many there are.
        episodes: That they are about, each about as many.
        at_once: Questions under way.
    """

    work: str
    port: int
    questions: int
    episodes: int
    at_once: int

    @staticmethod
    def folder(work: Path, episode: int) -> Path:
        """Of an episode's frames."""
        return work / "frames" / "scannet-v0" / f"{episode:03}-bench"

    def plain(self) -> dict[str, object]:
        return asdict(self)

    def of(self, questions: int) -> Job:
        """The job with its first questions alone."""
        return replace(self, questions=questions, episodes=1)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def episode(self, question: int) -> Path:
        return self.folder(Path(self.work), question * self.episodes // self.questions)

    def shown(self, question: int) -> list[str]:
        paths = sorted(map(str, self.episode(question).iterdir()))
        return [paths[i * FRAMES // K] for i in range(K)]

    def write_questions(self) -> Path:
        rows = [
            {"question_id": f"q{n}", "question": f"What is seen {n} times?", "answer": "A sofa.",
             "category": "object recognition",
             "episode_history": f"scannet-v0/{self.episode(n).name}"}
            for n in range(self.questions)
        ]  # fmt: skip
        path = Path(self.work, "questions.json")
        path.write_text(json.dumps(rows))
        return path


def upstream(job: Job) -> None:
    """One after the other, and nothing kept."""
    import cv2
    import openai

    def ask(path: str, content: object) -> str:
        model = openai.OpenAI(base_url=job.url + path, api_key="none")
        messages: Any = [{"role": "user", "content": content}]
        reply = model.chat.completions.create(
            model="gpt-4o", messages=messages, max_tokens=128, temperature=0.2, seed=1234
        )
        return reply.choices[0].message.content or ""

    def frame(path: str) -> dict[str, object]:
        picture: Any = cv2.imread(path)
        factor = SIZE / max(picture.shape)
        picture = cv2.resize(picture, dsize=None, fx=factor, fy=factor)
        data = base64.b64encode(cv2.imencode(".png", picture)[1]).decode()
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}

    ask("/v1", "Say a word.")
    answers: dict[int, str] = {}
    with measured():
        for n in range(job.questions):
            pictures = [frame(path) for path in job.shown(n)]
            text = {"type": "text", "text": f"What is seen {n} times?"}
            answers[n] = ask("/v1", [{"type": "text", "text": "Look."}, *pictures, text])
            Path(job.work, "upstream.json").write_text(json.dumps(answers))
        for answer in answers.values():
            ask("/judge/v1", answer)


async def floor(job: Job, file: BinaryIO) -> None:
    """What sending and writing alone cost."""
    import aiohttp
    import cv2

    def frame(path: str) -> dict[str, object]:
        picture: Any = cv2.imread(path)
        factor = SIZE / max(picture.shape)
        picture = cv2.resize(picture, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA)
        data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 90])[1]
        url = "data:image/jpeg;base64," + base64.b64encode(data).decode()
        return {"type": "image_url", "image_url": {"url": url}}

    body = {
        "model": "gpt-4o",
        "messages": [{"role": "user", "content": list(map(frame, job.shown(0)))}],
    }
    ready = json.dumps(body).removesuffix("]}]}").encode()
    slots, headers = asyncio.Semaphore(job.at_once), {"content-type": "application/json"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def ask(path: str, body: bytes) -> None:
            async with session.post(f"{job.url}{path}/chat/completions", data=body) as reply:
                said = json.loads(await reply.read())["choices"][0]["message"]["content"]
            file.write(json.dumps({"said": said}).encode() + b"\n")
            file.flush()
            await asyncio.to_thread(os.fsync, file.fileno())

        async def case(n: int) -> None:
            async with slots:
                text = b', {"type": "text", "text": "What is seen %d times?"}]}]}' % n
                await ask("/v1", ready + text)
                await ask("/judge/v1", b'{"model": "gpt-4", "messages": []}')

        await case(0)
        with measured():
            await asyncio.gather(*map(case, range(job.questions)))


def evaluation(row: str, state: str, job: Job) -> Evaluation:
    """A run of ours; nothing but the store of prepared frames is there from an earlier one."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    from openeqa_lab import config
    from openeqa_lab.evaluation import Evaluation

    folder, store = Path(job.work, "run"), Path(job.work, "store")
    shutil.rmtree(folder, ignore_errors=True)
    if state == "cold":
        shutil.rmtree(store, ignore_errors=True)
    conf = Path(__file__).resolve().parents[2] / "conf"
    with initialize_config_dir(str(conf), version_base="1.3"):
        composed = compose("run", overrides=[
            "reasoner=multi_frame", f"sampler.k={K}", *ENCODERS[row], "judge=llm_match_own",
            f"reasoner.encoder.size={SIZE}", f"reasoner.encoder.store_dir={store}",
            f"++reasoner.llm.api_base={job.url}/v1", f"++reasoner.llm.api_key_env={KEY}",
            f"++judge.llm.api_base={job.url}/judge/v1", f"++judge.llm.api_key_env={KEY}",
            f"dataset.path={job.write_questions()}", f"episodes.root={job.work}/frames",
            "loggers=[jsonl]", f"data_dir={job.work}", f"concurrency={job.at_once}",
        ])  # fmt: skip
    settings: Any = OmegaConf.to_container(composed, resolve=True)
    names = ("dataset", "episodes", "sampler", "reasoner", "judge")
    return Evaluation(
        **{name: config.build(settings[name], name) for name in names},
        metrics=config.build_all(settings["metrics"], "metrics"),
        loggers=config.build_all(settings["loggers"], "loggers"),
        output_dir=folder,
        concurrency=job.at_once,
    )


async def library(ours: Evaluation, job: Job) -> None:
    """The run, after one call that has what is imported late imported."""
    from openeqa_lab.llm.api import ApiModel

    await ApiModel("openai/gpt-4o", api_base=f"{job.url}/v1").complete(["Say a word."])
    with measured(ours.output_dir):
        report = await ours.run()
    if report.counts.judged != job.questions:
        raise SystemExit(f"not all were judged: {report.counts}")


@contextmanager
def measured(folder: Path | None = None) -> Iterator[None]:
    """Prints seconds of wall and CPU in the block, and the bytes in the folder, as JSON."""
    cpu, wall = cpu_s(), time.perf_counter()
    yield
    wall, cpu = time.perf_counter() - wall, cpu_s() - cpu
    files = [path for path in folder.rglob("*") if path.is_file()] if folder else []
    log = sum(path.stat().st_size for path in files)
    print(json.dumps({"wall": wall, "cpu": cpu, "log": log}), flush=True)


def cpu_s() -> float:
    """Of this process and all that it started, ended or not."""
    used = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        times = resource.getrusage(who)
        used += times.ru_utime + times.ru_stime
    ticks = os.sysconf("SC_CLK_TCK")
    for pid in processes(os.getpid())[1:]:
        if fields := _fields(pid):
            used += (int(fields[11]) + int(fields[12])) / ticks
    return used


def processes(top: int) -> list[int]:
    """A process and those below it, from /proc; none where there is no such thing."""
    parents = {
        int(path.name): int(fields[1])
        for path in Path("/proc").glob("[0-9]*")
        if (fields := _fields(int(path.name)))
    }
    found = [top]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _fields(pid: int) -> list[str]:
    """What the system says of a process, from its state on; empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def main(row: str, state: str, plain: str) -> None:
    """One row."""
    job = Job(**json.loads(plain))
    if row == "upstream":
        upstream(job)
    elif row == "floor":
        with Path(job.work, "floor.jsonl").open("wb") as file:
            asyncio.run(floor(job, file))
    else:
        os.environ[KEY] = "none"
        asyncio.run(library(evaluation(row, state, job), job))


if __name__ == "__main__":
    main(*sys.argv[1:])

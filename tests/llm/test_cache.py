"""What was bought before is not bought again, whoever asks at once and on whatever loop."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from openeqa_lab import config
from openeqa_lab.errors import CallError, OpenEQAError
from openeqa_lab.llm import Completion, FinishReason
from openeqa_lab.llm.cache import OFF, CompletionCache, Mode
from openeqa_lab.records import Attempt, Usage

KEY = {"model": "openai/gpt-4o", "temperature": 0.2, "prompt": ["What is red?"], "repeat": 0}
PAID = Usage(1, 100, 5, 0.25, 1.5, cached_tokens=3, saved_dollars=0.1)


class Shop:
    """Sells replies, and counts them."""

    def __init__(self, *texts: str, reason: FinishReason = "stop") -> None:
        self.texts = list(texts)
        self.reason = reason
        self.sold = 0
        self.open = asyncio.Event()
        self.open.set()

    async def ask(self) -> Completion:
        self.sold += 1
        text = self.texts[min(self.sold, len(self.texts)) - 1] if self.texts else "the sofa"
        await self.open.wait()
        return Completion(text, self.reason, "gpt-4o-2024", PAID, ("seed is not sent",))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "made" / "completions.sqlite"


async def test_off_asks_each_time_and_makes_no_file(path: Path) -> None:
    shop = Shop()
    for cache in (OFF, CompletionCache(path=path), CompletionCache(False, path)):
        reply = await cache.through(KEY, shop.ask)
        assert reply.usage == PAID
    assert (shop.sold, path.parent.exists()) == (3, False)


async def test_what_was_bought_comes_back_at_no_cost_in_this_run_and_the_next(path: Path) -> None:
    shop = Shop()
    for mode, usage in (
        ("write", Usage(1, 100, 5, 0.25, 1.5, 3, 0.1, cache_misses=1)),
        ("write", Usage(cache_hits=1)),
        ("read", Usage(cache_hits=1)),
    ):
        reply = await CompletionCache(mode, path).through(KEY, shop.ask)
        expected = Completion("the sofa", "stop", "gpt-4o-2024", usage, ("seed is not sent",))
        assert reply == expected
    assert shop.sold == 1
    assert Usage(cache_hits=1).dollars == 0.0


async def test_read_keeps_nothing_and_makes_nothing(path: Path) -> None:
    shop, cache = Shop(), CompletionCache("read", path)
    for _ in range(2):
        assert (await cache.through(KEY, shop.ask)).usage.cache_misses == 1
    assert (shop.sold, path.parent.exists()) == (2, False)
    # it sees what another run begins to write
    await CompletionCache("write", path).through({**KEY, "repeat": 1}, shop.ask)
    assert (await cache.through({**KEY, "repeat": 1}, shop.ask)).usage == Usage(cache_hits=1)
    await cache.through(KEY, shop.ask)
    assert shop.sold == 4


async def test_an_unknown_price_stays_unknown_and_attempts_are_of_their_call(path: Path) -> None:
    attempts = (Attempt("server", "503", 1.0, 2.0),)

    async def ask() -> Completion:
        return Completion("yes", usage=Usage(2, dollars=None), attempts=attempts)

    cache = CompletionCache("write", path)
    bought = await cache.through(KEY, ask)
    assert bought == Completion(
        "yes", usage=Usage(2, dollars=None, cache_misses=1), attempts=attempts
    )
    assert await cache.through(KEY, ask) == Completion("yes", usage=Usage(cache_hits=1))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"temperature": 0}, {"temperature": 0.0}, True),
        ({"temperature": 0}, {"temperature": -0.0}, True),
        ({"sent": {"top_p": [1, 2.0]}}, {"sent": {"top_p": (1.0, 2)}}, True),
        ({"temperature": 0}, {"temperature": None}, False),
        ({"temperature": 0}, {}, False),
        ({"temperature": 0}, {"temperature": False}, False),
        ({"temperature": 1}, {"temperature": "1"}, False),
        ({"temperature": 0.1}, {"temperature": 0.2}, False),
        ({"seed": 2**53}, {"seed": 2**53 + 1}, False),
        ({"pictures": ["a", "b"]}, {"pictures": ["b", "a"]}, False),
        ({"pictures": ["a", "b"]}, {"pictures": ["ab"]}, False),
        ({"prompt": ["a", "b"]}, {"prompt": ["a b"]}, False),
        ({"prompt": ["a"]}, {"prompt": "a"}, False),
        ({"repeat": 0}, {"repeat": 1}, False),
        ({"system": ""}, {"system": " "}, False),
        ({"prompt": "\u00e9"}, {"prompt": "e\u0301"}, False),
        ({"prompt": "\ud83d"}, {"prompt": "\\ud83d"}, False),
        ({"model": "a"}, {"model": "b"}, False),
    ],
)
async def test_keys_that_differ_in_one_thing_are_not_the_same(
    path: Path, one: dict[str, object], other: dict[str, object], same: bool
) -> None:
    shop, cache = Shop("first", "second"), CompletionCache("write", path)
    await cache.through(one, shop.ask)
    reply = await cache.through(other, shop.ask)
    assert (reply.text == "first", shop.sold == 1) == (same, same)
    assert (await cache.through(one, shop.ask)).text == "first"


@pytest.mark.parametrize(
    ("text", "reason", "kept"),
    [
        ("yes", "stop", True),
        ("yes", "other", True),
        ("cut in the mid", "length", True),
        ("I cannot help with that", "refusal", False),
        ("half of a", "content_filter", False),
        ("", "content_filter", False),
        ("", "stop", False),
        (" \n\t", "other", False),
    ],
)
async def test_only_what_says_something_is_kept(
    path: Path, text: str, reason: FinishReason, kept: bool, caplog: pytest.LogCaptureFixture
) -> None:
    shop, cache = Shop(text, reason=reason), CompletionCache("write", path)
    replies = [await cache.through(KEY, shop.ask) for _ in range(2)]
    assert [(reply.text, reply.finish_reason) for reply in replies] == [(text, reason)] * 2
    assert shop.sold == (1 if kept else 2)
    assert caplog.text == ""


async def test_a_failure_is_raised_as_it_is_and_not_kept(path: Path) -> None:
    cache, failure = CompletionCache("write", path), CallError("no", kind="server")

    async def fail() -> Completion:
        raise failure

    for _ in range(2):
        with pytest.raises(CallError) as raised:
            await cache.through(KEY, fail)
        assert raised.value is failure
    assert (await cache.through(KEY, Shop().ask)).usage.cache_misses == 1


@pytest.mark.parametrize(
    "text",
    [
        "a" * 1_000_000,
        "half \ud83d of an emoji, and the other \ude00",
        "\x00 \x1f \x7f \u2028 \ufeff",
        "\U0001f600 naïve 日本",
        '{"text": "\'); DROP TABLE completions; --"}',
        "  spaces around \r\n",
    ],
    ids=["1 MB", "half characters", "controls", "planes", "quotes", "spaces"],
)
async def test_a_text_comes_back_letter_for_letter(path: Path, text: str) -> None:
    shop = Shop(text)
    for _ in range(2):
        assert (await CompletionCache("write", path).through(KEY, shop.ask)).text == text
    assert shop.sold == 1


async def test_the_files_hold_no_word_of_a_prompt(path: Path) -> None:
    cache = CompletionCache("write", path)
    await cache.through({**KEY, "prompt": ["a secret question"]}, Shop("its answer").ask)
    data = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert b"its answer" in data
    assert b"secret" not in data


async def test_when_a_reply_was_kept_does_not_matter(path: Path) -> None:
    shop = Shop()
    await CompletionCache("write", path).through(KEY, shop.ask)
    for jump in ("-0001-01-01", "9999-12-31 23:59:59", ""):
        with sqlite3.connect(path) as file:
            file.execute("UPDATE completions SET created_at = ?", (jump,))
        file.close()
        reply = await CompletionCache("read", path).through(KEY, shop.ask)
        assert reply.usage == Usage(cache_hits=1)


@pytest.mark.parametrize("mode", ["read", "write"])
async def test_who_asks_the_same_at_once_waits_for_one_reply(path: Path, mode: Mode) -> None:
    shop = Shop("first", "second")
    shop.open.clear()
    caches = [CompletionCache(mode, path) for _ in range(2)]
    tasks = [asyncio.create_task(caches[n % 2].through(KEY, shop.ask)) for n in range(6)]
    other = await CompletionCache(mode, path).through({**KEY, "repeat": 1}, _at_once)
    assert other.text == "at once"  # what differs waits for nobody
    shop.open.set()
    replies = await asyncio.wait_for(asyncio.gather(*tasks), 10)
    assert {reply.text for reply in replies} == {"first"}
    usages = [reply.usage for reply in replies]
    assert usages.count(Usage(cache_hits=1)) == 5
    assert sum(usages, Usage()).calls == shop.sold == 1


async def _at_once() -> Completion:
    return Completion("at once")


@pytest.mark.parametrize("how", ["fails", "is cancelled"])
async def test_when_the_first_does_not_get_a_reply_the_next_one_asks(path: Path, how: str) -> None:
    cache, shop = CompletionCache("write", path), Shop()
    shop.open.clear()
    reached = asyncio.Event()

    async def never() -> Completion:
        reached.set()
        await shop.open.wait()
        raise CallError("no", kind="server")

    first = asyncio.create_task(cache.through(KEY, never))
    await asyncio.wait_for(reached.wait(), 10)
    others = [asyncio.create_task(cache.through(KEY, shop.ask)) for _ in range(4)]
    await asyncio.sleep(0)
    if how == "fails":
        shop.open.set()
    else:
        first.cancel()
        await asyncio.wait([first])
        shop.open.set()
    replies = await asyncio.wait_for(asyncio.gather(*others), 10)
    assert (shop.sold, {reply.text for reply in replies}) == (1, {"the sofa"})
    assert sum((reply.usage.cache_misses for reply in replies), 0) == 1
    with pytest.raises(CallError if how == "fails" else asyncio.CancelledError):
        await first


async def test_one_who_stops_waiting_takes_the_reply_from_nobody(path: Path) -> None:
    cache, shop = CompletionCache("write", path), Shop()
    shop.open.clear()
    tasks = [asyncio.create_task(cache.through(KEY, shop.ask)) for _ in range(3)]
    await asyncio.sleep(0.05)
    tasks[1].cancel()
    await asyncio.wait([tasks[1]])
    shop.open.set()
    await asyncio.wait_for(asyncio.gather(tasks[0], tasks[2]), 10)
    assert (shop.sold, tasks[1].cancelled()) == (1, True)


async def test_what_was_paid_is_kept_when_its_asker_is_cancelled(path: Path) -> None:
    shop = Shop()
    await CompletionCache("write", path).through({**KEY, "repeat": 1}, shop.ask)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # so that keeping takes its time
    cache = CompletionCache("write", path)
    busy = [asyncio.create_task(cache.through({**KEY, "repeat": n}, shop.ask)) for n in range(2, 5)]
    while shop.sold < 4:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    for task in busy:
        task.cancel()
    await asyncio.wait(busy)
    assert all(task.cancelled() for task in busy)
    other.execute("COMMIT")
    other.close()
    for n in range(2, 5):
        assert (await cache.through({**KEY, "repeat": n}, shop.ask)).usage.cache_hits == 1


async def test_a_wait_for_the_file_does_not_hold_up_the_loop(path: Path) -> None:
    cache, shop = CompletionCache("write", path), Shop()
    await cache.through(KEY, shop.ask)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    keeping = asyncio.create_task(cache.through({**KEY, "repeat": 1}, shop.ask))
    for _ in range(30):
        await asyncio.sleep(0.01)
    assert not keeping.done()
    other.execute("COMMIT")
    other.close()
    assert (await asyncio.wait_for(keeping, 10)).text == "the sofa"
    assert (await cache.through({**KEY, "repeat": 1}, shop.ask)).usage.cache_hits == 1


def test_one_cache_serves_many_loops_in_turn(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache, sold = CompletionCache("write", path), 0

    async def ask() -> Completion:
        nonlocal sold
        sold += 1
        await asyncio.sleep(60 if sold == 1 else 0)
        return Completion("yes")

    async def leave() -> None:
        asyncio.get_running_loop().create_task(cache.through(KEY, ask))
        while not sold:
            await asyncio.sleep(0.001)

    asyncio.run(leave())  # cancels what is left
    for _ in range(20):
        assert asyncio.run(asyncio.wait_for(cache.through(KEY, ask), 10)).text == "yes"
    assert sold == 2
    assert caplog.text == ""


def test_loops_in_several_threads_share_what_is_asked(path: Path) -> None:
    sold: list[int] = []
    usages: list[Usage] = []
    together = threading.Barrier(4)

    async def several() -> None:
        cache = CompletionCache("write", path)

        async def one(number: int) -> None:
            async def ask() -> Completion:
                sold.append(number)
                await asyncio.sleep(0.002)
                return Completion(str(number))

            reply = await cache.through({"number": number}, ask)
            assert reply.text == str(number)
            usages.append(reply.usage)

        together.wait()
        await asyncio.wait_for(asyncio.gather(*(one(number) for number in range(40))), 20)

    threads = [threading.Thread(target=lambda: asyncio.run(several())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(sold) == list(range(40))
    total = sum(usages, Usage())
    assert (total.cache_misses, total.cache_hits) == (40, 120)


@pytest.mark.parametrize("mode", ["on", "", "Read", True, None, 0])
def test_another_mode_is_refused(mode: Mode) -> None:
    with pytest.raises(OpenEQAError, match=r"llm.cache.mode is .*: expected off, read or write"):
        CompletionCache(mode)


@pytest.mark.parametrize(
    ("value", "mode"),
    [("off", "off"), ("'off'", "off"), ("false", "off"), ("read", "read"), ("write", "write")],
)
def test_the_option_binds_and_off_is_off_with_and_without_quotes(
    repository: Path, tmp_path: Path, value: str, mode: str
) -> None:
    overrides = ["+llm/cache@reasoner.cache=default", f"++cache={value}", f"++cache_dir={tmp_path}"]
    with initialize_config_dir(str(repository / "conf"), version_base="1.3"):
        settings = compose("run", overrides=overrides)
    from omegaconf import OmegaConf

    node = OmegaConf.to_container(settings.reasoner.cache, resolve=True)
    cache = config.build(node, "reasoner.llm.cache")
    assert cache.mode == mode
    assert node["path"] == f"{tmp_path}/completions.sqlite"


def test_a_bare_off_in_yaml_is_off_and_a_typo_is_refused() -> None:
    from omegaconf import OmegaConf

    target = "_target_: openeqa_lab.llm.cache.CompletionCache\npath: here\n"
    for word in ("off", "no", "false"):
        node = OmegaConf.to_container(OmegaConf.create(f"{target}mode: {word}"))
        assert config.build(node, "llm.cache").mode == "off"
    for word in ("on", "offf", "null"):
        node = OmegaConf.to_container(OmegaConf.create(f"{target}mode: {word}"))
        with pytest.raises(OpenEQAError, match=r"llm.cache.mode = .*'off', 'read', 'write'"):
            config.build(node, "llm.cache")


async def test_nothing_is_said_while_all_is_well(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "openeqa_lab"):
        for mode in ("read", "write", "read"):
            await CompletionCache(mode, path).through(KEY, Shop().ask)
    assert caplog.text == ""

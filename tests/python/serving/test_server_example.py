"""The example of an HTTP server: what it answers under load is what it answers alone."""

import asyncio
import importlib.util
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import pytest
from aiohttp import web

ROOT = Path(__file__).parents[3]
CLIENTS = 50
SYSTEM = [token * 37 % 400 + 10 for token in range(24)]


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("server_example", ROOT / "examples/server.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["server_example"] = module
    spec.loader.exec_module(module)
    return module


@asynccontextmanager
async def serving(example: ModuleType, **memory: Any) -> AsyncIterator[aiohttp.ClientSession]:
    app = example.make_app(**memory)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0]
    connector = aiohttp.TCPConnector(limit=0)
    try:
        async with aiohttp.ClientSession(f"http://{host}:{port}", connector=connector) as session:
            yield session
    finally:
        await runner.cleanup()


def ask(client: int) -> dict[str, Any]:
    own = [(client * 61 + token * 13) % 400 + 10 for token in range(client % 17)]
    return {"prompt": SYSTEM + own, "max_tokens": 28 + client % 23, "tenant": str(client % 3)}


async def answer(session: aiohttp.ClientSession, client: int) -> list[int]:
    async with session.post("/generate", json=ask(client)) as response:
        assert response.status == 200, await response.text()
        lines = [json.loads(line) async for line in response.content]
    usage = lines[-1].pop("usage")
    assert lines[-1] == {"state": "finished", "reason": "length"}
    tokens = [token for line in lines[:-1] for token in line["tokens"]]
    assert len(tokens) == ask(client)["max_tokens"]
    prompt = len(ask(client)["prompt"])
    assert 0 <= usage["prompt_tokens_details"].pop("cached_tokens") < prompt
    sizes = {"prompt_tokens": prompt, "completion_tokens": len(tokens)}
    assert usage == sizes | {
        "total_tokens": prompt + len(tokens),
        "prompt_tokens_details": {},
    }
    return tokens


def test_the_usage_of_an_answer_says_what_was_cached(example: ModuleType) -> None:
    """The same prompt again: all but its last block was found, and no tenant sees another's."""

    async def scene() -> list[int]:
        async with serving(example) as session:
            found = []
            for tenant in ("one", "one", "two"):
                asked = {"prompt": [n % 50 + 1 for n in range(100)], "max_tokens": 4}
                async with session.post("/generate", json=asked | {"tenant": tenant}) as response:
                    last = [json.loads(line) async for line in response.content][-1]
                found.append(last["usage"]["prompt_tokens_details"]["cached_tokens"])
            return found

    assert asyncio.run(scene()) == [0, 96, 0]


def test_a_restart_finds_what_was_answered_before(example: ModuleType, tmp_path: Path) -> None:
    asked = {"prompt": [n % 50 + 1 for n in range(100)], "max_tokens": 20}

    async def scene() -> dict[str, Any]:
        async with (
            serving(example, disk_path=str(tmp_path)) as session,
            session.post("/generate", json=asked) as response,
        ):
            lines = [json.loads(line) async for line in response.content]
        tokens = [token for line in lines[:-1] for token in line["tokens"]]
        return {"tokens": tokens, "found": lines[-1]["usage"]["prompt_tokens_details"]}

    first, second = asyncio.run(scene()), asyncio.run(scene())
    assert second["tokens"] == first["tokens"]
    assert (first["found"], second["found"]) == ({"cached_tokens": 0}, {"cached_tokens": 96})


def test_fifty_clients_at_once_get_what_each_gets_alone(example: ModuleType) -> None:
    async def scene() -> tuple[list[list[int]], list[list[int]], dict[str, int]]:
        async with serving(example) as session:
            alone = [await answer(session, client) for client in range(CLIENTS)]
        async with serving(example, device=24, host=256) as session:
            tasks = [answer(session, client) for client in range(CLIENTS)]
            together = list(await asyncio.gather(*tasks))
            async with session.get("/stats") as response:
                return alone, together, await response.json()

    alone, together, stats = asyncio.run(scene())
    assert together == alone
    assert len({tuple(tokens) for tokens in alone}) > CLIENTS // 2
    assert stats["preempted"] > 0
    assert (stats["lost"], stats["waiting"]) == (0, 0)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"not json", "JSONDecodeError"),
        (b'{"prompt": [1]}', "max_tokens"),
        (b'{"prompt": [], "max_tokens": 3}', "one token id or more"),
        (b'{"prompt": ["a"], "max_tokens": 3}', "TypeError"),
        (b'{"prompt": [99999], "max_tokens": 3}', "not from 0 to"),
        (b'{"prompt": [1], "max_tokens": 0}', "max_tokens = 0"),
        (b'{"prompt": [1], "max_tokens": 100000}', "the device has"),
    ],
)
def test_what_a_client_gets_wrong_is_said_to_it_and_harms_no_other(
    example: ModuleType, body: bytes, says: str
) -> None:
    async def scene() -> None:
        async with serving(example, device=24, host=64) as session:
            async with session.post("/generate", data=body) as response:
                assert response.status == 400
                assert says in await response.text()
            assert len(await answer(session, 5)) == ask(5)["max_tokens"]

    asyncio.run(scene())


def test_a_client_that_hangs_up_aborts_its_request(example: ModuleType) -> None:
    async def scene() -> None:
        async with serving(example, device=24, host=64) as session:
            long = {"prompt": SYSTEM, "max_tokens": 300}
            async with session.post("/generate", json=long) as response:
                await response.content.readline()
                response.close()
            while True:
                async with session.get("/stats") as response:
                    stats = await response.json()
                if stats["seats"] == stats["waiting"] == 0:
                    break
            assert stats["steps"] < 300

    asyncio.run(scene())


def test_it_is_short() -> None:
    assert len((ROOT / "examples/server.py").read_text().splitlines()) < 120

"""What is dropped and not closed: its threads, memory and files go, and a warning names it."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

START = """
import gc, sys, threading, time
import numpy as np
import blockyard as by
LAYOUT = by.KVLayout.llama(layers=8, kv_heads=2, head_dim=64)

def copied(**keywords):
    cache = by.local(LAYOUT, device=600, host=600, **keywords)
    for plane in cache.crane.device.planes:
        plane[:] = 1
    lease = cache.begin(range(16 * 500))
    cache.seal(lease, 16 * 500)
    cache.finish(lease)
    cache.demote(400)
    for _ in range(20):
        cache.step()
    assert cache.stats()["crane_flights"]
    return cache

def settled(what):
    gc.collect()
    for _ in range(2000):
        if what():
            return True
        time.sleep(0.005)
    return False

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
"""

ROOT = Path(__file__).parents[2]
EXAMPLES = [path for path in sorted(ROOT.glob("examples/*.py")) if path.name != "server.py"]
SERVE = """
import asyncio, sys
import aiohttp
from aiohttp import web
sys.path.insert(0, {folder!r})
import server
async def main():
    # On a busy machine a slow callback is no fault.
    asyncio.get_running_loop().slow_callback_duration = 60
    runner = web.AppRunner(server.make_app(device=16, host=16), handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = "http://%s:%d" % runner.addresses[0]
    async with aiohttp.ClientSession(url) as session:
        async with session.post("/generate", json=dict(prompt=[1, 2, 3], max_tokens=4)) as said:
            assert b"finished" in await said.read()
        async with session.post("/generate", json=dict(prompt=[4], max_tokens=99)) as said:
            pass  # it hangs up
    await runner.cleanup()
asyncio.run(main())
"""


def run(program: str, *options: str) -> str:
    """What a program says that ends well."""
    text = START + textwrap.dedent(program)
    command = [sys.executable, *options, "-c", text]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr


def test_a_cache_that_is_dropped_after_a_copy_keeps_neither_threads_nor_memory() -> None:
    said = run(
        """
        for cell in range(8):
            cache = copied()
            first = resident() if cell == 0 else first
        assert settled(lambda: threading.active_count() <= 1 + 3), threading.enumerate()
        del cache
        assert settled(lambda: threading.active_count() == 1), threading.enumerate()
        print("grew", (resident() - first) >> 20)
        """,
        *("-W", "always::ResourceWarning"),
    )
    assert said.count("a LocalCache was dropped and not closed") == 8
    assert int(said.split("grew ")[1].split()[0]) < 64


@pytest.mark.parametrize("options", [("-X", "dev"), ("-W", "error")])
def test_a_warning_comes_out_of_no_finalizer_and_a_cache_that_was_closed_has_none(
    options: tuple[str, ...],
) -> None:
    closed = "with copied() as cache:\n    cache.step()\ndel cache\ngc.collect()\n"
    assert run(closed, *options) == ""
    dropped = "cache = copied()\ndel cache\ngc.collect()\nprint('went on')\n"
    said = run(dropped, *options)
    assert "a LocalCache was dropped and not closed: call close()" in said
    assert "went on" in said


def says_nothing(*program: str) -> None:
    """Whether a program ends well, and no warning comes out of it."""
    command = [sys.executable, "-X", "dev", "-W", "error", *program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603
    # An engine that an example kills is said of the copies from it, where there are any.
    said = [line for line in ended.stderr.splitlines() if not line.endswith(" blocks are good")]
    assert (ended.returncode, said) == (0, [])


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_leaves_nothing_open(example: Path) -> None:
    says_nothing(str(example))


def test_nor_does_the_example_that_serves() -> None:
    pytest.importorskip("aiohttp")
    says_nothing("-c", SERVE.format(folder=str(ROOT / "examples")))


def test_nor_does_what_the_readme_shows() -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert blocks
    says_nothing("-c", "\n".join(blocks))


def test_a_crane_is_named_by_its_rank() -> None:
    said = run(
        """
        from blockyard.crane.crane import Crane
        from blockyard.crane.tiers.memory import MemoryTier
        Crane(LAYOUT, device=MemoryTier(LAYOUT, 4, name="device"))
        """,
        *("-X", "dev"),
    )
    assert "the Crane of rank 0 was dropped and not closed" in said


def test_a_finalizer_in_the_copying_thread_waits_for_nothing() -> None:
    # The collector runs in a worker, while it copies for the crane that it finds dropped.
    run(
        """
        gc.disable()
        from blockyard.crane.copiers import threads
        move = threads._Copy.move
        def collected(copy, first):
            dropped.wait(30)
            gc.collect()
            move(copy, first)
        dropped = threading.Event()
        cache = by.local(LAYOUT, device=64, host=64, ahead=32)
        lease = cache.begin(range(16 * 50))
        cache.seal(lease, 16 * 50)
        cache.finish(lease)
        cache.demote(32)
        threads._Copy.move = collected
        cache.step()
        cache.crane.circle = cache
        del cache, lease
        dropped.set()
        for _ in range(2000):
            if threading.active_count() == 1:
                break
            time.sleep(0.005)
        assert threading.active_count() == 1, threading.enumerate()
        """
    )


def test_a_publisher_that_is_dropped_ends_its_thread_and_sockets() -> None:
    pytest.importorskip("zmq")
    said = run(
        """
        import os
        from blockyard.publishing.publisher import Publisher
        files = lambda: len(os.listdir("/proc/self/fd"))
        before = files()
        for _ in range(3):
            publisher = Publisher(by.KVCache(device=8), "tcp://127.0.0.1:*", replay="tcp://127.0.0.1:*")
            assert publisher.flush()
        assert files() > before
        del publisher
        assert settled(lambda: threading.active_count() == 1), threading.enumerate()
        assert settled(lambda: files() <= before + 2), files()
        """,
        *("-X", "dev"),
    )
    assert said.count("the Publisher at tcp://127.0.0.1:") == 3


def test_a_metrics_server_that_is_dropped_frees_its_port() -> None:
    pytest.importorskip("prometheus_client")
    said = run(
        """
        from blockyard.metrics.server import serve
        for _ in range(3):
            server = serve(by.KVCache(device=8), port=0)
            port = server.address[1]
        del server
        assert settled(lambda: threading.active_count() == 1), threading.enumerate()
        serve(by.KVCache(device=8), port=port).close()
        """,
        *("-X", "dev"),
    )
    assert said.count("the MetricsServer at http://127.0.0.1:") == 3


def test_an_idle_engine_whose_event_loop_has_ended_ends_its_thread() -> None:
    said = run(
        """
        import asyncio
        from blockyard.reference.model import Model
        from blockyard.reference.reference import alone
        from blockyard.reference.weights import ModelConfig
        model = Model(ModelConfig())
        cache, engine = alone(model, by.Config(layout=model.config.layout(), device=16))
        scheduler = by.Scheduler(cache, by.SchedulerOptions(stops=engine.stops))
        async def main():
            front = by.AsyncEngine(scheduler, engine)
            await front.start()
            await front.add(by.NewRequest("one", [1, 2, 3], max_tokens=4)).result()
        with cache:
            asyncio.run(main())
            assert settled(lambda: threading.active_count() == 1), threading.enumerate()
            # The scheduler is free for another front.
            assert scheduler.schedule() is not None
        gc.collect()
        """,
        *("-X", "dev"),
    )
    assert "an AsyncEngine was dropped and not closed" in said


def test_a_folder_that_this_process_has_says_so_and_a_dropped_cache_lets_go(tmp_path: Path) -> None:
    said = run(
        f"""
        namespace = {{"model": "m", "weights": "w"}}
        keywords = dict(disk=600, disk_path={str(tmp_path)!r}, namespace=namespace)
        cache = copied(**keywords)
        try:
            by.local(LAYOUT, device=600, host=600, **keywords)
        except by.Unavailable as error:
            print(error)
        del cache
        gc.collect()
        with copied(**keywords):
            pass
        """
    )
    assert "and that is this very process; close the cache that has it" in said

"""Has programs end while a thread is in a verb that has let go of the GIL.

It runs in an environment that has the wheel and its extra `events`.
"""

import subprocess
import sys

ENDS = 12
ENDING = """
import os, sys, threading, time
import blockyard as by
{imports}
for _ in range({ends}):
    if not (child := os.fork()):
        break
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != {status}:
        sys.exit("a program that {what} does not end with {status}: it was ended by a signal")
else:
    sys.exit()
{program}
"""
"""A program that ends many times, each in a process that has only imported what it needs."""
VERB = """
cache = by.KVCache(device=50_000)
lease = cache.begin(range(40_000))
def ask():
    while True:
        cache.{verb}()
threading.Thread(target=ask, daemon=True).start()
time.sleep(0.02)
"""
PUBLISHER = """
cache = by.KVCache(device=20_000)
publisher = Publisher(cache, "tcp://127.0.0.1:*", replay={replay})
for first in range(0, 160_000, 40_000):
    lease = cache.begin(range(first, first + 40_000))
    cache.seal(lease, 40_000)
    cache.finish(lease)
"""
ENGINE = """
class Engine:
    stops = "in-order"
    def submit(self, step):
        pass
    def poll(self):
        return [], []
async def main():
    front = by.AsyncEngine(scheduler, Engine())
    await front.start()
    asyncio.ensure_future(front.ask(lambda _: [cache.audit() for _ in range(1_000_000)]))
    await asyncio.sleep(0.02)
    sys.stderr = open(os.devnull, "w")
    raise RuntimeError("main fails before close")
layout = by.KVLayout.llama(layers=1, kv_heads=1, head_dim=8)
cache = by.local(layout, device=50_000)
scheduler = by.Scheduler(cache, by.SchedulerOptions(stops="in-order"))
asyncio.run(main())
"""
ZMQ = "import zmq; from blockyard.publishing.publisher import Publisher"
ENDINGS = {
    "has a thread in audit": ("", 0, VERB.format(verb="audit")),
    "has a thread in digest": ("", 0, VERB.format(verb="digest")),
    "has a Publisher": (ZMQ, 0, PUBLISHER.format(replay=None)),
    "has a Publisher that replays": (ZMQ, 0, PUBLISHER.format(replay="'tcp://127.0.0.1:*'")),
    "fails before it closes its AsyncEngine": ("import asyncio", 1, ENGINE),
}
"""Programs that end while a thread is in a verb that has let go of the GIL."""

if __name__ == "__main__":
    for what, (imports, status, program) in ENDINGS.items():
        words = {"imports": imports, "status": status, "what": what, "program": program}
        code = ENDING.format(ends=ENDS, **words)
        subprocess.run([sys.executable, "-I", "-c", code], check=True, cwd="/")

"""An HTTP server that streams tokens: many clients, memory for a few, and no answer differs.

`docs/asyncio.md` explains it. Try it:

    python examples/server.py --disk-path kv
    curl -N http://127.0.0.1:8000/generate -d '{"prompt": [1, 2, 3], "max_tokens": 20}'
"""

import argparse
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

from aiohttp import web

import blockyard as by
from blockyard.reference.model import Model
from blockyard.reference.reference import alone
from blockyard.reference.weights import ModelConfig

VOCABULARY = ModelConfig().vocabulary
FRONT = web.AppKey("front", by.AsyncEngine)
NUMBERS = web.AppKey("numbers", Iterator[int])


def check(prompt: list[int]) -> None:
    """Refuses tokens that the model does not have: the engine would fail, and all its requests."""
    if not all(0 <= token < VOCABULARY for token in prompt):
        raise ValueError(f"a token of the prompt is not from 0 to {VOCABULARY - 1}")


async def generate(request: web.Request) -> web.StreamResponse:
    """Streams the tokens of one request, a JSON line for each piece, then how it ended."""
    try:
        ask = await request.json()
        check(ask["prompt"])
        numbers = request.app[NUMBERS]
        stream = request.app[FRONT].add(
            by.NewRequest(
                next(numbers),
                ask["prompt"],
                max_tokens=ask["max_tokens"],
                salt=ask.get("tenant"),  # only prompts of the same tenant share blocks
            )
        )
    except (KeyError, TypeError, ValueError, by.Misuse) as error:
        raise web.HTTPBadRequest(text=f"{type(error).__name__}: {error}\n") from error
    except by.Unavailable as error:  # it is closing, or its engine has failed
        raise web.HTTPServiceUnavailable(text=f"{error}\n") from error
    async with stream:  # a client that hangs up aborts its request
        try:
            tokens = await anext(stream, None)
        except (by.Misuse, by.TooLarge) as error:  # refused by the scheduler
            raise web.HTTPBadRequest(text=f"{error}\n") from error
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        with suppress(ConnectionResetError):  # it has hung up
            await response.prepare(request)
            while tokens is not None:
                # Waits for a slow client, once what it does not read has filled 64 KB here and the
                # socket's buffers. Then its request is held when too much is unread.
                await response.write(json.dumps({"tokens": tokens}).encode() + b"\n")
                tokens = await anext(stream, None)
            result = await stream.result()
            usage = {
                "prompt_tokens": len(ask["prompt"]),
                "completion_tokens": len(result.tokens),
                "total_tokens": len(ask["prompt"]) + len(result.tokens),
                "prompt_tokens_details": {"cached_tokens": result.cached_tokens.total},
            }
            end = {"state": result.state, "reason": result.reason, "usage": usage}
            await response.write(json.dumps(end).encode() + b"\n")
    return response


async def stats(request: web.Request) -> web.Response:
    """What the scheduler has and has counted."""
    return web.json_response(await request.app[FRONT].ask(by.Scheduler.stats))


def make_app(
    *, device: int = 256, host: int = 1024, disk_path: str | None = None, max_num_seqs: int = 64
) -> web.Application:
    """A server of a small model, with so many blocks of memory, and 4,096 on a disk if any."""
    app = web.Application()
    app[NUMBERS] = itertools.count()
    app.router.add_post("/generate", generate)
    app.router.add_get("/stats", stats)

    async def engine(app: web.Application) -> AsyncIterator[None]:
        model = Model(ModelConfig())
        config = by.Config(
            layout=model.config.layout(),
            device=device,
            host=host,
            disk=4096 if disk_path else 0,
            namespace={"model": "reference", "weights": "1"},  # of other weights no block is found
        )
        cache, engine = alone(model, config, disk_path=disk_path)
        options = by.SchedulerOptions(max_num_seqs=max_num_seqs, stops=engine.stops)
        with cache:
            front = by.AsyncEngine(by.Scheduler(cache, options), engine)
            app[FRONT] = front
            await front.start()
            yield  # the server runs
            await front.close()  # what is left is aborted, and each stream has its result

    app.cleanup_ctx.append(engine)
    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--disk-path", help="a folder where KV outlives this process")
    # Where a client hangs up, its handler is cancelled, and that aborts its request.
    app = make_app(disk_path=parser.parse_args().disk_path)
    web.run_app(app, host="127.0.0.1", port=8000, handler_cancellation=True)

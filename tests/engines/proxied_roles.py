"""Two `vllm serve` on a CPU in Blockyard's roles, behind a proxy, as docs/vllm-handover.md has it.

    python proxied_roles.py
    python proxied_roles.py --proxy toy_proxy_server.py     behind vLLM's own, too

The proxy does what those of vLLM's examples do: it has the prefill engine answer one token, and
puts `kv_transfer_params` of that answer into the request to the decode engine. The text is what
one engine answers, and without a fault the decode engine computes no full block of a prompt.

It runs in the environment that `setup_cpu.py` makes.
"""

import argparse
import contextlib
import http.client
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from blockyard._typing import override
from prefill_decode import FROM_PREFILLER
from server import Checks, Server, free_port
from whole_engine import VOCABULARY, write_model

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Path(__file__).parents[2] / "docs" / "vllm-handover.md"
BLOCK, LENGTH, MOST = 32, 200, 16
FULL = LENGTH // BLOCK * BLOCK
"""Tokens of a prompt in full blocks."""
LOCAL, REMOTE = "local_compute", "external_kv_transfer"
NONSENSE: list[dict[str, Any]] = [
    {"blockyard.offer": 7},
    {"blockyard.offer": ["an offer"]},
    {"blockyard.offer": {"id": 5, "at": [], "boot": "x"}},
    {"blockyard.offer": {"id": "0" * 32, "at": "127.0.0.1:1", "boot": 1}},
    {"blockyard.offer": "x" * 100_000, "do_remote_prefill": "yes"},
    {"blockyard.ofer": {}, "do_remote_decode": []},
]
"""What clients may put in `kv_transfer_params`."""


def commands(ports: dict[str, int]) -> list[str]:
    """Returns how the page starts the engines on one machine, at other ports and small."""
    found = re.findall(r"vllm serve .*?}}'", PAGE.read_text(), re.DOTALL)[:2]
    for old, port in ports.items():
        found = [one.replace(old, str(port)) for one in found]
    return [one.replace("64 GiB", "64 MiB") for one in found]


def write_tokenizer(folder: Path) -> None:
    """Writes a tokenizer with a word for each token, and a template for chats."""
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415 - with vLLM

    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{at}": at for at in range(3, VOCABULARY)}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))  # noqa: S106 - a word
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "chat_template": "{% for one in messages %}{{ one['content'] }} {% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


class Engine(Server):
    """A server that the page's command starts."""

    def __init__(self, root: Path, command: str, port: int) -> None:
        self.port = port
        vllm = f'vllm() {{ exec "{sys.executable}" -W ignore -m vllm.entrypoints.cli.main "$@"; }}'
        small = f"--block-size {BLOCK} --num-gpu-blocks-override 60 --max-model-len 512"
        small += " --max-num-seqs 8 --enforce-eager --dtype float32 --served-model-name llama"
        # On a CPU vLLM has its one worker in a process of its own, if this is not 0.
        more = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        more |= {"MODEL": str(root / "llama")}
        self.start(root, ["bash", "-c", f"{vllm}; {command} {small}"], more)

    def prompt_tokens(self, source: str) -> float:
        """Tokens of prompts by where their KV came from."""
        (found,) = self.metric("vllm:prompt_tokens_by_source_total", source=source)
        return found

    def left(self) -> dict[str, float]:
        """What is held for others, or waited for of them, as far as it has told so."""
        names = ("offers_held", "handover_waiting", "handover_open", "flights", "parked")
        found = {name: self.metric(f"blockyard_{name}") for name in names}
        return {name: count[0] for name, count in found.items() if count and count[0]}


def post(port: int, path: str, body: dict[str, Any]) -> http.client.HTTPResponse:
    """Sends a request; returns the answer, of which the body is still to be read."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"content-type": "application/json"}
    link.request("POST", f"/v1/{path}", json.dumps(body), headers)
    return link.getresponse()


def answered(port: int, path: str, body: dict[str, Any]) -> list[str]:
    """Returns the texts that answer a request, in one piece or streamed."""
    said = post(port, path, body)
    text = said.read().decode()
    if said.status != http.client.OK:
        return [f"{said.status}: {text}"]
    if not body.get("stream"):
        choices = json.loads(text)["choices"]
        return [one["text"] if "text" in one else one["message"]["content"] for one in choices]
    events = [line[len("data: ") :] for line in text.splitlines() if line.startswith("data: ")]
    if events.pop() != "[DONE]":
        return [f"the stream has no end: {text[-200:]}"]
    found = [""] * body.get("n", 1)
    for event in events:
        for one in json.loads(event)["choices"]:
            found[one["index"]] += one["text"] if "text" in one else one["delta"]["content"]
    return found


class Proxy:
    """Prefills a request at one engine, and passes the answer of another one on, as it comes."""

    def __init__(self, prefill: int, decode: int) -> None:
        self.passed: list[Any] = []
        """`kv_transfer_params` that the prefill engine has answered with."""
        self.between: Callable[[], object] = lambda: None
        """Called when a prompt has been computed."""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                path = self.path.removeprefix("/v1/")
                params = proxy.prefilled(prefill, path, body)
                proxy.between()
                if params:
                    body["kv_transfer_params"] = params
                said = post(decode, path, body)
                # A client that goes away ends the request at the decode engine.
                with said, contextlib.suppress(ConnectionError):
                    self.send_response(said.status)
                    self.end_headers()
                    while piece := said.read1(1 << 16):
                        self.wfile.write(piece)

            @override
            def log_message(self, *what: object) -> None:
                """Says nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def prefilled(self, port: int, path: str, body: dict[str, Any]) -> Any:
        """Has a prompt computed; returns what is to be passed on, None where nobody is there."""
        one = body | {"max_tokens": 1, "stream": False, "kv_transfer_params": FROM_PREFILLER}
        one.pop("stream_options", None)
        try:
            self.passed.append(json.load(post(port, path, one)).get("kv_transfer_params"))
        except OSError:
            return None
        return self.passed[-1]


class Duo:
    """Both engines, and what is asked of them."""

    def __init__(self, root: Path) -> None:
        ports = {at: free_port() for at in ("8100", "8200", "7000")}
        both = zip(commands(ports), ("8100", "8200"), strict=True)
        self.prefill, self.decode = (Engine(root, said, ports[at]) for said, at in both)
        self.chance = random.Random(0)
        self.local = self.remote = 0.0

    def __enter__(self) -> Self:
        try:
            self.prefill.wait()
            self.decode.wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.prefill.kill()
        self.decode.kill()

    def asks(self, path: str = "completions", **more: Any) -> dict[str, Any]:
        """Makes a request that nobody has seen before."""
        words = [f"w{self.chance.randrange(3, VOCABULARY)}" for _ in range(LENGTH)]
        said: dict[str, Any] = {"prompt": " ".join(words)}
        if path.startswith("chat"):
            said = {"messages": [{"role": "user", "content": said["prompt"]}]}
        body = {"model": "llama", "max_tokens": MOST, "temperature": 0, "ignore_eos": True}
        return {**body, **said, **more}

    def computed(self, prompts: int) -> tuple[float, float]:
        """Returns prompt tokens that the decode engine has computed, and got, since last asked."""
        until = time.monotonic() + 20
        while True:
            local, remote = map(self.decode.prompt_tokens, (LOCAL, REMOTE))
            since = local - self.local, remote - self.remote
            # They come a step later than the answer.
            if sum(since) >= prompts * LENGTH or time.monotonic() > until:
                self.local, self.remote = local, remote
                return since
            time.sleep(0.1)

    def rests(self) -> dict[str, float]:
        """What is left of it all; engines tell it within seconds."""
        until = time.monotonic() + 20
        while (left := self.prefill.left() | self.decode.left()) and time.monotonic() < until:
            time.sleep(0.2)
        return left


def same(duo: Duo, port: int, name: str, check: Checks) -> None:
    """Checks answers of both endpoints, whole and streamed, alone and beside each other."""
    kinds = [(path, more) for path in ("completions", "chat/completions") for more in (False, True)]
    asked = [(path, duo.asks(path, stream=stream)) for path, stream in kinds]
    several = [(path, duo.asks(path, stream=stream)) for path, stream in kinds * 2]
    found = [answered(port, *one) for one in asked]
    with ThreadPoolExecutor(len(several)) as threads:
        found += threads.map(lambda one: answered(port, *one), several)
    rest, blocks = LENGTH - FULL, len(found) * FULL
    seen, least = duo.computed(len(found)), (len(found) * rest, blocks)
    check(f"{name}: no full block is computed", holds=seen == least, seen=seen)
    wanted = [answered(duo.prefill.port, *one) for one in asked + several]
    check(f"{name}: {len(found)} answers are those of one engine", holds=found == wanted)
    left = duo.rests()
    check(f"{name}: nothing is left", holds=not left, seen=left or "")


def odd(duo: Duo, proxy: Proxy, check: Checks) -> None:
    """Checks what routers and clients may do beside that."""
    for name, ask in (
        ("three samples", duo.asks(n=3, temperature=0.5, seed=3)),
        ("two prompts in one request", duo.asks(prompt=[duo.asks()["prompt"] for _ in range(2)])),
    ):
        found, wanted = (answered(at, "completions", ask) for at in (proxy.port, duo.prefill.port))
        check(name, holds=found == wanted)
    one = duo.asks()
    wanted = answered(duo.prefill.port, "completions", one)
    unlike = [
        (engine.port, str(params)[:60], found)
        for params in NONSENSE
        for engine in (duo.decode, duo.prefill)
        if (found := answered(engine.port, "completions", one | {"kv_transfer_params": params}))
        != wanted
    ]
    check(f"{len(NONSENSE)} kinds of nonsense are answered by both", holds=not unlike, seen=unlike)
    long = duo.asks(stream=True, max_tokens=250)
    for _ in range(3):
        said = post(proxy.port, "completions", long)
        said.read1(10)
        said.close()
    check("clients that go away", holds=answered(proxy.port, "completions", one) == wanted)
    duo.computed(0)


def killed(duo: Duo, proxy: Proxy, check: Checks) -> None:
    """Kills the prefill engine when it has computed a prompt, and asks again without it."""
    asked = [("completions", duo.asks()), ("chat/completions", duo.asks("chat", stream=True))]
    again = duo.asks("chat")
    wanted = [answered(duo.prefill.port, *one) for one in (*asked, ("chat/completions", again))]
    duo.computed(0)
    gate = threading.Barrier(len(asked), duo.prefill.kill)
    proxy.between = gate.wait
    with ThreadPoolExecutor(len(asked)) as threads:
        found = list(threads.map(lambda one: answered(proxy.port, *one), asked))
    proxy.between = lambda: None
    check("a kill between prefill and decode: the same answers", holds=found == wanted[:2])
    seen = duo.computed(len(asked))
    check("they are computed", holds=seen == (len(asked) * LENGTH, 0), seen=seen)
    alone = answered(proxy.port, "chat/completions", again)
    check("without a prefill engine, too", holds=alone == wanted[2])
    left = duo.decode.left()
    check("the decode engine waits for nothing", holds=not left, seen=left or "")


def behind(duo: Duo, file: str, check: Checks) -> None:
    """The same behind a proxy of vLLM's."""
    port = free_port()
    ports = {"": port, "prefiller-": duo.prefill.port, "decoder-": duo.decode.port}
    words = [word for role, at in ports.items() for word in (f"--{role}port", str(at))]
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", file, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                http.client.HTTPConnection("127.0.0.1", port).connect()
                break
            except OSError:
                time.sleep(0.2)
        same(duo, port, Path(file).name, check)
    finally:
        process.kill()
        process.wait()


def main() -> int:
    """Runs all."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--proxy", help="a proxy of vLLM's examples")
    given, check = words.parse_args(), Checks()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_model(root / "llama")
        write_tokenizer(root / "llama")
        with Duo(root) as duo:
            proxy = Proxy(duo.prefill.port, duo.decode.port)
            same(duo, proxy.port, "a proxy", check)
            if given.proxy is not None:
                behind(duo, given.proxy, check)
            odd(duo, proxy, check)
            killed(duo, proxy, check)
    return int(check.broken > 0)


if __name__ == "__main__":
    sys.exit(main())

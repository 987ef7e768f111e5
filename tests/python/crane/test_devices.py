"""Devices by name: the memory of this machine, or a GPU that may not be there."""

import multiprocessing
import subprocess
import sys
import threading

import numpy as np
import pytest
from click.testing import CliRunner

import blockyard as by
import simulated_cupy as simulated
from blockyard.crane.devices import NUMPY, device, fetched
from blockyard.crane.tiers.device import DeviceTier
from blockyard.crane.tiers.memory import MemoryTier
from blockyard.crane.tiers.pinned import PinnedTier
from blockyard.shared.plan import Outcome
from blockyard.tools.cli import cli
from blockyard.tools.replay.real_memory import Own, _serve, scaled
from yard import plan_of

LAYOUT = by.KVLayout.llama(2, 2, 8, block_size=4)


def missing() -> None:
    raise by.Unavailable("there is no GPU; install one,\nor take memory")


def test_memory_is_numpys_in_this_machine() -> None:
    assert device("memory") is NUMPY
    near, far, third = NUMPY.tiers(LAYOUT, 3, 5, 7)
    assert isinstance(near, MemoryTier)
    assert isinstance(far, MemoryTier)
    assert (near.name, near.blocks, far.name, far.blocks) == ("device", 3, "host", 5)
    assert isinstance(third, MemoryTier)
    assert (third.name, third.blocks) == ("disk", 7)
    assert NUMPY.tiers(LAYOUT, 3, 0)[1:] == (None, None)
    assert fetched(near.planes[0]) is near.planes[0]


def test_a_gpu_has_the_device_and_pins_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated.installed(monkeypatch)
    on = device("cuda")
    assert on.xp is simulated
    near, far, third = on.tiers(LAYOUT, 3, 5, 7)
    assert isinstance(near, DeviceTier)
    assert isinstance(far, PinnedTier)
    assert isinstance(third, PinnedTier)
    assert (third.name, third.blocks) == ("disk", 7)
    assert near.gpu is far.gpu is third.gpu
    assert isinstance(near.planes[0], simulated.ndarray)
    # What copies wait for is what computes.
    assert near.stream == on.xp.cuda.get_current_stream().ptr == simulated.STREAM
    assert isinstance(fetched(near.planes[0]), np.ndarray)


def test_cupy_is_not_imported_for_a_device_of_memory() -> None:
    program = (
        "import sys, blockyard.tools.cli\n"
        "from blockyard.crane.devices import device\n"
        "device('memory')\n"
        "print('cupy' in sys.modules)"
    )
    said = subprocess.run(  # noqa: S603 - our own
        [sys.executable, "-c", program],
        capture_output=True,
        check=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert said.stdout == "False\n"


@pytest.mark.parametrize("words", ["proof --conversations 2 --on", "replay --requests 3 --verify"])
def test_a_gpu_that_is_not_there_is_bad_input(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated.installed(monkeypatch, missing)
    done = CliRunner().invoke(cli, [*words.split(), "cuda"])
    assert (done.exit_code, done.stdout) == (2, "")
    option = words.rpartition(" ")[2]
    assert done.stderr == (
        f"blockyard: {option} cuda: there is no GPU; install one, or take memory\n"
    )


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_in_a_process_has_the_device_of_that_name(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated.installed(monkeypatch)
    config = by.Config(device=8, host=4, layout=scaled(16, ranks))
    here, there = multiprocessing.Pipe()
    what = there, Own(config.to_mapping(), ranks - 1, None, 0, "cuda")
    serving = threading.Thread(target=_serve, args=what)
    serving.start()
    slots, keys = np.array([1, 2], np.int32), np.array([5, 6], np.uint64)
    down = plan_of([1, 2], [0, 3], flight=1 << 32, yard=7)
    up = plan_of([0, 3], [5, 4], flight=2 << 32, way="host device", yard=7)

    def ask(verb: str, *what: object) -> object:
        here.send((verb, what))
        return here.recv()

    here.send(("write", (slots, keys)))
    assert ask("wrong", slots, keys) == 0
    for plan in (down, up):
        here.send(("submit", ([plan],)))
        assert ask("land", [plan]) == [Outcome(plan.flight, ranks - 1, 2, yard=7)]
    assert ask("wrong", np.array([5, 4], np.int32), keys) == 0
    assert ask("wrong", np.array([4, 5], np.int32), keys) == 2
    here.close()
    serving.join(20)
    assert not serving.is_alive()


def test_what_is_wrong_with_the_device_of_a_process_is_said_where_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulated.installed(monkeypatch, missing)
    config = by.Config(device=8, host=4, layout=scaled(16, 1))
    here, there = multiprocessing.Pipe()
    own = Own(config.to_mapping(), 0, None, 0, "cuda")
    serving = threading.Thread(target=_serve, args=(there, own))
    serving.start()
    here.send(("hello", ()))
    assert isinstance(here.recv(), by.Unavailable)
    here.close()
    serving.join(20)

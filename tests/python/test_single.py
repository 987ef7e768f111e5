"""What owns threads, memory or requests can be neither copied nor pickled."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import blockyard as by
from blockyard.connectors.connector import Connector
from blockyard.connectors.worker import Worker
from blockyard.crane.copiers.threads import ThreadCopier
from blockyard.metrics.server import MetricsServer
from blockyard.publishing.publisher import Publisher
from blockyard.shared.single import Single
from fronts import Served, play

WAYS: tuple[Callable[[Any], object], ...] = (copy.copy, copy.deepcopy, pickle.dumps)


def refuses(single: object) -> None:
    for way in WAYS:
        with pytest.raises(TypeError, match=r"cannot (copy or )?pickle"):
            way(single)


def test_what_a_front_is_made_of_is_not_copied_and_goes_on() -> None:
    async def act(served: Served) -> None:
        stream = served.add("one", 5, 6)
        crane = served.cache.crane
        for single in (served.front, served.scheduler, served.cache, crane, crane.device, stream):
            refuses(single)
        assert len((await stream.result()).tokens) == 6

    play(act)


def test_a_copier_is_not_copied() -> None:
    copier = ThreadCopier(workers=1)
    refuses(copier)
    copier.close()


def test_classes_that_own_something_refuse() -> None:
    for kind in (Publisher, MetricsServer, Connector, Worker, by.Scheduler, by.Crane):
        assert issubclass(kind, Single)


def test_frozen_answers_are_their_own_copies() -> None:
    cache = by.KVCache(device=8)
    keys = cache.keys(range(40))
    for answer in (keys, cache.probe(keys), cache.room(), cache.dry_run(keys)):
        assert copy.copy(answer) is answer
        assert copy.deepcopy([answer])[0] is answer

"""A rank that comes back beside living ones: what the disk has is kept, and all above is lost."""

from typing import Any, Literal

import pytest

import blockyard as by
from blockyard._core import InUse, Misuse
from blockyard.shared.layout import Hello
from blockyard.shared.plan import Outcome

LAYOUT = by.KVLayout.llama(2, 4, 8, block_size=4, ranks=2)


def opened(**more: Any) -> tuple[by.KVCache, list[Hello]]:
    sizes: dict[str, Any] = {"device": 17, "host": 8, "disk": 16, "keyed": ("disk",)}
    sizes |= {"write": {"host": "through"}} | more
    if "engine" in more:
        del sizes["device"], sizes["write"]
    config = by.Config(layout=LAYOUT, ahead=0, **sizes).named()
    tiers = [getattr(config, f"{tier}_blocks") for tier in ("device", "host", "disk")]
    hellos = [
        Hello(
            rank,
            config.fingerprint,
            tiers[0],
            tiers[1],
            config.layout.fingerprint if config.layout else "",
            tiers[2],
            config.yard or 0,
        )
        for rank in (0, 1)
    ]
    return by.KVCache(by.agree(config, hellos)), hellos


def landed(cache: by.KVCache, good: int | None = None) -> None:
    for plan in cache.dispatch():
        count = len(plan) if good is None else good
        cache.commit([Outcome(plan.flight, rank, count) for rank in (0, 1)])


def publish(cache: by.KVCache, talk: int, blocks: int = 2) -> list[int]:
    tokens = list(range(100 * talk, 100 * talk + 4 * blocks))
    lease = cache.begin(tokens)
    landed(cache)
    cache.seal(lease, len(tokens))
    cache.finish(lease)
    return tokens


def below(cache: by.KVCache, talk: int, blocks: int = 2) -> list[int]:
    """Leaves a talk on the device, the host and the disk."""
    tokens = publish(cache, talk, blocks)
    cache.demote(8)
    landed(cache)
    cache.demote(8, tier="host")
    landed(cache)
    return tokens


def found(cache: by.KVCache, tokens: list[int]) -> tuple[int, int, int]:
    probe = cache.probe(cache.keys(tokens))
    return probe.device, probe.host, probe.disk


@pytest.mark.law("INV-24")
def test_what_the_disk_has_outlives_the_reset_of_a_rank() -> None:
    cache, _ = opened()
    on_disk, on_device = below(cache, 1), publish(cache, 2)
    assert found(cache, on_disk)[0] == found(cache, on_device)[0] == 2
    cache.demote(8)
    (plan,) = cache.dispatch()
    cache.commit([Outcome(plan.flight, 0, 2)])
    assert cache.reset(1, memory="disk kept") == 1
    assert found(cache, on_disk) == (0, 0, 2)
    assert found(cache, on_device) == (0, 0, 0)
    assert cache.audit() is None
    stats = cache.stats()
    assert (stats["device_free"], stats["host_free"], stats["disk_idle"]) == (16, 8, 2)
    lease = cache.begin([*on_disk, 7])
    assert (lease.cached, lease.state) == (8, "loading")
    landed(cache)
    cache.finish(lease)


@pytest.mark.law("INV-24")
def test_a_plan_of_before_is_not_dispatched_after_it() -> None:
    """The rank would write what its new memory has, under the keys of before."""
    cache, _ = opened(host=0)
    tokens = publish(cache, 1)
    assert cache.demote(8) is not None
    cache.reset(1, memory="disk kept")
    assert cache.dispatch() == []
    assert found(cache, tokens) == (0, 0, 0)
    assert cache.stats()["flights"] == 0
    assert cache.audit() is None


@pytest.mark.parametrize("memory", ["lost", "disk kept"])
@pytest.mark.parametrize("way", ["to the disk", "to the host", "to the device"])
def test_what_was_planned_before_it_ends(memory: Any, way: str) -> None:
    cache, hellos = opened(host=0) if way == "to the disk" else opened()
    tokens = publish(cache, 1) if way != "to the device" else below(cache, 1)
    lease = None
    if way == "to the device":
        cache.finish(cache.begin(range(9000, 9000 + 4 * 16)))
        lease = cache.begin([*tokens, 7])
        assert lease.state == "loading"
    else:
        assert cache.demote(8) is not None
    assert cache.undispatched() not in {None, (0, 0)}
    # What comes back has no host: it would refuse a plan from there.
    assert by.rejoin(cache, hellos[1]._replace(host=0), memory=memory) == 1
    assert cache.dispatch() == []
    if lease is not None:
        assert lease.cached == 0
        cache.finish(lease)
    assert cache.stats()["flights"] == 0
    assert cache.audit() is None


def test_engines_are_told_of_the_plans_that_it_ends() -> None:
    cache, _ = opened(engine=17, disk=0, keyed=())
    plan = cache.offload(cache.keys(range(8)), [3, 4])
    assert plan is not None
    assert cache.reset(1, memory="lost") == 1
    assert cache.ended() == {plan.flight: 0}
    assert cache.dispatch() == []


@pytest.mark.parametrize("memory", ["lost", "kept"])
def test_the_other_words_mean_what_they_meant(memory: Any) -> None:
    cache, _ = opened()
    tokens = below(cache, 1)
    cache.reset(0, memory=memory)
    assert sum(found(cache, tokens)) == (0 if memory == "lost" else 2)


def test_words_and_ranks_that_are_none_are_refused_and_change_nothing() -> None:
    cache, hellos = opened()
    tokens = below(cache, 1)
    before = cache.digest()
    with pytest.raises(Misuse, match="memory = 'disk'"):
        cache.reset(0, memory="disk")  # type: ignore[arg-type]
    with pytest.raises(Misuse, match='memory = "host kept"'):
        cache.clear(memory="host kept")  # type: ignore[arg-type]
    for rank in (2, -1):
        with pytest.raises(Misuse, match=f"rank = {rank}"):
            cache.reset(rank, memory="disk kept")
        with pytest.raises(Misuse, match=f"rank = {rank}"):
            by.rejoin(cache, hellos[0]._replace(rank=rank))
    with pytest.raises(Misuse, match="shook hands with yard 5"):
        by.rejoin(cache, hellos[0]._replace(yard=5))
    with pytest.raises(Misuse, match="configured otherwise"):
        by.rejoin(cache, hellos[0]._replace(fingerprint="another"))
    with pytest.raises(Misuse, match="16 blocks of the device, and the yard gives out 17"):
        by.rejoin(cache, hellos[0]._replace(device=16, host=0))
    for word in ("kept", "host kept"):
        with pytest.raises(Misuse, match=f"memory = '{word}'"):
            by.rejoin(cache, hellos[0]._replace(host=0), memory=word)  # type: ignore[arg-type]
    assert (cache.digest(), found(cache, tokens)[0]) == (before, 2)
    bare, hellos = opened(keyed=())
    with pytest.raises(Misuse, match="no tier is keyed"):
        by.rejoin(bare, hellos[0]._replace(host=4))
    assert bare.limit("host") == 8
    own, hellos = opened(engine=17)
    with pytest.raises(Misuse, match="16 blocks of the device, and the yard gives out 17"):
        by.rejoin(own, hellos[0]._replace(device=16))
    low, hellos = opened(disk=0)
    with pytest.raises(Misuse, match="no tier is keyed"):
        by.rejoin(low, hellos[0]._replace(host=4))
    assert low.limit("host") == 8
    for verb in (lambda: bare.reset(0, memory="disk kept"), lambda: bare.clear(memory="disk kept")):
        with pytest.raises(Misuse, match="no tier is keyed"):
            verb()


@pytest.mark.law("INV-24")
@pytest.mark.parametrize("host", [8, 3, 0])
@pytest.mark.parametrize("disk", [16, 5, 0])
def test_a_rank_comes_back_with_smaller_tiers_or_none(host: int, disk: int) -> None:
    cache, hellos = opened()
    talks = [below(cache, talk, 4) for talk in (1, 2)]
    smaller = hellos[1]._replace(host=host, disk=disk)
    by.rejoin(cache, smaller)
    assert (cache.limit("host"), cache.limit("disk")) == (host, disk)
    stats = cache.stats()
    assert (stats["host_idle"], stats["disk_idle"]) == (0, min(8, disk))
    assert cache.audit() is None
    for number, tokens in enumerate(talks):
        lease = cache.begin([*tokens, 7])
        landed(cache)
        cache.seal(lease, len(tokens))
        cache.finish(lease)
        below(cache, 5 + number)
        for plan in cache.dispatch():
            assert {"host": host, "disk": disk}.get(plan.destination_tier, 99) > max(
                plan.destinations
            )
    assert by.rejoin(cache, smaller) == 0, "once more, as a rank that dies again does"
    assert cache.audit() is None


def test_tickets_keep_a_tier_from_being_smaller_until_they_are_released() -> None:
    cache, hellos = opened(host=0)
    ticket = cache.promise(6, tier="disk")
    smaller = hellos[1]._replace(disk=5)
    with pytest.raises(InUse):
        by.rejoin(cache, smaller)
    assert cache.limit("disk") == 16
    cache.release(ticket)
    assert by.rejoin(cache, smaller) == 0
    assert cache.limit("disk") == 5


@pytest.mark.law("INV-24")
def test_what_is_parked_on_the_disk_stays_and_requests_that_ran_load_from_it() -> None:
    cache, hellos = opened(host=0)
    tokens = list(range(9))
    parked = cache.park(cache.begin(tokens), 9)
    cache.demote(9, of=parked)
    landed(cache)
    ran = below(cache, 1)
    running = cache.begin([*ran, 7])
    by.rejoin(cache, hellos[1])
    assert parked.state == "kept"
    assert running.state == "detached"
    cache.finish(running)
    again = cache.begin([*ran, 7])
    assert again.cached == 8
    landed(cache)
    lease = cache.begin(parked)
    assert isinstance(lease, by.Lease)
    assert lease.cached == 9
    landed(cache)
    for one in (again, lease):
        cache.finish(one)
    assert cache.audit() is None


@pytest.mark.law("INV-14")
def test_a_slot_beyond_the_size_goes_with_the_copy_that_kept_it() -> None:
    cache = by.KVCache(block_size=1, device=40, host=40, disk=8, keyed=("disk",))

    def put(*tokens: int) -> None:
        lease = cache.begin([*tokens, 99])
        if lease.state == "loading":
            cache.commit(cache.dispatch())
        cache.seal(lease, len(tokens))
        cache.finish(lease)

    def down(tier: Literal["device", "host"], blocks: int) -> None:
        cache.demote(blocks, tier=tier)
        cache.commit(cache.dispatch())

    for token in range(10, 15):
        put(token)
    for blocks in (5, 1):
        down("device", blocks)
        cache.resize("device", 2)
        cache.resize("device", 40)
        down("host", blocks)
        put(1)
    cache.resize("host", 1)
    cache.resize("host", 40)
    put(1, 2)
    down("device", 1)
    down("device", 1)
    cache.resize("device", 2)
    cache.resize("device", 40)
    cache.demote(2, tier="host")
    (plan,) = cache.dispatch()
    assert (plan.destination_tier, len(plan)) == ("disk", 1)
    cache.resize("disk", 4)
    assert cache.audit() is None
    cache.clear(memory="disk kept")
    assert cache.audit() is None

"""The configurations of a hybrid model: identities, and how memory is divided over its groups."""

import json
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import blockyard as by
from blockyard.crane.tiers.disk import DiskTier
from blockyard.reference.model import Model
from blockyard.reference.reference import alone
from blockyard.reference.weights import ModelConfig
from blockyard.shared.groups import Group
from blockyard.shared.layout import Plane
from blockyard.shared.sizes import parse_size

NAMES = {"model": "m", "weights": "w"}
OPEN = {"host", "disk", "disk_reclaim"}


def layout(nbytes: int = 1024, block_size: int = 16, ranks: int = 1) -> by.KVLayout:
    planes = (Plane("kv", 1, nbytes),)
    return by.KVLayout(planes, block_size=block_size, ranks=ranks, dtype="uint8")


def hybrid(**sizes: int) -> list[Group]:
    return [
        by.SlidingWindow(layout(sizes.get("window", 1024)), tokens=40),
        by.Full(layout(sizes.get("full", 1024))),
        by.RecurrentState(layout(sizes.get("state", 65536)), every=64),
    ]


def test_each_group_has_a_configuration_and_the_spine_is_first() -> None:
    groups = hybrid()
    configs = by.GroupConfigs(
        groups, engine=100, host="64 MiB", keyed=("disk",), record="a.rec", namespace=NAMES
    )
    assert len(configs) == 3
    assert [config.layout for config in configs] == [groups[n].layout for n in (1, 0, 2)]
    assert [config.group for config in configs] == [0, 1, 2]
    assert [config.linked for config in configs] == [True, False, False]
    assert [config.record for config in configs] == ["a.rec", None, None], "requests are its own"
    assert {config.engine for config in configs} == {100}
    assert {config.namespace for config in configs} == {configs[0].namespace}
    assert len({config.fingerprint for config in configs}) == 3


def test_the_first_group_is_as_one_without_others() -> None:
    alone_ = by.Config(layout=layout(), engine=100, host="1 MiB", disk="2 MiB", namespace=NAMES)
    (one,) = by.GroupConfigs(
        [by.Full(layout())], engine=100, host="1 MiB", disk="2 MiB", namespace=NAMES
    )
    assert one == alone_
    first = by.GroupConfigs(hybrid(), engine=100, host="64 MiB", namespace=NAMES)[0]
    assert (first.fingerprint, first.identity) == (alone_.fingerprint, alone_.identity)


def test_groups_alike_differ_in_fingerprint_identity_and_folder(tmp_path: Path) -> None:
    window = by.SlidingWindow(layout(), tokens=40)
    configs = by.GroupConfigs(
        [by.Full(layout()), window, window], engine=9, host=[8, 8, 8], namespace=NAMES
    )
    assert len({config.fingerprint for config in configs}) == 3
    folders = set()
    for config in configs:
        tier = DiskTier(layout(), tmp_path, blocks=4, identity=config.identity)
        folders.add(tier.path)
        tier.close()
    assert len(folders) == 3
    for config in configs:
        again = by.Config.of(config.to_mapping())
        assert (again.fingerprint, again.identity) == (config.fingerprint, config.identity)


@pytest.mark.law("INV-28")
def test_a_folder_of_one_group_is_found_as_before(tmp_path: Path) -> None:
    one = by.KVLayout.llama(2, 2, 8)
    config = by.Config(layout=one, engine=8, host=4, disk=4, keyed=("disk",), namespace=NAMES)
    tier = DiskTier(one, tmp_path, blocks=4, identity=config.identity)
    folder = tier.path.relative_to(tmp_path)
    tier.close()
    # As both were before there were groups.
    assert folder == Path("c609c2dc58e21a1f/rank-0")
    fields = config.to_mapping() | {"key_hash": "sha256, encoding 2", "wire": 2, "engine": True}
    said = {name: value for name, value in fields.items() if name not in OPEN}
    digest = sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
    assert digest == "88eefce152a97bfe7200620fc22cfe9af2c5cebf9929dfa45f7640b794fb183b"


@pytest.mark.parametrize(
    ("groups", "shares"),
    [
        # gpt-oss-120b: 36 KiB a token in each half.
        (
            [
                by.SlidingWindow(layout(16 * 36 << 10), tokens=128),
                by.Full(layout(16 * 36 << 10)),
            ],
            [0.03, 0.97],
        ),
        # Qwen3-Next-80B-A3B: 24 KiB a token, and states of 72 MiB and 1.7 MiB.
        (
            [
                by.Full(layout(16 * 24 << 10)),
                by.RecurrentState(layout((72 << 20) + int(1.7 * 2**20))),
            ],
            [0.57, 0.43],
        ),
    ],
)
def test_a_typical_sequence_and_two_checkpoints_fit_alike(
    groups: list[Group], shares: list[float]
) -> None:
    configs = by.GroupConfigs(groups, engine=4096, host="64 GiB")
    numbers = configs.groups.numbers
    for config, number in zip(configs, numbers, strict=True):
        bytes_ = config.host_blocks * groups[number].layout.block_bytes
        assert round(bytes_ / (64 << 30), 2) == shares[number]


kinds = st.one_of(
    st.builds(lambda n: by.Full(layout(n)), st.integers(1, 5000)),
    st.builds(
        lambda n, w: by.SlidingWindow(layout(n), tokens=w), st.integers(1, 5000), st.integers(1, 99)
    ),
    st.builds(
        lambda n, c: by.ChunkedAttention(layout(n), tokens=c),
        st.integers(1, 5000),
        st.integers(1, 9999),
    ),
    st.builds(
        lambda n, e: by.RecurrentState(layout(n), every=16 * e),
        st.integers(1, 50000),
        st.integers(1, 9),
    ),
)


@given(
    st.lists(kinds, min_size=1, max_size=5),
    st.integers(1, 20000),
    st.none() | st.integers(1, 5000),
    st.none() | st.lists(st.floats(0.01, 1), min_size=6, max_size=6),
)
def test_the_least_that_a_refusal_names_will_do(
    more: list[Group], typical: int, longest: int | None, split: list[float] | None
) -> None:
    groups = [by.Full(layout(300)), *more]
    given_ = None if split is None else split[: len(groups)]
    how = {"engine": 9, "typical": typical, "split": given_, "max_model_len": longest}
    with pytest.raises((by.Misuse, by.TooLarge), match=r"group . .*give host='") as refused:
        by.GroupConfigs(groups, host="0.001 KiB", **how)  # type: ignore[arg-type]
    least = str(refused.value).split("give host='")[1].split("'")[0]
    configs = by.GroupConfigs(groups, host=least, **how)  # type: ignore[arg-type]
    total = parse_size("host", least).nbytes
    used = 0
    last = max(configs.groups.last_boundary(typical), configs.groups.boundary)
    for config, group in zip(configs, configs.groups, strict=True):
        used += config.host_blocks * group.layout.host_block_bytes
        if not isinstance(group, by.Full):
            assert config.host_blocks >= 2 * len(group.needs(last, 16))
        if longest is not None:
            assert config.host_blocks >= group.most_needed(longest, 16)
    assert used <= total
    if sum(len(g.needs(last, 16)) for g in groups) and used < total:
        # What is left is less than a block of the spine, and one of each other group.
        assert total - used < sum(group.layout.host_block_bytes for group in groups)


def test_shares_may_be_given_and_a_rank_has_as_much_as_the_others() -> None:
    groups = [by.Full(layout(ranks=2)), by.SlidingWindow(layout(ranks=2), tokens=40)]
    configs = by.GroupConfigs(groups, engine=9, host="1 MiB/rank", split=[3, 1])
    assert [config.host for config in configs] == [768, 256]
    swapped = by.GroupConfigs(groups[::-1], engine=9, host="2 MiB", split=[1, 3])
    assert [config.host for config in swapped] == [768, 256]
    sizes = by.GroupConfigs(groups[::-1], engine=9, host=["1 MiB", 100], disk=0)
    assert [(config.host, config.disk) for config in sizes] == [(100, 0), (512, 0)]


def test_the_line_says_kind_blocks_and_bytes_of_each_group() -> None:
    configs = by.GroupConfigs(hybrid(), engine=9, host=[100, 200, 30], disk=[0, 0, 40])
    assert configs.line == (
        "group 1 (Full): 200 blocks of 1.00 KiB, 200 KiB of host; "
        "group 0 (SlidingWindow of 40 tokens): 100 blocks of 1.00 KiB, 100 KiB of host; "
        "group 2 (RecurrentState every 64 tokens): 30 blocks of 64.0 KiB, 1.88 MiB of host "
        "and 40 blocks of 64.0 KiB, 2.50 MiB of disk"
    )
    assert "nothing below the engine" in by.GroupConfigs(hybrid(), engine=9).line


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"device": 9}, "device = 9: several groups need engine="),
        ({"layout": layout()}, "layout = .*each group has its own"),
        ({"linked": False}, "linked = False: it follows"),
        ({"group": 1}, "group = 1: it follows"),
        ({"ranks": 2}, "ranks = 2: give it in the layout"),
        ({"engine": 0}, "engine = 0: must be"),
        ({"engine": "1 GiB"}, "engine = '1 GiB': must be an integer"),
        ({"host": 4096}, "host = 4096: a number of blocks does not say which group"),
        ({"host": "4096 blocks"}, "host = '4096 blocks': a number of blocks"),
        ({"host": [1, 2]}, "2 sizes for 3 groups; give a size for each of the 3 groups"),
        ({"host": "much"}, "host = 'much': give blocks, or memory"),
        ({"host": [100, 100, 1]}, "group 2 .RecurrentState.* 1 blocks.*two checkpoints takes 2"),
        ({"host": "1 MiB", "split": [1, 1, 0]}, "split of group 2 = 0: must be a number above 0"),
        ({"host": "1 MiB", "split": [1, 1, "a"]}, "split of group 2 = 'a'"),
        ({"host": "1 MiB", "split": [10**400, 1, 1]}, "split of group 0 = 1.*below 1e100"),
        ({"host": "1 MiB", "split": [1, 1, 5e-324]}, "more than a million times another"),
        ({"host": "1 MiB", "split": [1, 1]}, r"2 shares for 3 groups; give .*, like \[1, 1, 4\]"),
        ({"host": "1 MiB", "split": 0.5}, "split = 0.5: it is no list; give a share"),
        ({"host": "1 MiB", "split": [9, 9, 1]}, "another split"),
        ({"typical": 0}, "typical = 0: must be"),
        ({"max_model_len": 0}, "max_model_len = 0: must be"),
        ({"evict": "recency"}, "evict"),
    ],
)
def test_what_does_not_fit_is_named(more: dict[str, Any], says: str) -> None:
    with pytest.raises((by.Misuse, TypeError), match=says):
        by.GroupConfigs(hybrid(), **{"engine": 9, **more})


def test_a_sequence_of_max_model_len_must_fit() -> None:
    with pytest.raises(by.TooLarge, match="max_model_len = 4,096 tokens takes 256"):
        by.GroupConfigs(hybrid(), engine=9, host=[100, 200, 30], max_model_len=4096)
    by.GroupConfigs(hybrid(), engine=9, host=[100, 200, 30], disk=[1, 256, 1], max_model_len=4096)


def test_groups_on_a_device_of_our_own_are_refused_by_name() -> None:
    model = Model(ModelConfig())
    groups: Any = hybrid()
    says = r"groups = \[.*GroupConfigs\(groups, engine=…\)"
    with pytest.raises(by.Misuse, match=says):
        by.Config(device=8, groups=groups)
    with pytest.raises(by.Misuse, match=says):
        by.local(layout(), device=8, groups=groups)
    with pytest.raises(by.Misuse, match=says):
        alone(model, by.Config(layout=model.config.layout(), device=16, groups=groups))


def test_the_weights_are_exact() -> None:
    configs = by.GroupConfigs(
        [by.Full(layout(3)), by.SlidingWindow(layout(7), tokens=17)], engine=9, host="1 MiB"
    )
    spine, rider = Fraction(8192 // 16 * 3), Fraction(2 * 7)
    assert configs[1].host == int((2**20) * rider / (spine + rider)) // 7


def test_a_chunk_that_ends_where_a_typical_sequence_does_has_room_all_the_same() -> None:
    """There it needs nothing, and one block before that all of it."""
    groups = [by.Full(layout()), by.ChunkedAttention(layout(), tokens=1024)]
    configs = by.GroupConfigs(groups, engine=100, host="64 MiB", typical=2048)
    assert [config.host for config in configs] == [32768, 32768]

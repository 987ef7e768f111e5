"""One configuration: keywords, mapping, TOML; its fingerprint and the handshake."""

import ast
import inspect
import pickle
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from blockyard import _core
from blockyard._core import KEY_ENCODINGS
from blockyard.shared.copy_tuning import CopyTuning
from blockyard.shared.layout import Hello

LAYOUT = by.KVLayout.llama(layers=2, kv_heads=4, head_dim=8, block_size=8, ranks=2)


def hello(config: by.Config, rank: int, **other: Any) -> Hello:
    sizes = (config.device_blocks, config.host_blocks)
    said = Hello(rank, config.fingerprint, *sizes, LAYOUT.fingerprint, config.disk_blocks)
    return said._replace(**other)


def stub_defaults() -> dict[str, object]:
    """What the stub says of the keywords of `_core.Cache`."""
    tree = ast.parse(Path(_core.__file__).with_name("_core.pyi").read_text())
    found = {
        function.name: function.args
        for one in tree.body
        if isinstance(one, ast.ClassDef) and one.name == "Cache"
        for function in one.body
        if isinstance(function, ast.FunctionDef)
    }["__new__"]
    return {
        keyword.arg: ast.literal_eval(default)
        for keyword, default in zip(found.kwonlyargs, found.kw_defaults, strict=True)
        if default is not None
    }


def test_core_binding_stub_and_configuration_have_the_same_defaults() -> None:
    core = _core.Cache._defaults()
    given = inspect.signature(_core.Cache).parameters
    binding = {name: one.default for name, one in given.items() if one.default is not one.empty}
    config = {one.name: one.default for one in fields(by.Config) if one.default is not MISSING}
    assert stub_defaults() == binding
    sizes = {"device", "engine", "host", "disk", "remote"}
    assert binding.keys() - core.keys() == sizes | {
        "writes_below",
        "boot",
        "namespace",
        "memory",
        "recorder",
    }
    assert {name: binding[name] for name in core} == core
    shared = binding.keys() & config.keys()
    assert shared == binding.keys() - {"boot", "memory", "recorder", "writes_below"}
    assert all(binding[name] is None and not config[name] for name in ("device", "engine"))
    shared -= {"device", "engine"}
    assert (config.pop("keyed"), binding.pop("keyed")) == ((), None), "each says none"
    shared.remove("keyed")
    assert {name: config[name] for name in shared} == {name: binding[name] for name in shared}


def test_keywords_mapping_and_toml_say_the_same(tmp_path: Path) -> None:
    config = by.Config(device=100, host=50, layout=LAYOUT, write="through", block_costs=(3, 4, 5))
    assert by.Config.of(config.to_mapping()) == config
    path = tmp_path / "yard.toml"
    path.write_text(
        """
        [blockyard]
        device = 100
        host = 50
        write = "through"
        block_costs = [3, 4, 5]
        [blockyard.layout]
        """
        + "\n".join(
            f"{name} = {value!r}".replace("'", '"')
            .replace("True", "true")
            .replace("False", "false")
            for name, value in LAYOUT.to_mapping().items()
            if not isinstance(value, list)
        )
        + "".join(
            "\n[[blockyard.layout.planes]]\n"
            + "\n".join(
                f"{name} = {value!r}".replace("'", '"')
                .replace("True", "true")
                .replace("False", "false")
                for name, value in plane.items()
            )
            for plane in LAYOUT.to_mapping()["planes"]
        )
    )
    assert by.Config.read(path) == config
    assert by.Config.read(path).fingerprint == config.fingerprint
    assert pickle.loads(pickle.dumps(config)) == config
    assert by.KVCache(config).config == config
    preset = by.Config.of({"device": 4, "layout": "llama-3-8b"})
    assert preset.layout == by.KVLayout.preset("llama-3-8b")


def test_a_layout_gives_block_size_and_ranks() -> None:
    config = by.Config(device=10, layout=LAYOUT)
    assert (config.block_size, config.ranks) == (8, 2)
    assert by.KVCache(LAYOUT, device=10).block_size == 8
    with pytest.raises(by.Misuse, match="block_size = 32, but the layout has 8"):
        by.Config(device=10, layout=LAYOUT, block_size=32)


def test_sizes_of_memory_are_blocks_of_the_layout_per_rank_or_per_host() -> None:
    block = LAYOUT.block_bytes
    config = by.Config(device="0.01 GiB", host="0.5 GiB", layout=LAYOUT)
    assert config.device_blocks == int(0.01 * 2**30) // block
    assert config.host_blocks == 2**29 // (2 * block)
    per_rank = by.Config(device=4, host="0.5 GiB/rank", layout=LAYOUT)
    assert per_rank.host_blocks == 2**29 // block
    assert by.Config(device="10 MB", layout=LAYOUT).device_blocks == 10**7 // block
    for half in ("512 MiB/rank", "0.5gib per rank", "524288 KIB / Rank"):
        assert by.Config(device=4, host=half, layout=LAYOUT).host_blocks == per_rank.host_blocks
    assert by.Config(device=4, host="0 GB", layout=LAYOUT).host_blocks == 0
    disk = by.Config(device=4, disk="0.5 GiB", layout=LAYOUT)
    assert (disk.host_blocks, disk.disk_blocks) == (0, config.host_blocks)
    assert by.Config(device=4, disk="0.5 GiB/rank", layout=LAYOUT).disk == per_rank.host


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({}, "device is missing"),
        ({"device": 8, "evicton": 3}, "no 'evicton' .* did you mean 'eviction'"),
        ({"device": 8, "ranks": 0}, "ranks = 0: must be an integer >= 1"),
        ({"device": 8, "ranks": True}, "ranks = True"),
        ({"device": 8, "deadline": 0}, "deadline = 0"),
        ({"device": 8, "ahead": -1}, "ahead = -1"),
        (
            {"device": "64 TB"},
            "device = '64 TB': give blocks, or memory like .* in KiB, MiB, GiB, TiB, MB, GB",
        ),
        ({"device": 8, "host": "1 GiB"}, "without a layout the bytes of a block"),
        ({"device": "1 gib/host", "layout": LAYOUT}, "to a rank; give '1 GiB'"),
        ({"device": 8, "host": "1e-9 GiB", "layout": LAYOUT}, "smaller than one block"),
        ({"device": 8, "disk": "1e-9 GiB", "layout": LAYOUT}, "disk = .* smaller than one block"),
        ({"device": 8, "disk": "1 GiB"}, "disk = '1 GiB': without a layout"),
        ({"device": 8, "disk": -1}, "disk = -1: must be an integer >= 0"),
        ({"device": 8, "disc": 1}, "no 'disc' .* did you mean 'disk'"),
        ({"device": 8, "record": 3}, "record = 3: give the path of a file"),
        ({"device": 8, "record": ""}, "record = '': give the path of a file"),
        ({"device": 8, "layout": "llama-4-8b"}, "llama-3"),
        ({"device": 8, "layout": 5}, "layout = 5"),
        ({"device": 8, "layout": {"preset": ["x"]}}, "there is no preset"),
        ({"device": 8, "layout": {"preset": "llama-3-8b", "dtype": ["x"]}}, "dtype"),
        ({"device": 8, "block_size": [1]}, r"block_size = \[1\]"),
        ({"device": 8, "block_size": [1], "layout": LAYOUT}, r"block_size = \[1\]"),
        ({"device": 8, "block_size": 16, "layout": LAYOUT}, "block_size = 16, but"),
        ({"device": 8, "ranks": 1, "layout": LAYOUT}, "ranks = 1, but"),
        ({"device": "nan GiB", "layout": LAYOUT}, "device = 'nan GiB'"),
        ({"device": "1e400 GiB", "layout": LAYOUT}, "device = '1e400 GiB'"),
        ({"device": 1.5}, "device = 1.5"),
        ({"device": -5}, "device = -5"),
        ({"device": 8, "write": "bogus"}, "write = 'bogus': must be one of 'on-evict', 'through'"),
        ({"device": 8, "eviction": ["x"]}, "eviction ="),
        *(
            ({"device": 8, name: None}, f"{name} = None: ")
            for name in ("ranks", "null_slots", "write", "keyed", "copy_retries", "groups")
        ),
        ({"device": 8, "eviction": None}, "eviction = None: .* one of recency, learned, heap"),
        (
            {"device": 8, "eviction": "newest"},
            "eviction = 'newest': .* one of recency, learned, heap",
        ),
        (
            {"device": 8, "eviction": "bonus"},
            "eviction = 'bonus': .* one of recency, learned, heap",
        ),
        ({"device": 8, "eviction": "recent"}, "eviction = 'recent': did you mean 'recency'"),
        ({"device": 8, "host_copies": "lsat"}, "host_copies = 'lsat': did you mean 'last'"),
        ({"device": 8, "eviction": "LRU"}, "eviction = 'LRU': did you mean 'recency'"),
        ({"device": 8, "host_copies": True}, "host_copies = True: must be one of first, last"),
        ({"device": 8, "copy_retries": "x"}, "copy_retries = 'x'"),
        ({"device": 8, "spare": "x"}, "spare = 'x'"),
        ({"device": 8, "spare": -1}, "spare = -1"),
        ({"device": 8, "spare": 1.5}, r"spare = 1\.5"),
        ({"device": 8, "spare": 9}, "spare = 9: .* give 8 at most, .* of the 8 slots"),
        ({"device": 6400, "spare": 101}, "spare = 101: .* give 100 at most"),
        ({"engine": 6400, "spare": 1}, "spare = 1: an engine .* leave spare out"),
        ({"device": 8, "block_costs": 5}, "block_costs = 5"),
        ({"device": 8, "block_costs": [1]}, r"block_costs = \[1\]"),
        ({"device": 8, "block_costs": [1, 2, -3]}, "block_costs: attend = -3"),
        ({"device": 8, "copy_tuning": {"ring": 5}}, "no 'ring' in copy_tuning: did you mean"),
        ({"device": 8, "copy_tuning": {"ring_bytes": 0}}, "copy_tuning: ring_bytes = 0"),
        ({"device": 8, "copy_tuning": {"most_runs": 1.5}}, r"copy_tuning: most_runs = 1\.5"),
        ({"device": 8, "copy_tuning": [1]}, r"copy_tuning = \[1\]: give a mapping"),
        ({"device": 8, "copy_tuning": 7}, "copy_tuning = 7: give a mapping"),
        ({"device": 8, "namespace": {"model": 3}}, "'model', 3"),
        ({"device": 8, "recompute": 1}, "recompute = 1"),
        ({"device": 8, "keyed": ["host", "tape"]}, "keyed = 'tape': must be one of 'host', 'disk'"),
        ({"device": 8, "keyed": ["device"]}, "keyed = 'device': must be one of 'host', 'disk'"),
        ({"device": 8, "keyed": [["host"]]}, r"keyed = \['host'\]"),
        ({"device": 8, "keyed": "host"}, "keyed = 'host': give a sequence of names of tiers"),
        ({"device": 8, "keyed": 3}, "keyed = 3: give a sequence"),
    ],
)
def test_bad_values_are_named(keywords: dict[str, Any], says: str) -> None:
    with pytest.raises(by.Misuse, match=says):
        by.Config.of(keywords)


def test_it_is_frozen_through_and_through() -> None:
    names = {"model": "a", "dtype": "b"}
    config = by.Config(device=8, namespace=names)
    print_ = config.fingerprint
    names["model"] = "z"
    assert config.fingerprint == print_
    assert hash(config) == hash(by.Config(device=8, namespace={"dtype": "b", "model": "a"}))
    assert by.KVCache(config).config == config


def test_keyed_tiers_are_the_same_in_whatever_order_they_are_named() -> None:
    config = by.Config.of({"device": 8, "keyed": ["disk", "host", "disk"]})
    assert config.keyed == ("host", "disk")
    assert config == by.Config(device=8, keyed=("host", "disk"))
    assert by.Config.of(config.to_mapping()) == config
    assert by.KVCache(config).config.keyed == ("host", "disk")
    assert "keyed" not in by.Config(device=8).to_mapping(), "as it was without keyed tiers"


def test_a_file_names_an_order_and_the_place_of_copies(tmp_path: Path) -> None:
    path = tmp_path / "kv.toml"
    path.write_text('[blockyard]\ndevice = 8\nhost = 8\neviction = "learned"\nhost_copies = "last"')
    config = by.Config.read(path)
    assert (config.eviction, config.host_copies) == ("learned", "last")
    assert {"eviction": "learned", "host_copies": "last"}.items() <= config.core().items()
    assert by.KVCache(config).config == by.Config.of(config.to_mapping()) == config
    assert "host_copies" not in by.Config(device=8).to_mapping(), "as it was without"


def test_a_file_that_is_no_configuration_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("device = [")
    number = tmp_path / "number.toml"
    number.write_text("blockyard = 5")
    with pytest.raises(by.Misuse, match="a mapping of names to values, not 5"):
        by.Config.read(number)
    for path in (bad, tmp_path / "none.toml", tmp_path):
        with pytest.raises(by.Misuse, match=str(path)):
            by.Config.read(path)


@pytest.mark.parametrize("text", ["device = {}{}", "[blockyard]\nspeeds = {}{}", "{}a{}\nx = 1"])
def test_a_file_nested_thousands_deep_is_no_configuration(text: str, tmp_path: Path) -> None:
    path = tmp_path / "deep.toml"
    path.write_text(text.format("[" * 5_000, "]" * 5_000))
    with pytest.raises(by.Misuse, match=str(path)):
        by.Config.read(path)


def test_a_value_nested_thousands_deep_is_refused_whatever_it_is_for() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    names = [field.name for field in fields(by.Config)]
    for name in names:
        with pytest.raises(by.Misuse):
            by.Config.of({"device": 8, name: deep})
        with pytest.raises(by.Misuse):
            by.Config.of({"device": 8, name: {"device": deep, "host": deep}})
    for layout in ({"preset": deep}, {"planes": deep}, {"planes": [{"name": deep}]}):
        with pytest.raises(by.Misuse):
            by.Config.of({"device": 8, "layout": layout})
    with pytest.raises(by.Misuse):
        by.Config.of(deep)


@pytest.mark.law("INV-15")
def test_the_fingerprint_changes_with_every_field_but_the_sizes() -> None:
    config = by.Config(device=100, host=50, layout=LAYOUT)
    prints = {config.fingerprint}
    for change in (
        {"null_slots": 2},
        {"eviction": "heap"},
        {"host_copies": "first"},
        {"host_copies": "last"},
        {"write": "through"},
        {"ghosts": 7},
        {"spare": 1},
        {"ahead": 3},
        {"deadline": 9},
        {"block_costs": (1, 2, 3)},
        {"copy_tuning": {"kernel_below": 1}},
        {"recompute": False},
        {"copy_retries": 1},
        {"namespace": {"model": "a"}},
        {"key_hash": "xxh3"},
        {"keyed": ["host"]},
        {"keyed": ["disk"]},
        {"layout": by.KVLayout.llama(layers=2, kv_heads=4, head_dim=16, block_size=8, ranks=2)},
    ):
        prints.add(by.Config.of(config.to_mapping() | change).fingerprint)
    assert len(prints) == 19
    for same in ({"device": 7, "host": 9, "disk": 8}, {"record": "traffic.rec"}):
        assert by.Config.of(config.to_mapping() | same).fingerprint == config.fingerprint


def test_what_comes_down_to_a_tier_can_leave_it_as_fast() -> None:
    # By itself 320 // 16 on the device, and below it as many, up to a quarter of that tier.
    for host, most in ((640, 40), (320, 20), (160, 20), (40, 10), (3, 0), (0, 0)):
        config = by.Config(device=320, host=host, disk=50)
        assert (config.ahead_of("device"), config.ahead_of("host")) == (20, most)
        assert config.ahead_of("disk") == 0
    config = by.Config(device=320, host=160, disk=50, ahead={"device": 60})
    assert (config.ahead_of("device"), config.ahead_of("host")) == (60, 40)
    config = by.Config(device=320, host=160, disk=50, ahead={"host": 7})
    assert (config.ahead_of("device"), config.ahead_of("host")) == (20, 7)


def test_the_handshake_takes_the_least_that_any_rank_has() -> None:
    config = by.Config(device=100, host=50, layout=LAYOUT)
    agreed = by.agree(config, [hello(config, 1, device=90), hello(config, 0, host=40)])
    assert (agreed.device, agreed.host, agreed.disk) == (90, 40, 0)
    assert agreed.fingerprint == config.fingerprint


def test_of_the_third_tier_all_have_what_the_smallest_has_and_the_core_is_told_of_it() -> None:
    config = by.Config(device=100, host=50, disk=70, layout=LAYOUT)
    agreed = by.agree(config, [hello(config, 0, disk=60), hello(config, 1)])
    assert (agreed.host, agreed.disk, agreed.core()["disk"]) == (50, 60, 60)
    none = by.agree(config, [hello(config, 0), hello(config, 1, disk=0)])
    assert (none.disk_blocks, none.core()["disk"]) == (0, 0)
    assert by.Config.of(config.to_mapping()) == config


@pytest.mark.law("INV-15", "R3-8", "4.7-49")
@pytest.mark.parametrize(
    ("others", "says"),
    [
        ([{"rank": 0}], r"ranks \[0\] said hello, and 2 were expected"),
        ([{"rank": 0}, {"rank": 0}], r"ranks \[0, 0\]"),
        ([{"rank": 0}, {"rank": 2}], r"ranks \[0, 2\]"),
        ([{"rank": 0}, {"rank": 1, "fingerprint": "f" * 64}], "rank 1 is configured otherwise"),
        ([{"rank": 0}, {"rank": 1, "layout": "f" * 64}], "rank 1 has another layout"),
    ],
)
def test_the_handshake_refuses(others: list[dict[str, Any]], says: str) -> None:
    config = by.Config(device=100, layout=LAYOUT)
    with pytest.raises(by.Misuse, match=says):
        by.agree(config, [hello(config, **other) for other in others])


def test_a_config_is_whole() -> None:
    with pytest.raises(TypeError, match="put device into it"):
        by.KVCache(by.Config(device=8), device=9)


def test_thresholds_are_whole_however_few_were_given_and_come_back_from_a_mapping() -> None:
    config = by.Config(device=8, copy_tuning={"piece_bytes": 65536})
    assert config.copying == CopyTuning(piece_bytes=65536)
    assert by.Config.of(config.to_mapping()) == config
    assert by.Config(device=8).copying is None


@pytest.mark.parametrize(
    ("hellos", "says"),
    [
        (None, "hellos = None: give a list"),
        (Hello(0, "f", 9, 0), "hellos = Hello"),
        ([None], "hellos[0] = None: give the answer of crane.hello() there"),
        ([(0, "f", 9, 0)], "hellos[0] = (0, 'f', 9, 0): give"),
        ([Hello("0", "f", 9, 0)], "hellos[0].rank = '0': must be an integer >= 0"),  # type: ignore[arg-type]
        ([Hello(0, "f", -9, 0)], "hellos[0].device = -9"),
        ([Hello(0, "f", 9, 0, yard=-1)], "hellos[0].yard = -1"),
        ([Hello(0, None, 9, 0)], "hellos[0].fingerprint = None: must be text"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_handshake_is_named(hellos: Any, says: str) -> None:
    with pytest.raises(by.Misuse, match=re.escape(says)):
        by.agree(by.Config(device=100), hellos)
    with pytest.raises(by.Misuse, match="config = None: give the Config"):
        by.agree(None, [])  # type: ignore[arg-type]


@pytest.mark.parametrize("differs", ["plans", "keys"])
def test_a_handshake_of_another_version_is_refused_and_says_so(
    monkeypatch: pytest.MonkeyPatch, differs: str
) -> None:
    config = by.Config(device=100)
    with monkeypatch.context() as older:
        if differs == "plans":
            older.setattr("blockyard.yard.config.WIRE", 1)
        else:
            older.setitem(KEY_ENCODINGS, "sha256", 1)
        said = hello(config, 0)
    with pytest.raises(by.Misuse, match="start every process from one configuration and version"):
        by.agree(config, [said])


STORES = ["redis://user@one:6379/0", "file:///mnt/kv"]


def test_stores_are_urls_in_order_that_each_rank_may_have_its_own_of(tmp_path: Path) -> None:
    config = by.Config(device=9, remote=9, stores=STORES)
    assert config.stores == tuple(STORES)
    assert config.to_mapping()["stores"] == STORES
    assert by.Config.of(config.to_mapping()) == config
    assert "stores" not in by.Config(device=9).to_mapping()
    assert config.fingerprint == by.Config(device=9, remote=9, stores=STORES[:1]).fingerprint
    path = tmp_path / "yard.toml"
    path.write_text(f"device = 9\nremote = 9\nstores = {STORES}\n")
    assert by.Config.read(path) == config


@pytest.mark.parametrize(
    ("stores", "says"),
    [
        ("redis://one", "stores = text: give a list of URLs"),
        (7, "stores = 7: give a list of URLs"),
        (["one"], "stores[0] = text: give a URL"),
        ([7], "stores[0] = 7: give a URL"),
        ([STORES[0], STORES[0]], "stores name one twice"),
        (["redis://:secret@one"], "stores[0] has a password in it"),
        (["redis://me:secret@one:6379/0"], "password_file="),
        (["redis://me:secret@[one"], "stores[0] has a password in it"),
        ("redis://:secret@one", "stores = text"),
        (["redis://one", "secret"], "stores[1] = text"),
    ],
)
def test_stores_that_are_none_are_refused_and_no_password_is_shown(stores: Any, says: str) -> None:
    with pytest.raises(by.Misuse, match=re.escape(says)) as refused:
        by.Config(device=9, stores=stores)
    assert "secret" not in str(refused.value)

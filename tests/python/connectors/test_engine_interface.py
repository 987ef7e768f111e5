"""What the connectors touch of vLLM and SGLang is compared at the start: differences are named."""

import functools
import json
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
import sglang_pages
import sglang_stub
import vllm_front
import vllm_stub
from blockyard.connectors.interface import Interface
from blockyard.shared.extras import install
from engine_stub import TOUCHED, modules_of

PACKAGE = Path(by.__file__).parent
PARTS = {"vllm": vllm_stub.PARTS, "sglang": sglang_stub.PARTS}
CALLED = {"vllm": "vLLM", "sglang": "SGLang"}
Names = dict[str, dict[str, Any]]


def put(
    monkeypatch: pytest.MonkeyPatch, engine: str, names: Names, version: str = "0.1.dev1"
) -> Any:
    """Puts another version of an engine where imports find it."""
    for old in [one for one in sys.modules if one.split(".")[0] == engine]:
        monkeypatch.delitem(sys.modules, old)
    # What the stubs do themselves has the fields of before: one that goes must go.
    made = (
        "KVConnectorPromMetrics",
        *(n for n, one in PARTS[engine].items() if isinstance(one, type)),
    )
    parts = {name: part for name, part in PARTS[engine].items() if name not in made}
    modules = modules_of(engine, parts, names)
    modules[engine].__version__ = version  # type: ignore[attr-defined]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return modules


def fresh(monkeypatch: pytest.MonkeyPatch, engine: str) -> Any:
    """Imports a connector as a new process does."""
    for module in [one for one in sys.modules if one.startswith(f"blockyard.connectors.{engine}")]:
        monkeypatch.delitem(sys.modules, module)
    package = import_module(f"blockyard.connectors.{engine}")
    monkeypatch.setattr("blockyard.connectors." + engine, package)
    return package


def start(package: Any, folder: Path, **extra: Any) -> Any:
    """Makes the connector as its engine does."""
    if package.__name__.endswith("sglang"):
        return package.Storage(sglang_pages.config(folder, extra=extra), {})
    engine = import_module("blockyard.connectors.vllm.engine")
    config = vllm_front.vllm_config(kv_connector_extra_config={"host": 64, **extra})
    return package.Blockyard(
        config, getattr(engine.KVConnectorRole, "SCHEDULER", None), vllm_front.kv_config()
    )


def recorded(engine: str) -> Names:
    return dict(json.loads(json.dumps(TOUCHED[engine]["names"])))


def without(engine: str) -> Iterator[tuple[str, Names]]:
    """Each version in which one touched name is gone, or takes other parameters; and its name."""
    for full, touched in TOUCHED[engine]["names"].items():
        name = full.rpartition(".")[2]
        names = recorded(engine)
        del names[full]
        yield f"{full} is missing", names
        for field in touched.get("fields", "").split():
            names = recorded(engine)
            names[full]["fields"] = " ".join(set(touched["fields"].split()) - {field})
            yield f"{name}.{field} is missing", names
        for method, parameters in touched.get("methods", {}).items():
            names = recorded(engine)
            names[full]["methods"][method] = f"another {parameters}"
            yield f"{name}.{method}({', '.join(['another', *parameters.split()])})", names
            if method != "__init__":
                names = recorded(engine)
                del names[full]["methods"][method]
                yield f"{name}.{method} is missing", names
        if "parameters" in touched:
            names = recorded(engine)
            names[full]["parameters"] = f"another {touched['parameters']}"
            yield f"{name}({', '.join(['another', *touched['parameters'].split()])})", names


def compared(engine: str) -> Interface:
    return Interface(CALLED[engine], TOUCHED[engine], option='"untested": true')


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_each_name_that_is_touched_is_compared(
    monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    tried = 0
    for said, names in without(engine):
        put(monkeypatch, engine, names)
        with pytest.raises(by.Unsupported) as refused:
            compared(engine).check()
        assert said in str(refused.value)
        assert f"{CALLED[engine]} 0.1.dev1 has another interface" in str(refused.value)
        assert f"than {CALLED[engine]} {TOUCHED[engine]['tested'][0]}, which" in str(refused.value)
        assert install(engine) in str(refused.value)
        tried += 1
    assert tried > 60


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_connector_that_lacks_a_name_says_so_wherever_it_is_used(
    monkeypatch: pytest.MonkeyPatch, engine: str, tmp_path: Path
) -> None:
    for full in TOUCHED[engine]["names"]:
        names = recorded(engine)
        del names[full]
        put(monkeypatch, engine, names)
        package = fresh(monkeypatch, engine)
        with pytest.raises(by.Unsupported, match=re.escape(f"{full} is missing")):
            start(package, tmp_path)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_equal_interface_goes_on_whatever_the_number_says(
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    modules = put(monkeypatch, engine, recorded(engine))
    package = fresh(monkeypatch, engine)
    # More than is touched makes no difference.
    for name, module in modules.items():
        monkeypatch.setattr(module, "another", name, raising=False)
    with caplog.at_level(logging.INFO):
        start(package, tmp_path)
    assert f"{CALLED[engine]} 0.1.dev1 was not tested with Blockyard" in caplog.text


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_untested_goes_on_and_says_what_differs(
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = recorded(engine)
    full, field = {
        "vllm": ("vllm.lora.request.LoRARequest", "load_inplace"),
        "sglang": ("sglang.srt.server_args.ServerArgs", "uno_lora_path"),
    }[engine]
    names[full]["fields"] = names[full]["fields"].replace(field, "renamed")
    put(monkeypatch, engine, names)
    package = fresh(monkeypatch, engine)
    with pytest.raises(by.Unsupported, match=f'{field} is missing.*"untested": true'):
        start(package, tmp_path)
    start(package, tmp_path, untested=True)
    assert f"{field} is missing" in caplog.text
    with pytest.raises(by.Misuse, match="untested = 'yes'"):
        start(package, tmp_path, untested="yes")


def test_a_constructor_of_another_form_is_named_and_is_no_bare_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = recorded("vllm")
    base = next(full for full in names if full.endswith("KVConnectorBase_V1"))
    names[base]["methods"]["__init__"] = "vllm_config role kv_cache_config hub"
    put(monkeypatch, "vllm", names)
    package = fresh(monkeypatch, "vllm")
    with pytest.raises(
        by.Unsupported, match=r"__init__\(vllm_config, role, kv_cache_config, hub\)"
    ):
        package.Blockyard(vllm_front.vllm_config(), None, None, object())
    with pytest.raises(by.Unsupported, match="hub"):
        package.Blockyard(vllm_front.vllm_config())
    with pytest.raises(by.Unsupported, match="hub"):
        package.Blockyard.requires_piecewise_for_cudagraph({"host": 64}, "more")


@pytest.mark.parametrize("now", ["* request block_ids", "request block_ids /", "*args **kwargs"])
def test_parameters_that_are_given_in_another_way_are_named(
    monkeypatch: pytest.MonkeyPatch, now: str
) -> None:
    names = recorded("vllm")
    base = next(full for full in names if full.endswith("KVConnectorBase_V1"))
    names[base]["methods"]["request_finished"] = now
    put(monkeypatch, "vllm", names)
    (said,) = compared("vllm").differences
    # Where the rest is given by position only, so is `self`, which is left out.
    given = ", ".join(now.split())
    assert said == f"KVConnectorBase_V1.request_finished({given}) instead of (request, block_ids)"


def decorated(function: Any) -> Any:
    def around(self: Any) -> None:
        function(self)

    return around


def wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def around(self: Any) -> None:
        function(self)

    return around


class Config:
    """Fields that come in each of the ways in which an engine's class may have them."""

    annotated: int
    default = 1

    def __init__(self) -> None:
        self.plain = 1
        self.first, self.second = 1, 2
        setattr(self, "by_name", 3)  # noqa: B010 - as engines do
        object.__setattr__(self, "frozen", 4)
        self.__dict__.update({"by_mapping": 5})
        for name in ("one_of_several", "another"):
            setattr(self, name, 6)

        def inside() -> None:
            self.in_a_function = 7

        inside()

    @decorated
    def _decorated(self) -> None:
        self.in_a_decorated = 8

    @wrapped
    def _wrapped(self) -> None:
        self.in_a_wrapped = 9

    @property
    def held(self) -> int:
        self.in_a_property = 10
        return 10

    @functools.cached_property
    def once(self) -> int:
        self.in_a_cached = 11
        return 11

    @classmethod
    def made(cls) -> "Config":
        config = cls()
        config.in_a_class_method = 12  # type: ignore[attr-defined]
        return config


class Later(Config):
    """A class that takes them from another."""


FIELDS = (
    *("annotated", "default", "plain", "first", "second", "by_name", "frozen", "by_mapping"),
    *("one_of_several", "another", "in_a_function", "in_a_decorated", "in_a_wrapped"),
    *("in_a_property", "in_a_cached", "in_a_class_method", "held", "once"),
)


@pytest.mark.parametrize("kind", ["Config", "Later"])
def test_a_field_counts_however_an_object_gets_it(kind: str) -> None:
    touched = {f"{__name__}.{kind}": {"fields": " ".join((*FIELDS, "gone"))}}
    engine = Interface("an engine", {"tested": ["1"], "names": touched}, option="")
    assert engine.differences == (f"{kind}.gone is missing",)


@pytest.mark.parametrize(
    "instead", [lambda: None, None, int | str, {}], ids=["function", "none", "union", "mapping"]
)
def test_what_is_no_class_any_more_is_named(monkeypatch: pytest.MonkeyPatch, instead: Any) -> None:
    modules = put(monkeypatch, "vllm", recorded("vllm"))
    monkeypatch.setattr(modules["vllm.config"], "CacheConfig", instead)
    assert compared("vllm").differences == ("CacheConfig is no class any more",)


def test_a_module_that_cannot_be_imported_is_named_with_its_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "breaks.py").write_text("raise RuntimeError('no driver')")
    monkeypatch.syspath_prepend(tmp_path)
    engine = Interface("breaks", {"tested": ["1"], "names": {"breaks.Name": {}}}, option="")
    with pytest.raises(by.Unsupported, match=r"breaks.Name is missing \(RuntimeError: no driver"):
        engine.check()
    assert isinstance(engine.get("Name"), type)


def test_a_new_abstract_method_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = put(monkeypatch, "vllm", recorded("vllm"))
    base = modules["vllm.distributed.kv_transfer.kv_connector.v1.base"].KVConnectorBase_V1
    monkeypatch.setattr(base, "__abstractmethods__", frozenset({"get_finished", "forget"}))
    said = compared("vllm").differences
    assert said == (
        "KVConnectorBase_V1.forget is abstract, and new",
        "KVConnectorBase_V1.get_finished is abstract, and new",
    )


def test_many_differences_are_cut_short() -> None:
    names: Mapping[str, Any] = {f"vllm.nothing.Name{at}": {} for at in range(30)}
    every = Interface("vLLM", {"tested": ["0.33.0"], "names": names}, option="")
    with pytest.raises(by.Unsupported, match=r"Name11 is missing.*and 18 more"):
        every.check()


def test_an_engine_is_imported_in_one_place() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if "connectors" in path.parts]
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in files
        if re.search(r"^\s*(import|from) (vllm|sglang)\b", path.read_text("utf-8"), re.MULTILINE)
        or re.search(r"import_module\(", path.read_text("utf-8"))
    }
    assert found == {"connectors/interface.py"}

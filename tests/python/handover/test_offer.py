"""What a router carries: anything but a whole offer is none."""

import json
from typing import Any

import pytest

from blockyard.handover.offer import Offer

OURS = Offer(bytes(range(16)), "10.0.0.7:7000", 7)
PARTS: dict[str, Any] = {"id": bytes(range(16)).hex(), "at": "10.0.0.7:7000", "boot": 7}


def said(**changed: Any) -> Any:
    return {"blockyard.offer": PARTS | changed}


def test_it_comes_back_from_the_json_of_a_router() -> None:
    carried = json.dumps({"request": "one", **OURS.to_json()})
    assert Offer.of(json.loads(carried)) == OURS
    assert OURS.to_json() == said()
    assert len(json.dumps(OURS.to_json())) <= 150


def test_names_that_it_does_not_know_are_of_no_account() -> None:
    assert Offer.of(said(more="of a later version") | {"other": 1}) == OURS


@pytest.mark.parametrize(
    "found",
    [
        None,
        "",
        b"",
        [],
        7,
        {},
        {"blockyard.offer": None},
        {"blockyard.offer": [PARTS]},
        {"blockyard.offer": {"id": PARTS["id"], "at": PARTS["at"]}},
        *(said(id=one) for one in (None, 7, "", "0" * 31, "0" * 33, "G" * 32, "A" * 32, bytes(16))),
        *(said(id="0" * 31 + "\n"), said(id=["0" * 32])),
        *(said(boot=one) for one in (None, 0, -1, 1 << 32, 7.0, "7", True)),
        *(
            said(at=one)
            for one in (
                None,
                7,
                "",
                "host",
                "host:",
                ":7000",
                "host:0",
                "host:65536",
                "host:-1",
                "host:7000 ",
                "ho st:7000",
                "user@host:7000",
                "http://host:7000",
                "::1:7000",
                "host:\u0667\u0660",
                "h\u00f6st:7000",
                "h" * 300 + ":7000",
                "host\0:7000",
                ["host:7000"],
            )
        ),
    ],
)
def test_what_is_malformed_is_no_offer(found: Any) -> None:
    assert Offer.of(found) is None


@pytest.mark.parametrize("at", ["[::1]:7000", "a-host.example:1", "127.0.0.1:65535"])
def test_each_kind_of_address_is_one(at: str) -> None:
    assert Offer.of(said(at=at)) == OURS._replace(at=at)

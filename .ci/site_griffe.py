"""Lets the site's reference show what Griffe leaves out of stubs, enums and classes with `__new__`.

And it lets examples be code: Griffe knows a section `Examples`, and takes `Example` for prose.
"""

import re
from typing import Any

import griffe

__all__ = ["Whole"]

EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)


class Whole(griffe.Extension):  # type: ignore[misc] # griffe is not typed here
    """Adds functions with overloads alone and values of enums; takes `__new__` for `__init__`."""

    def on_object(self, *, obj: Any, **_: object) -> None:  # noqa: ANN401 - of griffe
        """Names the section of examples as Griffe does."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(r"\1Examples:", obj.docstring.value)

    def on_class(self, *, cls: Any, **_: object) -> None:  # noqa: ANN401 - of griffe
        """Adds all of it to a class."""
        if any(str(base).endswith("Enum") for base in cls.bases):
            for member in cls.attributes.values():
                member.docstring = member.docstring or griffe.Docstring(f"`{member.value}`")
        for name, overloads in cls.overloads.items():
            if name not in cls.members:
                # The widest has every parameter, and the last one has the docstring.
                widest = max(overloads, key=lambda one: len(one.parameters))
                whole = griffe.Function(
                    name, parameters=widest.parameters, returns=widest.returns, parent=cls
                )
                whole.lineno, whole.endlineno = overloads[0].lineno, overloads[-1].endlineno
                whole.overloads, whole.docstring = overloads, overloads[-1].docstring
                if whole.docstring is not None:
                    whole.docstring.parent = whole
                cls.set_member(name, whole)
        if (made := cls.members.get("__new__")) is not None and "__init__" not in cls.members:
            init = griffe.Function("__init__", parameters=made.parameters, parent=cls)
            cls.set_member("__init__", init)

"""`make lint` knows which laws have no test, and which tests show what is no law."""

from pathlib import Path

import laws
import pytest

TREE = {
    "docs/laws.md": "- Nothing is freed\n  twice. (INV-2)\n  - One by one. (INV-20a)\n\n"
    "| name | rule |\n|---|---|\n| 2.2-1 | one |\n| T9 | two |\n| E1 | three |\n",
    "tests/rust/laws/a.rs": "/// Twice.\n/// Law: INV-2, T9\n#[test]\n#[ignore]\nfn shown() {}\n",
    "rust/core/src/b.rs": "mod tests {\n    /// Law: E1\n    #[test]\n    fn shown() {}\n}\n",
    "tests/python/test_c.py": '@pytest.mark.law(\n    "2.2-1",\n    "T9",\n)\n'
    "@pytest.mark.slow\nasync def test_shown():\n    pass\n",
    "tests/python/test_d.py": 'pytestmark = pytest.mark.law("INV-20a")\n\nclass Model:\n    pass\n',
    "tests/mutants.toml": '[[mutant]]\nname = "inv-2-a-block-is-freed-twice"\n',
}


@pytest.mark.parametrize(
    ("path", "old", "new", "complaint"),
    [
        ("docs/laws.md", "", "", None),
        ("docs/laws.md", "| T9 ", "| T10 ", "tests/rust/laws/a.rs:2: T9 is no law of docs/laws.md"),
        ("docs/laws.md", "(INV-2)", "(E1)", "docs/laws.md: E1 stands there 2 times"),
        ("docs/laws.md", "| E1 ", "| E1 | x |\n| E2 ", "docs/laws.md: no test shows E2"),
        ("tests/rust/laws/a.rs", "INV-2, ", "", "docs/laws.md: no test shows INV-2"),
        ("tests/rust/laws/a.rs", "INV-2", "INV-3", "a.rs:2: INV-3 is no law of docs/laws.md"),
        ("tests/rust/laws/a.rs", "#[test]", "", "a.rs:2: below INV-2, T9 stands no test"),
        ("rust/core/src/b.rs", "#[test]", "", "docs/laws.md: no test shows E1"),
        ("tests/python/test_c.py", "test_shown", "shown", "docs/laws.md: no test shows 2.2-1"),
        (
            "tests/python/test_c.py",
            "2.2-1",
            "2.2-2",
            "test_c.py:1: 2.2-2 is no law of docs/laws.md",
        ),
        ("tests/python/test_d.py", "INV-20a", "INV-2", "docs/laws.md: no test shows INV-20a"),
        ("tests/mutants.toml", "inv-2-", "inv-4-", "inv-4-a-block-is-freed-twice begins with no"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, path: str, old: str, new: str, complaint: str | None
) -> None:
    for name, text in TREE.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace(old, new) if name == path and old else text)
    found = list(laws.complaints(tmp_path))
    assert any(complaint in one for one in found) if complaint else found == []

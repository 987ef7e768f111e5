"""What the binding takes from Python goes through its own readers."""

import re
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[3] / "rust" / "py" / "src"
# PyO3 makes room for what `len` says of these, and ends the process where that lies.
READ_BY_PYO3 = re.compile(r"\b(Vec|VecDeque|HashMap|BTreeMap|HashSet|BTreeSet)<|\[\w+; ")
VERB = re.compile(r"#\[(?:pymethods|pyfunction)\b")
SIGNATURE = re.compile(r"\bfn (\w+)(?:<[^(]*>)?\(")


def arguments(code: str, at: int) -> str:
    """The text from behind an opening bracket up to the one that closes it."""
    depth = 1
    for end in range(at, len(code)):
        depth += {"(": 1, ")": -1}.get(code[end], 0)
        if not depth:
            return code[at:end]
    raise AssertionError("a bracket is not closed")


def faults(code: str) -> list[str]:
    """The verbs of a file that leave a number of values to PyO3."""
    code = re.sub(r"//.*", "", code)
    found = []
    for start in VERB.finditer(code):
        # An impl block ends with a bracket at the start of a line; so does a function.
        end = code.find("\n}", start.end())
        verbs = SIGNATURE.finditer(code, start.end(), end)
        bad = (verb for verb in verbs if READ_BY_PYO3.search(arguments(code, verb.end())))
        found += [verb[1] for verb in bad]
    return found


def test_no_verb_leaves_a_number_of_values_to_pyo3() -> None:
    files = sorted(SOURCES.glob("*.rs"))
    verbs = sum(len(VERB.findall(file.read_text("utf-8"))) for file in files)
    assert verbs > 20, "the verbs are somewhere else"
    bad = {file.name: faults(file.read_text("utf-8")) for file in files}
    assert {name: verbs for name, verbs in bad.items() if verbs} == {}


@pytest.mark.parametrize(
    ("argument", "fault"),
    [
        ("slots: Vec<u32>", True),
        ("words: Option<Vec<String>>", True),
        ("#[pyo3(from_py_with = read)] pairs: HashMap<u8, u8>", True),
        ("key: [u8; 32]", True),
        ("slots: &Bound<'_, PyAny>", False),
    ],
)
def test_a_verb_that_does_is_seen(argument: str, *, fault: bool) -> None:
    code = (
        "#[pymethods]\nimpl Lane {\n    #[new]\n    fn new<'py>(py: Python<'py>, "
        f"{argument}) -> PyResult<Vec<u8>> {{\n        let all: Vec<u8> = read(1)?;\n    }}\n}}\n"
        "fn helper(all: Vec<u8>) {}\n"
    )
    assert faults(code) == ["new"] * fault

"""Ctrl-C at any line: after a reset nothing is lost, nothing stands still, and all bytes are right.

More, and other seeds: BLOCKYARD_INTERRUPTS=2000 python -m pytest tests/python/test_interrupts.py
"""

import os

from interrupted import Program

INTERRUPTS = int(os.environ.get("BLOCKYARD_INTERRUPTS", "0"))


def test_a_program_that_is_interrupted_at_any_line_loses_nothing() -> None:
    times = read = seed = 0
    while times < (INTERRUPTS or 150):
        program = Program(seed)
        try:
            program.run(5)
        except BaseException as error:
            error.add_note(f"seed {seed}, interrupted last at {program.interrupter.where}")
            raise
        times += program.interrupter.times
        read += program.engine.memory.read
        seed += 1
    assert read > times

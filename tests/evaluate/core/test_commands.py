"""The command of an earlier run with what a later one added."""

import pytest

from ucn.evaluate.core.commands import extend_command

BASE = "ucn evaluate hpatches --data $UCN_DATA/'my planes'"


@pytest.mark.parametrize(
    ("then", "now", "names", "added", "expected"),
    [
        (
            f"{BASE} --methods a,b -o x",
            "ucn evaluate hpatches --methods b",
            "ab",
            "",
            f"{BASE} --methods a,b -o x",
        ),
        (f"{BASE} --methods a,b -o x", "", "abc", "c", f"{BASE} --methods a,b,c -o x"),
        # One that was asked for and skipped then is not named twice.
        (f"{BASE} --methods a,c -o x", "", "ac", "c", f"{BASE} --methods a,c -o x"),
        (f"{BASE} -o x", "", "abc", "c", f"{BASE} --methods a,b,c -o x"),
        (f"{BASE} -o x", "ucn evaluate hpatches -o x", "ab", "", f"{BASE} -o x"),
        ("ucn evaluate mini", "", "ab", "b", "ucn evaluate mini --methods a,b"),
        (
            f"{BASE} --methods a,m --weights-file 'old files'/m.safetensors -o x",
            "ucn evaluate hpatches --weights-file new/m.safetensors --methods m",
            "am",
            "",
            f"{BASE} --methods a,m --weights-file new/m.safetensors -o x",
        ),
        (
            f"{BASE} --methods a --weights-file one.safetensors --jobs 2",
            "ucn evaluate hpatches --weights-file 'a b'/m.safetensors --trunk t.npz",
            ["one", "a", "m"],
            "m",
            f"{BASE} --methods a,m --trunk t.npz --weights-file one.safetensors --weights-file "
            "'a b'/m.safetensors --jobs 2",
        ),
        (f"{BASE} --trunk old.npz", "ucn evaluate hpatches --trunk t.npz", "a", "", f"{BASE} --trunk t.npz"),
        # What is no command of `ucn evaluate` gives way to the present one.
        ("", "ucn evaluate mini --methods b -o x", "ab", "b", "ucn evaluate mini --methods a,b -o x"),
        ("rm 'it", "ucn evaluate mini -o x", "ab", "b", "ucn evaluate mini --methods a,b -o x"),
        ("ucn evaluate mini \\", "", "ab", "b", "ucn evaluate mini \\"),
        ("ucn evaluate mini --methods", "", "ab", "b", "ucn evaluate mini --methods a,b"),
        ("ucn evaluate mini --methods 'a b'", "", ["a b", "c"], "c", "ucn evaluate mini --methods 'a b,c'"),
    ],
)
def test_commands(then: str, now: str, names: list[str], added: list[str], expected: str) -> None:
    assert extend_command(then, now, list(names), list(added)) == expected

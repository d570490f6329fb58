import json

import pytest

from support.bench_cases import check_part, make_settings
from ucn.bench import startup
from ucn.bench.startup import run_python
from ucn.errors import UcnError


def test_a_fresh_python_answers() -> None:
    assert run_python("-c", "print(6 * 7)") == "42\n"


def test_a_failing_process_is_an_error() -> None:
    with pytest.raises(UcnError, match="a fresh process failed, so start-up cannot be measured: boom"):
        run_python("-c", "raise SystemExit('boom')")


@pytest.mark.slow
def test_imports_of_torch_and_ucn_are_separate() -> None:
    torch_seconds, own_seconds = json.loads(run_python("-c", startup._IMPORTS))
    assert torch_seconds > 0
    assert own_seconds > 0


def test_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(*arguments: str) -> str:
        if startup._IMPORTS in arguments:
            return "[1.0, 0.5]"
        return "[2.0, 0.7, 0.25]" if startup._MATCHES in arguments else ""

    monkeypatch.setattr(startup, "run_python", answer)
    part = startup.measure(make_settings())
    check_part(part)
    seconds = {row[0]: row[1] for row in part.tables[0].rows}
    assert seconds["import ucn, and ucn.Matcher, after torch"] == 0.5
    assert seconds["of which the first match"] == 0.7

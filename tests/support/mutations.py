"""Faults put into a module, which its checks must notice."""

import inspect
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

import pytest


def assert_noticed(
    module: ModuleType,
    fault: tuple[str, str],
    checks: Sequence[Callable[[ModuleType], None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fails where all checks pass on the module with a text of its source replaced.

    Args:
        module: what is tested.
        fault: a text that its source has once, and what stands there instead.
        checks: called with the changed module.
        monkeypatch: undoes the import of the changed module.
    """
    old, new = fault
    source = inspect.getsource(module)
    assert source.count(old) == 1, f"{module.__name__} no longer has one '{old}'"
    broken = ModuleType("broken")
    monkeypatch.setitem(sys.modules, broken.__name__, broken)  # dataclasses look their module up
    exec(compile(source.replace(old, new), "broken", "exec"), broken.__dict__)
    with pytest.raises(Exception):  # noqa: B017 - an AssertionError, or numpy's where shapes no longer fit
        for check in checks:
            check(broken)

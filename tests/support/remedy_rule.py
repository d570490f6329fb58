"""The rule for messages on damaged data: the last thing they say is what to do."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ucn.errors import DataError, UcnError

_VERBS = "add|ask|check|copy|correct|export|get|give|name|put|remove|save|unpack|use"
_REMEDY = re.compile(rf"[;:] (?:{_VERBS}) [^;]*$")


def assert_remedy(message: str) -> None:
    """Fails where a message does not end with something to do."""
    assert _REMEDY.search(message), f"no remedy at the end of: {message}"


@contextmanager
def refused(match: str, kind: type[UcnError] = DataError) -> Iterator[pytest.ExceptionInfo[UcnError]]:
    """Expects an error whose message matches and ends with something to do."""
    with pytest.raises(kind, match=match) as caught:
        yield caught
    assert_remedy(str(caught.value))

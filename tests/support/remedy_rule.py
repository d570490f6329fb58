"""The rule for messages on damaged data: the last thing they say is what to do."""

import re

_VERBS = "add|ask|check|copy|correct|export|get|give|name|put|remove|save|unpack|use"
_REMEDY = re.compile(rf"[;:] (?:{_VERBS}) [^;]*$")


def assert_remedy(message: str) -> None:
    """Fails where a message does not end with something to do."""
    assert _REMEDY.search(message), f"no remedy at the end of: {message}"

"""'Did you mean'."""

from ucn.files.suggestions import suggest


class TestSuggest:
    def test_closest_name(self) -> None:
        assert suggest("stesp", ["dim", "steps"]) == "; did you mean 'steps'?"
        assert suggest("stesp", iter(["steps"])) == "; did you mean 'steps'?"

    def test_nothing_close(self) -> None:
        assert suggest("xyz", ["steps"]) == ""
        assert suggest("", ["steps"]) == ""
        assert suggest("steps", []) == ""

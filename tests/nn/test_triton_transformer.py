from pathlib import Path

import pytest

from interpreter import run_interpreted


@pytest.mark.slow
def test_fused_transformer_in_the_interpreter() -> None:
    run_interpreted(Path(__file__).with_name("fused_transformer_cases.py"))

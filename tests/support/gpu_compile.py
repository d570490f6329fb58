"""Compiles Triton programs for a GPU on a machine without one; the interpreter forgives much."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest


def compile_for_gpu(
    program: Any,
    types: Mapping[str, str],
    constants: Mapping[str, Any],
    folder: Path,
    warps: int,
    stages: int = 3,
    capability: int = 90,
) -> int:
    """Bytes of shared memory that a program needs.

    Args:
        program: a function under `triton.jit`.
        types: of its arguments, such as "*fp16" or "i32"; those that are not named are "i32".
        constants: its arguments that are known when it is compiled.
        folder: where Triton keeps what it compiled.
        warps: of 32 threads each.
        stages: steps that are loaded ahead.
        capability: of the device; 90 is Hopper's, 80 Ampere's.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = program.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    known = {(names.index(name),): value for name, value in constants.items()}
    pointers = [index for index, name in enumerate(names) if signature[name].startswith("*")]
    attributes = {(index,): [["tt.divisibility", 16]] for index in pointers}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(folder))
        source = ASTSource(program, signature, known, attributes)
        compiled = triton.compile(
            source,
            target=GPUTarget("cuda", capability, 32),
            options={"num_warps": warps, "num_stages": stages},
        )
    assert len(compiled.asm["cubin"]) > 0
    return int(compiled.metadata.shared)

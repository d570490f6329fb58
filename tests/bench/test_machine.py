import json
import platform

import torch

from ucn.bench.machine import describe_machine, find_warnings, format_machine


def test_machine_is_described_without_its_name() -> None:
    found = describe_machine(torch.device("cpu"))
    assert found["cores"] >= 1
    assert found["threads"] == torch.get_num_threads()
    assert found["packages"]["torch"] == torch.__version__
    assert found["cpu"]
    text = json.dumps(found)
    assert platform.node() not in text
    line = format_machine(found)
    assert f"{found['cores']} cores" in line
    assert "torch" in line


def test_busy_machines_get_a_warning() -> None:
    at_rest = {"load_average": 0.1, "cores": 2, "threads": 2}
    assert find_warnings(at_rest) == []
    assert find_warnings({**at_rest, "load_average": None}) == []
    (busy,) = find_warnings({**at_rest, "load_average": 1.5})
    assert "busy before the benchmark began (load 1.50 on 2 cores)" in busy
    (threads,) = find_warnings({**at_rest, "threads": 1})
    assert "1 threads on 2 cores" in threads
    (shared,) = find_warnings({**at_rest, "device_memory_used_mb": 9000})
    assert "9,000 MB" in shared

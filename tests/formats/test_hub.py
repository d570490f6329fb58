"""Weights to and from the hub: the real client against a local server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from support.hub_server import FakeHub, start_hub
from ucn.config import ModelConfig
from ucn.errors import WeightsError
from ucn.formats import hub as hub_module
from ucn.formats.hub import CARD_NAME, FILE_NAME, from_pretrained, push
from ucn.nn import build_model
from ucn.weights import load_weights, save_weights

pytest.importorskip("huggingface_hub", reason="needs the extra 'hub'")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    # Whoever runs the tests may be logged in, or offline on purpose; neither is any business of theirs.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS", True)
    found, server = start_hub()
    yield found
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "mine.safetensors"
    save_weights(path, build_model(ModelConfig(dim=8)), max_side=320)
    return path


def pull(hub: FakeHub, cache: Path, repository: str = "user/mine", **options: Any) -> Any:
    options = {"token": False, "endpoint": hub.endpoint, "cache": cache, "device": "cpu", **options}
    return from_pretrained(repository, **options)


CARD = b"---\nlicense: mit\ntags:\n- image-matching\n---\n\n# mine\n"


def put(hub: FakeHub, path: Path, **files: bytes) -> str:
    return hub.commit("user/mine", {FILE_NAME: path.read_bytes(), CARD_NAME: CARD, **files})


class TestPull:
    def test_same_network_with_commit_and_licence(self, hub: FakeHub, weights: Path, tmp_path: Path) -> None:
        commit = put(hub, weights)
        matcher = pull(hub, tmp_path)
        assert matcher.weights.name == f"user/mine@{commit[:12]}"
        assert matcher.weights.licence == "mit (as its card says)"
        assert matcher.weights.sha256 == load_weights(weights).info.sha256
        assert matcher.config.max_side == 320
        images = torch.rand(1, 3, 40, 48, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            expected = load_weights(weights).model.encode(images).features
        torch.testing.assert_close(matcher.encode(images).features, expected, rtol=0, atol=1e-5)
        assert f"GET /user/mine/resolve/{commit}/{FILE_NAME}" in hub.requests

    def test_nothing_else_is_downloaded(self, hub: FakeHub, weights: Path, tmp_path: Path) -> None:
        put(hub, weights, **{"modeling.py": b"raise SystemExit", "pytorch_model.bin": b"pickle"})
        pull(hub, tmp_path)
        got = {request.split("/")[-1] for request in hub.requests if "/resolve/" in request}
        assert got == {FILE_NAME, CARD_NAME}
        assert not list(tmp_path.rglob("*.py"))

    def test_revision(self, hub: FakeHub, weights: Path, tmp_path: Path) -> None:
        first = put(hub, weights)
        other = tmp_path / "other.safetensors"
        save_weights(other, build_model(ModelConfig(dim=4)))
        second = put(hub, other)
        images = torch.zeros(1, 3, 32, 32)
        assert pull(hub, tmp_path, revision=first).encode(images).features.shape[1] == 8
        assert pull(hub, tmp_path).encode(images).features.shape[1] == 4
        assert pull(hub, tmp_path, revision=second).encode(images).features.shape[1] == 4

    def test_a_commit_in_the_cache_needs_no_network(
        self, hub: FakeHub, weights: Path, tmp_path: Path
    ) -> None:
        commit = put(hub, weights)
        pull(hub, tmp_path)
        asked = len(hub.requests)
        cached = pull(hub, tmp_path, revision=commit).weights
        assert cached.name == f"user/mine@{commit[:12]}"
        assert cached.licence == "mit (as its card says)"
        assert len(hub.requests) == asked

    def test_a_cached_commit_has_its_own_licence(self, hub: FakeHub, weights: Path, tmp_path: Path) -> None:
        free = put(hub, weights)
        put(hub, weights, **{CARD_NAME: b"---\nlicense: cc-by-nc-4.0\n---\n"})
        for revision in (free, None, free):
            expected = "mit" if revision else "cc-by-nc-4.0"
            assert pull(hub, tmp_path, revision=revision).weights.licence == f"{expected} (as its card says)"

    @pytest.mark.parametrize(
        "card",
        [
            b"# no head",
            b"---\ntags: []\n---\n",
            b"---\nlicense: [mit]\n---\n",
            b"---\nlicense: {\n---\n",
            b"---\n- mit\n---\n",
            b"---\nlicense: \xff\n---\n",
            b"---\nlicense: mit\n---\n" + b" " * hub_module.MAX_CARD_BYTES,
        ],
        ids=["no head", "not named", "a list", "no YAML", "no mapping", "no UTF-8", "too long"],
    )
    def test_no_licence(self, hub: FakeHub, weights: Path, tmp_path: Path, card: bytes) -> None:
        commit = put(hub, weights, **{CARD_NAME: card})
        for revision in (None, commit):
            assert "not in the table" in pull(hub, tmp_path, revision=revision).weights.licence

    def test_no_card(self, hub: FakeHub, weights: Path, tmp_path: Path) -> None:
        commit = hub.commit("user/mine", {FILE_NAME: weights.read_bytes()})
        for revision in (None, commit):
            assert "not in the table" in pull(hub, tmp_path, revision=revision).weights.licence


class TestRefused:
    @pytest.mark.parametrize(
        "name", ["mine", "user/mine/more", "../mine", "user/..", "/etc/passwd", "user/mi ne", "u--r/m", ""]
    )
    def test_names(self, hub: FakeHub, tmp_path: Path, name: str) -> None:
        with pytest.raises(WeightsError, match="called user/name"):
            pull(hub, tmp_path, name)
        assert hub.requests == []

    def test_too_large_is_not_downloaded(self, hub: FakeHub, weights: Path, tmp_path: Path) -> None:
        put(hub, weights)
        hub.lies["size"] = hub_module.MAX_FILE_BYTES + 1
        with pytest.raises(WeightsError, match="expected at most 536870912"):
            pull(hub, tmp_path)
        assert not any(request.startswith("GET") for request in hub.requests)

    @pytest.mark.parametrize(("lie", "value"), [("size", 17), ("sha256", "ab" * 32)])
    def test_other_than_announced(
        self, hub: FakeHub, weights: Path, tmp_path: Path, lie: str, value: object
    ) -> None:
        commit = put(hub, weights)
        hub.lies[lie] = value
        for revision in (None, commit):  # what was refused is not taken from the cache afterwards
            with pytest.raises(WeightsError, match="try again"):
                pull(hub, tmp_path, revision=revision)
        hub.lies.clear()
        assert pull(hub, tmp_path, revision=commit).weights.name == f"user/mine@{commit[:12]}"

    def test_a_link_out_of_the_cache_is_not_followed(
        self, hub: FakeHub, weights: Path, tmp_path: Path
    ) -> None:
        commit = put(hub, weights)
        precious = tmp_path / "precious.safetensors"
        precious.write_bytes(weights.read_bytes())
        link = tmp_path / "cache" / "models--user--mine" / "snapshots" / commit / FILE_NAME
        link.parent.mkdir(parents=True)
        link.symlink_to(precious)
        hub.lies["sha256"] = "ab" * 32
        with pytest.raises(WeightsError, match="it was deleted, try again"):
            from_pretrained(
                "user/mine", token=False, endpoint=hub.endpoint, cache=tmp_path / "cache", device="cpu"
            )
        assert precious.is_file() and not link.is_symlink()

    def test_unknown_repository_and_revision(self, hub: FakeHub, weights: Path, tmp_path: Path) -> None:
        with pytest.raises(WeightsError, match="the hub has no user/mine, or it is private"):
            pull(hub, tmp_path)
        put(hub, weights)
        with pytest.raises(WeightsError, match="no revision 'v9' of user/mine"):
            pull(hub, tmp_path, revision="v9")

    def test_repository_without_weights(self, hub: FakeHub, tmp_path: Path) -> None:
        hub.commit("user/mine", {"pytorch_model.bin": b"pickle"})
        with pytest.raises(WeightsError, match=r"has no model\.safetensors"):
            pull(hub, tmp_path)

    def test_not_of_ucn(self, hub: FakeHub, tmp_path: Path) -> None:
        hub.commit("user/mine", {FILE_NAME: b"nonsense" * 9})
        with pytest.raises(WeightsError, match="not a readable"):
            pull(hub, tmp_path)

    def test_no_answer(self, hub: FakeHub, tmp_path: Path) -> None:
        with pytest.raises(
            WeightsError,
            match=r"the hub does not answer for user/mine: .*; try again; a commit that is in the cache",
        ):
            from_pretrained("user/mine", token=False, endpoint="http://127.0.0.1:9", cache=tmp_path)

    def test_package_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(WeightsError, match=r"pip install 'ucn\[hub\]'"):
            from_pretrained("user/mine")


class TestPush:
    def push(self, hub: FakeHub, weights: Path | str, **options: Any) -> str:
        options = {"licence": "mit", "token": "hf_secret", "endpoint": hub.endpoint, **options}
        return push(weights, "user/mine", **options)

    def test_there_and_back(self, hub: FakeHub, weights: Path, tmp_path: Path) -> None:
        commit = self.push(hub, weights, description="Finds bolts.")
        files = hub.commits["user/mine"][-1][1]
        assert sorted(files) == ["README.md", FILE_NAME]
        assert files[FILE_NAME] == weights.read_bytes()
        matcher = pull(hub, tmp_path, revision=commit)
        assert matcher.weights.sha256 == load_weights(weights).info.sha256

    def test_card(self, hub: FakeHub, weights: Path) -> None:
        self.push(hub, weights, licence="cc-by-nc-4.0", description="Finds bolts.")
        card = hub.commits["user/mine"][-1][1]["README.md"].decode()
        head = yaml.safe_load(card.split("---")[1])
        assert head["license"] == "cc-by-nc-4.0"
        assert head["library_name"] == "ucn"
        assert "Finds bolts." in card
        assert load_weights(weights).info.sha256 in card
        assert str(weights) not in json.dumps(card)

    def test_an_existing_card_is_kept(self, hub: FakeHub, weights: Path) -> None:
        hub.commit("user/mine", {"README.md": b"mine"})
        self.push(hub, weights)
        assert hub.commits["user/mine"][-1][1]["README.md"] == b"mine"

    def test_damaged_weights_and_wrong_names_are_not_pushed(self, hub: FakeHub, tmp_path: Path) -> None:
        (tmp_path / "bad.safetensors").write_bytes(b"nonsense" * 9)
        with pytest.raises(WeightsError, match="not a readable"):
            self.push(hub, tmp_path / "bad.safetensors")
        with pytest.raises(ValueError, match="licence must be a name that the hub knows"):
            self.push(hub, tmp_path / "bad.safetensors", licence="my own: yes")
        with pytest.raises(WeightsError, match="called user/name"):
            push(tmp_path / "bad.safetensors", "mine", licence="mit", endpoint=hub.endpoint)
        assert hub.requests == []


def test_what_the_documents_say(
    hub: FakeHub, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
    snippet = page.split("## Hugging Face hub")[1].split("```text\n")[1].split("```")[0]
    open_hub = hub_module._open_hub
    monkeypatch.setattr(hub_module, "_open_hub", lambda name, *_: open_hub(name, hub.endpoint, "hf_secret"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "my.safetensors").write_bytes(weights.read_bytes())
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(snippet, names)
    assert names["matcher"].weights.name == f"user/bolts@{names['commit'][:12]}"
    assert names["matcher"].weights.licence == "mit (as its card says)"

"""Weights from and to the Hugging Face hub: one .safetensors file a repository, and no code of strangers.

What is downloaded is one file of a pinned commit, whose size is asked before and whose hash is compared
after, and the card that says its licence. `load_weights` then treats the file like every stranger's: nothing
in it is run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from yaml import YAMLError

from ucn.config import MatchConfig
from ucn.errors import WeightsError
from ucn.matching.matcher import Matcher
from ucn.weights import LoadedWeights, WeightsInfo, load_weights

FILE_NAME = "model.safetensors"
"""The file of a repository that holds the weights."""
CARD_NAME = "README.md"
"""The file of a repository that says their licence."""
MAX_FILE_BYTES = 512 * 2**20
"""Larger files are refused before they are downloaded."""
MAX_CARD_BYTES = 2**20
"""Longer cards are not read."""

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class HubFile:
    """A file of weights that was downloaded.

    Attributes:
        path: where it lies in the hub's cache.
        repository: "user/name".
        commit: the 40 hexadecimal digits it was pinned to; give them as `revision` to get the same again.
        licence: what the repository's card says; empty where it does not.
    """

    path: Path
    repository: str
    commit: str
    licence: str


def from_pretrained(
    repository: str,
    *,
    revision: str | None = None,
    config: MatchConfig | None = None,
    device: str | None = None,
    token: str | bool | None = None,
    endpoint: str | None = None,
    cache: Path | None = None,
) -> Matcher:
    """A matcher with weights from the hub.

    Args:
        repository: "user/name".
        revision: a branch, a tag or, to get the same for ever, a commit; the main branch when None. A commit
            that is in the cache already needs no network.
        config: as for `Matcher.from_pretrained`.
        device: likewise.
        token: for private repositories; None takes what ``hf auth login`` left, False none.
        endpoint: of another hub than huggingface.co.
        cache: folder of downloads; the hub's own when None.

    Raises:
        WeightsError: huggingface_hub is missing, the name is not a repository's, there is no such one, its
            file is too large, damaged, changed on the way, or not of ucn.
        ValueError: there is no such device.
    """
    file = download(repository, revision=revision, token=token, endpoint=endpoint, cache=cache)
    loaded = load_weights(file.path)
    unknown = WeightsInfo.of_file(file.path, "", 0).licence
    licence = f"{file.licence} (as its card says)" if file.licence else unknown
    info = replace(loaded.info, name=f"{file.repository}@{file.commit[:12]}", licence=licence)
    return Matcher(replace(loaded, info=info), config=config, device=device)


def download(
    repository: str,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    endpoint: str | None = None,
    cache: Path | None = None,
) -> HubFile:
    """Downloads the weights of a repository, or finds them in the cache; arguments as `from_pretrained`."""
    _check_repository(repository)
    api = _open_hub(endpoint, token)
    if revision is not None and _COMMIT.fullmatch(revision):
        cached = _find_cached(api, repository, revision, cache)
        if cached is not None:
            card = _find_cached(api, repository, revision, cache, CARD_NAME)
            return HubFile(cached, repository, revision, _read_licence(card))
    try:
        about = api.model_info(repository, revision=revision, files_metadata=True, timeout=30)
        commit, size, sha256 = _find_file(about, repository)
        path = Path(api.hf_hub_download(repository, FILE_NAME, revision=commit, cache_dir=cache))
        card = _download_card(api, about, repository, commit, cache)
    except WeightsError:
        raise
    except Exception as error:  # of the client, of what it fetches with, and of what a stranger's server says
        raise _explain(error, repository, revision) from error
    _check_content(path, repository, size, sha256)
    return HubFile(path, repository, commit, _read_licence(card))


def push(
    weights: str | Path,
    repository: str,
    *,
    licence: str,
    description: str = "",
    private: bool = True,
    message: str = "Weights of ucn",
    token: str | bool | None = None,
    endpoint: str | None = None,
) -> str:
    """Uploads weights and, where there is none yet, a card, in one commit.

    Args:
        weights: shipped ones by name, or a file; they are loaded first, so that nothing damaged is uploaded.
        repository: "user/name"; it is made if it does not exist.
        licence: the hub's name of a licence, such as mit or cc-by-nc-4.0. You say it, since what the weights
            were trained on may limit their use.
        description: a sentence for the card.
        private: whether a new repository is.
        message: of the commit.
        token: with the right to write; None takes what ``hf auth login`` left.
        endpoint: of another hub than huggingface.co.

    Returns:
        The commit, to be given to `from_pretrained` as `revision`.

    Raises:
        WeightsError: huggingface_hub is missing, a name is wrong, or the hub refused.
        ValueError: the licence is not one word.
    """
    _check_repository(repository)
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,63}", licence):
        raise ValueError(
            f"licence must be a name the hub knows, such as mit or cc-by-nc-4.0, got '{licence}'"
        )
    loaded = load_weights(weights)
    content = _read_weights(weights, loaded)
    api = _open_hub(endpoint, token)
    from huggingface_hub import CommitOperationAdd

    try:
        api.create_repo(repository, private=private, exist_ok=True)
        operations = [CommitOperationAdd(FILE_NAME, content)]
        if not api.file_exists(repository, CARD_NAME):
            card = write_card(loaded, repository, licence, description)
            operations.append(CommitOperationAdd(CARD_NAME, card.encode()))
        return str(api.create_commit(repository, operations, commit_message=message).oid)
    except Exception as error:  # as in `download`
        raise _explain(error, repository, None) from error


def write_card(loaded: LoadedWeights, repository: str, licence: str, description: str) -> str:
    """The README of a repository: what the hub reads in its head, and what people read below."""
    info = loaded.info
    name = repository.split("/")[1]
    facts = {"task": info.task, "data": info.data, "licence": info.licence, "restrictions": info.restrictions}
    rows = "\n".join(f"| {key} | {value} |" for key, value in facts.items())
    # JSON strings are YAML strings: what a user wrote cannot become a key of the head.
    head = f"license: {json.dumps(licence)}\nlibrary_name: ucn\ntags:\n- image-matching\n- correspondence"
    return (
        f"---\n{head}\n---\n\n# {name}\n\n{description or info.description}\n\n| | |\n|---|---|\n{rows}\n"
        f"| sha256 | {info.sha256} |\n\n"
        "```python\n"
        "from ucn.formats.hub import from_pretrained\n\n"
        f'matcher = from_pretrained("{repository}")\n'
        "```\n"
    )


def _check_repository(repository: str) -> None:
    if not _REPOSITORY.fullmatch(repository) or ".." in repository or "--" in repository:
        raise WeightsError(f"a repository of the hub is called user/name, got {repository[:200]!r}")


def _open_hub(endpoint: str | None, token: str | bool | None) -> Any:
    if importlib.util.find_spec("huggingface_hub") is None:
        raise WeightsError("the Hugging Face hub needs huggingface_hub: pip install 'ucn[hub]'")
    from huggingface_hub import HfApi

    return HfApi(endpoint=endpoint, token=token, library_name="ucn")


def _find_cached(
    api: Any, repository: str, commit: str, cache: Path | None, name: str = FILE_NAME
) -> Path | None:
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(
            api.hf_hub_download(repository, name, revision=commit, cache_dir=cache, local_files_only=True)
        )
    except LocalEntryNotFoundError:
        return None


def _find_file(about: Any, repository: str) -> tuple[str, int, str]:
    """Commit, size in bytes and SHA-256 (empty where the hub does not say) of the file of weights."""
    commit = str(about.sha)
    if not _COMMIT.fullmatch(commit):
        raise WeightsError(f"the hub names no commit of {repository}, got {commit[:80]!r}")
    files = {file.rfilename: file for file in about.siblings or ()}
    if FILE_NAME not in files:
        raise WeightsError(f"{repository} has no {FILE_NAME}: expected weights that `push` wrote")
    file = files[FILE_NAME]
    size = file.size
    if not isinstance(size, int) or size > MAX_FILE_BYTES:
        raise WeightsError(
            f"{FILE_NAME} of {repository} has {size} bytes; weights have at most {MAX_FILE_BYTES}"
        )
    return commit, size, str(file.lfs.sha256) if file.lfs else ""


def _check_content(path: Path, repository: str, size: int, sha256: str) -> None:
    found = path.stat().st_size
    if found != size:
        what = f"{found} bytes, {size} were announced"
    elif sha256 and hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
        what = f"another hash than announced, {sha256[:16]}…"
    else:
        return
    # In the cache it would be taken for good the next time that its commit is asked for.
    for copy in (path.resolve(), path):  # the latter is a link to the former
        copy.unlink(missing_ok=True)
    raise WeightsError(f"{FILE_NAME} of {repository} has {what}; it was deleted, try again")


def _download_card(api: Any, about: Any, repository: str, commit: str, cache: Path | None) -> Path | None:
    """The card of a commit, into the cache, so that its licence is known without the hub the next time."""
    sizes = {file.rfilename: file.size for file in about.siblings or ()}
    size = sizes.get(CARD_NAME)
    if not isinstance(size, int) or size > MAX_CARD_BYTES:
        return None
    return Path(api.hf_hub_download(repository, CARD_NAME, revision=commit, cache_dir=cache))


def _read_licence(card: Path | None) -> str:
    """The licence that the head of a card names; empty where there is no card, or it names none."""
    if card is None or card.stat().st_size > MAX_CARD_BYTES:
        return ""
    from huggingface_hub import metadata_load

    try:
        head = metadata_load(card)
    except (ValueError, YAMLError, RecursionError):  # what a stranger wrote is no reason not to match
        return ""
    licence = (head or {}).get("license")
    return licence[:64] if isinstance(licence, str) else ""


def _read_weights(weights: str | Path, loaded: LoadedWeights) -> bytes:
    """The bytes that were checked; shipped weights lie in the package."""
    from ucn.weights.table import SHIPPED, shipped_path

    info = SHIPPED.get(str(weights))
    content = (shipped_path(info) if info else Path(weights)).read_bytes()
    if hashlib.sha256(content).hexdigest() != loaded.info.sha256:
        raise WeightsError(f"{weights} changed while it was read; try again")
    return content


def _explain(error: Exception, repository: str, revision: str | None) -> WeightsError:
    from huggingface_hub import errors

    where = repository if revision is None else f"{repository} at {revision}"
    if isinstance(error, errors.RevisionNotFoundError):
        return WeightsError(f"the hub has no revision '{revision}' of {repository}")
    if isinstance(error, errors.RepositoryNotFoundError):
        return WeightsError(f"the hub has no {repository}, or it is private: give token= or `hf auth login`")
    reason = next(iter(str(error).splitlines()), "")[:200] or type(error).__name__
    remedy = "try again; a commit that is in the cache, given as revision=, needs no network"
    return WeightsError(f"the hub does not answer for {where}: {reason}; {remedy}")

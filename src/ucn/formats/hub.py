"""Weights from and to the Hugging Face hub: one .safetensors file per repository, and no foreign code.

`huggingface_hub` does the transfer. Here are the limits: one named file of a pinned commit, whose size is
checked before the download and whose SHA-256 after it, and the card, which is read for the licence only.
`load_weights` then treats the file like any other: nothing in it is executed.
"""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from yaml import YAMLError

from ucn.config import MatchConfig
from ucn.errors import WeightsError
from ucn.matching.matcher import Matcher
from ucn.weights import LoadedWeights, WeightsInfo, load_weights
from ucn.weights.table import SHIPPED, shipped_path

FILE_NAME = "model.safetensors"
"""The weights file of a repository."""
CARD_NAME = "README.md"
"""The model card of a repository."""
MAX_FILE_BYTES = 512 * 2**20
"""Larger weights are refused before they are downloaded."""
MAX_CARD_BYTES = 2**20
"""Larger cards are not read."""

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


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
    """Loads a matcher with weights from the hub.

    Args:
        repository: "user/name".
        revision: a branch, a tag or, to get the same weights for ever, a commit; the main branch when None. A
            commit that is in the cache needs no network.
        config: as for `Matcher.from_pretrained`.
        device: as for `Matcher.from_pretrained`.
        token: for private repositories; None takes that of ``hf auth login``, False none.
        endpoint: of another hub than huggingface.co.
        cache: folder of downloads; the hub's default when None.

    Returns:
        A matcher whose `weights.name` ends in the commit, and whose `weights.licence` is that of the card.

    Raises:
        WeightsError: huggingface_hub is missing, the name is not a repository's, there is no such repository,
            or its file is too large, damaged or not of ucn.
        ValueError: there is no such device.
    """
    api = _open_hub(repository, endpoint, token)
    try:
        path, commit, sha256 = _fetch(api, repository, FILE_NAME, revision, cache, MAX_FILE_BYTES)
    except WeightsError:
        raise
    except Exception as error:  # of the client, of its transport, and of what a foreign server answers
        raise _explain(error, repository, revision) from error
    loaded = load_weights(path)
    if sha256 is not None and loaded.info.sha256 != sha256:
        blob = path.resolve()  # the cache would serve it again; a link to elsewhere is not of the cache
        if blob.is_relative_to(path.parents[2].resolve()):
            blob.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        raise WeightsError(
            f"{FILE_NAME} of {repository} must have the announced SHA-256 {sha256[:16]}…, got "
            f"{loaded.info.sha256[:16]}…; it was deleted, try again"
        )
    licence = _read_licence(api, repository, commit, cache)
    info = replace(loaded.info, name=f"{repository}@{commit[:12]}", licence=licence)
    return Matcher(replace(loaded, info=info), config=config, device=device)


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
    """Uploads weights and, where there is none yet, a model card, in one commit.

    Args:
        weights: shipped ones by name, or a file; they are loaded first, so that nothing damaged is uploaded.
        repository: "user/name"; it is created where it does not exist.
        licence: the hub's name of a licence, such as mit or cc-by-nc-4.0; required, since the training data
            may restrict the use of weights.
        description: a sentence for the card.
        private: whether a new repository is private.
        message: of the commit.
        token: with the right to write; None takes that of ``hf auth login``.
        endpoint: of another hub than huggingface.co.

    Returns:
        The commit, to be given to `from_pretrained` as `revision`.

    Raises:
        WeightsError: huggingface_hub is missing, a name is wrong, or the hub refused.
        ValueError: the licence is not a name of the hub.
    """
    api = _open_hub(repository, endpoint, token)
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,63}", licence):
        raise ValueError(
            f"licence must be a name that the hub knows, such as mit or cc-by-nc-4.0, got '{licence}'"
        )
    loaded = load_weights(weights)
    info = SHIPPED.get(str(weights))
    path = shipped_path(info) if info else Path(weights)
    from huggingface_hub import CommitOperationAdd

    try:
        api.create_repo(repository, private=private, exist_ok=True)
        operations = [CommitOperationAdd(FILE_NAME, path)]
        if not api.file_exists(repository, CARD_NAME):
            card = write_card(loaded, repository, licence, description)
            operations.append(CommitOperationAdd(CARD_NAME, card.encode()))
        return str(api.create_commit(repository, operations, commit_message=message).oid)
    except Exception as error:  # as in `from_pretrained`
        raise _explain(error, repository, None) from error


def write_card(loaded: LoadedWeights, repository: str, licence: str, description: str) -> str:
    """The model card (README.md) of a repository."""
    info = loaded.info
    facts = {"task": info.task, "data": info.data, "licence": info.licence, "restrictions": info.restrictions}
    rows = "\n".join(f"| {key} | {value} |" for key, value in facts.items())
    # JSON strings are YAML strings, so what a user wrote cannot become a key of the metadata.
    head = f"license: {json.dumps(licence)}\nlibrary_name: ucn\ntags:\n- image-matching\n- correspondence"
    return (
        f"---\n{head}\n---\n\n# {repository.split('/')[1]}\n\n{description or info.description}\n\n"
        f"| | |\n|---|---|\n{rows}\n| sha256 | {info.sha256} |\n\n"
        "```python\n"
        "from ucn.formats.hub import from_pretrained\n\n"
        f'matcher = from_pretrained("{repository}")\n'
        "```\n"
    )


def _open_hub(repository: str, endpoint: str | None, token: str | bool | None) -> Any:
    """The hub's client, for a repository whose name is valid."""
    if not _REPOSITORY.fullmatch(repository) or ".." in repository or "--" in repository:
        raise WeightsError(f"a repository of the hub is called user/name, got {repository[:200]!r}")
    if importlib.util.find_spec("huggingface_hub") is None:
        raise WeightsError("the Hugging Face hub needs huggingface_hub: pip install 'ucn[hub]'")
    from huggingface_hub import HfApi

    return HfApi(endpoint=endpoint, token=token, library_name="ucn")


def _fetch(
    api: Any, repository: str, name: str, revision: str | None, cache: Path | None, max_bytes: int
) -> tuple[Path, str, str | None]:
    """Downloads a file, or finds it in the cache.

    Returns:
        Its path, its commit, and the SHA-256 that the hub announced; None for files that are cached or small.
    """
    from huggingface_hub import hf_hub_url, try_to_load_from_cache

    if revision is not None and _COMMIT.fullmatch(revision):
        cached = try_to_load_from_cache(repository, name, cache_dir=cache, revision=revision)
        if isinstance(cached, str):
            return Path(cached), revision, None
    url = hf_hub_url(repository, name, revision=revision, endpoint=api.endpoint)
    announced = api.get_hf_file_metadata(url=url)
    if announced.size is None or announced.size > max_bytes:
        raise WeightsError(f"{name} of {repository} has {announced.size} bytes; expected at most {max_bytes}")
    commit, etag = str(announced.commit_hash), str(announced.etag)
    if not _COMMIT.fullmatch(commit):
        raise WeightsError(f"expected a commit of {repository} from the hub, got {commit[:80]!r}; try again")
    path = Path(api.hf_hub_download(repository, name, revision=commit, cache_dir=cache))
    return path, commit, etag if _SHA256.fullmatch(etag) else None  # of files outside LFS it is another hash


def _read_licence(api: Any, repository: str, commit: str, cache: Path | None) -> str:
    """The licence that the model card names, or that it is unknown: no reason not to use the weights."""
    from huggingface_hub import metadata_load

    try:
        card = _fetch(api, repository, CARD_NAME, commit, cache, MAX_CARD_BYTES)[0]
        head = metadata_load(card) if card.stat().st_size <= MAX_CARD_BYTES else None
    except (OSError, ValueError, YAMLError, RecursionError, WeightsError):  # no card, no network, no metadata
        head = None
    licence = (head or {}).get("license")
    if isinstance(licence, str):
        return f"{licence[:64]} (as its card says)"
    return WeightsInfo.of_file(Path(repository), "", 0).licence


def _explain(error: Exception, repository: str, revision: str | None) -> WeightsError:
    from huggingface_hub import errors

    if isinstance(error, errors.RevisionNotFoundError):
        return WeightsError(f"the hub has no revision '{revision}' of {repository}; check its name")
    if isinstance(error, errors.EntryNotFoundError) and not isinstance(error, errors.LocalEntryNotFoundError):
        return WeightsError(f"{repository} has no {FILE_NAME}; expected a repository that `push` wrote")
    if isinstance(error, errors.RepositoryNotFoundError):
        return WeightsError(f"the hub has no {repository}, or it is private: give token= or `hf auth login`")
    reason = next(iter(str(error).splitlines()), "")[:200] or type(error).__name__
    remedy = "try again; a commit that is in the cache, given as revision=, needs no network"
    return WeightsError(f"the hub does not answer for {repository}: {reason}; {remedy}")

"""Files of the Hugging Face Hub, through `huggingface_hub`: its cache, revisions, tokens and offline mode."""

import contextlib
import fnmatch
import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from keras_transformer.interop.tensors import INDEX, PYTORCH, SAFETENSORS, shards_of
from keras_transformer_options.arguments import ArgumentError, Message
from keras_transformer_options.files import is_hub_id
from keras_transformer_serving import files

MAIN = "main"
CARD = "README.md"
_CONVERSION = "Adding `safetensors` variant of this model"  # the title of the hub's pull request
_SHA256 = re.compile(r"[0-9a-f]{64}")
CONFIG = "config.json"
MODULES = "modules.json"
_SHOWN = 5


def local_folder(
    source: str | os.PathLike[str],
    names: Sequence[str] = (),
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> pathlib.Path:
    """Return an existing folder, or the folder in the cache of a model of the Hugging Face Hub.

    Of the hub, `config.json` and the weights are downloaded unless they are in the cache: safetensors, or on the main
    branch those of the open pull request in which the hub has converted them, or PyTorch's.

    Args:
        source: a folder, or the id of a model of the hub.
        names: the names of other files to download where the model has them, or patterns such as "folder/*.txt".
        revision: a branch, a tag or a commit of the hub, by default the main branch.
        token: a token of the hub, by default the one that `huggingface_hub` has stored.
        cache_dir: the folder of the cache, by default that of `huggingface_hub`.

    Raises:
        FileNotFoundError: if there is no such folder or model, or a file is neither in the cache nor reachable.
        ImportError: if huggingface_hub is not installed.
        OSError: if a download fails.
        PermissionError: if the model requires a token or the acceptance of conditions.
        ValueError: if the revision does not exist, a downloaded file is damaged, or a folder is given with a revision.
    """
    folder = pathlib.Path(source)
    if str(source) and folder.is_dir():
        if revision is not None:
            raise ArgumentError(
                "{revision} must be None for a folder. Received: {revision=} for {folder!r}",
                revision=revision,
                folder=str(source),
            )
        return folder
    if not is_hub_id(source):
        raise FileNotFoundError(
            Message(
                "{source} must be a folder, or the id of a model of the Hugging Face Hub. Received: {name!r}",
                name=str(source),
            )
        )
    return _Repository(str(source), token, cache_dir).snapshot(names, revision or MAIN)


class _Repository:
    """A model of the hub.

    Args:
        name: its id.
        token: a token, True for the stored one, or None.
        cache_dir: the folder of the cache, or None for the default one.
    """

    def __init__(self, name: str, token: str | bool | None, cache_dir: str | os.PathLike[str] | None) -> None:
        self.name = name
        self._hub = _import_hub(name)
        self._token, self._cache_dir = token, cache_dir

    def snapshot(self, names: Sequence[str], revision: str) -> pathlib.Path:
        """Return the folder in the cache, after the download of what it lacks."""
        with self._errors(revision):
            api = self._hub.HfApi(token=self._token)
            try:
                info = api.model_info(self.name, revision=revision)
            # The errors of the HTTP client depend on the version of `huggingface_hub`.
            except Exception as error:
                if self._is_answer(error):
                    raise
                return self._cached(revision, error)
            listed = _names(info)
            if revision == MAIN and not _weights(SAFETENSORS, listed) and _weights(PYTORCH, listed):
                converted = self._conversion(api, info.sha)
                if converted is not None:
                    self._download(CONFIG, revision)  # the cache stores the commit, for use without network
                    revision, listed = converted, _names(api.model_info(self.name, revision=converted))
            return self._download_all(names, listed, revision)

    def _download_all(self, names: Sequence[str], listed: set[str], revision: str) -> pathlib.Path:
        """Download the files of a revision that are needed, and return their folder."""
        first = next(
            (name for name in (MODULES, CONFIG) if name in listed and name in (*names, CONFIG)), None
        )
        if first is None:
            raise FileNotFoundError(
                Message(
                    f"{{source}} must be a model of the Hugging Face Hub with {CONFIG}. Received: {{name!r}}, which "
                    "has {listed!s} at revision {requested!r}",
                    name=self.name,
                    listed=", ".join(sorted(listed)[:_SHOWN]) or "no files",
                    requested=revision,
                )
            )
        folder = self._download(first, revision).parent
        commit = folder.name
        parts = [""] if first == CONFIG else [path for _, path in modules_of(folder)]
        for part in ("", *parts):
            for name in (CONFIG, *names):
                for path in fnmatch.filter(sorted(listed), f"{part}/{name}".lstrip("/")):
                    self._download(path, commit)
        for part in parts:
            prefix = f"{part}/".lstrip("/")
            weights = _weights(f"{prefix}{SAFETENSORS}", listed) or _weights(f"{prefix}{PYTORCH}", listed)
            if weights is not None:
                file = self._download(weights, commit)
                for shard in sorted(set(shards_of(file).values())) if weights.endswith(INDEX) else ():
                    self._download(f"{prefix}{shard}", commit)
        return folder

    def _download(self, name: str, revision: str) -> pathlib.Path:
        """Return the path of a file in the cache, after its download and a check of its hash if it was not there."""
        known = self._hub.try_to_load_from_cache(self.name, name, self._cache_dir, revision)
        downloaded = self._hub.hf_hub_download(
            self.name, name, revision=revision, token=self._token, cache_dir=self._cache_dir
        )
        path = pathlib.Path(downloaded)
        # The name of a large file in the cache is its hash, as the hub states it.
        stored = path.resolve()
        is_new = not isinstance(known, str)
        if is_new and _SHA256.fullmatch(stored.name) and (digest := files.sha256(stored)) != stored.name:
            path.unlink()
            stored.unlink()
            raise ValueError(
                f"`{name}` of {self.name} must have the sha256 {stored.name} of the hub. Received: {digest}; the "
                "damaged file was removed, so that another call downloads it again"
            )
        return path

    def _conversion(self, api: Any, commit: str) -> str | None:
        """Return the reference of the open pull request in which the hub has converted the weights of a commit."""
        for discussion in api.get_repo_discussions(self.name):
            is_open = discussion.is_pull_request and discussion.status == "open"
            if discussion.title == _CONVERSION and is_open:
                reference: str = discussion.git_reference
                commits = api.list_repo_commits(self.name, revision=reference)
                if len(commits) > 1 and commits[1].commit_id == commit:
                    return reference
        return None

    def _cached(self, revision: str, reason: Exception) -> pathlib.Path:
        """Return the folder of a revision in the cache, or of the converted weights of the main branch.

        Raises:
            FileNotFoundError: if the cache has none.
        """
        folders = [
            pathlib.Path(path).parent
            for name in (MODULES, CONFIG)
            if isinstance(
                path := self._hub.try_to_load_from_cache(self.name, name, self._cache_dir, revision), str
            )
        ]
        if not folders:
            raise FileNotFoundError(
                Message(
                    "{source} must be a folder, or a model in the cache where the Hugging Face Hub is not reached. "
                    "Received: {name!r} at revision {requested!r} ({reason!s})",
                    name=self.name,
                    requested=revision,
                    reason=_first_line(reason),
                )
            ) from reason
        if revision == MAIN and not any(folders[0].rglob("*.safetensors")):
            snapshots, references = folders[0].parent, folders[0].parents[1] / "refs"
            for reference in sorted(references.glob("refs/pr/*")):
                if any((snapshots / reference.read_text()).glob("*.safetensors")):
                    return snapshots / reference.read_text()
        return folders[0]

    def _is_answer(self, error: Exception) -> bool:
        """Return whether an error is an answer of the hub, not its absence."""
        return isinstance(error, self._hub.errors.HfHubHTTPError) and error.response.status_code < 500

    @contextlib.contextmanager
    def _errors(self, revision: str) -> Iterator[None]:
        """Raise errors of `huggingface_hub` as those of `local_folder`."""
        errors = self._hub.errors
        try:
            yield
        except errors.GatedRepoError as error:
            raise PermissionError(
                Message(
                    "{token} must be of a user who has accepted the conditions of {name!s} on the Hugging Face Hub. "
                    "Received: {shown!s}",
                    name=self.name,
                    shown=_shown(self._token),
                )
            ) from error
        except errors.RepositoryNotFoundError as error:
            raise FileNotFoundError(
                Message(
                    "{source} must be a folder, or a model of the Hugging Face Hub that {token} may read. "
                    "Received: {name!r} with {shown!s}",
                    name=self.name,
                    shown=_shown(self._token),
                )
            ) from error
        except errors.RevisionNotFoundError as error:
            raise ArgumentError(
                "{revision} must be a branch, a tag or a commit of {name!s}. Received: {revision=}",
                name=self.name,
                revision=revision,
            ) from error
        except errors.HfHubHTTPError as error:
            kind = PermissionError if error.response.status_code in (401, 403) else OSError
            raise kind(
                f"the Hugging Face Hub has not answered for {self.name}: {_first_line(error)}"
            ) from error
        except Exception as error:  # of this module, of the disk, or of the HTTP client of `huggingface_hub`
            is_own = isinstance(error, FileNotFoundError | ValueError)
            if is_own and not isinstance(error, errors.LocalEntryNotFoundError):
                raise
            raise OSError(f"the download of {self.name} has failed: {_first_line(error)}") from error


def modules_of(folder: pathlib.Path) -> list[tuple[str, str]]:
    """Return the type of each module of `sentence-transformers` in `modules.json`, and its folder below that file's.

    Raises:
        ValueError: if the file is damaged, or names a folder outside its own.
    """
    path = folder / MODULES
    listed = files.read_json(path)
    try:
        entries = [(str(entry["type"]), str(entry["path"])) for entry in listed]
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"`{path}` must be a list of modules, each with a type and a path. Received: {listed!r}"
        ) from error
    for _, below in entries:
        if {"..", "/"} & set(pathlib.PurePosixPath(below).parts):
            raise ValueError(f"`{path}` must have paths below its folder. Received: path={below!r}")
    return entries


def _names(info: Any) -> set[str]:
    return {file.rfilename for file in info.siblings or ()}


def _weights(name: str, listed: set[str]) -> str | None:
    """Return the name of a file of weights, or of the index of its shards, if it is listed."""
    return next((file for file in (name, name + INDEX) if file in listed), None)


def _shown(token: str | bool | None) -> str:
    return "a token" if isinstance(token, str) else "no token" if token is None else f"token={token}"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _import_hub(name: str) -> Any:
    """Return the module `huggingface_hub`, or raise an ImportError that says how to install it for a model."""
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{name!r} is not a folder, and models of the Hugging Face Hub require huggingface_hub, of the extra "
            "[hf]: pip install huggingface_hub safetensors"
        ) from error
    return huggingface_hub

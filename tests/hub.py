"""A stub of the Hugging Face Hub on loopback, for tests of downloads."""

import contextlib
import dataclasses
import hashlib
import http.server
import json
import re
import threading
import urllib.parse

LARGE = (".safetensors", ".bin")  # files that the hub stores by hash


@dataclasses.dataclass
class Repository:
    """A model repository: the files of each commit, and the commit of each reference."""

    commits: dict[str, dict[str, bytes]]
    references: dict[str, str]
    parents: dict[str, str] = dataclasses.field(default_factory=dict)
    discussions: list[dict] = dataclasses.field(default_factory=list)
    token: str | None = None
    is_gated: bool = False


class Hub:
    """The stub server.

    Attributes:
        models: repositories, by id.
        requests: the method and path of each request.
        broken: the paths of files whose next download is interrupted.
        damaged: the paths of files that are sent with bytes that do not match their hash.
        url: the address of the server.
    """

    def __init__(self):
        self.models, self.requests, self.broken, self.damaged = {}, [], set(), set()
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                hub.answer(self)

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        port = self._server.server_address[1]
        self.status = None  # of all answers, if it is not None
        self.url, self._other_url = f"http://127.0.0.1:{port}", f"http://localhost:{port}"

    @contextlib.contextmanager
    def running(self):
        """Serve requests within the context."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def add(self, name, files, **settings):
        """Add a model with one commit on its main branch."""
        commit = hashlib.sha1(name.encode()).hexdigest()
        self.models[name] = Repository({commit: files}, {"main": commit}, **settings)
        return commit

    def add_conversion(self, name, files, status="open", parent=None):
        """Add a pull request with a conversion to safetensors."""
        model, commit = self.models[name], hashlib.sha1(f"{name} pull request".encode()).hexdigest()
        main = model.references["main"]
        model.commits[commit] = {**model.commits[main], **files}
        model.references["refs/pr/3"] = commit
        model.parents[commit] = parent or main
        title = "Adding `safetensors` variant of this model"
        author = {"name": "SFconvertbot"}
        details = {"num": 3, "repo": {"name": name, "type": "model"}, "createdAt": "2023-01-01T00:00:00.000Z"}
        pull = {"title": title, "status": status, "isPullRequest": True, "author": author, **details}
        model.discussions.append(pull)
        return commit

    def answer(self, request):
        """Answer a request."""
        path = urllib.parse.unquote(urllib.parse.urlparse(request.path).path)
        self.requests.append((request.command, path))
        if self.status is not None:
            return self._error(request, self.status, None)
        if found := re.fullmatch(r"/cdn/([0-9a-f]+)/(.+)", path):
            return self._send_file(request, *found.groups())
        if found := re.fullmatch(r"/(.+?)/resolve/(.+?|refs/pr/\d+)/([^/].*)", path):
            name, revision, file = found.groups()
            if revision == "refs":
                number, _, file = file.removeprefix("pr/").partition("/")
                revision = f"refs/pr/{number}"
            return self._file(request, name, revision, file)
        found = re.fullmatch(r"/api/models/(.+?)/(revision|commits|discussions|tree)(?:/(.+))?", path)
        if not found:
            return self._error(request, 404, "EntryNotFound")
        name, kind, revision = found.groups()
        if not self._may_read(request, name):
            return None
        model = self.models[name]
        if kind == "discussions":
            content = {"discussions": model.discussions, "count": len(model.discussions), "start": 0}
            return self._json(request, content)
        commit = model.references.get(revision, revision)
        if commit not in model.commits:
            return self._error(request, 404, "RevisionNotFound")
        if kind == "commits":
            found = [commit, *([model.parents[commit]] if commit in model.parents else [])]
            details = {"title": "A commit", "message": "", "date": "2023-01-01T00:00:00.000Z", "authors": []}
            return self._json(request, [{"id": each, **details} for each in found])
        if kind == "tree":
            files = [
                {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for file, content in model.commits[commit].items()
            ]
            return self._json(request, files)
        siblings = [{"rfilename": file} for file in model.commits[commit]]
        return self._json(request, {"id": name, "modelId": name, "sha": commit, "siblings": siblings})

    def _may_read(self, request, name):
        model = self.models.get(name)
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if model is None or (model.token is not None and not token):
            code = "GatedRepo" if model is not None and model.is_gated else "RepoNotFound"
            self._error(request, 404 if token else 401, code)
            return False
        if model.token is not None and token != model.token:
            self._error(request, 403 if model.is_gated else 401, "GatedRepo" if model.is_gated else None)
            return False
        return True

    def _file(self, request, name, revision, file):
        if not self._may_read(request, name):
            return None
        model = self.models[name]
        commit = model.references.get(revision, revision)
        if commit not in model.commits:
            return self._error(request, 404, "RevisionNotFound")
        if file not in model.commits[commit]:
            return self._error(request, 404, "EntryNotFound", {"X-Repo-Commit": commit})
        content = model.commits[commit][file]
        digest = hashlib.sha256 if file.endswith(LARGE) else hashlib.sha1
        headers = {"X-Repo-Commit": commit, "ETag": f'"{digest(content).hexdigest()}"'}
        if file.endswith(LARGE):  # redirected to another address, with length and hash in the first response
            headers |= {"X-Linked-Size": str(len(content)), "X-Linked-ETag": headers["ETag"]}
            address = f"{self._other_url}/cdn/{commit}/{urllib.parse.quote(name)}/{file}"
            return self._send(request, 302, b"", {**headers, "Location": address})
        return self._send(request, 200, content, headers)

    def _send_file(self, request, commit, path):
        model = next(each for each in self.models.values() if commit in each.commits)
        file = path.removeprefix(next(name for name, each in self.models.items() if each is model) + "/")
        content = model.commits[commit][file]
        if file in self.damaged:
            content = content[:-1] + bytes([content[-1] ^ 1])
        status, headers, start = 200, {"ETag": '"cdn"'}, 0
        if "Range" in request.headers:
            start = int(re.match(r"bytes=(\d+)-", request.headers["Range"])[1])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            status = 206
        if file in self.broken and request.command == "GET":
            self.broken.discard(file)
            return self._send(request, status, content[start:], headers, length=len(content) // 2)
        return self._send(request, status, content[start:], headers)

    def _json(self, request, content):
        return self._send(request, 200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _error(self, request, status, code, headers=None):
        headers = {
            **(headers or {}),
            **({"X-Error-Code": code} if code else {}),
            "X-Error-Message": str(code),
        }
        return self._send(request, status, json.dumps({"error": code}).encode(), headers)

    def _send(self, request, status, content, headers, length=None):
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(content[:length])
            if length is not None:
                request.wfile.flush()
                request.close_connection = True


def use_hub_at(monkeypatch, url):
    """Let `huggingface_hub` use the hub at an address."""
    from huggingface_hub import constants

    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", url)

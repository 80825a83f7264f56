"""The comparison with other engines: a server is started, asked and ended; ratios are of the right pairs."""

import importlib.util
import os
import stat
import sys
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[2] / "examples" / "peers.py"
SERVER = """#!{python}
import http.server, json, os, sys
from pathlib import Path
Path({pid!r}).write_text(str(os.getpid()))
port = int(sys.argv[sys.argv.index("--port") + 1])
if sys.argv[sys.argv.index("-m") + 1] == "none.gguf":
    print("no such file", file=sys.stderr)
    sys.exit(1)

class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, what):
        body = json.dumps(what).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer({{}})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["cache_prompt"] is False
        if self.path == "/completion":
            self.answer({{"timings": {{"prompt_per_second": 7.0 * len(asked["prompt"])}}}})
        else:
            text = " " + asked["messages"][0]["content"].upper()
            self.answer({{"choices": [{{"message": {{"content": text}}}}], "usage": {{"completion_tokens": 3}}}})
    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def peers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("peers", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["peers"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def server(tmp_path: Path) -> Path:
    file = tmp_path / "server"
    file.write_text(SERVER.format(python=sys.executable, pid=str(tmp_path / "pid")))
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


def gone(folder: Path) -> bool:
    try:
        os.kill(int((folder / "pid").read_text()), 0)
    except ProcessLookupError:
        return True
    return False


def test_a_server_is_asked_and_ended(peers: ModuleType, server: Path) -> None:
    way = peers.Llama(str(server), "m.gguf", 4, 3, exact=True)
    lines = [
        {"id": id, "messages": [{"role": "user", "content": id}], "max_tokens": 5, "temperature": 0} for id in "abc"
    ]
    ran = way.run(lines)
    assert ran.texts == {"a": "A", "b": "B", "c": "C"} and ran.tok_s > 0
    assert gone(server.parent)
    assert [first.tok_s for first in way.first([[1, 2], [3]])] == [14.0, 7.0]
    assert gone(server.parent)


def test_a_server_that_ends_by_itself_is_said_in_a_line(peers: ModuleType, server: Path) -> None:
    with pytest.raises(SystemExit, match=r"does not serve none\.gguf: no such file"):
        peers.Llama(str(server), "none.gguf", 1, 0, exact=False).first([[1]])
    assert gone(server.parent)


def test_strata_is_held_against_its_like_the_best_and_generate(peers: ModuleType) -> None:
    speeds = {"a, 4 slots": 7.0, "b, 4 slots": 9.0, "a, 4 slots, MTP": 5.0, "b, 4 slots, MTP": 8.0, "a, 1 slot": 99.0}
    arms = [{"name": f"llama.cpp {name}", "median_tok_s": speed} for name, speed in speeds.items()]
    arms.append({"name": "transformers, generate", "median_tok_s": 1.0})
    found = [arm["name"] for arm in peers.rivals("strata, 4 slots, MTP", arms)]
    assert found == ["llama.cpp a, 4 slots, MTP", "llama.cpp b, 4 slots", "transformers, generate"]

"""What a model's name stands for; nothing is fetched behind anybody's back."""

import json
import types

import pytest

from strata_cli import demo
from strata_cli.errors import StrataError, UsageError
from strata_cli.hub import ModelFiles, find_model, weights_are_whole


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A Hugging Face cache; `cache(repo, *files)` puts a repository into it."""
    root = tmp_path / "hub"
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(root))
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(isatty=lambda: False))

    def put(repo, *files, revision="main", commit="c" * 40):
        folder = root / f"models--{repo.replace('/', '--')}"
        snapshot = folder / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / revision).write_text(commit)
        for name in ("config.json", *files):
            (snapshot / name).write_text("{}")
        return snapshot

    return put


def test_demo_is_built_in():
    assert find_model("demo") == ModelFiles("demo", demo.model_path())


def test_a_path(tmp_path, monkeypatch):
    assert find_model(str(tmp_path)).path == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    assert find_model(f"~/{tmp_path.name}").path == tmp_path


def test_a_repository_in_the_cache(cache):
    snapshot = cache("org/model", "model.safetensors")
    assert find_model("org/model").path == snapshot
    old = cache("org/model", "model.safetensors", revision="v1", commit="d" * 40)
    assert find_model("org/model@v1").path == old
    assert find_model("org/model@" + "d" * 40).path == old
    assert find_model("org/model").path == snapshot


def test_an_alias_stands_for_a_name(cache):
    snapshot = cache("org/model", "model.safetensors")
    assert find_model("big", {"big": "org/model"}) == ModelFiles("org/model", snapshot)
    with pytest.raises(UsageError, match="no such model: big"):
        find_model("big", {"big": "big"})


def test_what_is_not_there_lists_what_is_nearest_first(cache):
    cache("org/llama-8b", "model.safetensors")
    cache("org/qwen3.6-35b", "model.safetensors")
    with pytest.raises(UsageError, match=r"no such model: qwen3\.6-35") as caught:
        find_model("qwen3.6-35", {"tiny": "x"})
    assert "one of: org/qwen3.6-35b, " in caught.value.hint
    assert {"org/llama-8b", "tiny", "demo"} <= set(caught.value.hint.replace(",", "").split())


@pytest.mark.parametrize("ref", ["/no/such/dir", "./no/model", "~/nothing", "a/b/c", "/", "org/", "", "x" * 300])
def test_a_path_that_is_not_there_is_no_repository(cache, ref):
    with pytest.raises(UsageError, match="no such model"):
        find_model("a//b" if ref == "/" else ref)


def test_an_unfinished_download_is_not_a_model(cache):
    snapshot = cache("org/model", "model-00001.safetensors")
    index = {"weight_map": {"a": "model-00001.safetensors", "b": "model-00002.safetensors"}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    assert not weights_are_whole(snapshot)
    with pytest.raises(UsageError, match="not whole") as caught:
        find_model("org/model")
    assert "hf download org/model" in caught.value.hint
    (snapshot / "model-00002.safetensors").touch()
    assert find_model("org/model").path == snapshot


def test_nobody_is_asked_without_a_terminal(cache):
    with pytest.raises(UsageError) as caught:
        find_model("org/model@v2", confirm=lambda question: pytest.fail(question))
    assert "--download" in caught.value.hint
    assert "hf download org/model --revision v2" in caught.value.hint


class Hub:
    """The hub's answers, and what was fetched."""

    def __init__(self, tmp_path, error=None):
        self.fetched, self.path, self.error = [], tmp_path, error

    def model_info(self, repo, revision=None, files_metadata=False):
        if self.error:
            raise self.error
        sizes = {"model.safetensors": 3 * 2**30, "config.json": 2**20, "pytorch_model.bin": 2**40, "a.png": 2**40}
        siblings = [types.SimpleNamespace(rfilename=name, size=size) for name, size in sizes.items()]
        return types.SimpleNamespace(siblings=siblings)

    def snapshot_download(self, repo, revision=None, allow_patterns=None):
        self.fetched.append((repo, revision, "*.bin" in allow_patterns))
        return str(self.path)


@pytest.fixture
def hub(cache, tmp_path, monkeypatch):
    fake = Hub(tmp_path)
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: fake)
    monkeypatch.setattr("huggingface_hub.snapshot_download", fake.snapshot_download)
    return fake


def test_download_when_told_to(hub, tmp_path):
    assert find_model("org/model@v1", download=True).path == tmp_path
    assert hub.fetched == [("org/model", "v1", False)]


def test_a_person_is_asked_with_the_size(hub, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(isatty=lambda: True))
    asked = []
    with pytest.raises(UsageError, match="not in the Hugging Face cache"):
        find_model("org/model", confirm=lambda question: asked.append(question) or False)
    assert "3.0 GiB" in asked[0]
    assert hub.fetched == []
    assert find_model("org/model", confirm=lambda question: True).path == tmp_path
    assert len(hub.fetched) == 1


def test_offline_means_offline(hub, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UsageError) as caught:
        find_model("org/model", download=True)
    assert "HF_HUB_OFFLINE is set" in caught.value.hint
    assert hub.fetched == []


def test_a_failing_network_is_one_line(hub):
    hub.error = OSError("no route to host\nand much more")
    with pytest.raises(StrataError) as caught:
        find_model("org/model", download=True)
    assert caught.value.what == "org/model cannot be fetched: no route to host"
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("index", ['{"weight_map": {"a": 5}}', "[" * 100000, "[]", '{"weight_map": 5}'])
def test_a_broken_index_is_left_to_the_loader(tmp_path, index):
    (tmp_path / "model.safetensors.index.json").write_text(index)
    assert weights_are_whole(tmp_path)

"""A run that dies at any moment is taken up again and gives the records of one that did not."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# All of them long (40 tokens, at most 3 a window), so that every moment of `test_killed_and_resumed` is reached.
LINES = [
    {"id": f"r{i}", "prompt": f"prompt {i}", "ignore_eos": True, **({"seed": i} if i % 3 == 0 else {})}
    for i in range(9)
]


def strata_process(args, death="", cwd=ROOT):
    """`strata` with the made-up engine in a process of its own, which `death` may end."""
    return subprocess.run(
        [sys.executable, "-m", "tests.cli.fake", *map(str, args)],
        cwd=cwd,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}", "FAKE_DIE": death, "HOME": str(ROOT), "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def records(path: Path) -> dict[str, dict]:
    """Records by id; each id once, every line whole."""
    found = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    assert path.read_text().endswith("\n")
    by_id = {record["custom_id"]: record for record in found}
    assert len(by_id) == len(found)
    return by_id


def uninterrupted(strata, file: Path, out: Path) -> dict[str, dict]:
    """What a run with the same base seed gives that nothing stops."""
    whole = out.with_name("whole.jsonl")
    whole.with_name("whole.jsonl.meta.json").write_bytes(out.with_name(out.name + ".meta.json").read_bytes())
    assert strata("run", file, "-m", strata.model, "-o", whole, "--simple", "--with-tokens", "--resume").code == 0
    return records(whole)


@pytest.mark.parametrize("death", ["begin", "step 1", "step 9", "step 30", "record 1", "record 4", "record 9"])
def test_killed_and_resumed(strata, prompts, tmp_path, death):
    file, out = prompts(*LINES), tmp_path / "out.jsonl"
    args = ("run", file, "-m", strata.model, "-o", out, "--simple", "--with-tokens", "-q")
    died = strata_process(args, death)
    assert died.returncode == -signal.SIGKILL, died.stderr
    torn = out.read_bytes()
    before = {json.loads(line)["custom_id"] for line in torn.split(b"\n")[:-1]}
    assert torn.endswith(b"\n") == (not death.startswith("record")) or not torn
    assert strata(*args, "--resume").code == 0
    assert set(records(out)) == {line["id"] for line in LINES}
    assert len(strata.engines[0].submitted) == len(LINES) - len(before), "what was done is not done again"
    assert records(out) == uninterrupted(strata, file, out)


def test_killed_twice(strata, prompts, tmp_path):
    file, out = prompts(*LINES), tmp_path / "out.jsonl"
    args = ("run", file, "-m", strata.model, "-o", out, "--simple", "--with-tokens", "-q")
    assert strata_process(args, "record 3").returncode == -signal.SIGKILL
    assert strata_process((*args, "--resume"), "record 3").returncode == -signal.SIGKILL
    assert strata(*args, "--resume").code == 0
    assert records(out) == uninterrupted(strata, file, out)


def test_killed_while_an_old_file_is_replaced(strata, prompts, tmp_path):
    file, out = prompts(*LINES), tmp_path / "out.jsonl"
    args = ("run", file, "-m", strata.model, "-o", out, "--simple", "--with-tokens", "-q")
    assert strata(*args).code == 0
    assert strata_process((*args, "--overwrite"), "truncated").returncode == -signal.SIGKILL
    assert strata(*args, "--resume").code == 0
    assert set(records(out)) == {line["id"] for line in LINES}


def test_two_interrupts_end_at_once(strata, prompts, tmp_path):
    out = tmp_path / "out.jsonl"
    ran = strata_process(("run", prompts(*LINES), "-m", strata.model, "-o", out), "interrupts")
    assert ran.returncode == 130
    assert "Ctrl-C again ends at once" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_file_is_resumed_only_by_the_run_that_wrote_it(strata, prompts, tmp_path):
    file, out = prompts(*LINES), tmp_path / "out.jsonl"
    base = ("run", file, "-m", strata.model, "-o", out)
    assert strata(*base, "--simple").code == 0
    written = out.read_bytes()

    def refused(*args):
        ran = strata(*args)
        assert ran.code == 2
        assert out.read_bytes() == written
        return ran.err

    assert "records was" in refused(*base, "--resume")
    assert 'sampling was {}, is {"temperature": 0.5}' in refused(*base, "--simple", "--resume", "--temperature", 0.5)
    assert "ctx was 128, is 64" in refused(*base, "--simple", "--resume", "--ctx", 64)
    assert "accept was" in refused(*base, "--simple", "--resume", "--accept", "rejection")
    other = prompts(*LINES, {"prompt": "one more"}, name="more.jsonl")
    assert "input_sha256 was" in refused("run", other, "-m", strata.model, "-o", out, "--simple", "--resume")
    (strata.model / "generation_config.json").write_text('{"temperature": 0.3}')
    assert "model was" in refused(*base, "--simple", "--resume")


def test_speed_settings_may_change(strata, prompts, tmp_path):
    out = tmp_path / "out.jsonl"
    base = ("run", prompts(*LINES), "-m", strata.model, "-o", out, "--simple")
    assert strata(*base).code == 0
    assert strata(*base, "--resume", "--batch", 2, "--spec", 0, "--prefill-chunk", 64).code == 0


def test_two_processes_do_not_write_one_file(strata, prompts, tmp_path):
    import fcntl

    out = tmp_path / "out.jsonl"
    with out.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        ran = strata("run", prompts(*LINES), "-m", strata.model, "-o", out, "--overwrite")
    assert ran.code == 2
    assert "another process is writing to it" in ran.err


def test_a_reader_that_leaves(strata, prompts):
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cli.fake", "run", prompts(*LINES * 1), "-m", str(strata.model)],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}", "HOME": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" not in err
    assert "Broken" not in err


@pytest.mark.parametrize(
    ("output", "what"),
    [
        ("", "is not the name of a file"),
        ("/", "is not the name of a file"),
        (".", "is not the name of a file"),
        ("..", "is not a file"),
        ("x" * 245, "File name too long"),
        ("x" * 300, "File name too long"),
        ("dangling", "dangling is a link to nothing"),
        ("loop", "loop is a link to nothing"),
        ("loop/x", "Too many levels of symbolic links"),
        ("prompts.jsonl/x", "no directory prompts.jsonl"),
        ("sidecar", "sidecar.meta.json is not a file"),
    ],
)
@pytest.mark.parametrize("flags", [[], ["--resume"], ["--overwrite"]])
def test_outputs_that_no_run_can_write(strata, prompts, tmp_path, monkeypatch, output, what, flags):
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    Path("dangling").symlink_to("nowhere")
    Path("sidecar.meta.json").mkdir()
    ran = strata("run", prompts(*LINES).name, "-m", strata.model, "-o", output, *flags)
    assert (ran.code, strata.engines) == (2, [])
    error, hint = ran.err.splitlines()
    assert what in error
    assert hint.startswith("hint: ")


@pytest.mark.parametrize("name", ["out.jsonl.new", "out.jsonl.meta.json.new"])
def test_no_draft_is_written_over_the_input(strata, prompts, tmp_path, name):
    file = prompts(*LINES, name=name)
    ran = strata("run", file, "-m", strata.model, "-o", tmp_path / "out.jsonl")
    assert ran.code == 2
    assert "is the input and a draft of --output" in ran.err
    assert file.read_text().count("\n") == len(LINES)

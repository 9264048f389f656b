"""Files appear whole or not at all, and what is wrong ends in one line."""

import json
import math
import os
import re
from pathlib import Path

import pytest

from madaac_utils.files import (
    Diverged,
    UserError,
    exit_on_user_error,
    read_json,
    require_writable,
    write_json,
    writing,
)
from madaac_utils.provenance import commit, make_run_folder
from particle_envs import TaskError
from tests.running import ROOT
from train_expert_maac import Args


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file.json"
    write_json(path, {"a": 1})
    with pytest.raises(RuntimeError), writing(path) as temporary:
        temporary.write_text("half")
        assert json.loads(path.read_text()) == {"a": 1}
        raise RuntimeError("killed here")
    assert json.loads(path.read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["file.json"]


def test_missing_folders_are_made(tmp_path):
    write_json(tmp_path / "a" / "b" / "file.json", {})
    assert (tmp_path / "a" / "b" / "file.json").is_file()


def test_what_cannot_be_written_is_a_mistake_of_the_user(tmp_path):
    (tmp_path / "file").touch()
    for path in ("/proc/nowhere/file.json", tmp_path / "file" / "below.json"):
        with pytest.raises(UserError, match=str(path)):
            write_json(path, {})


def test_require_writable_leaves_nothing(tmp_path):
    require_writable(tmp_path / "a" / "b")
    require_writable(tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match="/proc/nowhere"):
        require_writable(Path("/proc/nowhere"))


def test_json_comes_back_and_has_no_words_that_other_readers_refuse(tmp_path):
    path = tmp_path / "file.json"
    write_json(path, {"a": [1, 2.5, "ü"], "b": {"c": None}})
    assert read_json(path, "JSON") == {"a": [1, 2.5, "ü"], "b": {"c": None}}
    write_json(path, {"a": [math.nan, (math.inf,)], "b": {"c": -math.inf}})
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {"a": [None, [None]], "b": {"c": None}}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"5", b"\xff\xfe", b"[" * 100_000, b'{"a": 1} x'])
def test_what_is_no_json_object_is_refused(tmp_path, content):
    (tmp_path / "file.json").write_bytes(content)
    with pytest.raises(UserError, match="file.json"):
        read_json(tmp_path / "file.json", "the config of a run")


def test_a_missing_json_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="nothing.json"):
        read_json(tmp_path / "nothing.json", "JSON")


@pytest.mark.parametrize(
    "error, code",
    [(UserError("wrong"), 2), (TaskError("wrong"), 2), (Diverged("wrong"), 1), (KeyboardInterrupt("wrong"), 130)],
)
def test_a_mistake_is_one_line_on_stderr(capsys, error, code):
    with pytest.raises(SystemExit) as stop, exit_on_user_error():
        raise error
    assert stop.value.code == code
    captured = capsys.readouterr()
    assert not captured.out and captured.err.count("\n") == 1


def test_a_bug_is_not_hidden():
    with pytest.raises(ValueError), exit_on_user_error():
        raise ValueError("a bug of ours")


def test_run_folders_of_the_same_second_differ(tmp_path):
    args = Args(runs=str(tmp_path), env_id="simple_tag", exp_name="x")
    folders = {make_run_folder(args, ROOT / "train_expert_maac.py") for _ in range(5)}
    assert len(folders) == 5
    assert all((folder / "config.json").is_file() for folder in folders)


def test_the_commit_says_whether_the_script_is_part_of_it(tmp_path, monkeypatch):
    monkeypatch.delenv("MADAAC_COMMIT", raising=False)
    (tmp_path / "mine.py").touch()
    found = commit(tmp_path / "mine.py")
    assert re.fullmatch(r"[0-9a-f]{40}\+|unknown", found)  # unknown: this is no git checkout
    monkeypatch.setenv("MADAAC_COMMIT", "abc")
    assert commit(tmp_path / "mine.py") == "abc"

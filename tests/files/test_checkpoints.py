"""Checkpoints: damage is noticed, the one before is kept, and saving takes no second copy of a buffer."""

import os
import random
import resource
import signal

import pytest
import torch

from env_utils import make_envs
from madaac_discrete import ReplayBuffer
from madaac_utils.checkpoints import load_checkpoint, lock, save_checkpoint, to_tensors
from madaac_utils.files import UserError
from tests.damage import flip_bit
from tests.running import measure_memory


@pytest.fixture
def folder(tmp_path):
    """A run folder with two checkpoints."""
    for step in (1, 2):
        save_checkpoint(tmp_path, {"step": step, "weights": torch.arange(500.0) * step, "text": "abc", "list": [1.5]})
    return tmp_path


def step(folder) -> int:
    """The step of the checkpoint that is loaded, which must be one that was saved."""
    state = load_checkpoint(folder)
    assert torch.equal(state["weights"], torch.arange(500.0) * state["step"])
    assert state["text"] == "abc" and state["list"] == [1.5]
    return state["step"]


def test_the_last_two_checkpoints_are_kept(folder):
    assert sorted(os.listdir(folder)) == ["checkpoint.pt", "checkpoint_previous.pt"]
    assert step(folder) == 2
    (folder / "checkpoint.pt").unlink()  # killed between the two renames
    assert step(folder) == 1
    save_checkpoint(folder, {"step": 3, "weights": torch.arange(500.0) * 3, "text": "abc", "list": [1.5]})
    assert step(folder) == 3


def test_a_flipped_bit_or_a_truncated_file_falls_back_to_the_one_before(folder, capsys):
    whole, rng = (folder / "checkpoint.pt").read_bytes(), random.Random(0)
    damaged = [flip_bit(whole, rng) for _ in range(150)]
    damaged += [whole[: rng.randrange(len(whole))] for _ in range(20)]
    fallbacks = 0
    for content in damaged:
        (folder / "checkpoint.pt").write_bytes(content)
        found = step(folder)
        warned = "damaged" in capsys.readouterr().out
        assert warned == (found == 1)  # where nothing depends on the bit, the checkpoint is as good as before
        fallbacks += warned
    assert fallbacks > 100


def test_without_a_good_checkpoint_nothing_is_loaded(folder):
    for name in ("checkpoint.pt", "checkpoint_previous.pt"):
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=str(folder)):
        load_checkpoint(folder)


def test_a_damaged_checkpoint_does_not_become_the_previous_one(folder):
    (folder / "checkpoint.pt").write_bytes(b"damaged")
    assert load_checkpoint(folder, repair=True)["step"] == 1
    save_checkpoint(folder, {"step": 5})
    (folder / "checkpoint.pt").write_bytes(b"damaged again")
    assert step(folder) == 1


def test_a_folder_without_checkpoint_is_refused(tmp_path):
    with pytest.raises(UserError, match=str(tmp_path)):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("content", ["code", [1, 2], torch.zeros(3)], ids=["code", "list", "tensor"])
def test_a_foreign_checkpoint_is_refused_and_executes_nothing(tmp_path, content):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "executed"), "w"))

    torch.save({"step": Evil()} if content == "code" else content, tmp_path / "checkpoint.pt")
    (tmp_path / "executed").unlink(missing_ok=True)
    with pytest.raises(UserError, match=str(tmp_path)):
        load_checkpoint(tmp_path)
    assert not (tmp_path / "executed").exists()


def test_a_full_disk_leaves_the_last_checkpoint(folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    allowed = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, allowed[1]))
    try:
        with pytest.raises(UserError, match="checkpoint.pt"):
            save_checkpoint(folder, {"step": 3, "buffer": torch.zeros(1_000_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, allowed)
        signal.signal(signal.SIGXFSZ, handler)
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_locked_folder_is_refused_and_left_over_files_are_removed(folder):
    for name in (".checkpoint.123.tmp.pt", ".policy.123.tmp.safetensors"):
        (folder / name).write_bytes(b"half")
    held = lock(folder)
    assert not list(folder.glob(".*.tmp*")) and (folder / "checkpoint.pt").is_file()
    with pytest.raises(UserError, match=str(folder)):
        lock(folder)
    held.close()
    lock(folder).close()
    with pytest.raises(UserError, match="nowhere"):
        lock(folder / "nowhere")


# Buffers

ROWS, ROW = 250_000, 2 * (2 * 11 * 4 + 8 + 4) + 4  # bytes of a transition of two agents with 11 observations


def save_buffer(folder, capacity: int, rows: int) -> None:
    buffer = ReplayBuffer(capacity, make_envs("cooperative_communication", 1), torch.device("cpu"))
    for part in buffer.store:
        part[:rows] = 1
    buffer.added = rows
    save_checkpoint(folder, {"buffer": to_tensors(buffer.state_dict())})


def test_saving_takes_no_second_copy_of_the_buffer(tmp_path):
    error, megabytes = measure_memory(save_buffer, tmp_path, 2 * ROWS, ROWS)
    size = ROWS * ROW / 2**20  # 49 megabytes
    assert error is None
    assert 0.9 * size < megabytes < 1.4 * size
    # What was never written to the buffer takes neither memory nor disk.
    assert size < (tmp_path / "checkpoint.pt").stat().st_size / 2**20 < 1.1 * size


def test_a_slice_shares_its_memory_with_what_is_saved():
    store = torch.arange(1000.0)
    [part] = to_tensors([store[:10]])
    assert part.data_ptr() == store.data_ptr() and part.untyped_storage().nbytes() == 40

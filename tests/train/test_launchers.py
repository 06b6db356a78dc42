"""Variables of launchers, translated to torchrun's. Those of SLURM 22.05 and MPICH 5 were recorded there."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gdt.common.errors import UserError
from gdt.train.launch import first_host, rank_variables, require_master_address, sees_one_gpu
from tests.conftest import Run
from tests.test_mistakes import sentence, tiny

JOB = {
    "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_NTASKS_PER_NODE": "2",
}  # fmt: skip
"""Variables of a job script."""
STEP = JOB | {
    "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_PROCID": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
}  # fmt: skip
"""Variables of the last task that srun starts in it."""
OMPI = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "prterun-n1-42@1",
}  # fmt: skip
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
COUNTS = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def test_a_task_of_srun_gets_rank_and_master_address() -> None:
    found = rank_variables(STEP)
    port = found.pop("MASTER_PORT")
    assert found == COUNTS | {"MASTER_ADDR": "n1"}
    assert 10_000 <= int(port) < 30_000
    others = [rank_variables(STEP | {"SLURM_PROCID": str(n), "SLURM_NODEID": str(n // 2)}) for n in range(4)]
    assert {other["MASTER_PORT"] for other in others} == {port}  # equal without communication
    again = [rank_variables(STEP | {"SLURM_STEP_ID": "1"}), rank_variables(STEP | {"SLURM_JOB_ID": "8"})]
    assert len({port, *(other["MASTER_PORT"] for other in again)}) == 3
    typed = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    assert rank_variables(STEP | typed) == COUNTS | typed
    uneven = STEP | {"SLURM_STEP_TASKS_PER_NODE": "4(x2),1", "SLURM_NODEID": "2", "SLURM_STEP_NUM_TASKS": "9"}
    assert rank_variables(uneven)["LOCAL_WORLD_SIZE"] == "1"
    one = STEP | {"SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_NODEID": "0", "SLURM_STEP_NODELIST": "n7"}
    assert rank_variables(one)["MASTER_ADDR"] == "127.0.0.1"


def test_a_single_process_is_no_rank() -> None:
    one = {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "1"}
    for environment in (
        {},
        JOB,  # a job script, or a shell of salloc, of a job of four tasks
        JOB | one,  # srun --ntasks 1 in it, and shells started by salloc
        STEP | {"SLURM_PTY_PORT": "37065"},  # srun --pty bash
        STEP | {"RANK": "0", "WORLD_SIZE": "1"},  # torchrun inside srun has precedence
        OMPI | {"OMPI_COMM_WORLD_SIZE": "1"},
        HYDRA | {"PMI_SIZE": "1"},
    ):
        assert rank_variables(environment) == {}


def test_a_rank_of_mpirun_gets_its_rank_and_maybe_master_address() -> None:
    meeting = {"MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
    for environment in (OMPI, HYDRA):
        assert rank_variables(environment | meeting) == COUNTS | meeting
        # in a SLURM job, as child of a daemon that srun started
        inside = rank_variables(environment | STEP | {"SLURM_PROCID": "0", "SLURM_STEP_NODELIST": "n2"})
        assert inside == COUNTS | {"MASTER_ADDR": "n1", "MASTER_PORT": inside["MASTER_PORT"]}
    one = rank_variables(OMPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"})
    assert one["MASTER_ADDR"] == "127.0.0.1" and one["MASTER_PORT"] != rank_variables(OMPI | {"PMIX_NAMESPACE": "x"})
    assert "MASTER_ADDR" not in rank_variables(OMPI)
    with pytest.raises(UserError, match="4 processes were started without MASTER_ADDR; set"):
        require_master_address(rank_variables(OMPI))
    with pytest.raises(UserError, match="without MASTER_ADDR and MASTER_PORT"):
        require_master_address(rank_variables(HYDRA))
    for environment in ({}, {"WORLD_SIZE": "1"}, rank_variables(STEP)):
        require_master_address(environment)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("n1", "n1"), ("n[1-2]", "n1"), ("rack[1-2]n[03-04,07],x3", "rack1n03"), ("a,b[1-2]", "a"), ("login-1", "login-1"),
     ("gpu[009,011-020]-ib", "gpu009-ib"), ("", "")],
)  # fmt: skip
def test_the_first_host_is_that_of_scontrol_show_hostnames(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_a_task_that_sees_one_gpu_is_detected() -> None:
    own = {"LOCAL_WORLD_SIZE": "2", "SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "1"}
    assert sees_one_gpu(own)
    for other in (  # all tasks see all GPUs, no GPU, or one shared GPU
        {"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": ""}, {"SLURM_GPUS_ON_NODE": "1"},
        {"LOCAL_WORLD_SIZE": "1"}, {"SLURM_GPUS_ON_NODE": ""},
    ):  # fmt: skip
        assert not sees_one_gpu(own | other)
    assert not sees_one_gpu({})


def test_errors_in_starting_ranks_give_one_message(command: Run, shards: Path, tmp_path: Path) -> None:
    arguments = tiny(shards, tmp_path / "run", "--device", "cpu", "--steps", 2)
    said = sentence(command(*arguments, **HYDRA | {"MPI_LOCALRANKID": "0"}))
    assert said.startswith("4 processes were started without MASTER_ADDR and MASTER_PORT; set")
    silent = command(*arguments, **HYDRA)  # the second rank of a machine
    assert (silent.returncode, silent.stderr) == (2, "")
    twice = sentence(command("pretrain", "--gpus", 2, *arguments[1:], **STEP))
    assert twice == (
        "this command was started 2 times on one machine, and each would start 2 ranks; start it once per machine "
        "(srun --ntasks-per-node=1), or leave out --gpus"
    )
    with socket.create_server(("", 0)) as server:
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1])}
        taken = sentence(command(*arguments, RANK="0", WORLD_SIZE="2", LOCAL_RANK="0", **where))
    assert taken.startswith(f"rank 0 cannot join the others at {':'.join(where.values())} (")
    assert "EADDRINUSE" in taken and taken.endswith("or set MASTER_PORT to another port")

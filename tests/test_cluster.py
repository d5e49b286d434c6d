"""Tests of the job files in docs/cluster: they are valid, and so are their commands."""

import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from torch.distributed.run import get_args_parser
from yacs.config import CfgNode

from detlite.apps.cli.main import STOPPED, main

ROOT = Path(__file__).parents[1]
SLURM = ROOT / "docs" / "cluster" / "slurm.sh"
KUBERNETES = ROOT / "docs" / "cluster" / "kubernetes.yaml"


@pytest.fixture
def parse_command(tmp_path, monkeypatch):
    """`parse_command(args)`: what `detlite` would train, as (config, resume)."""

    def parse(args: list[str]) -> tuple[CfgNode, bool]:
        calls: list[tuple[CfgNode, bool]] = []
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("WORLD_SIZE", raising=False)
        monkeypatch.setattr(
            "detlite.apps.api.run_training", lambda cfg, resume, *_: calls.append((cfg, resume))
        )
        assert main(args) == 0
        return calls[0]

    return parse


def check_batches(cfg: CfgNode, processes: int) -> None:
    assert cfg.SOLVER.IMS_PER_BATCH % processes == 0
    assert cfg.TEST.IMS_PER_BATCH % processes == 0


def test_command_of_the_slurm_script(parse_command, tmp_path):
    # This srun prints the command of one process.
    (tmp_path / "srun").write_text('#!/bin/bash\nSLURM_PROCID=3 SLURM_LOCALID=1 exec "$@"\n')
    (tmp_path / "detlite").write_text('#!/bin/bash\necho "$RANK $LOCAL_RANK $WORLD_SIZE" "$@"\n')
    (tmp_path / "scontrol").write_text("#!/bin/bash\necho machine\n")
    for name in ("srun", "detlite", "scontrol"):
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "16"}
    done = subprocess.run(["bash", str(SLURM)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rank, local_rank, world, *args = shlex.split(done.stdout)
    assert (rank, local_rank, world) == ("3", "1", "16")
    cfg, resume = parse_command(args)
    assert resume
    check_batches(cfg, 16)


@pytest.mark.parametrize(("status", "requeued"), [(STOPPED, True), (2, False), (0, False)])
def test_only_a_stopped_run_is_requeued(tmp_path, status, requeued):
    assert {"#SBATCH --signal=TERM@120", "#SBATCH --requeue"} <= {*SLURM.read_text().splitlines()}
    (tmp_path / "srun").write_text(f"#!/bin/bash\nexit {status}\n")
    (tmp_path / "scontrol").write_text(f'#!/bin/bash\necho "$@" >> {tmp_path}/calls\necho one\n')
    for name in ("srun", "scontrol"):
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "16"}
    done = subprocess.run(["bash", str(SLURM)], env=env)
    assert done.returncode == status
    assert ("requeue 7" in (tmp_path / "calls").read_text()) == requeued


def test_kubernetes_job(parse_command):
    service, job = yaml.safe_load_all(KUBERNETES.read_text())
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    pod = job["spec"]["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    (container,) = pod["containers"]
    assert container["command"] == ["torchrun"]
    assert all(isinstance(arg, str) for arg in container["args"])
    launch = get_args_parser().parse_args(container["args"])
    assert launch.nnodes == f"1:{job['spec']['completions']}"
    assert launch.module
    assert launch.training_script == "detlite"
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    cfg, resume = parse_command(launch.training_script_args)
    assert resume
    check_batches(cfg, 8)
    check_batches(cfg, 16)

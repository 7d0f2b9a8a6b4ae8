"""One job on one node, as Slurm tells a prolog of it, and what it asks of the pool."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpupool_common.errors import GpupoolError
from gpupool_common.quantities import MEBIBYTE
from gpupool_common.sizes import LARGEST, WHOLE_GPU

#: The names of the GRES: virtual GPUs, memory and percent of compute of each.
GPUS, MEMORY, SHARE = "gpupool", "gpupool_memory", "gpupool_share"
_MOST_GPUS = 64

_ID = re.compile(r"[0-9]{1,10}", re.ASCII)
_NODE = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
#: ``gres:NAME[:TYPE]:COUNT`` until Slurm 23.02, ``gres/NAME[:TYPE]:COUNT`` since.
_GRES = re.compile(
    r"gres[:/](?P<name>\w+)(?::(?P<type>[\w.-]+?))??"
    r"(?::(?P<count>[0-9]{1,19})(?P<unit>[KMGTP]?))?",
    re.ASCII,
)
_TRES = re.compile(r"(?:^|\s)TresPerNode=(\S+)")
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50}

SCONTROL_SECONDS = 30


class JobError(GpupoolError):
    """A job that no lease can be taken for; its tasks are told why."""


@dataclass(frozen=True)
class Job:
    """What a prolog's environment says."""

    id: str
    uid: int
    account: str
    node: str
    cluster: str
    restarts: str

    @classmethod
    def of(cls, env: Mapping[str, str]) -> Job:
        """JobError if Slurm's variables are not there: then this is no prolog."""
        name, uid = env.get("SLURM_JOB_ID", ""), env.get("SLURM_JOB_UID", "")
        node = env.get("SLURMD_NODENAME", "")
        if not _ID.fullmatch(name) or not _ID.fullmatch(uid) or not _NODE.fullmatch(node):
            raise JobError(
                "SLURM_JOB_ID, SLURM_JOB_UID and SLURMD_NODENAME are not set: Slurm's prolog and"
                " epilog run this"
            )
        return cls(
            name,
            int(uid),
            env.get("SLURM_JOB_ACCOUNT", ""),
            node,
            env.get("SLURM_CLUSTER_NAME", ""),
            env.get("SLURM_JOB_RESTART_COUNT", "0"),
        )

    @property
    def key(self) -> str:
        """The same for each try of one start of the job on this node, and for no other."""
        parts = (self.cluster, self.id, self.restarts, self.node)
        return "slurm-" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]

    @property
    def label(self) -> str:
        text = f"slurm {self.cluster} job {self.id} on {self.node}"
        return "".join(char for char in text if char.isprintable())[:256]


def gres_of(scontrol: Path, job: str) -> str:
    """What a job has of generic resources on each node, as scontrol shows it."""
    try:
        done = subprocess.run(
            [str(scontrol), "show", "job", "-o", job],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SCONTROL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JobError(f"{scontrol}: cannot ask what the job has: {error}") from None
    if done.returncode != 0:
        raise JobError(f"{scontrol} does not know the job {job}: {done.stderr.strip()[:256]}")
    match = _TRES.search(done.stdout)
    return match[1] if match else ""


def request(gres: str) -> dict[str, Any] | None:
    """What that is as a lease's request; None: nothing of ours."""
    counts: dict[str, int] = {}
    for part in gres.split(","):
        match = _GRES.fullmatch(part)
        if match is None or match["name"] not in (GPUS, MEMORY, SHARE):
            continue
        if match["type"] is not None:
            raise JobError(f"GRES {part}: {match['name']} has no types")
        count = 1 if match["count"] is None else int(match["count"]) << _UNITS[match["unit"]]
        counts[match["name"]] = counts.get(match["name"], 0) + count
    if not counts.get(GPUS):
        if counts:
            raise JobError(f"GRES {gres}: a part of a GPU needs {GPUS}:1 beside it")
        return None
    if counts[GPUS] > _MOST_GPUS:
        raise JobError(f"GRES {gres}: a lease has at most {_MOST_GPUS} GPUs")
    share = counts.get(SHARE, WHOLE_GPU // 10) * 10
    memory = counts.get(MEMORY)
    if not 1 <= share <= WHOLE_GPU:
        raise JobError(f"GRES {gres}: {SHARE} is 1 to 100, percent of each GPU")
    if memory is not None and not MEBIBYTE <= memory <= LARGEST:
        raise JobError(f"GRES {gres}: {MEMORY} is bytes of each GPU, at least 1M, e.g. 8G")
    if memory is None and share < WHOLE_GPU:
        raise JobError(f"GRES {gres}: {SHARE} needs {MEMORY} beside it, e.g. {MEMORY}:8G")
    return {"gpus": counts[GPUS], "memory_bytes": memory, "share_permille": share}

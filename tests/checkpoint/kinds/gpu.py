"""What a program can have of a GPU; ``tests/gpu`` tries it, on a machine with one."""

from tests.checkpoint.kinds import Kind

KINDS = [
    Kind("GPU memory, streams, events, CUDA graphs", "kept"),
    Kind("pinned host memory", "kept"),
    Kind("NVML, open", "kept"),
    Kind("forked children of a CUDA program (DataLoader workers)", "kept"),
    Kind(
        "a GPU's descriptors that a forked child or another program has inherited",
        "lost",
        "such as those of MPI's `orted`; they are replaced by `/dev/null`, and neither"
        " can use them",
    ),
    Kind("several processes on one GPU", "kept"),
    Kind(
        "several GPUs in one session, a process for each",
        "kept",
        "all of one model where it comes back",
    ),
    Kind(
        "one process with 512 MiB or more on GPUs that read each other's memory",
        "refused",
        "`CUDA_VISIBLE_DEVICES`: `gpu_peers`",
    ),
    Kind("shared events (CUDA IPC)", "kept"),
    Kind("shared memory (CUDA IPC)", "refused", "close it first: `gpu_ipc`"),
    Kind("NCCL over shared memory or peer access", "refused", "`gpu_ipc`"),
    Kind(
        "NCCL over sockets",
        "kept",
        "with `NCCL_P2P_DISABLE=1` and `NCCL_SHM_DISABLE=1`",
    ),
    Kind("managed memory (`cudaMallocManaged`)", "refused", "`gpu_unsupported`"),
    Kind("MIG, MPS", "refused", "`gpu_mig`, `gpu_mps`"),
    Kind(
        "profilers and checkers of NVIDIA's, `torch.profiler`",
        "refused",
        "until the process ends: `gpu_profiled`",
    ),
    Kind("OpenGL, Vulkan", "refused", "`device_open`"),
    Kind("a program that is stopped (Ctrl-Z)", "refused", "`gpu_stopped`"),
]

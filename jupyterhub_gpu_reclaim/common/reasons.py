"""Every reason for a person: a stable code, a sentence, and what to do."""

from __future__ import annotations

import re
from enum import Enum, unique
from typing import Any


@unique  # two with the same words would be one
class Reason(Enum):
    """A stable code with its sentence; ``value`` is the code: the name in small."""

    def __init__(self, template: str, hint: str = "", retryable: bool = False) -> None:
        self.template = template
        self.hint = hint
        self.retryable = retryable

    @property
    def value(self) -> str:
        return self.name.lower()

    @classmethod
    def of(cls, code: str) -> Reason:
        """The member with that code; ``INTERNAL`` for a code of another release."""
        return cls.__members__.get(code.upper(), cls.INTERNAL)

    def sentence(self, **facts: Any) -> str:
        """The sentence for a person; a fact that is missing shows as its name."""
        # Names of files and programs may hold any bytes; a sentence is sent as UTF-8.
        words = self.template.format_map(_Facts(facts))
        words = re.sub(r"(?<!\.)\.\.$", ".", words)  # the last fact was a sentence
        return words.encode("utf-8", "surrogateescape").decode(
            "utf-8", "backslashreplace"
        )

    @property
    def pattern(self) -> str:
        """The sentence without facts: ``"Kernel {name} is busy."``."""
        return re.sub(r"\{(\w+)(:[^}]*)?\}", r"{\1}", self.template)

    # --- why a session is not reclaimed now (policy and guards) ------------------
    KERNEL_BUSY = (
        "Kernel {name} is busy.",
        "Nothing to do: it is at work. If the cell never ends, interrupt the kernel.",
    )
    KERNEL_UNKNOWN = (
        "The state of kernel {name} is not known, so it may be working.",
        "A kernel that has just started or restarted reports no state for a few seconds.",
        True,
    )
    PROMPT_OPEN = (
        "A cell of kernel {name} has been waiting for an answer for {age} (counts as idle after {limit}).",
        "Answer it, or interrupt the kernel.",
    )
    RECENTLY_ACTIVE = (
        "Last used {age} ago ({what}); counts as idle after {idle_after}.",
        "Nothing to do.",
    )
    CPU_BUSY = (
        "Its programs use {percent:.0f} % of a processor core (more than {limit:.0f} % counts as work{rule}).",
        "Nothing to do: it is at work.",
    )
    GPU_BUSY = (
        "Its GPU was up to {percent:.0f} % busy in the last {idle_after} (more than {limit:.0f} % counts as work{rule}).",
        "Nothing to do: it is at work.",
    )
    DATA_MOVES = (
        "It is writing or transferring {rate} per second (more than {limit} counts as work{rule}).",
        "Nothing to do: it is at work.",
    )
    PAGE_USED = (
        "A page of one of its programs sent up to {rate} per second in the last {idle_after} (more than {limit} counts as use{rule}).",
        "Nothing to do. If nobody looks at that page, close it.",
    )
    SAMPLES_MISSING = (
        "There is no recent measurement of this session, so it counts as in use.",
        "Look at the agent's log on the session's machine.",
        True,
    )
    NO_JUPYTER = (
        "Its server is not a Jupyter server, so nobody can see whether it is in use.",
        "With IdlePolicy.without_jupyter it is judged by processor, GPU and data.",
    )
    WINDOW_TOO_SHORT = (
        "Watched for {watched} so far; it takes {idle_after} to know that it is idle.",
        "Nothing to do: wait.",
        True,
    )
    TOO_YOUNG = (
        "Started {age} ago; sessions are left alone for {limit}.",
        "Nothing to do.",
    )
    COOLING_DOWN = (
        "Resumed {age} ago; it is left alone for {limit} after that{rule}.",
        "Nothing to do.",
    )
    RULED_OUT = (
        "Never suspended automatically (rule for {rule}).",
        "Nothing to do; the administrator has set this.",
    )
    JOB_DUE = (
        "A scheduled job is due at {due} (kept running for it{rule}).",
        "Nothing to do; pause the job in JupyterLab's list of jobs to let the session go.",
    )
    PROBE = (
        "The administrator's own probe: {said}.",
        "Nothing to do; if the probe is silent, the administrator looks at the service's log.",
        True,
    )
    RULES_UNKNOWN = (
        "It is not known which rules apply to this session: {what} cannot be looked up now.",
        "If that lasts, look at the service's log; its role at the Hub needs the scope read:users:groups.",
        True,
    )
    KEPT = (
        "Kept until {until} at the request of {by}.",
        "Nothing to do. 'Keep no longer' ends it at once.",
    )
    OPTED_OUT = (
        "Never suspended when idle (set by {by}).",
        "An administrator can press 'Suspend when idle again'.",
    )
    QUIET_HOURS = (
        "No session is suspended between {start} and {end}.",
        "Nothing to do.",
    )
    OPERATION_IN_FLIGHT = (
        "Another operation on this session is under way ({operation}).",
        "Wait for it to end.",
        True,
    )
    BACKING_OFF = (
        "The last attempt failed ({why}); it is not tried again for {wait}.",
        "Remove what it names. Suspend now tries again at once.",
        True,
    )
    CONNECTED_OUTSIDE = (
        "Its programs are connected to {others}; last used {age} ago, counts as idle after {limit} while they are{rule}.",
        "A suspend would end these connections.",
    )
    CONNECTED = (
        "Open browser connections: {count}{rule}.",
        "Close the page to have the session suspended.",
    )
    IDLE_OFF = (
        "Idle sessions are not suspended automatically here{rule}.",
        "Nothing to do. Suspend now works all the same.",
    )
    IDLE = (
        "Idle for {idle} (counts as idle after {idle_after}).",
        "Nothing to do: it will be suspended.",
    )
    PRESSURE = (
        "Idle for {idle}, and somebody is waiting for a GPU ({count} in the queue).",
        "Nothing to do: it will be suspended.",
    )
    NODE_DRAINS = (
        "{node} is being drained{why}: the sessions on it are suspended.",
        "Nothing to do: it comes back as it was.",
    )
    TOGETHER_BUSY = (
        "It is suspended only together with {member}, which is to stay: {why}",
        "Nothing to do: both are suspended when that is over.",
    )
    NOBODY_WAITS = ("Nobody is waiting for this session's GPU.", "Nothing to do.")
    NAP_OFF = ("Idle sessions do not nap automatically here{rule}.", "Nothing to do.")
    NAP_IDLE = (
        "Idle for {idle} (naps after {nap_after}).",
        "Nothing to do: it will nap, and wake when it is used.",
    )
    NAP_WOKEN = (
        "It has been awake for {awake}; it naps after {nap_after} of that.",
        "Nothing to do.",
    )
    NAP_ROOM = (
        "Idle for {idle}; another session on its GPU is waking and needs the memory.",
        "Nothing to do: it will nap, and wake when it is used.",
    )
    NAP_ROOM_OFF = ("Sessions here do not nap for others that wake.", "Nothing to do.")
    NAP_MADE_ROOM = (
        "It napped for another session {age} ago; not again within {limit}{rule}.",
        "Nothing to do.",
    )
    NAP_WAKING = (
        "It is waking and waits for memory on its GPU.",
        "Nothing to do: it wakes as soon as there is room.",
    )
    NAP_SHORT = (
        "Its last nap lasted {lasted}: what woke it was not a person using it.",
        "Nothing to do. If a panel or a dashboard wakes it, close that.",
        True,
    )

    # --- preflight: what cannot be suspended ------------------------------------
    CRIU_MISSING = (
        "CRIU {minimum} or later is not installed on this machine{found}.",
        "Run: jupyterhub-gpu-reclaim criu install",
    )
    CRIU_UNUSABLE = (
        "CRIU does not work on this machine: {why}.",
        "Run: jupyterhub-gpu-reclaim criu check",
    )
    ARCHITECTURE_UNTRIED = (
        "This machine's processors ({architecture}) have not been tried: sessions on them may come back with wrong results.",
        "Run sessions that are to be suspended on x86-64 machines.",
    )
    CRIU_NOT_INSTALLED = (
        "CRIU could not be installed: {why}.",
        "Remove the cause, then run: jupyterhub-gpu-reclaim criu install",
        True,
    )
    CAPABILITY_MISSING = (
        "The agent lacks {capability}, which it needs to suspend sessions of {user}.",
        "Let the agent have it: no CapabilityBoundingSet or NoNewPrivileges in its systemd unit; securityContext in its DaemonSet. The session needs no change.",
    )
    IO_URING = (
        "Process {pid} ({name}) uses io_uring, which cannot be suspended.",
        "Let a seccomp profile forbid it, as Kubernetes' RuntimeDefault does; UV_USE_IO_URING=0 helps for libuv before 1.49 (Node 20) alone.",
    )
    FOREIGN_NAMESPACE = (
        "Process {pid} ({name}) lives in a {kind} namespace of its own, which cannot be suspended.",
        "End that program, or start it without its sandbox or rootless container.",
    )
    DEVICE_OPEN = (
        "Process {pid} ({name}) holds {device} open, which cannot be suspended.",
        "Close that device, or end the program.",
    )
    TRACED = (
        "Process {pid} ({name}) is being traced by a debugger.",
        "Detach the debugger.",
        True,
    )
    CONFINED = (
        "Process {pid} ({name}) is confined by Landlock, and would come back without that protection.",
        "End it, or start it without that sandbox.",
    )
    BESIDE_RUNNING = (
        "Process {pid} ({name}), which runs in the session's container beside its programs, could not be stopped.",
        "End it, then try again.",
        True,
    )
    LEFT_OUT = (
        "Process {pid} ({name}) has lost its parent and cannot be suspended with the others; it would be lost.",
        "End it, or wait until it is done.",
        True,
    )
    DANGEROUS_RIGHTS = (
        "The session's programs may use {capability}, with which they could reach the agent while it suspends them.",
        "Start it without (Kubernetes: securityContext.capabilities), or let the administrator trust it (AgentApp.trusted_capabilities).",
    )
    GHOST_TOO_LARGE = (
        "Process {pid} ({name}) holds the deleted file {path} of {size}, larger than {limit}.",
        "Let the program close that file, or end the program.",
    )
    FILES_SILENT = (
        "The file system at {path} ({kind}), in which process {pid} ({name}) has a file or folder open, does not answer.",
        "Mount it again, or end that program.",
        True,
    )
    HANDLE_UNSUPPORTED = (
        "Process {pid} ({name}) holds {kind}, which cannot be suspended.",
        "End that program.",
    )
    IPC_UNSUPPORTED = (
        "It has {kind}, which cannot be suspended.",
        "Remove it (ipcrm, mq_unlink), or end the program that uses it.",
    )
    PROCESS_UNSUPPORTED = (
        "Process {pid} ({name}) {what}, which cannot be suspended.",
        "End that program.",
    )
    SOCKET_UNREAD = (
        "Process {pid} ({name}) has not read yet what waits in {where}, which cannot be suspended with it.",
        "It is tried again; a program that never reads it keeps its session running.",
        True,
    )
    MULTIPATH_TCP = (
        "Process {pid} ({name}) holds a multipath TCP socket, which cannot be suspended.",
        "Go 1.24 and later listen so by default: start it with GODEBUG=multipathtcp=0.",
    )
    UNIX_OUTSIDE = (
        "Process {pid} ({name}) is connected by a UNIX socket to a program outside of the session ({where}), which cannot be suspended.",
        "Close that connection, or end that program.",
        True,
    )
    GPU_UNSUPPORTED = (
        "Process {pid} ({name}) uses its GPU in a way that the driver cannot checkpoint, such as managed memory.",
        "End that program, or let it use ordinary GPU memory.",
    )
    GPU_BUSY_TOO_LONG = (
        "Process {pid} ({name}) did not finish its work on the GPU within {seconds:.0f} s.",
        "It is tried again; a long computation on the GPU has to end first.",
        True,
    )
    GPU_STOPPED = (
        "Process {pid} ({name}) is stopped, and the driver can checkpoint its GPU only while it runs.",
        "Let it continue (fg), or end it.",
        True,
    )
    GPU_UNUSED = ("No program of the session uses a GPU.", "Nothing to do.")
    NAP_FAILED = (
        "The session could not nap: {why}.",
        "Nothing to do: it is tried again. The agent's log says more.",
        True,
    )
    NAP_CROWDED = (
        "The programs with a GPU have more than {limit} connections and pipes open, too many to watch for what wakes them.",
        "Close some of them, or suspend the session.",
    )
    GPU_BEGUN = (
        "Process {pid} ({name}) has just begun to use a GPU.",
        "Nothing to do: it is tried again.",
        True,
    )
    GPU_STALE_CHILD = (
        "Process {pid} ({name}) has inherited a GPU from its parent and could not be made to give it up.",
        "It is tried again. Programs that use a GPU should start others by spawn, not fork.",
        True,
    )
    GPU_FAILED = (
        "The driver could not checkpoint the GPU of process {pid} ({name}).",
        "It is tried again. If it goes on, ask the administrator to look at the agent's log.",
        True,
    )
    GPU_STUCK = (
        "Process {pid} ({name}) did not get its GPU memory back.",
        "Ask the administrator to look at the agent's log.",
        True,
    )
    GPU_DRIVER_SILENT = (
        "The GPU driver of this machine does not answer.",
        "Ask the administrator to look at the agent's log.",
        True,
    )
    GPU_SMALL_PAGES = (
        "Huge pages are '{setting}' on this machine; with 'always', GPUs are emptied and filled faster.",
        "Run: echo always > /sys/kernel/mm/transparent_hugepage/enabled",
    )
    FEW_WATCHES = (
        "Linux lets all programs of one user id on this machine have {limit} inotify instances together; where they are used up, no session that watches a folder is suspended or resumed.",
        "Run: sysctl -w fs.inotify.max_user_instances=8192; and put it in /etc/sysctl.d.",
    )
    CGROUPS_DENIED = (
        "The agent may not {what} the control groups of its node: {why}.",
        "The agent's pod needs hostPID and what its manifest gives it; SELinux may forbid it all the same.",
    )
    GPU_MIG = (
        "GPU {card} is divided (MIG), which the driver cannot checkpoint.",
        "Run sessions that are to be suspended on GPUs without MIG.",
    )
    GPU_MPS = (
        "Process {pid} ({name}) shares its GPU with others through NVIDIA's MPS, which the driver cannot checkpoint.",
        "Start it without MPS: set CUDA_MPS_PIPE_DIRECTORY to an empty folder before.",
    )
    GPU_PROFILED = (
        "Process {pid} ({name}) was profiled with {tool}, so its GPU cannot be suspended.",
        "Start the program, or restart the kernel, without it.",
    )
    GPU_IPC = (
        "Process {pid} ({name}) has opened GPU memory that was shared with it (CUDA IPC), which the driver could not restore.",
        "End that process, or let it close the memory while the other one lives.",
        True,
    )
    GPU_IPC_UNKNOWN = (
        "Process {pid} ({name}) and {others} more use a GPU, and this machine's driver does not tell whether they share its memory (CUDA IPC), which it could not restore.",
        "Let one process alone use a GPU, or ask the administrator for another driver.",
        True,
    )
    GPU_PEERS = (
        "Process {pid} ({name}) has memory on several GPUs that can read each other's, which the driver could not restore.",
        "Let each process see one GPU (CUDA_VISIBLE_DEVICES), or end that one.",
        True,
    )
    ROOT_UNSUPPORTED = (
        "The root file system of its container ({kind}) is of a kind that cannot be suspended.",
        "Use the overlayfs snapshotter, or a read-only root file system.",
    )
    VOLUME_ENDS = (
        "Everything in {path} would be lost: that volume ends with its container.",
        "Move it to your home, or ask the administrator for a lasting volume there.",
        True,
    )
    NO_TREE = (
        "There is no running program to suspend in this session.",
        "Start the server again.",
    )
    NOT_ENOUGH_MEMORY = (
        "Not enough free memory {where}: {needed} needed, {free} free, {missing} missing.",
        "Wait until other sessions have ended or been suspended.",
        True,
    )
    STORE_FULL = (
        "Not enough room in the store: {needed} needed, {free} free.",
        "Make room: 'jupyterhub-gpu-reclaim store ls' lists what is kept, largest users on the page of the store; or lower ReclaimService.keep_days.",
        True,
    )
    PORT_IN_USE = (
        "Port {port}, which the suspended session needs, is taken by {holder}.",
        "Try again in a minute. If it is a program of your own, end it; the administrator finds its name in the agent's log.",
        True,
    )
    TOO_MANY_PORTS = (
        "Its programs are bound to {count} ports, and the suspended sessions of this user keep {held}; one user may keep {limit}.",
        "End programs that listen, or delete suspended sessions that you do not need.",
    )
    PORTS_SHORT = (
        "Its programs are bound to {count} ports, and suspended sessions keep {held} of this machine; all together may keep {limit}.",
        "Try again when others have come back or been deleted.",
        True,
    )
    NAME_IN_USE = (
        "The socket name {name}, which the suspended session needs, is taken by {holder}.",
        "Try again when that program has ended. If it is one of your own, end it; the administrator finds its name in the agent's log.",
        True,
    )

    # --- operations ----------------------------------------------------------------
    CAPTURE_FAILED = (
        "The session could not be suspended: {why}.",
        "It is tried again. If it goes on, ask the administrator to look at the agent's log.",
        True,
    )
    WOULD_NOT_RETURN = (
        "It keeps running: once suspended, it could not have come back. {why}",
        "Close what is named, or end that program; then it can be suspended.",
    )
    RESTORE_FAILED = (
        "The suspended session could not be resumed ({why}); it is kept.",
        "Try again, or start fresh; the suspended session is kept for a while.",
        True,
    )
    TIMED_OUT = (
        "The step '{step}' took longer than {seconds:.0f} s.",
        "It is tried again. If it goes on, ask the administrator about that step's limit.",
        True,
    )
    CANCELLED = ("The operation was called off.", "Nothing to do.", True)
    ORDER_LATE = (
        "The order came {late} after the session was seen idle; it may be in use again, so it goes on.",
        "Nothing to do: the session is measured again.",
        True,
    )
    ORDER_OVERTAKEN = (
        "The session was saved since this order was given, so it goes on.",
        "Nothing to do; if it is to be suspended now, order it once more.",
        True,
    )
    FORMER_SERVICE = (
        "This request is of a service that has been replaced (its term: {term}; the agent serves term {obeyed}).",
        "Nothing to do: the service that works now gives its own orders. Give yours to that one, not to an agent.",
        True,
    )
    AGENT_RESTARTED = (
        "The agent was restarted in the middle of it.",
        "Nothing to do: it is tried again.",
        True,
    )
    SAVED_FOUND = (
        "Found a checkpoint of this session from {when} that the service had no record of.",
        "Resume it, or start fresh; nothing is deleted meanwhile.",
    )
    SAVED_OLDER = (
        "The newest checkpoint of this session is not in the store; the newest one there is from {when}.",
        "Bring the older one back, ask the administrator for the newer one, or start fresh.",
    )
    SESSION_RUNS = (
        "The session is running. If you say so, it is suspended first, and then the other checkpoint is resumed.",
        "To have it suspended first: --save-running, or the page's Bring back.",
    )
    ENDED_SINCE_SAVED = (
        "The session ended {ended}{how}; its last save point is from {when}.",
        "Resume it as it was then, or start fresh; nothing is deleted meanwhile.",
    )
    ENDED_AFTER_RETURN = (
        "The session ended soon after it came back; its checkpoint is kept.",
        "Resume it once more, or start fresh; the checkpoint is kept.",
    )
    SESSION_ENDED = (
        "The session's programs ended by themselves ({how}).",
        "Start it again; its log may tell why it ended.",
    )
    SESSION_KILLED = (
        "The session's programs were ended by {signal}, which the Hub did not send.",
        "Start it again; the machine's log may tell who sent it.",
    )
    SESSION_OUT_OF_MEMORY = (
        "Linux ended the session's programs because its memory was used up.",
        "Start it again, with more memory if that is offered.",
    )
    SESSION_DISRUPTED = (
        "The session's pod on {node} was ended, and not by the Hub: {why}.",
        "Start it again; 'jupyterhub-gpu-reclaim drain' saves a node's sessions first.",
    )
    RELEASE_FAILED = (
        "The suspended session's programs did not end: {why}.",
        "Ask the administrator to look for processes in state D on that machine.",
        True,
    )
    NOT_CAPTURED = (
        "This session has not been suspended, so its programs are not ended.",
        "Nothing to do: the session goes on.",
    )
    WENT_ON = (
        "Somebody let the session go on after it was suspended (process {who}), so it runs, and its checkpoint is dropped.",
        "Nothing to do: it is suspended again later.",
    )
    TOGETHER_FAILED = (
        "It is suspended only together with {member}, which was not: {why}",
        "Nothing to do here: it goes on. See to the other one, then try again.",
        True,
    )
    FILE_MISSING = (
        "The {what} {path}, which the session had open, is gone.",
        "Put it back, then try again.",
        True,
    )
    FILE_DENIED = (
        "The {what} {path}, which the session had open, may not be opened by its user now ({why}).",
        "Give its user the right to open it, or move what is in its place, then try again.",
        True,
    )
    FILE_SWAPPED = (
        "Something other than the {path} that had been checked came back, so the session was ended again.",
        "Try again while no other program changes those files.",
        True,
    )
    FILE_SHRANK = (
        "The file {path}, which the session had open, has become shorter.",
        "Put the file back as it was, then try again.",
        True,
    )
    FILE_CHANGED = (
        "Files that its programs had open for writing, or mapped, have changed since the session was saved: {path}.",
        "Put back what was there when it was saved, from a copy or a snapshot, then try again; or start fresh.",
        True,
    )
    FILES_NEWER = (
        "Since {when}, when it was saved, files have changed that its programs were writing: {path}.",
        "It can come back with these files as they were then. The newer ones are moved into a folder beside them, and stay.",
    )
    FILE_IN_USE = (
        "The file {path} would be put back as it was, but another program has it open: {who}.",
        "End that program, or close the file there, then try again.",
        True,
    )
    FILE_LOCKED = (
        "The file {path}, on which the session has a lock, is locked by another program now.",
        "End that program, or wait until it has unlocked the file, then try again.",
        True,
    )
    LIBRARY_CHANGED = (
        "The library {path}, which the session has loaded, was replaced.",
        "Put the former version back, then try again.",
        True,
    )
    CPU_MISMATCH = (
        "This machine's processor lacks {features}, which the session uses.",
        "Resume it on a machine with a processor like its own.",
    )
    KERNEL_TOO_OLD = (
        "This machine's Linux {here} is older than {there}, where it was suspended.",
        "Resume it on a machine with that Linux or a newer one.",
    )
    GPU_MISMATCH = (
        "The session needs {needed}; here {here}.",
        "Resume it on a machine with that GPU.",
    )
    GPU_DRIVER_MISMATCH = (
        "The session was suspended with GPU driver {there}; here it is {here}.",
        "Resume it on a machine with that driver, or put that driver back.",
    )
    NODE_MISMATCH = (
        "The session needs a machine with {label}={wanted}; its profile asks for {given}.",
        "Resume it with the profile that it was started with.",
    )
    NOT_PLACED = (
        "No machine could take the session within {seconds:.0f} s: {why}.",
        "Try again when a GPU is free.",
        True,
    )
    POD_ENDED = (
        "The session's pod ended before its programs ran: {why}.",
        "The pod's events tell an administrator more; the image needs python3.",
    )
    POD_REJECTED = (
        "Machine {node} did not take the session's pod: {why}.",
        "Try again: another machine, or this one a little later, may take it.",
        True,
    )
    PLACE_REFUSED = (
        "{who} refused the session's {place}: {why}.",
        "Ask the administrator to change what it names: an image, a setting, a quota, a policy or a webhook.",
        True,
    )
    GPU_MEMORY = (
        "GPU {card} has too little free memory: {needed} needed, {free} free.",
        "Wait until somebody else's session is suspended or ends.",
        True,
    )
    GPU_WAIT_OVER = (
        "No GPU came free for the session within {limit}; it is kept.",
        "Try again later.",
        True,
    )
    MEMORY_LIMIT = (
        "The session needs {needed} of memory; the limit here is {limit}.",
        "Start it with the profile that it had before.",
    )
    SERVER_TLS = (
        "The session's server speaks TLS, so it could not be resumed; it is left alone.",
        "The administrator can switch JupyterHub.internal_ssl off.",
    )
    IMAGE_MISMATCH = (
        "The session ran from image {there}; here it is {here}.",
        "Ask the administrator to put the former image back; or start fresh.",
    )
    USER_MISMATCH = (
        "The suspended session belongs to user id {there}; here it would be {here}.",
        "Ask the administrator to give the former user id back; or start fresh.",
    )
    RENAMED = (
        "The session is {there}, and its programs cannot become {here}.",
        "Ask an administrator to give the old name back, resume under it, and copy what you need; or start fresh.",
    )
    RIGHTS_MISMATCH = (
        "The suspended session has rights that its new place does not give: {what}.",
        "Start it with the same profile as before.",
    )
    RIGHTS_CHANGED = (
        "Its user has lost {lost} meanwhile, and some of its programs have the rights of another user, or more than their user's own.",
        "Ask your administrator to give that back, or start fresh.",
    )
    TOKEN_REVOKED = (
        "The Hub does not know the login of the suspended session any more: it was revoked, or the Hub has another database. It is not resumed.",
        "An administrator can restore the login on the session's page or with 'jupyterhub-gpu-reclaim renew-login'; or start fresh.",
    )
    NOT_ADOPTED = (
        "A session of {user} is running already. It is left alone, and goes on: {why}.",
        "If it is yours, an administrator can let you back in, on the session's page or with 'jupyterhub-gpu-reclaim renew-login'; then start your server again.",
    )
    CHECKPOINT_DAMAGED = (
        "The checkpoint is damaged: {why}.",
        "Ask the administrator to look at the store.",
    )
    CHECKPOINT_MISSING = (
        "There is no checkpoint {checkpoint}.",
        "Bring another checkpoint back, or start fresh.",
    )
    CHECKPOINT_EXISTS = (
        "There is a checkpoint {checkpoint} already; it is never written over.",
        "Nothing to do.",
    )
    KEY_MISSING = (
        "The master key is missing or cannot be used: {why}.",
        "Copy it back, or mount its folder: it is used as soon as it is there. Until then nothing that is suspended can be read; delete nothing.",
        True,
    )
    SAVED_DROPPED = (
        "The checkpoint was deleted by the administrator's rules: {why}.",
        "The next start is a new one.",
    )
    STORE_FAILED = (
        "The store of checkpoints does not work: {why}.",
        "The agent's log says more: journalctl -u jupyterhub-gpu-reclaim-agent.",
        True,
    )
    STORE_UNREACHABLE = (
        "The store of checkpoints cannot be used now: {why}.",
        "Look at the network, and at the store itself; the agent's log says more.",
        True,
    )
    STORE_ABSENT = (
        "The store of suspended sessions is not there: {why}.",
        "It is used as soon as it is there; what is suspended is kept in it.",
        True,
    )
    STORE_DENIED = (
        "The store of checkpoints refuses what the agent asks: {why}.",
        "Ask the administrator to correct the store's login, its rights or its options.",
        True,
    )
    SECOND_TREE = (
        "Programs of this session are running that the Hub does not know of ({incarnation}). They have not been saved, so they are left alone.",
        "An administrator can look at them, and end them on the session's page or with 'jupyterhub-gpu-reclaim end-tree'.",
    )
    STATE_FULL = (
        "The agent's state folder on the session's machine cannot be written.",
        "Make room on that disk; until then the session is neither suspended nor lost.",
        True,
    )
    CHECKPOINT_BUSY = (
        "The suspended session is being resumed already.",
        "Wait until it is back.",
        True,
    )
    FORMER_ACCOUNT = (
        "The name {user} belonged to another account of this Hub before, which has left suspended sessions. The name alone does not make them yours.",
        "Start fresh to begin anew. If they are yours, because the Hub has lost its users for example, ask your administrator to resume them for you first.",
    )
    RENAME_SUSPENDED = (
        "A suspended server cannot be renamed: its address and login are part of it.",
        "Resume it or delete the suspended session first.",
    )

    CULLED = (
        "{by} stopped it for being idle, and nothing of it was saved.",
        "Have that culler ask us first, or take it out: docs/how-to/cullers.md.",
    )
    USER_SUSPENDED = (
        "{user} has a suspended session, and is not deleted by a culler.",
        "A person can delete that session, or the user on the Hub's page.",
    )
    USER_MISSING = (
        "There is no system user {user} on this machine.",
        "Ask the administrator to add it, or to set run_as_hub_user.",
    )
    LAUNCH_FAILED = (
        "The session could not be started. {why}",
        "The Hub's log tells an administrator more.",
    )
    START_DENIED = (
        "The Hub does not let this session start now. {why}",
        "Your suspended session is kept; your administrator can say what it needs.",
    )
    START_FAILED = (
        "The Hub's own configuration failed before the session could resume ({what}).",
        "The Hub's log has the details.",
    )
    PROFILE_GONE = (
        "What the session was started with is not offered to you any more ({why}).",
        "Ask your administrator to offer it again, or start fresh.",
    )
    PLACE_UNSUITABLE = (
        "A session in this {place} could not be suspended: {why}.",
        "Ask the administrator to change the spawner's settings, the profile, or its hook.",
    )

    # --- parts that do not answer --------------------------------------------------
    AGENT_UNREACHABLE = (
        "The machine's agent does not answer.",
        "On that machine, as root: systemctl restart jupyterhub-gpu-reclaim-agent. If it does not stay up, its log ends with the reason: journalctl -u jupyterhub-gpu-reclaim-agent.",
        True,
    )
    AGENT_UNTRUSTED = (
        "The agent's certificate is refused: {why}.",
        "Nothing is asked of it until the administrator has given it a valid one.",
        True,
    )
    NODE_CLOSED = (
        "This machine has been closed for maintenance since {since}, so no session starts until it is opened again.",
        "Suspended sessions are kept. For the administrator: 'jupyterhub-gpu-reclaim undrain' opens it.",
        True,
    )
    UNKNOWN_NODE = (
        "There is no node {node} with an agent.",
        "The page of nodes lists them; a new one is there after some seconds.",
    )
    NOT_DRAINED = (
        "{node} is not being drained.",
        "The page of nodes shows which ones are.",
    )
    NODE_SILENT = (
        "The agent on {node} does not answer.",
        "See how it is: kubectl -n gpu-reclaim get pods -o wide. If that machine is lost, the session is free as soon as Kubernetes has removed its pod; its checkpoints are kept.",
        True,
    )
    NODE_UNTRUSTED = (
        "The certificate of the agent on {node} is refused: {why}.",
        "Nothing is asked of it until the administrator has given it a valid one.",
        True,
    )
    ENDING_UNSEEN = (
        "The session's pod is being deleted, and the agent on {node} does not answer.",
        "The session is free as soon as that machine is back, or Kubernetes has removed its pod; its checkpoints are kept.",
        True,
    )
    NO_AGENT = (
        "No agent is ready on any node of the cluster.",
        "Is the DaemonSet of the agents running?",
        True,
    )
    CLUSTER_UNREACHABLE = (
        "The API server of Kubernetes does not answer.",
        "It is asked again. If it goes on, ask the administrator.",
        True,
    )
    DOCKER_SILENT = (
        "Docker does not answer on the session's machine.",
        "Is dockerd running there? The agent reaches it by AgentApp.docker_socket.",
        True,
    )
    CLUSTER_FORBIDS = (
        "Kubernetes does not let the service {verb} {resource}.",
        "Ask the administrator to compare the account's role with the chart's.",
    )
    SERVICE_UNREACHABLE = (
        "The service that keeps suspended sessions does not answer. Yours is suspended, or may be, so it is not replaced by a new one.",
        "Try again in a minute; the Hub's log tells an administrator the reason.",
        True,
    )
    JOURNAL_HELD = (
        "Another service holds the journal of the sessions; this one does nothing until that one has ended.",
        "During an update that takes seconds. Otherwise two Hubs share one journal_url.",
        True,
    )
    SERVICE_STARTING = (
        "The service that suspends and resumes sessions is starting.",
        "It takes a few seconds; try again.",
        True,
    )
    SERVICE_BROKEN = (
        "The service that suspends and resumes sessions cannot work. {why}",
        "Nothing is lost: suspended sessions are kept. For the administrator: the Hub's log says more, and so does 'jupyterhub-gpu-reclaim config check'.",
        True,
    )
    SETTING_INVALID = ("{what}", "Correct that setting.")
    STATE_UNUSABLE = ("{what}", "Mount that folder, or let it be written.")
    OTHER_VERSION = (
        "{what} has version {version}; this release reads version {known} alone.",
        "For the administrator: install the release that wrote it.",
    )
    HUB_REFUSED = (
        "The Hub refused: {why}.",
        "The Hub's log tells an administrator more.",
    )
    HUB_UNREACHABLE = ("The Hub does not answer.", "Try again in a minute.", True)
    API_UNREACHABLE = (
        "The service at {url} does not answer: {why}.",
        "Is that its address (--url or GPU_RECLAIM_URL), and is the Hub running?",
        True,
    )
    STILL_WAITING = (
        "It is not done after {limit}; it goes on in the background.",
        "Whether a machine or its store holds it up: jupyterhub-gpu-reclaim nodes; if that lasts, it is called off. Else see how far it is: jupyterhub-gpu-reclaim sessions",
        True,
    )

    # --- callers -------------------------------------------------------------------
    UNKNOWN_SESSION = (
        "There is no session {session}.",
        "'jupyterhub-gpu-reclaim sessions' lists all that exist.",
    )
    WRONG_PHASE = (
        "A session that is {phase} cannot {action}.",
        "Look at the session again: it may have changed meanwhile.",
    )
    INVALID = ("{what}",)
    FORBIDDEN = ("You may not do that.", "Ask an administrator.")
    PLAIN_HTTP = (
        "This page needs HTTPS: without it, other people's pages could use your login.",
        "Open it by https; the administrator's setting for it is `trust_plain_http`.",
    )
    TWO_LOGINS = (
        "Your browser sent two logins for this page; another page may have set one.",
        "Delete this site's cookies in your browser, and log in again.",
    )
    TAB_KEY_OVER = (
        "This tab belongs to an earlier start of the session, or its key was revoked.",
        "Reload the page. After a revocation, start the session fresh.",
    )
    UNAUTHENTICATED = (
        "Log in first; if you have, reload the page.",
        "Programs send 'Authorization: token <token of the Hub>'.",
    )
    TOKEN_UNKNOWN = (
        "The Hub does not know this token: it has expired, was revoked, or belongs to another Hub.",
        "Make a new one on the Hub's Token page.",
    )
    TOO_OFTEN = (
        "This session was changed very often just now.",
        "Wait a minute, then try again.",
        True,
    )
    TOO_MANY_STREAMS = (
        "Too many event streams are open.",
        "Close some of the pages that show sessions.",
        True,
    )
    INTERNAL = (
        "Something went wrong on our side; the log has the details.",
        "Try again. If it happens again, ask the administrator to report it.",
        True,
    )


#: Codes of a suspend or nap that did not fail by anything of the session's: somebody
#: wants it, it may be in use again, or its agent has ended.
CALLED_OFF = frozenset(
    {
        Reason.AGENT_RESTARTED.value,
        Reason.CANCELLED.value,
        Reason.ORDER_LATE.value,
        Reason.ORDER_OVERTAKEN.value,
    }
)
#: Reasons for which a person has to choose what comes back: a visit alone does not.
ASKS = frozenset(
    {
        Reason.SAVED_FOUND,
        Reason.SAVED_OLDER,
        Reason.ENDED_SINCE_SAVED,
        Reason.FILES_NEWER,
    }
)
#: Reasons that an administrator understands and mends, and no user.
OPERATORS_OWN = frozenset(
    {
        Reason.AGENT_UNREACHABLE,
        Reason.AGENT_UNTRUSTED,
        Reason.CAPABILITY_MISSING,
        Reason.CHECKPOINT_DAMAGED,
        Reason.CLUSTER_FORBIDS,
        Reason.CLUSTER_UNREACHABLE,
        Reason.CRIU_MISSING,
        Reason.CRIU_UNUSABLE,
        Reason.DOCKER_SILENT,
        Reason.ENDING_UNSEEN,
        Reason.GPU_DRIVER_SILENT,
        Reason.INTERNAL,
        Reason.JOURNAL_HELD,
        Reason.KEY_MISSING,
        Reason.LAUNCH_FAILED,
        Reason.NODE_SILENT,
        Reason.NODE_UNTRUSTED,
        Reason.NO_AGENT,
        Reason.OTHER_VERSION,
        Reason.POD_ENDED,
        Reason.RESTORE_FAILED,
        Reason.SERVICE_BROKEN,
        Reason.SERVICE_UNREACHABLE,
        Reason.SETTING_INVALID,
        Reason.START_FAILED,
        Reason.STATE_FULL,
        Reason.STATE_UNUSABLE,
        Reason.STORE_ABSENT,
        Reason.STORE_DENIED,
        Reason.STORE_FAILED,
        Reason.STORE_UNREACHABLE,
        Reason.TIMED_OUT,
        Reason.USER_MISSING,
    }
)
_PASSING = "A part of the Hub does not work at the moment. You have done nothing wrong."
_LASTING = "Your administrator needs to look at this. You have done nothing wrong."


def plainly(reason: Reason, *, retryable: bool) -> str:
    """For a user: plain words if only an administrator understands; else empty."""
    # Pages have the sentence and its hint elsewhere, for the administrator.
    if reason not in OPERATORS_OWN:
        return ""
    return _PASSING if retryable else _LASTING


class _Facts(dict[str, Any]):
    def __missing__(self, key: str) -> _Unknown:
        return _Unknown(key)


class _Unknown(str):
    """A missing fact, which any format specification leaves as its name."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        del spec
        return "(" + str.__str__(self) + ")"  # an f-string would call this again

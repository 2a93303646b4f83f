"""The service's own settings, with unit, effect and the meaning of 0 or empty.

They come from ``configure(c, x=…)`` as ``--ReclaimService.x=…``. The reference
documentation is generated from these traits. Secrets are not among them: the Hub's
token and the spawner's token come in the environment.
"""

from __future__ import annotations

from dataclasses import fields

from traitlets import Bool, Enum, Int, List, Unicode
from traitlets.config import Configurable

from jupyterhub_gpu_reclaim.common.traits import Address, AgentAddress, Amount
from jupyterhub_gpu_reclaim.controlplane.settings import Settings
from jupyterhub_gpu_reclaim.policy.retention import Retention
from jupyterhub_gpu_reclaim.service.clients import node_notices

_DEFAULTS = Settings()
_DAY = 86400.0
_GB = 10**9


class Options(Configurable):
    """The service's settings; mixed into the application."""

    placement = Enum(
        ["local", "kubernetes"],
        default_value="local",
        help="Where sessions run. `local`: on this machine, with one agent (`agent`)."
        " `kubernetes`: in pods of KubeSpawner, with one agent per node, found"
        " through the API server.",
    ).tag(config=True)

    agent = AgentAddress(
        "unix:/run/jupyterhub-gpu-reclaim/agent.sock",
        help="Address of the machine's agent: `unix:/path` for a socket on this one,"
        " `https://host:8099` for TCP. Set it where the agent's `listen` is set.",
    ).tag(config=True)

    agent_token_file = Unicode(
        "/var/lib/jupyterhub-gpu-reclaim/agent.token",
        help="File with the agent's bearer token. The agent makes it at its first"
        " start; only root may read it. It may appear after the service has started."
        " Set it where the agent's `token_file` is set, or a Secret has it.",
    ).tag(config=True)

    agent_ca_file = Unicode(
        "",
        help="Certificates (PEM) that vouch for an `https` agent. Empty: those of the"
        " system. Set it where the agent listens on TCP with a certificate of your own"
        " authority.",
    ).tag(config=True)

    kubeconfig = Unicode(
        "",
        help="With `placement = kubernetes`: file that says how to reach the API"
        " server, where the service runs outside of the cluster. Empty: the account of"
        " the pod that it runs in.",
    ).tag(config=True)

    namespace = Unicode(
        "",
        help="With `placement = kubernetes`: namespace of the users' pods. Empty: the"
        " one that the service runs in. Set it where the Hub is in another one.",
    ).tag(config=True)

    agent_namespace = Unicode(
        "",
        help="With `placement = kubernetes`: namespace of the agents' DaemonSet, which"
        " needs rights that a namespace of users should not give. Empty: that of the"
        " users' pods.",
    ).tag(config=True)

    agent_port = Int(
        8099,
        min=1,
        max=65535,
        help="With `placement = kubernetes`: port of every agent. Another one where"
        " `AgentApp.listen` has another one there.",
    ).tag(config=True)

    probe = Unicode(
        "",
        help="A command of yours that is asked, too, before a session is suspended for"
        " being idle or under pressure: it prints `in use until TIME` or `idle since"
        " TIME` (ISO 8601 with the zone, or seconds since the epoch). It finds the"
        " session in `GPU_RECLAIM_USER` and `GPU_RECLAIM_SERVER`, and is asked again"
        " every 30 s while the session stays idle, and right before the suspend. It can"
        " only spare a session: an error, another answer, or none within 10 s is use."
        " Empty: none. Example: '/usr/local/sbin/session-in-use'.",
    ).tag(config=True)

    gpu_node_labels = List(
        Unicode(),
        ["kubernetes.io/arch", "nvidia.com/gpu.product"],
        help="With `placement = kubernetes`: labels of its node that a session with a"
        " GPU needs again when it comes back, so that it waits for a fitting node."
        " Empty: any node; the agent there refuses what does not fit. Set it where your"
        " nodes have other labels.",
    ).tag(config=True)

    drain_on = List(
        Enum(node_notices.KINDS),
        ["notice"],
        help="With `placement = kubernetes`: signs that a node is about to go, on which"
        " its sessions are saved and suspended without being asked. `notice`: a cloud's"
        " or an autoscaler's own (GKE, AKS, Karpenter, the AWS node termination handler"
        " with its taints, the cluster autoscaler). `cordon`: also `kubectl cordon`,"
        " for clusters where that always comes before a drain. Empty: only by order."
        " Example: ['notice', 'cordon'].",
    ).tag(config=True)

    return_disrupted = Bool(
        _DEFAULTS.return_disrupted,
        help="With `placement = kubernetes`: whether a session that was lost with its"
        " node, or evicted, comes back by itself as at its last save point, on another"
        " node. False: its user is asked at the next visit. Example: True where"
        " sessions compute without their users.",
    ).tag(config=True)

    state_dir = Unicode(
        "/var/lib/jupyterhub-gpu-reclaim/service",
        help="Folder of the service (made with mode 0700): the journal and the secret"
        " that signs login cookies. Losing it loses"
        " no session: they are found again at the agent and the Hub. Set it where"
        " `/var` does not outlive the service.",
    ).tag(config=True)

    journal_url = Unicode(
        "",
        help="SQLAlchemy URL of the journal, for example"
        " `postgresql+psycopg://user@host/db`, where another machine is to take over"
        " from this one. Empty: SQLite in `state_dir`, on a local file system. Other"
        " databases are refused: one service at a time works on a journal, and holds a"
        " lock for that: `flock` on a file beside SQLite's, or an advisory lock of"
        " PostgreSQL, which a PgBouncer that pools transactions would lose.",
    ).tag(config=True)

    sample_interval = Amount(
        _DEFAULTS.sample_interval,
        min=0.5,
        max=600,
        help="Seconds between two looks at what the sessions do, and between two"
        " comparisons of journal, agent and Hub, even if nothing was heard. Shorter"
        " notices activity sooner and asks every session's server more often; longer"
        " spares a busy Hub. After three missed looks the watching"
        " starts again. Example: 15.",
    ).tag(config=True)

    warn_for = Amount(
        _DEFAULTS.warn_for,
        min=0,
        max=86400,
        help="Seconds before a suspend at which its user is warned. They come on top of"
        " `IdlePolicy.idle_after`; any activity and Keep take the warning back, and"
        " right before the suspend there is one more look. Longer gives people time to"
        " answer; shorter gives the GPU back sooner, and under 30 an open tab may not"
        " show it in time. 0: suspended without a warning."
        " Example: 600 for ten minutes before.",
    ).tag(config=True)

    gpu_wait = Amount(
        _DEFAULTS.gpu_wait,
        min=0,
        max=86400,
        help="Seconds that a resume waits in the queue for memory of a GPU, where"
        " sessions share the GPUs of a machine. Must be shorter than"
        " `Spawner.start_timeout`, at which the Hub gives the start up. On Kubernetes"
        " a pod waits for a node as long as that. 0: a resume that finds no room"
        " fails at once, with the reason. Example: 120.",
    ).tag(config=True)

    seats_per_gpu = Int(
        _DEFAULTS.seats_per_gpu,
        min=1,
        max=1000,
        help="How many sessions share one GPU. On Kubernetes the replicas of NVIDIA's"
        " device plugin, each of which counts as a GPU there; on one machine, where"
        " every session may use every GPU, how many you let on each. With more than"
        " one, idle sessions nap (`NapPolicy.nap_after`), and a session counts with its"
        " share of a GPU where GPU-hours are shown. It hands nothing out: that is for"
        " the scheduler, or first come, first served. 1: each session has its GPUs for"
        " itself. Example: 4.",
    ).tag(config=True)

    keep_limit = Amount(
        _DEFAULTS.keep_limit,
        min=0,
        max=366 * _DAY,
        help="Longest time in seconds for which a user may ask that a session be"
        " left alone, for example 86400 for a day. Holders of the manage scope may ask"
        " for a year. 0: no one else may ask. Shorter where GPUs are short.",
    ).tag(config=True)

    save_every = Amount(
        _DEFAULTS.save_every,
        min=0,
        max=366 * _DAY,
        help="Seconds after its last save point after which a session that was used"
        " since is saved again while it goes on, so that its user can have it back if"
        " its programs end or its machine is lost. It stands still for a copy in"
        " memory: when nothing was used for half a minute, or a third of this time"
        " later where there is no such lull. One that holds a GPU is saved once in each"
        " nap instead. What a session came back from is kept until it is saved again,"
        " beyond ``grace``. More often loses less, and stores more. 0: only by order."
        " Example: 1800.",
    ).tag(config=True)

    save_points = Int(
        _DEFAULTS.save_points,
        min=1,
        max=100,
        help="How many save points of a session are kept while it runs. The newest is"
        " what it comes back as if it ends; older ones can be brought back by its user"
        " for `set_aside_days`, as can those that were given a name, which do not"
        " count. More takes more of the store: what has changed between. Example: 5.",
    ).tag(config=True)

    orphan_grace = Amount(
        _DEFAULTS.orphan_grace,
        min=5,
        help="Seconds for which a state that makes no sense (programs that the Hub"
        " does not know of, say) must last before anything is ended for it, and for"
        " which an order waits for an agent or the store before it is called off."
        " Longer where Hub or agent are away for longer at restarts.",
    ).tag(config=True)

    captures = Int(
        _DEFAULTS.captures,
        min=1,
        max=64,
        help="Sessions that are suspended at the same time on one node; one user's"
        " take one of these turns while others wait. More of them share the node's"
        " bandwidth, so that each is frozen for longer. Fewer where the store is slow;"
        " more where a drain takes too long.",
    ).tag(config=True)

    event_log = Unicode(
        "",
        help="File that gets one line of JSON for everything that happens to a session,"
        " with who and why; only root may read it. `-`: the standard output, which is"
        " the Hub's log. It is reopened after a rotation. Empty: none; the journal"
        " keeps the same for `audit_days`. Set it where logs are collected elsewhere.",
    ).tag(config=True)

    webhook_url = Address(
        "",
        help="Address that gets a notice as JSON, in one POST request, when a session"
        " is warned, suspended, fails to be suspended or resumed, or ends, and a day"
        " before a checkpoint is deleted for its age. Empty: none."
        ' Example: "https://chat.example.org/hooks/gpu".',
    ).tag(config=True)

    webhook_secret_file = Unicode(
        "",
        help="File with the secret (16 characters at least) that signs what the webhook"
        " gets: `X-GPU-Reclaim-Signature` is `sha256=` and the HMAC-SHA256 of"
        " `X-GPU-Reclaim-Timestamp`, a dot and the body. Empty: nothing is signed.",
    ).tag(config=True)

    messenger_file = Unicode(
        "",
        help="File with addresses of Apprise, one a line, that get the same notices:"
        " e-mail, Slack, Matrix and more (https://github.com/caronc/apprise/wiki)."
        " `{user}` in them is the session's user; one whose name has other characters"
        " than `A-Za-z0-9._@+-` is not told there. Needs"
        " `pip install jupyterhub-gpu-reclaim[notices]` beside the Hub. Only root"
        " should read it. Empty: none.",
    ).tag(config=True)

    metrics_open = Bool(
        False,
        help="Whether `/metrics` needs no login. False: a Hub token with the scope"
        " `read:metrics` or `custom:gpu-reclaim:manage`. The metrics never"
        " contain users' names. True where Prometheus can have no token.",
    ).tag(config=True)

    trust_plain_http = Bool(
        False,
        help="Whether a login's cookie counts though the browser does not say how a"
        " page was opened. Browsers say it (`Sec-Fetch-*`) over HTTPS and at localhost,"
        " not over plain HTTP. True: where the Hub has no subdomains, any page on a"
        " user's server can do everything at this service that its visitor may do."
        " False: over plain HTTP the service's pages say that they need HTTPS. True in"
        " a network of your own, where you trust every user.",
    ).tag(config=True)

    # --- how long checkpoints are kept, and how many
    grace = Amount(
        _DEFAULTS.grace,
        min=0,
        help="Seconds for which a checkpoint is kept after its session has come back"
        " and answered. Longer is safer and takes room in the store. 0: deleted as"
        " soon as it has answered.",
    ).tag(config=True)

    set_aside_days = Amount(
        _DEFAULTS.set_aside / _DAY,
        min=0,
        max=36500,
        help="Days for which a suspended session is kept after its user chose to start"
        " fresh. 0: deleted at once.",
    ).tag(config=True)

    audit_days = Amount(
        _DEFAULTS.audit / _DAY,
        min=1,
        help="Days for which the journal keeps who did what to a session, and why it"
        " was suspended. Older lines are deleted, all but the newest of all, and so are"
        " those of a session that has 10,000 newer ones; they hold names of users."
        " Fewer where such names may not be kept for so long.",
    ).tag(config=True)

    keep_days = Amount(
        0.0,
        min=0,
        help="Days after which what somebody has put aside is deleted, even if"
        " `set_aside_days` is longer; with `retention_takes_suspended`, suspended"
        " sessions too. 0: no limit. Set it where data may not be kept for longer.",
    ).tag(config=True)

    user_quota_gb = Amount(
        0.0,
        min=0,
        help="Gigabytes (10^9 bytes) that the checkpoints of one user may take in the"
        " store. Above it the least recently suspended are deleted, first of those"
        " that were put aside. A suspend is never refused for it. 0: no limit.",
    ).tag(config=True)

    total_quota_gb = Amount(
        0.0,
        min=0,
        help="Gigabytes (10^9 bytes) that the checkpoints of all users together may"
        " take in the store, as `user_quota_gb` of one. 0: no limit. Set it where the"
        " store is not for these alone.",
    ).tag(config=True)

    retention_takes_suspended = Bool(
        False,
        help="Whether `keep_days` and the quotas may delete the only checkpoint of a"
        " suspended session, that is, somebody's work; the user is told why, and the"
        " next start is a new one. False: what is suspended is kept, whatever a quota"
        " says. True where the store must not fill up, and people know.",
    ).tag(config=True)

    def settings(self) -> Settings:
        same = set(self.trait_names()) & {each.name for each in fields(Settings)}
        return Settings(
            **{name: getattr(self, name) for name in same},
            tick_interval=self.sample_interval,
            set_aside=self.set_aside_days * _DAY,
            audit=self.audit_days * _DAY,
            retention=Retention(
                seconds=self.keep_days * _DAY,
                user_bytes=int(self.user_quota_gb * _GB),
                total_bytes=int(self.total_quota_gb * _GB),
                takes_current=self.retention_takes_suspended,
            ),
        )

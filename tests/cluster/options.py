"""The options of ``pytest -m cluster``; imported by ``tests/conftest.py``.

::

    KUBECONFIG=~/.kube/config pytest -m cluster \
        --cluster-image registry.local:5000/gpu-reclaim-cluster-tests:0.1.0
"""

#: What an image is for, and what it is unless it is given: all of them are in one.
ROLES = ("agent", "hub", "proxy", "session", "store")


def pytest_addoption(parser):
    group = parser.getgroup("cluster", "tests on a real Kubernetes cluster")
    add = group.addoption
    add(
        "--cluster-image",
        default="gpu-reclaim-cluster-tests:0.1.0",
        help="image with everything in it, made by tests/cluster/Dockerfile"
        " (default: %(default)s, imported on each node)",
    )
    for role in ROLES:
        add(f"--cluster-{role}-image", default="", help=f"another one for the {role}")
    add(
        "--cluster-pull-policy",
        default="IfNotPresent",
        choices=["IfNotPresent", "Never", "Always"],
        help="of all pods (default: %(default)s)",
    )
    add(
        "--cluster-volume",
        default="",
        help="JSON of a volume that all nodes see, for homes and the Hub's state, such"
        ' as \'{"nfs": {"server": "10.0.0.1", "path": "/x"}}\' or \'{"hostPath":'
        ' {"path": "/shared"}}\' (default: claims of the default storage class, which'
        " must then be usable on both nodes)",
    )
    add(
        "--cluster-uid",
        type=int,
        default=1000,
        help="the sessions' user; 0 where the nodes lack CAP_SYS_RESOURCE",
    )
    add(
        "--cluster-without-capability",
        action="append",
        default=[],
        metavar="NAME",
        help="a capability of the agent's that the nodes do not have, such as"
        " SYS_RESOURCE; may be given again",
    )
    add(
        "--cluster-gpu",
        action="store_true",
        help="sessions ask for one nvidia.com/gpu each",
    )
    add(
        "--cluster-keep",
        action="store_true",
        help="leave everything as it is at the end, to look at it",
    )

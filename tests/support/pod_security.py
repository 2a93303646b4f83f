"""The Pod Security Standards: which rules of a level a pod breaks.

From https://kubernetes.io/docs/concepts/security/pod-security-standards (Kubernetes
1.36), written down here so that documentation and manifests can be held against it;
the API server's own admission judges by the same rules. For pods of Linux, as JSON.
"""

from collections.abc import Iterator, Mapping
from typing import Any

LEVELS = ("restricted", "baseline", "privileged")
_ADDED = {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD"),
    *("NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
}
_SELINUX = {
    *("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
}
_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"),
    *("persistentVolumeClaim", "projected", "secret"),
}
_SYSCTLS = {
    *("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range"),
    *("net.ipv4.ip_unprivileged_port_start", "net.ipv4.tcp_syncookies"),
    *("net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports"),
    *("net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout"),
    *("net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes"),
}
_PROFILES = {"RuntimeDefault", "Localhost"}


def level(pod: Mapping[str, Any]) -> str:
    """The strictest level that takes this pod's spec."""
    if broken(pod, "baseline"):
        return "privileged"
    return "baseline" if broken(pod, "restricted") else "restricted"


def broken(pod: Mapping[str, Any], wanted: str) -> set[str]:
    """The rules of a level that it breaks, by the names of the standards."""
    found = set(_baseline(pod))
    return found | set(_restricted(pod)) if wanted == "restricted" else found


def _containers(pod: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        yield from pod.get(kind) or ()


def _contexts(pod: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield pod.get("securityContext") or {}
    for container in _containers(pod):
        yield container.get("securityContext") or {}


def _baseline(pod: Mapping[str, Any]) -> Iterator[str]:
    if any(pod.get(name) for name in ("hostPID", "hostIPC", "hostNetwork")):
        yield "Host Namespaces"
    if any("hostPath" in volume for volume in pod.get("volumes") or ()):
        yield "HostPath Volumes"
    for container in _containers(pod):
        if any(port.get("hostPort") for port in container.get("ports") or ()):
            yield "Host Ports"
        hooks = (container.get("lifecycle") or {}).values()
        probes = [
            container.get(f"{k}Probe") for k in ("liveness", "readiness", "startup")
        ]
        for handler in filter(None, [*hooks, *probes]):
            for kind in ("httpGet", "tcpSocket"):
                if (handler.get(kind) or {}).get("host"):
                    yield "Host Probes / Lifecycle Hooks"
    for context in _contexts(pod):
        if context.get("privileged"):
            yield "Privileged Containers"
        if set((context.get("capabilities") or {}).get("add") or ()) - _ADDED:
            yield "Capabilities"
        profile = context.get("appArmorProfile") or {}
        if profile.get("type", "RuntimeDefault") not in _PROFILES:
            yield "AppArmor"
        profile = context.get("seccompProfile") or {}
        if profile.get("type", "RuntimeDefault") not in _PROFILES:
            yield "Seccomp"
        options = context.get("seLinuxOptions") or {}
        strange = options.get("user") or options.get("role")
        if strange or options.get("type", "") not in _SELINUX:
            yield "SELinux"
        if context.get("procMount", "Default") != "Default":
            yield "/proc Mount Type"
        if {each["name"] for each in context.get("sysctls") or ()} - _SYSCTLS:
            yield "Sysctls"


def _restricted(pod: Mapping[str, Any]) -> Iterator[str]:
    for volume in pod.get("volumes") or ():
        if not _VOLUMES & set(volume):
            yield "Volume Types"
    whole = pod.get("securityContext") or {}
    if any(context.get("runAsUser") == 0 for context in _contexts(pod)):
        yield "Running as Non-root user"
    for container in _containers(pod):
        own = container.get("securityContext") or {}
        if own.get("allowPrivilegeEscalation") is not False:
            yield "Privilege Escalation"
        if not own.get("runAsNonRoot", whole.get("runAsNonRoot")):
            yield "Running as Non-root"
        profile = own.get("seccompProfile") or whole.get("seccompProfile") or {}
        if profile.get("type") not in _PROFILES:
            yield "Seccomp"
        capabilities = own.get("capabilities") or {}
        if "ALL" not in (capabilities.get("drop") or ()):
            yield "Capabilities"
        if set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"}:
            yield "Capabilities"

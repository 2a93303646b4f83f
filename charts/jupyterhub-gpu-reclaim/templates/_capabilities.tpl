{{- /* The agent's, each with its reason. Where each is needed: docs/explanation/trust.md. */}}
{{- define "agents.capabilities" -}}
- SYS_ADMIN # enter the session's namespaces; mount a /proc of its own there
- SYS_PTRACE # stop processes of others, read and write their memory
- SYS_CHROOT # enter the session's root folder with its mount namespace
- SYS_TIME # a session's clock goes on from where it stood
- SYS_RESOURCE # limits of another user's processes; the memory of a pod
- DAC_OVERRIDE # read and write files of every user: what is saved
- DAC_READ_SEARCH # find the files that a session watches (inotify)
- CHOWN # files come back with their owner
- FOWNER # files come back with their mode and times
- FSETID # files come back with set-user-id bits
- MKNOD # whiteouts of overlays, and devices that a session has open
- SETFCAP # files come back with their capabilities
- SETUID # processes come back as their user
- SETGID # processes come back with their groups
- SETPCAP # processes come back with the rights that they had, no more
- KILL # end a session of any user that is saved
- NET_ADMIN # close connections that lead outside; restore sockets' options
- SYS_NICE # processes come back with their priority
- IPC_LOCK # locked memory comes back locked
- IPC_OWNER # System V objects of every user
- LEASE # leases on files come back
# A process can only come back with rights that the agent has, too. These
# are the rest of what containerd and CRI-O give to a container's root.
- NET_RAW
- NET_BIND_SERVICE
- AUDIT_WRITE
{{- end }}

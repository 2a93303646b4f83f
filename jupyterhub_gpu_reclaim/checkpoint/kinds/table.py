"""Every kind, in the order in which they are asked.

The order counts where one kind needs what another has done:

* ``Rights`` come first: what threads may have decides how everything is opened.
* ``ProcessAttributes`` are read of a tree that has only been frozen, and given back
  before processes are made to do anything: by then their rights have been judged.
* ``SystemV`` makes its objects, and attaches segments where it has set addresses aside.
* ``CutConnections`` decide which connections there still are. They are reset before
  unsent data is sent over the others, and sockets get their options last, which could
  otherwise hinder either.
* ``SocketStates`` reads names that ``NamedSockets`` takes out of the images.
* ``NamedSockets``, ``DeletedFiles`` and ``NamedFiles`` make or open files, ``Fifos``
  fill what is open then, and ``Watches`` watch when all of that is done: what watches
  a folder must not be told of it.
* ``UnixPeers`` orders the entries that are left to CRIU.
* ``Locks`` need the open files.
* ``ClosedMemory`` is the last that touches a tree before CRIU, and opens it to its user
  again when root has done all its work in there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jupyterhub_gpu_reclaim.checkpoint.kinds.attributes import ProcessAttributes
from jupyterhub_gpu_reclaim.checkpoint.kinds.closed_memory import ClosedMemory
from jupyterhub_gpu_reclaim.checkpoint.kinds.counters import Eventfds, Timers
from jupyterhub_gpu_reclaim.checkpoint.kinds.cut_connections import CutConnections
from jupyterhub_gpu_reclaim.checkpoint.kinds.deleted_files import DeletedFiles
from jupyterhub_gpu_reclaim.checkpoint.kinds.devices import Devices
from jupyterhub_gpu_reclaim.checkpoint.kinds.kernel_objects import KernelObjects, Memfds
from jupyterhub_gpu_reclaim.checkpoint.kinds.locks import Locks
from jupyterhub_gpu_reclaim.checkpoint.kinds.named_files import Fifos, NamedFiles
from jupyterhub_gpu_reclaim.checkpoint.kinds.orphans import Orphans
from jupyterhub_gpu_reclaim.checkpoint.kinds.other_names import OtherNames
from jupyterhub_gpu_reclaim.checkpoint.kinds.output import Output
from jupyterhub_gpu_reclaim.checkpoint.kinds.process_files import ProcessFiles
from jupyterhub_gpu_reclaim.checkpoint.kinds.programs import (
    EndingSignals,
    Namespaces,
    Programs,
)
from jupyterhub_gpu_reclaim.checkpoint.kinds.protection import Protection
from jupyterhub_gpu_reclaim.checkpoint.kinds.reserved import ReservedAddresses
from jupyterhub_gpu_reclaim.checkpoint.kinds.rights import Rights
from jupyterhub_gpu_reclaim.checkpoint.kinds.socket_state import SocketStates
from jupyterhub_gpu_reclaim.checkpoint.kinds.sockets import Sockets
from jupyterhub_gpu_reclaim.checkpoint.kinds.system_v import SystemV
from jupyterhub_gpu_reclaim.checkpoint.kinds.terminals import Terminals
from jupyterhub_gpu_reclaim.checkpoint.kinds.unix_names import (
    AbstractNames,
    NamedSockets,
)
from jupyterhub_gpu_reclaim.checkpoint.kinds.unix_peers import UnixPeers
from jupyterhub_gpu_reclaim.checkpoint.kinds.unsent import UnsentData
from jupyterhub_gpu_reclaim.checkpoint.kinds.waits import InterruptedWaits
from jupyterhub_gpu_reclaim.checkpoint.kinds.watches import Watches

if TYPE_CHECKING:
    from jupyterhub_gpu_reclaim.checkpoint.kinds.kind import Kind

KINDS: Final[tuple[type[Kind], ...]] = (
    Rights,
    Programs,
    EndingSignals,
    Orphans,
    Namespaces,
    ProcessAttributes,
    KernelObjects,
    Memfds,
    Protection,
    ReservedAddresses,
    SystemV,
    Devices,
    Output,
    Terminals,
    InterruptedWaits,
    Sockets,
    Eventfds,
    Timers,
    CutConnections,
    AbstractNames,
    UnsentData,
    SocketStates,
    NamedSockets,
    ProcessFiles,
    DeletedFiles,
    OtherNames,
    Fifos,
    NamedFiles,
    Watches,
    UnixPeers,
    Locks,
    ClosedMemory,
)


def every() -> tuple[Kind, ...]:
    return tuple(kind() for kind in KINDS)

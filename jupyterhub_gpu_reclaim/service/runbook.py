"""Reads the meaning of each message and each alert, and what to do about it.

The service's page of messages shows both; it is where codes and the alerts'
``runbook_url`` lead. ``docs/how-to/messages.md`` and ``docs/reference/alerts.md`` are
generated from the same. Messages are in ``messages.yaml`` beside this file.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import NamedTuple

import msgspec

from jupyterhub_gpu_reclaim.common.models import Value


class Part(Value, frozen=True, kw_only=True):
    """Messages that belong to the same occasion; texts are Markdown."""

    title: str
    about: str
    messages: dict[str, tuple[str, str]]  #: code → cause, and what to do


@cache
def messages_by_part() -> tuple[Part, ...]:
    """Cause and action of every message, in the order of the how-to."""
    text = (files(__package__) / "messages.yaml").read_bytes()
    return msgspec.yaml.decode(text, type=tuple[Part, ...])


class Alert(NamedTuple):
    """An alert; backticks hold a command, a setting or an address."""

    name: str
    meaning: str
    action: str


ALERTS = (
    Alert(
        "GpuReclaimServiceDown",
        "The service is not scraped.",
        "Does `/services/gpu-reclaim/` open? If it does, check the address and the"
        " token of the scrape. If not, read the Hub's log; the Hub starts the service"
        " again every 30 s.",
    ),
    Alert(
        "GpuReclaimAgentSilent",
        "No agent tells what sessions do.",
        "Look at `systemctl status jupyterhub-gpu-reclaim-agent` on the sessions'"
        " machines, or at the DaemonSet's pods.",
    ),
    Alert(
        "GpuReclaimNothingWatched",
        "Sessions run, and none is measured.",
        "`jupyterhub-gpu-reclaim why USER` says why, and so does the agent's log.",
    ),
    Alert(
        "GpuReclaimResumeFailed",
        "Somebody could not get back to their session.",
        "Look up the alert's code among the messages. The service's log names the"
        " session.",
    ),
    Alert(
        "GpuReclaimSuspendsFail",
        "One suspend in five fails.",
        "The dashboard shows the code; look it up among the messages. Often it is one"
        " program that many use.",
    ),
    Alert(
        "GpuReclaimStoreFails",
        "The store is full or does not answer.",
        "Look up the alert's code among the messages. Nothing can be suspended until"
        " then.",
    ),
    Alert(
        "GpuReclaimStoreAbsent",
        "The store is not mounted, another one is in its place, or it does not answer.",
        "Mount it, or correct `AgentApp.store_url`; it is used again by itself. If it"
        " was changed on purpose: `jupyterhub-gpu-reclaim store adopt`.",
    ),
    Alert(
        "GpuReclaimStoreFillsUp",
        "Less than a tenth of the store is left, or it will be full within a day.",
        "Make the store larger, or keep checkpoints for a shorter time"
        " (`ReclaimService.keep_days`, `set_aside_days`).",
    ),
    Alert(
        "GpuReclaimAgentDown",
        "An agent is silent, or cannot save sessions.",
        "The page Nodes says which one, and why.",
    ),
    Alert(
        "GpuReclaimIdleKept",
        "GPUs have been idle for half a day, and somebody keeps them.",
        "Talk to the sessions' users. `ReclaimService.keep_limit` bounds how"
        " long they may keep them.",
    ),
    Alert(
        "GpuReclaimSavedSessionUnreadable",
        "A checkpoint is damaged, or its key is missing.",
        "Delete nothing. Run `jupyterhub-gpu-reclaim store verify`, and look for the"
        " master key.",
    ),
    Alert(
        "GpuReclaimStoreDamaged",
        "A verification found damaged checkpoints.",
        "The log of the verification names them. Delete nothing; look for another copy"
        " of the store, and at its disks.",
    ),
    Alert(
        "GpuReclaimDrillFailed",
        "A restore drill did not bring a session back.",
        "`jupyterhub-gpu-reclaim store drill` names the cause. A session from a pod is"
        " only read, and counts as not brought back.",
    ),
    Alert(
        "GpuReclaimCheckOverdue",
        "There has been no verification, or no drill, for 8 days.",
        "Look at its timer: `systemctl list-timers`, and the log of its unit.",
    ),
    Alert(
        "GpuReclaimSuspendStuck",
        "A suspend does not end.",
        "`jupyterhub-gpu-reclaim sessions --state suspending` shows its steps; the"
        " agent's log says more.",
    ),
    Alert(
        "GpuReclaimSessionUnsaved",
        "A session with a GPU has gone on for a day without a save point.",
        "One that never naps is saved by order: `jupyterhub-gpu-reclaim save USER`,"
        " or let it nap (`NapPolicy`).",
    ),
    Alert(
        "GpuReclaimDrainLeft",
        "A node is being drained, and sessions on it cannot be saved.",
        "The page of nodes says why; ask their users to save what they need, or end the"
        " drain: `jupyterhub-gpu-reclaim undrain NODE`.",
    ),
    Alert(
        "GpuReclaimPeopleWait",
        "There has been a queue for a GPU for half an hour.",
        "Let idle sessions go earlier while somebody waits"
        " (`PressurePolicy.pressure_idle_after`), or add GPUs.",
    ),
    Alert(
        "GpuReclaimStepsSlow",
        "A step of a suspend or a resume takes minutes.",
        "Look at the store's bandwidth, and at how many sessions are saved at the same"
        " time (`ReclaimService.captures`).",
    ),
)

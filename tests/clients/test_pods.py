"""Pods as a real API server tells them, decoded."""

import msgspec

from jupyterhub_gpu_reclaim.common.models import SessionKey
from jupyterhub_gpu_reclaim.service.clients.pods import (
    Pod,
    Pods,
    Refusal,
    WatchEvent,
)

#: A pod of Kubernetes 1.36, shortened; with fields that we do not know.
POD = b"""{
"kind": "Pod", "apiVersion": "v1",
"metadata": {"name": "jupyter-ada", "namespace": "hub", "uid": "u-1",
  "resourceVersion": "4711", "generation": 1,
  "creationTimestamp": "2026-11-21T20:00:00Z",
  "labels": {"gpu-reclaim/incarnation": "abc", "component": "singleuser-server"},
  "annotations": {"gpu-reclaim/user": "ada", "gpu-reclaim/server": ""},
  "managedFields": [{"manager": "x", "operation": "Update"}]},
"spec": {"nodeName": "gpu-1", "containers": [
  {"name": "side", "image": "busybox", "resources": {}},
  {"name": "notebook", "image": "base:1",
   "resources": {"limits": {"nvidia.com/gpu": "1", "memory": "8Gi"}}}]},
"status": {"phase": "Running", "podIP": "10.1.2.3", "podIPs": [{"ip": "10.1.2.3"}],
  "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": null}],
  "containerStatuses": [
   {"name": "side", "ready": false, "imageID": "s", "state": {"terminated": {}}},
   {"name": "notebook", "ready": true, "restartCount": 0, "started": true,
    "imageID": "docker-pullable://quay.io/base@sha256:12", "lastState": {},
    "state": {"running": {"startedAt": "2026-11-21T20:00:02Z"}}}]}}"""
BOOKMARK = b"""{"type": "BOOKMARK", "object": {"kind": "Pod", "apiVersion": "v1",
"metadata": {"resourceVersion": "99", "creationTimestamp": null},
"spec": {"containers": null}, "status": {}}}"""
ERROR = b"""{"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1",
"metadata": {}, "status": "Failure", "message": "too old resource version: 1 (2)",
"reason": "Expired", "code": 410}}"""


def test_a_pod_says_whose_it_is_where_and_what_it_runs():
    pod = msgspec.json.decode(POD, type=Pod)
    assert pod.key == SessionKey("ada")
    assert (pod.incarnation, pod.node, pod.uid) == ("abc", "gpu-1", "u-1")
    assert pod.image == "quay.io/base@sha256:12"
    assert pod.ready
    assert pod.wants_gpu
    assert not pod.unscheduled
    assert not pod.over  # the sidecar's end is not the session's


def test_lines_of_a_watch_are_events_bookmarks_and_errors():
    def told(line, kind):
        event = msgspec.json.decode(line, type=WatchEvent)
        return msgspec.json.decode(event.object, type=kind)

    assert told(b'{"type": "ADDED", "object": ' + POD + b"}", Pod).key.user == "ada"
    bookmark = told(BOOKMARK, Pod)
    assert bookmark.metadata.resource_version == "99"
    assert not bookmark.wants_gpu
    assert told(ERROR, Refusal).code == 410


def test_a_list_without_anything_may_say_null():
    listed = b'{"metadata": {"resourceVersion": "7"}, "items": null}'
    assert msgspec.json.decode(listed, type=Pods).items is None

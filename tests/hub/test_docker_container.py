"""What Docker is asked for: the session's init in it, and nothing else changed."""

import pytest

from jupyterhub_gpu_reclaim.common.errors import Refused
from jupyterhub_gpu_reclaim.common.models import Identity
from jupyterhub_gpu_reclaim.common.reasons import Reason
from jupyterhub_gpu_reclaim.hub.docker.container import prepared
from jupyterhub_gpu_reclaim.hub.spawner.placement import Purpose
from jupyterhub_gpu_reclaim.session_init import command_line
from jupyterhub_gpu_reclaim.session_init.command_line import InitArguments

GPUS = [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}]
IMAGE = "sha256:" + "1" * 64
ASKED = {
    "image": "lab:latest",
    "command": ["jupyterhub-singleuser", "--debug"],
    "environment": {"JUPYTERHUB_API_TOKEN": "fresh", "A": "b"},
    "labels": {"of": "the admin"},
    "host_config": {"DeviceRequests": GPUS, "Binds": ["a:b:rw"], "AutoRemove": True},
    "name": "jupyter-ann",
}


def purpose(*, holding=False):
    saved = Identity(api_token="known", port=1, image=IMAGE)
    return Purpose(init=arguments(holding=holding), saved=saved if holding else None)


def arguments(*, holding):
    more = {"session": "its-id", "account": "7.x"}
    return InitArguments("inc-1", "ann", "--gpu", "lab", holding, **more)


def read(words):
    return command_line.parse([word.encode() for word in words])


def test_start_puts_the_init_before_the_command_and_keeps_the_rest():
    made = prepared(ASKED, purpose())
    words = made["command"]
    assert words[words.index("--") :] == ["--", "jupyterhub-singleuser", "--debug"]
    assert read(words) == arguments(holding=False)
    assert made["labels"] == {
        "of": "the admin",
        **command_line.labels(arguments(holding=False)),
    }
    assert "entrypoint" not in made
    assert made["host_config"] == {
        **ASKED["host_config"],
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
    }
    assert made["environment"] == {
        **ASKED["environment"],
        **command_line.inline_environment(),
    }


def test_hold_is_the_init_alone_in_the_saved_image_with_the_same_gpus():
    asked = {**ASKED, "entrypoint": ["tini", "--"]}
    asked["host_config"] = {**ASKED["host_config"], "Init": True}
    made = prepared(asked, purpose(holding=True))
    assert read(made["entrypoint"]) == arguments(holding=True)
    assert made["command"] is None
    assert made["image"] == IMAGE
    assert made["environment"] == {
        "JUPYTERHUB_API_TOKEN": "known",
        "A": "b",
        **command_line.inline_environment(),
    }
    assert made["host_config"]["DeviceRequests"] == GPUS
    assert made["host_config"]["Binds"] == ["a:b:rw"]
    assert made["host_config"]["Init"] is False


def test_what_was_asked_for_stays_as_it_is():
    prepared(ASKED, purpose(holding=True))
    assert ASKED["image"] == "lab:latest"
    assert "RestartPolicy" not in ASKED["host_config"]
    assert ASKED["environment"] == {"JUPYTERHUB_API_TOKEN": "fresh", "A": "b"}


def test_words_and_names_alone_are_taken_as_docker_takes_them():
    asked = {"command": "jupyter lab", "labels": ["bare"]}
    asked["environment"] = ["A=b=c", "B"]
    made = prepared(asked, purpose())
    assert made["command"][-2:] == ["jupyter", "lab"]
    assert made["labels"]["bare"] == ""
    for each in (made, prepared(asked, purpose(holding=True))):
        assert each["environment"] == {
            "A": "b=c",
            "B": None,
            **command_line.inline_environment(),
        }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"host_config": {"PidMode": "host"}}, "pid_mode 'host'"),
        ({"command": None}, "neither its image nor"),
    ],
)
def test_container_that_could_not_be_suspended_is_refused(change, said):
    with pytest.raises(Refused) as caught:
        prepared({**ASKED, **change}, purpose())
    assert caught.value.reason is Reason.PLACE_UNSUITABLE
    assert said in str(caught.value)

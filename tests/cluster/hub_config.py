"""JupyterHub's configuration for hub.yaml; deployment.py appends to it."""

from jupyterhub_gpu_reclaim.hub.config import configure

c = get_config()  # type: ignore[name-defined] # noqa: F821
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True

c.JupyterHub.hub_bind_url = "http://:8081"
c.JupyterHub.hub_connect_url = "http://hub:8081"
c.JupyterHub.db_url = "sqlite:////srv/jupyterhub/jupyterhub.sqlite"
c.JupyterHub.cookie_secret_file = "/srv/jupyterhub/cookie_secret"
c.ConfigurableHTTPProxy.should_start = False
c.ConfigurableHTTPProxy.api_url = "http://proxy-api:8001"

c.KubeSpawner.image = "quay.io/jupyterhub/k8s-singleuser-sample:4.4.0"
c.KubeSpawner.storage_pvc_ensure = True
c.KubeSpawner.storage_capacity = "10Gi"
c.KubeSpawner.pvc_name_template = "home-{user_server}"
c.KubeSpawner.volumes = [
    {"name": "home", "persistentVolumeClaim": {"claimName": "home-{user_server}"}}
]
c.KubeSpawner.volume_mounts = [{"name": "home", "mountPath": "/home/jovyan"}]
c.KubeSpawner.uid = 1000
c.KubeSpawner.fs_gid = 100
c.KubeSpawner.mem_guarantee = "512M"

configure(
    c,
    placement="kubernetes",
    idle_after=30 * 60,
    agent_token_file="/etc/gpu-reclaim/token",
    state_dir="/srv/jupyterhub/gpu-reclaim",
    agent_ca_file="/etc/gpu-reclaim/ca.crt",
    agent_namespace="gpu-reclaim",
)

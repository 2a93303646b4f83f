import pytest

from jupyterhub_gpu_reclaim.common.traits import Seconds
from jupyterhub_gpu_reclaim.policy.guards import Guards
from jupyterhub_gpu_reclaim.policy.idle import IdlePolicy
from jupyterhub_gpu_reclaim.policy.nap import NapPolicy


@pytest.mark.parametrize("kind", [IdlePolicy, Guards, NapPolicy])
def test_every_trait_says_what_it_means_and_gives_an_example(kind):
    traits = kind.class_own_traits(config=True)
    assert traits
    for name, trait in traits.items():
        assert len(trait.help) > 80, name
        assert "Example:" in trait.help, name
        if isinstance(trait, Seconds):
            assert trait.help.startswith("Seconds"), name
            assert " 0" in trait.help, name

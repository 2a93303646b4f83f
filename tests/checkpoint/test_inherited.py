"""What comes back has nothing of the agent that started CRIU."""

from __future__ import annotations

from tests.support import keys


def test_restored_session_cannot_read_the_keys_of_the_agent(places, engine):
    world = places.world()
    keys.join_session_keyring()
    keys.add_key("of-the-agent", "secret")
    assert keys.find_key("of-the-agent") == "secret"
    world = engine.cycle(world, places)
    world(keys.CODE)
    assert world("find_key('of-the-agent')") is None


def test_restored_sessions_do_not_share_their_keys(places, engine):
    keys.join_session_keyring()
    one, other = (engine.cycle(places.world(), places) for _ in range(2))
    one(keys.CODE)
    other(keys.CODE)
    one("add_key('of-one', 'secret')")
    assert one("find_key('of-one')") == "secret"
    assert other("find_key('of-one')") is None

"""The laws, checked at the moment at which each could be broken.

The ledger knows what no part of the product knows: every word that a session's memory
ever was, and what its user has given up by a person's word. A word that begins with
another one came after it (``a.1.2`` after ``a.1``), so "newer" needs no clock.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from simulation.doubles.kernel import MEMORY, Memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from jupyterhub_gpu_reclaim.common.models import (
        CheckpointInfo,
        SessionKey,
        StartPlan,
    )
    from simulation.doubles.machine import Machines, Place, ProgramTree
    from simulation.doubles.store import StoreInMemory
    from simulation.history import History


class Ledger:
    """What every session's memory was, is, and may be again."""

    def __init__(
        self, history: History, machines: Machines, store: StoreInMemory
    ) -> None:
        self.history = history
        self._machines = machines
        self._store = store
        #: of every checkpoint that was ever committed
        self.contents: dict[str, str] = {}
        self._stuck: set[str] = set()  #: those with which no return succeeds
        #: whether a tree runs but for its kernel, which its agent will wake
        self.naps: Callable[[Place], bool] = lambda place: False
        self._given_up: dict[SessionKey, list[str]] = defaultdict(list)
        self._chosen: dict[SessionKey, str] = {}
        self._wishes: dict[SessionKey, object] = {}
        self._lives: dict[SessionKey, int] = defaultdict(int)
        self._words = 0
        #: words of accounts that were deleted, and the account
        self._former: dict[SessionKey, list[tuple[str, str]]] = defaultdict(list)
        self._accounts: dict[str, str] = {}  #: of each life, by its first word
        self._unknown_to_be_deleted: set[SessionKey] = set()

    # --- words
    def new_life(self, key: SessionKey) -> str:
        """The word of a session that is started from nothing."""
        self._lives[key] += 1
        return f"{key.user}{self._lives[key]}"

    def work(self, key: SessionKey, tree: ProgramTree) -> None:
        """It is something else from now on, that nothing has saved.

        Once its user has given it up, as by a stop, that goes for what it does until
        its end, too.
        """
        given_up = self.is_given_up(key, tree.contents)
        self._words += 1
        tree.contents += f".{self._words}"
        if given_up:
            self.give_up(key, tree.contents)

    def give_up(self, key: SessionKey, contents: str) -> None:
        """A person has said that this, and what it came from, is not needed."""
        self._given_up[key].append(contents)

    def give_up_all(self, key: SessionKey) -> None:
        """A person has said so of all that there is of a session."""
        self.unchoose(key)
        for place in self._machines.of_session(key):
            if place.tree is not None:
                self.give_up(key, place.tree.contents)
        for saved in self._store.saved.values():
            if saved.info.key == key:
                self.give_up(key, self.contents[saved.info.id])

    def account_deleted(self, key: SessionKey, account: str) -> None:
        """All that was given up until now belonged to that account, which is no more.

        Unless the Hub's database is put back, which then knows no other one; and but
        for what was begun between the deletions of an earlier one's server and of it.
        """
        self._unknown_to_be_deleted.discard(key)
        self._former[key] = [
            (word, self._accounts.get(word.partition(".")[0], account))
            for word in self._given_up[key]
        ]

    def orders_lost(self) -> None:
        """The journal is lost, or of before: no deletion that was ordered is known."""
        self._unknown_to_be_deleted.update(self._former)

    def give_to_account(self, key: SessionKey) -> None:
        """An administrator says that what is there is its name's, whoever has that.

        It is not deleted any more unless somebody knows that it was.
        """
        if key in self._unknown_to_be_deleted:
            self._former[key] = []

    def choose(self, key: SessionKey, checkpoint: str) -> Callable[[], None]:
        """A person wants that checkpoint, and no newer one, to come back.

        Returns:
            To be called when that wish is refused: an earlier one holds, unless
            there was a later one meanwhile.
        """
        before, self._wishes[key] = self._chosen.get(key, ""), object()
        mine, self._chosen[key] = self._wishes[key], self.contents.get(checkpoint, "")

        def undo() -> None:
            if self._wishes[key] is mine:
                self._chosen[key] = before

        return undo

    def unchoose(self, key: SessionKey) -> None:
        """Nothing is wanted but the newest."""
        self._chosen[key] = ""

    def expected(self, key: SessionKey) -> list[str]:
        """What whoever comes back may find: what was chosen, if that came to pass.

        Nobody can have back what no return succeeds with: a save point may be all that
        is left of a session that ended while it was made, before it was rehearsed.
        """
        saved = self.saved(key).items()
        there = {word for name, word in saved if name not in self._stuck}
        there.update(self.standing(key))
        newest = [word for word in self.newest(key) if word in there]
        chosen = self._chosen.get(key, "")
        return [*newest, chosen] if newest and chosen else newest

    def is_given_up(self, key: SessionKey, contents: str) -> bool:
        return any(is_after(each, contents) for each in self._given_up[key])

    # --- what there is
    def saved(self, key: SessionKey) -> dict[str, str]:
        """Word of each committed checkpoint of a session that somebody needs."""
        return {
            each.info.id: self.contents[each.info.id]
            for each in self._store.saved.values()
            if each.info.key == key
            and not self.is_given_up(key, self.contents[each.info.id])
        }

    def standing(self, key: SessionKey) -> list[str]:
        """Words of the trees of a session that stand and that somebody needs."""
        return [
            place.tree.contents
            for place in self._machines.of_session(key)
            if place.tree is not None
            and place.tree.whole
            and not self.is_given_up(key, place.tree.contents)
        ]

    def newest(self, key: SessionKey) -> list[str]:
        """The words that nothing came after: one, or rivals."""
        words = {*self.saved(key).values(), *self.standing(key)}
        return sorted(
            word
            for word in words
            if not any(other != word and is_after(other, word) for other in words)
        )

    def is_left(self, key: SessionKey, account: str) -> bool:
        """Whether a session of that account runs or is saved under that name."""
        saved = self._store.saved.values()
        whose = {each.info.account for each in saved if each.info.id in self.saved(key)}
        whose |= {
            place.account
            for place in self._machines.of_session(key)
            if place.tree is not None and place.tree.contents in self.standing(key)
        }
        return account in whose

    # --- moments
    def committed(self, info: CheckpointInfo, files: dict[str, bytes]) -> None:
        memory = msgspec.json.decode(files[MEMORY], type=Memory)
        word = memory.contents
        if memory.stuck:
            self._stuck.add(info.id)
        for each in self._store.saved.values():
            other = each.info
            if other.key == info.key and other.id != info.id:
                older = self.contents[other.id]
                if other.stamp >= info.stamp and is_after(word, older):
                    self._wrong(
                        "stamp",
                        f"{info.id} has stamp {info.stamp}, as {other.id} before it"
                        f" has {other.stamp}",
                    )
        self.contents[info.id] = word
        self.history.say(
            f"{info.key} is committed as {info.id}, stamp {info.stamp}, holding {word}"
        )

    def deleted(self, who: str, info: CheckpointInfo, stood: list[str]) -> None:
        """A checkpoint is gone.

        Args:
            who: deleted it.
            info: what it was.
            stood: words of the trees that stood as the deletion began. One that ends
                while a slow store deletes is nobody's fault.
        """
        key, word = info.key, self.contents[info.id]
        self.history.say(f"{who} deletes {info.id} of {key}")
        if self.is_given_up(key, word):
            return
        if not any(
            is_after(other, word)
            for other in (*self.saved(key).values(), *self.standing(key), *stood)
        ):
            self._wrong(
                "only state", f"{who} has deleted {info.id}, all that {key} had"
            )

    def ended(self, place: Place, who: str) -> None:
        """An init, or the tree under it, was ended by somebody."""
        tree, key = place.tree, place.key
        if tree is None:
            self.history.say(f"{who} ends the empty place of {key}")
            return
        self.history.say(f"{who} ends the tree of {key} that holds {tree.contents}")
        if not tree.whole or who.startswith("fault") or who == "the machine":
            return
        if self.is_given_up(key, tree.contents):
            return
        others = [
            other.tree.contents
            for other in self._machines.of_session(key)
            if other is not place and other.tree is not None and other.tree.whole
        ]
        saved = self.saved(key)
        kept = [*saved.values(), *others]
        if not any(is_after(word, tree.contents) for word in kept):
            self._wrong(
                "no end before the commit",
                f"{who} has ended {tree.contents} of {key}, which is not saved",
            )
        kept = [w for name, w in saved.items() if name not in self._stuck] + others
        if not any(is_after(word, tree.contents) for word in kept):
            self._wrong(
                "no end before the rehearsal",
                f"{who} has ended {tree.contents} of {key}, which cannot come back",
            )

    def begins_to_run(self, place: Place) -> None:
        running = [
            other
            for other in self._machines.of_session(place.key)
            if other.tree is not None
            and (other.tree.runs or self.naps(other))
            and not self.is_given_up(place.key, other.tree.contents)
        ]
        if len(running) > 1:
            words = " and ".join(p.tree.contents for p in running if p.tree)
            self._wrong("one tree", f"two trees of {place.key} run: {words}")

    def started_cold(self, place: Place) -> None:
        assert place.tree is not None
        self.history.say(f"{place.key} is started cold as {place.tree.contents}")
        key = place.key
        self._accounts[place.tree.contents] = place.account
        left = [word for word in self.newest(key) if word != place.tree.contents]
        if left:
            self._wrong(
                "no cold start in silence",
                f"{key} is started cold though {', '.join(left)} could come back",
            )
        self.begins_to_run(place)

    def restored(self, place: Place, checkpoint: str) -> None:
        assert place.tree is not None
        key, word = place.key, place.tree.contents
        self.history.say(f"{key} came back from {checkpoint} and holds {word}")
        whose = {old for each, old in self._former[key] if is_after(each, word)}
        if whose - {place.account}:
            self._wrong(
                "what is deleted stays so",
                f"{key} is {word}, of an account that is gone",
            )
        if word != self.contents.get(checkpoint):
            self._wrong("bytes", f"{key} is {word}, not what {checkpoint} holds")
        if self._chosen.pop(key, "") == word:
            for other in self.newest(key):
                if other != word:
                    self.give_up(key, other)
            return
        newer = [
            other
            for other in self.newest(key)
            if other != word and is_after(other, word)
        ]
        if newer:
            self._wrong(
                "the newest wins", f"{key} came back as {word}, {newer[0]} is newer"
            )

    def planned(self, key: SessionKey, plan: StartPlan) -> None:
        if plan.action == "refuse" and (
            plan.failure is None or not plan.failure.code or not plan.failure.message
        ):
            self._wrong("refusals have reasons", f"a start of {key} is refused")

    def _wrong(self, law: str, text: str) -> None:
        self.history.wrong(law, text)


def is_after(word: str, other: str) -> bool:
    return word == other or word.startswith(other + ".")

"""Much memory, in the shapes in which notebooks have it."""

from __future__ import annotations

import zlib

import numpy as np

from soak.zoo.keeper import digest


class Frame:
    """A pandas table with text, dates and categories."""

    ROWS = 100_000

    def __init__(self) -> None:
        import pandas as pd

        rng = np.random.default_rng(7)
        self.rng = rng
        self.frame = pd.DataFrame(
            rng.normal(size=(self.ROWS, 6)), columns=list("abcdef")
        )
        self.frame["text"] = [f"row {n % 997}" for n in range(self.ROWS)]
        self.frame["day"] = pd.date_range("2026-01-01", periods=self.ROWS, freq="min")
        self.frame["kind"] = pd.Categorical(rng.choice(["x", "y", "z"], self.ROWS))

    def look(self) -> tuple[str, int]:
        import pandas as pd

        rows = pd.util.hash_pandas_object(self.frame).to_numpy()
        sums = self.frame.groupby("kind", observed=True)["a"].sum()
        return digest(rows.tobytes(), sums.tolist()), 0

    def work(self) -> None:
        at = int(self.rng.integers(self.ROWS - 1000))
        self.frame.loc[at : at + 999, "b"] = self.rng.normal(size=1000)


class Model:
    """A random forest that gives the same answers after each return."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(7)
        self.work()

    def look(self) -> tuple[str, int]:
        return digest(self.model.predict_proba(self.rows).tobytes()), 0

    def work(self) -> None:
        from sklearn.ensemble import RandomForestClassifier

        self.rows = self.rng.normal(size=(2000, 8))
        labels = (self.rows.sum(axis=1) > 0).astype(int)
        self.model = RandomForestClassifier(n_estimators=10, random_state=7)
        self.model.fit(self.rows, labels)


class Gigabyte:
    """One gigabyte, a quarter of it random, which neither shrinks nor repeats."""

    BLOCK = 1 << 24
    BLOCKS = 60

    def __init__(self) -> None:
        self.rng = np.random.default_rng(7)
        self.blocks = [self._block(n) for n in range(self.BLOCKS)]

    def _block(self, number: int) -> np.ndarray:
        if number % 4 == 0:
            return np.frombuffer(self.rng.bytes(self.BLOCK), dtype=np.uint8).copy()
        return (np.arange(self.BLOCK // 8) * (number + 1)).view(np.uint8)

    def look(self) -> tuple[str, int]:
        return digest([zlib.crc32(block) for block in self.blocks]), 0

    def work(self) -> None:
        number = int(self.rng.integers(self.BLOCKS))
        self.blocks[number] = self._block(number)
        self.blocks[number - 1][:4096] = number

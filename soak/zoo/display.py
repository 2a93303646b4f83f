"""What a notebook shows: a figure, and widgets with their connections to the page."""

from __future__ import annotations

import io
import random

from soak.zoo.keeper import digest


class Figure:
    """A matplotlib figure, drawn again after each return."""

    def __init__(self) -> None:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot

        self.figure, self.axes = pyplot.subplots(figsize=(3, 2), dpi=60)
        self.random = random.Random(7)
        self.work()

    def look(self) -> tuple[str, int]:
        drawn = io.BytesIO()
        self.figure.savefig(drawn, format="raw")
        return digest(drawn.getvalue()), 0

    def work(self) -> None:
        self.axes.plot([self.random.random() for _ in range(50)])
        for line in self.axes.lines[:-5]:
            line.remove()


class Widgets:
    """Sliders that are linked to each other, and what observes them."""

    def __init__(self) -> None:
        import ipywidgets
        import traitlets

        self.sliders = [ipywidgets.IntSlider(max=10**6) for _ in range(4)]
        self.seen: list[int] = []
        for one, other in zip(self.sliders, self.sliders[1:], strict=False):
            traitlets.link((one, "value"), (other, "value"))
        self.sliders[-1].observe(lambda new: self.seen.append(new.new), "value")

    def look(self) -> tuple[str, int]:
        names = [slider.comm.comm_id for slider in self.sliders]
        values = [slider.value for slider in self.sliders]
        return digest(names, values, self.seen), 0

    def work(self) -> None:
        self.sliders[0].value = len(self.seen) + 1
        assert self.sliders[-1].value == len(self.seen)

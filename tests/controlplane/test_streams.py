"""News to readers: bounded, and the end is never left out."""

from jupyterhub_gpu_reclaim.common.models import Event, Failure, Step
from jupyterhub_gpu_reclaim.controlplane.runtime import EVENT_LIMIT, OperationEvents


def test_operation_with_very_many_steps_still_tells_its_end():
    operation = OperationEvents("suspend")
    for number in range(EVENT_LIMIT + 10):
        step = Step(step="dump", title="Saving", state="going", bytes=number)
        operation.add(Event(step=step))
    assert not operation.ended
    operation.add(Event(failure=Failure(code="cancelled", message="Called off.")))
    assert operation.ended
    assert not operation.succeeded


async def test_operation_reader_of_very_many_steps_hears_the_end():
    operation = OperationEvents("resume")
    for _ in range(EVENT_LIMIT + 1):
        operation.add(Event(step=Step(step="memory", title="Bringing back")))
    end = Event(failure=Failure(code="cancelled", message="Called off."))
    operation.add(end)
    events = [event async for event in operation.read()]
    assert events[-1] is end
    assert len(events) == EVENT_LIMIT + 1

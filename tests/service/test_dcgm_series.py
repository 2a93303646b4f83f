"""What the exporter's series say of a pod: what is old, odd or of others is no word."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyterhub_gpu_reclaim.service.dcgm.series import (
    ExporterAnswer,
    Names,
    Owner,
    Series,
    query,
)
from tests.support import dcgm

NOW, SPAN = 1_700_000_000.0, 90.0
ADA = Owner("jhub", "jupyter-ada")
UUID = "GPU-e27adf4b-65b8-8824-c6b2-59c163127b06"
OTHER = UUID[:-1] + "7"
USE, MEMORY = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED"
ENGINE, SM = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_SM_ACTIVE"


def series(
    name: str, *values, pod: str = ADA.name, uuid: str = UUID, **labels
) -> Series:
    """Values 15 s apart, the last one now; None: was not scraped then."""
    labels = {"namespace": "jhub", "pod": pod, "UUID": uuid, **labels}
    at = [NOW - 15.0 * back for back in reversed(range(len(values)))]
    told = [(t, str(v)) for t, v in zip(at, values, strict=True) if v is not None]
    return Series({"__name__": name, **labels}, told)


def see(*some: Series, count: int = 1, since: float = NOW - SPAN, names=dcgm.NAMES):
    return ExporterAnswer(some, names, NOW, SPAN).of(ADA, count, since)


def use(*some: Series, **more) -> float | None:
    (card,) = see(*some, **more)
    return card.sm_percent


def test_the_question_is_for_all_series_at_once():
    text = query(90, 'cluster="one"')
    assert text.startswith('{__name__=~"DCGM_FI_DEV_GPU_UTIL|')
    assert text.endswith(',cluster="one"}[90000ms]')
    assert query(90).endswith('FB_USED"}[90000ms]')


def test_work_at_any_look_counts_since_there_are_few_of_them():
    assert use(series(USE, 0, 70, 0)) == 70


@pytest.mark.parametrize("name", [ENGINE, SM])
def test_of_several_measures_the_one_that_shows_work_counts(name):
    assert use(series(USE, 0), series(name, 0.31)) == pytest.approx(31)
    assert use(series(USE, 40), series(name, 0.0)) == 40


@pytest.mark.parametrize(
    "odd", ["NaN", "+Inf", "-1", "101", "9223372036854775794", "x", ""]
)
def test_a_value_that_is_none_is_not_taken(odd):
    assert use(series(USE, odd)) is None
    assert use(series(USE, 12, odd)) == 12
    assert use(series(USE, odd), series(ENGINE, 0)) == 0


def test_a_ratio_over_one_is_all_of_it_and_far_over_is_none():
    assert use(series(ENGINE, 1.004)) == 100
    assert use(series(ENGINE, 86)) is None


def test_what_is_older_than_the_span_says_nothing():
    old = [3, *[None] * 7]  # 105 s ago
    assert see(series(USE, *old)) is None
    assert use(series(USE, *old), series(MEMORY, 868)) is None


def test_a_pod_of_the_same_name_that_was_before_says_nothing_of_this_one():
    before = series(USE, 0, 0, None, None, uuid=OTHER)
    assert see(before, since=NOW - 20) is None
    found = see(before, series(USE, 50), since=NOW - 20)
    assert [card.sm_percent for card in found] == [50]


def test_more_or_fewer_cards_than_were_given_make_all_of_them_unknown():
    two = series(USE, 0), series(USE, 0, uuid=OTHER)
    assert see(*two) is None
    assert see(two[0], count=2) is None
    assert len(see(*two, count=2)) == 2
    assert len(see(*two, count=0)) == 2


def test_a_card_that_goes_from_one_pod_to_the_next_is_not_shared():
    before = series(USE, 90, 90, None, None, pod="jupyter-bob")
    assert use(before, series(USE, 0, 0)) == 0


def test_a_card_that_two_pods_have_at_a_time_is_shared_also_with_one_of_no_use():
    bob = series(USE, 5, 5, pod="jupyter-bob")
    assert use(series(USE, 0, 0), bob) is None
    (card,) = see(series(USE, 0, 0), series(MEMORY, 868), bob)
    assert card.memory is None
    silent = series(USE, "NaN", "NaN", pod="jupyter-bob")
    assert use(series(USE, 0, 0), silent) is None


def test_the_exporter_s_own_pod_is_no_user_where_its_labels_are_renamed():
    mine = {"namespace": "gpu-operator", "exported_namespace": "jhub"}
    ada = series(USE, 40, pod="exporter", exported_pod=ADA.name, **mine)
    spare = series(USE, 0, pod="exporter", uuid=OTHER, namespace="gpu-operator")
    assert use(ada, spare) == 40


def test_old_names_of_labels_are_read_where_they_are_set():
    one = Series(
        {"__name__": USE, "UUID": UUID, "pod_namespace": "jhub", "pod_name": ADA.name},
        [(NOW, "7")],
    )
    assert see(one) is None
    assert use(one, names=[Names("pod_namespace", "pod_name")]) == 7


def test_two_replicas_of_prometheus_tell_of_one_card():
    assert use(series(USE, 10, replica="a"), series(USE, 12, replica="b")) == 12


@pytest.mark.parametrize(
    "labels",
    [{"uuid": "x"}, {"uuid": ""}, {"GPU_I_ID": "-1"}, {"GPU_I_ID": "9" * 40}],
)
def test_what_is_no_card_is_left_out(labels):
    assert see(series(USE, 0, **labels)) is None


texts = st.sampled_from(
    [USE, ENGINE, MEMORY, "", UUID, "jhub", "jupyter-ada", "1", "é"]
)
numbers = st.floats() | st.sampled_from([NOW, NOW - 30])
names = st.sampled_from(
    ["__name__", "UUID", "GPU_I_ID", "namespace", "pod", "exported_pod", "modelName"]
)


@settings(max_examples=60)
@given(
    st.lists(
        st.builds(
            Series,
            st.dictionaries(names, texts | st.text(max_size=5)),
            st.lists(st.tuples(numbers, st.text(max_size=4) | numbers.map(str))),
        )
    )
)
def test_whatever_comes_is_understood_or_left_out(some):
    for card in see(*some, count=0) or []:
        assert card.sm_percent is None or 0 <= card.sm_percent <= 100
        assert card.memory is None or card.memory >= 0
